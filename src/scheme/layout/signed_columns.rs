//! Weights whose columns are multiplied with signs, and are in another order.

use std::ops::Range;
use std::sync::Arc;

use super::strips::{LoadedRows, STRIP};
use crate::Result;
use crate::element::Out;
use crate::kernels::remember::signed_columns::SignedRows;
use crate::scheme::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::{Level, dispatch};

/// Signs of the columns of a weight, and their order.
pub(crate) struct SignedColumns {
    signs: Arc<[f32]>,
    /// The stored column that each column of a whole row has; `None`: its own.
    order: Option<Arc<[u32]>>,
}

impl SignedColumns {
    /// The signs of `cols` columns, in the order that they are stored in, and the order of heads: `[keys, values]` are the numbers of
    /// heads, which divide the columns, if the stored ones of a key follow one another.
    pub(crate) fn new(cols: usize, signs: Option<Arc<[f32]>>, heads: Option<[usize; 2]>) -> Self {
        let order = heads.map(|[keys, values]| {
            let (width, of_key) = (cols / values, values / keys);
            let stored = |head: usize| head % keys * of_key + head / keys;
            let columns =
                |head| (stored(head) * width..(stored(head) + 1) * width).map(|c| c as u32);
            (0..values).flat_map(columns).collect()
        });
        Self {
            signs: signs.unwrap_or_else(|| vec![1.0; cols].into()),
            order,
        }
    }

    /// The columns of `tile`, for the kernel.
    fn of_tile(&self, tile: &Tile) -> (&[f32], Option<&[u32]>) {
        (&self.signs[tile.cols.clone()], self.order.as_deref())
    }
}

/// The decoder of a weight with signs: the values of another decoder, in their order.
pub(crate) struct Signed<'m> {
    pub stored: Box<dyn Decode + 'm>,
    pub columns: SignedColumns,
}

impl Decode for Signed<'_> {
    fn grid(&self) -> Grid {
        let grid = self.stored.grid();
        Grid {
            // In another order, a value can be of any stored column.
            col_align: match self.columns.order {
                Some(_) => grid.cols,
                None => grid.col_align,
            },
            ..grid
        }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
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
        let (signs, order) = self.columns.of_tile(tile);
        let loaded = LoadedRows {
            tile,
            rows,
            buffers,
            level,
        };
        loaded.each_strip(&*self.stored, STRIP, out, |values, _, out| {
            let kernel = SignedRows {
                values,
                signs,
                order,
            };
            dispatch(level, &kernel, out);
        });
    }
}
