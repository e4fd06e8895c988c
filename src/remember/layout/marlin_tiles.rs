//! Tiles of Marlin, and of QQQ, which descends from it: codes of four bits in the order in which
//! tensor cores take them.
//!
//! A tile of 16 inputs × 64 outputs is 128 adjacent words; `kernels::remember::marlin` says what is
//! in them. Scales are permuted within 64 outputs or, if there is one group, within 32; those of
//! marlin-24, whose tiles are others, within 8.
//!
//! Layout: auto_gptq `nn_modules/qlinear/qlinear_marlin.py` (`_get_perms`, `pack`); gptqmodel
//! `nn_modules/qlinear/qqq.py`.

use std::ops::Range;

use crate::Result;
use crate::model::Part;
use crate::remember::kernels::marlin::{
    MarlinTiles, OutputOrder, TILE_BYTES, TILE_INPUTS, TILE_OUTPUTS, TileOrder,
};
use crate::remember::seam::grouped::Unpack;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Floats, StoredRows, Tile, read};
use crate::simd::Level;

/// Rows of tiles that are unpacked together: their inputs fill two cache lines, which CPUs fetch
/// together.
const TOGETHER: usize = 8;

/// Codes in Marlin tiles.
pub(crate) struct MarlinCodes<'m> {
    pub part: Part<'m>,
    /// Outputs.
    pub n: usize,
    pub order: TileOrder,
}

impl Unpack for MarlinCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        out.resize(tile.rows.len() * width, 0);
        // A row of tiles holds all outputs, so a tile of 64 rows is one piece of each row.
        let bytes = tile.rows.start / TILE_OUTPUTS * TILE_BYTES
            ..tile.rows.end.div_ceil(TILE_OUTPUTS) * TILE_BYTES;
        let depths = tile.cols.start / TILE_INPUTS..tile.cols.end.div_ceil(TILE_INPUTS);
        for first in depths.clone().step_by(TOGETHER) {
            let together = first..(first + TOGETHER).min(depths.end);
            read(&self.part, self.n * 8, together, bytes.clone(), staging)?;
            let tiles = MarlinTiles {
                order: self.order,
                outputs: OutputOrder::DENSE,
                tiles: staging,
                pitch: bytes.len(),
                rows: out,
                width,
                left: (first - depths.start) * TILE_INPUTS,
            };
            tiles.unpack(Level::detect());
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (TILE_OUTPUTS, TILE_INPUTS)
    }

    fn transposed(&self) -> Option<StoredRows> {
        Some(StoredRows::of_one(TILE_BYTES * 8 / TILE_OUTPUTS, TILE_INPUTS))
    }
}

/// In which order the scales of a group are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleOrder {
    /// Marlin's, if all inputs are one group (`_get_perms`).
    SingleGroup,
    /// Marlin's, if there are several groups.
    Groups,
    /// marlin-24's, if there are several groups: `scale_perm_2_4` of compressed-tensors
    /// `permutations_24.py`.
    SparseGroups,
}

impl ScaleOrder {
    /// Marlin's for so many groups.
    pub(crate) fn of_groups(groups: usize) -> Self {
        if groups == 1 {
            Self::SingleGroup
        } else {
            Self::Groups
        }
    }

    /// Index in its stored row of the scale of output `n`.
    fn stored_index(self, n: usize) -> usize {
        match self {
            Self::SingleGroup => n / 32 * 32 + n % 8 / 2 * 8 + n % 32 / 8 * 2 + n % 2,
            Self::Groups => n / 64 * 64 + n % 8 * 8 + n % 64 / 8,
            Self::SparseGroups => n / 8 * 8 + n % 4 * 2 + n % 8 / 4,
        }
    }
}

/// Scales whose outputs are permuted in each group.
pub(crate) struct PermutedScales<'m> {
    pub floats: Floats<'m>,
    /// Outputs.
    pub n: usize,
    pub order: ScaleOrder,
}

impl ScaleMatrix for PermutedScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // The permutation stays within 64 outputs, so whole blocks of 64 are enough.
        // Loaded in whole blocks, because the scale of the first row may be stored last.
        let stored = rows.start / TILE_OUTPUTS * TILE_OUTPUTS
            ..rows.end.next_multiple_of(TILE_OUTPUTS).min(self.n);
        let (at, mut row) = (out.len(), Vec::new());
        out.resize(at + rows.len() * cols.len(), 0.0);
        for (i, group) in cols.clone().enumerate() {
            row.clear();
            self.floats
                .extend(self.n, group..group + 1, stored.clone(), staging, &mut row)?;
            for (n, out) in rows.clone().zip(out[at..].chunks_exact_mut(cols.len())) {
                out[i] = row[self.order.stored_index(n) - stored.start];
            }
        }
        Ok(())
    }
}
