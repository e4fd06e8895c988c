//! Weights whose columns are multiplied with signs or other factors, and are in another order.

use std::ops::Range;
use std::sync::Arc;

use super::strips::{LoadedRows, STRIP};
use crate::Result;
use crate::element::Out;
use crate::remember::kernels::column_factors::MultipliedRows;
use crate::remember::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::{Level, dispatch};

/// Factors of the columns of a weight, and their order.
pub(crate) struct ColumnFactors {
    /// One for each stored column, mostly 1 or -1; `None`: all are 1.
    pub factors: Option<Arc<[f32]>>,
    /// `[keys, heads]`, which divide the columns, if the stored heads of each key are side by side,
    /// and those of the weight tiled.
    pub heads: Option<[usize; 2]>,
}

/// The decoder of such a weight: the values of another decoder, in their order.
pub(crate) struct MultipliedColumns<'m> {
    pub stored: Box<dyn Decode + 'm>,
    pub columns: ColumnFactors,
}

impl Decode for MultipliedColumns<'_> {
    fn grid(&self) -> Grid {
        let grid = self.stored.grid();
        Grid {
            // In another order, a value can be of any stored column.
            col_align: match self.columns.heads {
                Some(_) => grid.cols,
                None => grid.col_align,
            },
            ..grid
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.stored.load(tile, buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let factors = self.columns.factors.as_deref();
        let factors = factors.map(|factors| &factors[tile.cols.clone()]);
        let loaded = LoadedRows { tile, rows, buffers, level };
        loaded.each_strip(&*self.stored, STRIP, out, |values, _, out| {
            let kernel = MultipliedRows {
                values,
                width: tile.cols.len(),
                factors,
                heads: self.columns.heads.unwrap_or([1, 1]),
            };
            dispatch(level, &kernel, out);
        });
    }
}
