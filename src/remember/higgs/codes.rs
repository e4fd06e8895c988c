//! Codes in the order of FLUTE's kernels.
//!
//! A tile is some rows of the weight, cut into lanes of adjacent rows. 32 bits of a stored row
//! have, for one pair of columns, the codes of one row of each lane, lowest bits first.
//!
//! Codes of 3 bits take three such words, in planes: five pairs each, of every third lane, and two
//! bits of the pair of the last lane.

use std::ops::Range;

use crate::Result;
use crate::model::Part;
use crate::remember::kernels::rotated_pairs::LaneCodes;
use crate::remember::layout::vectors::VectorCodes;
use crate::remember::seam::{Tile, read};
use crate::simd::{Level, perform};

/// Kinds of tiles that templates take in turn.
const KINDS: u64 = 3;

/// How a kernel of FLUTE wants its codes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct FluteTiles {
    pub bits: usize,
    /// Rows of the weight for each lane: `TileP`.
    pub height: usize,
}

impl FluteTiles {
    /// The tiles of a template. `None` if there is none of that number, or none that packs so many
    /// bits.
    pub(super) fn of(bits: usize, template: u64) -> Option<Self> {
        // Templates differ in blocks of a multiprocessor, then in tiles, then in 4 stages, and
        // those of 4 bits in 4 modes.
        let same = if bits == 4 { 16 } else { 4 };
        let height = if (template / same).is_multiple_of(KINDS) {
            64
        } else {
            32
        };
        let is_there = template < same * KINDS * 3 && !(bits == 3 && height == 64);
        is_there.then_some(Self { bits, height })
    }

    /// Rows of the weight that the words of a stored row have codes of.
    fn lanes(self) -> usize {
        match self.bits {
            2 => 8,
            3 => 16,
            _ => 4,
        }
    }

    /// Words of 32 bits for the pairs of all lanes.
    fn planes(self) -> usize {
        if self.bits == 3 { 3 } else { 1 }
    }

    /// Rows of the weight in a tile.
    pub(super) fn rows(self) -> usize {
        self.lanes() * self.height
    }
}

/// The codes of a layer.
#[derive(Clone, Copy)]
pub(super) struct FluteCodes<'m> {
    pub part: Part<'m>,
    pub tiles: FluteTiles,
    /// Rows of the weight: whole tiles.
    pub rows: usize,
    /// Columns, an even number.
    pub cols: usize,
}

impl FluteCodes<'_> {
    /// The stored rows of a plane of a tile. The planes behind the first lie behind the first
    /// planes of all tiles.
    fn stored_rows(&self, tile: usize, plane: usize) -> Range<usize> {
        let height = self.tiles.height;
        let first = match plane {
            0 => tile * height,
            _ => {
                let before = tile * (self.tiles.planes() - 1) + plane - 1;
                self.rows / self.tiles.lanes() + before * height
            }
        };
        first..first + height
    }
}

impl FluteCodes<'_> {
    /// Replaces `out` with the codes of `tile`, a byte each, row-major. `staging` is scratch.
    ///
    /// # Errors
    /// The read fails.
    pub(super) fn load_bytes(
        &self,
        tile: &Tile,
        staging: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let FluteTiles { bits, height } = self.tiles;
        let (lanes, planes) = (self.tiles.lanes(), self.tiles.planes());
        let tiles = tile.rows.start / self.tiles.rows()..tile.rows.end / self.tiles.rows();
        // A lane has `height` rows of the weight, which are adjacent.
        let lane_len = height * (tile.cols.len() / 2);
        out.resize(tile.rows.len() * (tile.cols.len() / 2), 0);
        for (number, out) in tiles.zip(out.chunks_exact_mut((lanes * lane_len).max(1))) {
            for plane in 0..planes {
                let bytes = tile.cols.start * 2..tile.cols.end * 2;
                let rows = self.stored_rows(number, plane);
                read(&self.part, self.cols * 2, rows, bytes, staging)?;
                let mut all: Vec<_> = out.chunks_exact_mut(lane_len.max(1)).collect();
                let rest = if planes > 1 { all.pop() } else { None };
                let mut codes = LaneCodes {
                    words: staging.as_chunks().0,
                    bits: 2 * bits,
                    lanes: all.into_iter().skip(plane).step_by(planes).collect(),
                    rest: rest.map(|lane| (lane, 2 * plane)),
                };
                perform(Level::default(), &mut codes);
            }
        }
        Ok(())
    }
}

impl VectorCodes for FluteCodes<'_> {
    fn load(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u32>) -> Result<()> {
        let mut codes = Vec::new();
        self.load_bytes(tile, staging, &mut codes)?;
        out.clear();
        out.extend(codes.into_iter().map(u32::from));
        Ok(())
    }
}
