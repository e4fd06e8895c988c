//! The seam between schemes and the pipeline: any tile of a logical tensor decodes on any thread.

use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::element::Out;
use crate::scheme::seam::{Family, GroupCodes};
use crate::simd::Level;

/// How the pipeline may cut a logical tensor. Values lie row-major: value (r, c) of the grid is element
/// `r * cols + c` of the tensor, whatever its rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub rows: usize,
    pub cols: usize,
    /// Tiles start at multiples of these, or end the grid.
    pub row_align: usize,
    pub col_align: usize,
    /// Bits that a loaded value takes in the buffers, scales included.
    pub load_bits: f64,
    /// Input runs across rows, so that tall tiles read longer pieces.
    pub transposed: bool,
}

/// A rectangle of a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tile {
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

impl Tile {
    /// Number of values.
    pub(crate) fn values(&self) -> usize {
        self.rows.len() * self.cols.len()
    }

    /// Whether it is the one that every grid begins with.
    #[cfg(feature = "lethe")]
    pub(crate) fn is_first(&self) -> bool {
        self.rows.start == 0 && self.cols.start == 0
    }

    /// The runs of values that follow one another in a tensor of `cols` columns: where each begins there, and where it
    /// is in the tile.
    #[cfg(feature = "lethe")]
    pub(crate) fn runs(&self, cols: usize) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (first, width) = (self.rows.start * cols + self.cols.start, self.cols.len());
        let (count, len) = if width == cols {
            (1, self.values())
        } else {
            (self.rows.len(), width)
        };
        (0..count).map(move |i| (first + i * cols, i * len..(i + 1) * len))
    }
}

/// The least common multiple of two alignments.
#[cfg(feature = "lethe")]
pub(crate) fn lcm(a: usize, b: usize) -> usize {
    let (a, b) = (a.max(1), b.max(1));
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}

/// A worker's input, reused from tile to tile. What each field holds is the decoder's business.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Codes as bytes.
    pub bytes: Vec<u8>,
    /// Codes as packed words.
    pub words: Vec<u32>,
    /// Scales.
    pub scales: Vec<f32>,
    /// Zero points.
    pub zeros: Vec<f32>,
    /// Packed zero points of one group.
    pub zero_words: Vec<u32>,
    /// Group of each column.
    pub index: Vec<u32>,
    /// Raw bytes, and one row of scales, on their way into another field.
    pub staging: Vec<u8>,
    pub row: Vec<f32>,
    /// What is added to each value, not rounded yet, and a factor for each column.
    #[cfg(feature = "nvfp4")]
    pub sums: Vec<f64>,
    #[cfg(feature = "nvfp4")]
    pub factors: Vec<f32>,
}

/// Decodes one logical tensor. [`load`](Self::load) does all the reading and checking, and brings scales and
/// zero points into the form that kernels take; [`decode`](Self::decode) does all the work on values.
pub(crate) trait Decode: Send + Sync {
    /// How the tensor may be cut.
    fn grid(&self) -> Grid;

    /// Reads the input of `tile`.
    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()>;

    /// Decodes rows `rows` of the loaded `tile`, row-major, into `out`, which holds exactly their values.
    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    );

    /// What the codes are, if other schemes can have the same.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    fn family(&self) -> Option<Family> {
        None
    }

    /// Makes `out` the codes of the loaded `tile`, which begins and ends with whole groups. Does so where there is a
    /// family.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    fn codes(&self, tile: &Tile, buffers: &Buffers, out: &mut GroupCodes) {
        let _ = (tile, buffers, out);
    }
}

/// Some rows of a tensor, as one of its own.
pub(crate) struct Window<'m> {
    pub inner: Arc<dyn Decode + 'm>,
    pub first: usize,
    pub rows: usize,
}

impl Window<'_> {
    fn outside(&self, rows: &Range<usize>) -> Range<usize> {
        rows.start + self.first..rows.end + self.first
    }

    fn tile(&self, tile: &Tile) -> Tile {
        Tile {
            rows: self.outside(&tile.rows),
            cols: tile.cols.clone(),
        }
    }
}

impl Decode for Window<'_> {
    fn grid(&self) -> Grid {
        Grid {
            rows: self.rows,
            ..self.inner.grid()
        }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.inner.load(&self.tile(tile), buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        self.inner
            .decode(&self.tile(tile), self.outside(&rows), buffers, level, out);
    }

    fn family(&self) -> Option<Family> {
        self.inner.family()
    }

    fn codes(&self, tile: &Tile, buffers: &Buffers, out: &mut GroupCodes) {
        self.inner.codes(&self.tile(tile), buffers, out);
    }
}
