//! A vector that is stored in another order.

use std::ops::Range;

use super::assembled::{decode_values, load_values};
use crate::Result;
use crate::element::Out;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::Level;

/// The decoder of a vector: row 0 of a matrix of `len` columns.
pub(crate) struct VectorValues<'m> {
    pub matrix: Box<dyn ScaleMatrix + 'm>,
    pub len: usize,
}

impl Decode for VectorValues<'_> {
    fn grid(&self) -> Grid {
        Grid {
            rows: 1,
            cols: self.len,
            row_align: 1,
            col_align: 1,
            load_bits: 32.0,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        load_values(tile, buffers, |values, buffers, _| {
            let mut read = Vec::with_capacity(values.len());
            let rows = tile.rows.clone();
            let staging = &mut buffers.staging;
            self.matrix
                .extend(rows, tile.cols.clone(), staging, &mut read)?;
            values.copy_from_slice(&read);
            Ok(())
        })
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        decode_values(tile, rows, buffers, level, out);
    }
}

/// A row that is in memory.
#[cfg(all(feature = "lethe", feature = "models"))]
pub(crate) struct KnownRow(pub std::sync::Arc<[f32]>);

#[cfg(all(feature = "lethe", feature = "models"))]
impl ScaleMatrix for KnownRow {
    fn extend(
        &self,
        _: Range<usize>,
        cols: Range<usize>,
        _: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        out.extend_from_slice(self.0.get(cols).unwrap_or_default());
        Ok(())
    }
}
