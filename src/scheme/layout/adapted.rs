//! A weight that an adapter of PEFT changes: a sum of products of low rank is added (LoRA), and rows get the lengths that the
//! adapter has for them (DoRA). A weight is a matrix here: the kernel of a convolution is one of `[out, in * height * width]`, and a
//! stack of experts one of `[experts * rows, columns]`.
//!
//! Arithmetic: `f32(w + Σ scale · b · a)`, where `w` is the decoded weight in F32 and the sum over the ranks of all adapters, in
//! their order, is F64, as is its sum with `w`. That is rounded once. DoRA multiplies the sum by the row's length in the adapter
//! over its length after the sum, in F64 as well, before it is rounded. A matrix product of torch has no order of its own; F64
//! is what peft computes for a model in F64, and closer to the exact sum than any order in F32.
//!
//! Formulas: peft `Linear.get_delta_weight` and `merge`; `DoraLinearVariant.merge_safe`.

use std::ops::Range;
use std::sync::Arc;

use super::assembled::{Assembled, Change, Piece, RowOrder, decode_values, load_values};
use super::low_rank::add_factors;
use crate::element::Out;
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::Level;
use crate::{AnamnesisError, Result, TargetDtype};

/// `scale` times `b` `[rows, rank]` times `a` `[rank, cols]`. A stack of n matrices has a product for each of them: the n `b` lie
/// one below the other, and so do the n `a`.
pub(crate) struct ScaledProduct {
    pub a: Box<dyn ScaleMatrix>,
    pub b: Box<dyn ScaleMatrix>,
    pub rank: usize,
    pub scale: f64,
    /// Rows of each matrix of the stack, or all rows of a weight that is one matrix.
    pub matrix_rows: usize,
}

/// Decoder of a matrix that adapters change.
pub(crate) struct AdaptedWeight<'m> {
    /// Name of the weight, for errors.
    name: String,
    /// Its grid has the columns of the matrix.
    base: Box<dyn Decode + 'm>,
    products: Vec<ScaledProduct>,
    /// The lengths of the rows, `[rows, 1]`; `None`: they are what the sum makes them.
    lengths: Option<Box<dyn ScaleMatrix>>,
}

impl<'m> AdaptedWeight<'m> {
    /// The weight `name` of `rows` rows and `cols` columns that `base` decodes.
    pub(crate) fn new(
        name: String,
        base: Box<dyn Decode + 'm>,
        [rows, cols]: [usize; 2],
        products: Vec<ScaledProduct>,
        lengths: Option<Box<dyn ScaleMatrix>>,
    ) -> Self {
        let has_own_rows = base.grid().cols == cols;
        let base = match has_own_rows {
            true => base,
            // Codes in one flat run of blocks have other rows.
            false => Box::new(Assembled {
                pieces: vec![Piece {
                    decoder: Arc::from(base),
                    rows,
                    order: RowOrder::From(0),
                    turn: rows,
                }],
                takes_turns: false,
                cols,
                dtype: TargetDtype::F32,
                change: Change::None,
                columns: None,
            }),
        };
        Self {
            name,
            base,
            products,
            lengths,
        }
    }

    fn fill(&self, tile: &Tile, buffers: &mut Buffers, values: &mut [f32]) -> Result<()> {
        self.base.load(tile, buffers)?;
        let all = tile.rows.clone();
        self.base
            .decode(tile, all, buffers, Level::default(), Out::F32(values));
        buffers.sums.clear();
        buffers.sums.resize(values.len(), 0.0);
        for product in &self.products {
            let ScaledProduct { a, b, .. } = product;
            let sizes = (product.rank, product.scale, product.matrix_rows);
            add_factors((&**b, &**a), sizes, tile, buffers)?;
        }
        let is_finite = |sum: &f64| (*sum as f32).is_finite();
        if !buffers.sums.iter().all(is_finite) {
            return Err(self.refused("what an adapter adds to it is not finite"));
        }
        for (sum, &value) in buffers.sums.iter_mut().zip(&*values) {
            *sum += f64::from(value);
        }
        if let Some(lengths) = &self.lengths {
            self.set_lengths(&**lengths, tile, buffers)?;
        }
        let sums = values.iter_mut().zip(&buffers.sums);
        sums.for_each(|(value, &sum)| *value = sum as f32);
        Ok(())
    }

    /// Gives the rows of a tile, which are whole and lie in the sums, their lengths.
    fn set_lengths(
        &self,
        lengths: &dyn ScaleMatrix,
        tile: &Tile,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Buffers {
            sums,
            factors,
            staging,
            ..
        } = buffers;
        factors.clear();
        lengths.extend(tile.rows.clone(), 0..1, staging, factors)?;
        let rows = sums.chunks_exact_mut(tile.cols.len().max(1));
        for (at, (row, &length)) in rows.zip(factors.iter()).enumerate() {
            let squares: f64 = row.iter().map(|v| v * v).sum();
            let factor = f64::from(length) / squares.sqrt();
            if !factor.is_finite() {
                let row = tile.rows.start + at;
                return Err(self.refused(&format!(
                    "row {row} is to be {length} long, and its values are all 0 or not finite"
                )));
            }
            row.iter_mut().for_each(|v| *v *= factor);
        }
        Ok(())
    }

    fn refused(&self, what: &str) -> AnamnesisError {
        AnamnesisError::parse(format!("tensor `{}`: {what}", self.name))
    }
}

impl Decode for AdaptedWeight<'_> {
    fn grid(&self) -> Grid {
        let base = self.base.grid();
        Grid {
            // The length of a row needs all of it.
            col_align: match self.lengths {
                Some(_) => base.cols.max(1),
                None => base.col_align,
            },
            // Beside what the base loads: the values in F32 and the sums in F64.
            load_bits: base.load_bits + 96.0,
            ..base
        }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        load_values(tile, buffers, |values, buffers, _| {
            self.fill(tile, buffers, values)
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
