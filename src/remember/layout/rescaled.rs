//! Values of another decoder that are multiplied or divided once more, by a number of their column
//! or of their matrix.

use std::ops::Range;

use super::assembled::{decode_values, load_values};
use crate::Result;
use crate::element::Out;
use crate::model::Tensor;
use crate::remember::kernels::rescale::{divide, multiply, sign_columns};
use crate::remember::seam::scale_matrix::NestedOp;
use crate::remember::seam::{Buffers, Decode, Floats, Grid, Tile, wrong};
use crate::simd::Level;

/// What values are multiplied or divided by.
pub(crate) enum Rescale<'m> {
    /// 1 or -1 for each column.
    Signs(Tensor<'m>),
    /// A number for each matrix of so many rows.
    Matrices { numbers: Tensor<'m>, rows: usize, op: NestedOp },
}

/// The decoder of such values. They are computed when a tile is loaded.
pub(crate) struct Rescaled<'m> {
    pub values: Box<dyn Decode + 'm>,
    pub by: Rescale<'m>,
}

impl Rescale<'_> {
    /// # Errors
    /// A read fails, or a sign is neither 1 nor -1.
    fn apply(&self, tile: &Tile, staging: &mut Vec<u8>, values: &mut [f32]) -> Result<()> {
        let mut read = Vec::new();
        match self {
            Self::Signs(signs) => {
                let floats = Floats::ieee(signs)?;
                floats.extend(signs.elements(), 0..1, tile.cols.clone(), staging, &mut read)?;
                if read.iter().any(|sign| sign.abs() != 1.0) {
                    return Err(wrong(signs, "a sign is neither 1 nor -1"));
                }
                sign_columns(values, &read);
            }
            Self::Matrices { numbers, rows, op } => {
                let floats = Floats::ieee(numbers)?;
                let (rows, width) = ((*rows).max(1), tile.cols.len());
                let mut at = tile.rows.start;
                while at < tile.rows.end {
                    let matrix = at / rows;
                    let end = tile.rows.end.min((matrix + 1) * rows);
                    read.clear();
                    floats.extend(1, matrix..matrix + 1, 0..1, staging, &mut read)?;
                    let first = (at - tile.rows.start) * width;
                    let values = &mut values[first..first + (end - at) * width];
                    for &number in &read {
                        match op {
                            NestedOp::Multiply => multiply(values, number),
                            NestedOp::Divide => divide(values, number),
                        }
                    }
                    at = end;
                }
            }
        }
        Ok(())
    }
}

impl Decode for Rescaled<'_> {
    fn grid(&self) -> Grid {
        let grid = self.values.grid();
        Grid { load_bits: grid.load_bits + 32.0, ..grid }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        load_values(tile, buffers, |values, buffers, _| {
            self.values.load(tile, buffers)?;
            let (all, out) = (tile.rows.clone(), Out::F32(values));
            self.values
                .decode(tile, all, buffers, Level::default(), out);
            self.by.apply(tile, &mut buffers.staging, values)
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
