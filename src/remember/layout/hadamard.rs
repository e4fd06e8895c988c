//! Weights whose columns are rotated in groups, by a Hadamard matrix.

use std::ops::Range;

use super::strips::{LoadedRows, STRIP};
use crate::Result;
use crate::element::Out;
use crate::remember::kernels::hadamard::{HadamardGroups, StoredHadamard};
use crate::remember::seam::{Buffers, Decode, Grid, Tile, lcm};
use crate::simd::{Level, dispatch};

/// The decoder of a rotated weight: the values of another decoder, rotated back.
pub(crate) struct HadamardRotated<'m> {
    pub rotated: Box<dyn Decode + 'm>,
    /// Columns that are rotated together: a power of two that divides the row.
    pub group: usize,
    /// The matrix; `None`: SDNQ's, which is rounded to the type of the output.
    pub stored: Option<StoredHadamard>,
}

impl Decode for HadamardRotated<'_> {
    fn grid(&self) -> Grid {
        let grid = self.rotated.grid();
        Grid { col_align: lcm(grid.col_align, self.group), ..grid }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.rotated.load(tile, buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (group, stored) = (self.group, self.stored.as_ref());
        let loaded = LoadedRows { tile, rows, buffers, level };
        loaded.each_strip(&*self.rotated, STRIP, out, |values, _, out| {
            let kernel = HadamardGroups { values, group, stored, target: out.dtype() };
            dispatch(level, &kernel, out);
        });
    }
}
