//! A weight that an adapter changes: a sum of products of low rank (LoRA) or of other matrices
//! (LoHa, LoKr) is added, and rows or columns get the lengths that the adapter has for them (DoRA).
//! A weight is a matrix here: the kernel of a convolution is one of `[out, in * height * width]`,
//! and a stack of experts one of `[experts * rows, columns]`.
//!
//! Arithmetic: `f32(w + Σ scale · b · a)`, where `w` is the decoded weight in F32 and the sum over
//! the ranks of all adapters, in their order, is F64, as is its sum with `w`. That is rounded once.
//! DoRA multiplies the sum by the length of its row or column in the adapter over that after the
//! sum, in F64 as well, before it is rounded. A matrix product of torch has no order of its own;
//! F64 is what peft computes for a model in F64, and closer to the exact sum than any order in F32.
//!
//! Formulas: peft `Linear.get_delta_weight` and `merge`; `DoraLinearVariant.merge_safe`,
//! `DoraEmbeddingVariant.merge_safe`.

mod products;

use std::ops::Range;
use std::sync::Arc;

use self::products::Products;
pub(crate) use self::products::{AddedMatrix, ScaledProduct};
use super::assembled::{Assembled, Change, Piece, RowOrder, decode_values, load_values};
use super::low_rank::PRODUCT_ROWS;
use super::strips::LoadedRows;
use crate::element::Out;
use crate::error::InTensor;
use crate::remember::kernels::low_rank::AddedSums;
use crate::remember::kernels::low_rank::panels::PANEL;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Buffers, Decode, Grid, Tile, lcm};
use crate::simd::{Level, perform};
use crate::{AnamnesisError, Result, TargetDtype};

/// Columns of a tile that has all rows: a vocabulary has a hundred thousand, each of which is a
/// read of its own.
const COLUMNS: usize = 32;

/// The lengths that DoRA gives the vectors of a matrix.
pub(crate) enum Lengths {
    /// Of the rows, `[rows, 1]`.
    Rows(Box<dyn ScaleMatrix>),
    /// Of so many columns each that follow each other, `[1, cols / group]`: one of weights `[in,
    /// out]` and of embeddings, all of an input of a convolution.
    Columns { lengths: Box<dyn ScaleMatrix>, group: usize },
}

/// Decoder of a matrix that adapters change.
pub(crate) struct AdaptedWeight<'m> {
    /// Name of the weight, for errors.
    name: String,
    /// Its grid has the columns of the matrix.
    base: Box<dyn Decode + 'm>,
    products: Products,
    /// `None`: they are what the sum makes them.
    lengths: Option<Lengths>,
}

impl<'m> AdaptedWeight<'m> {
    /// The weight `name` of `rows` rows and `cols` columns that `base` decodes.
    pub(crate) fn new(
        name: String,
        base: Box<dyn Decode + 'm>,
        [rows, cols]: [usize; 2],
        products: Vec<AddedMatrix>,
        lengths: Option<Lengths>,
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
        Self { name, base, products: Products::new(products), lengths }
    }

    /// Whether workers keep the right factors, and compute the products of `tile`, which begins
    /// with a panel then, while decoding. Otherwise they are computed while it is loaded.
    fn is_late(&self, tile: &Tile) -> bool {
        self.keeps_factors() && tile.cols.start.is_multiple_of(PANEL)
    }

    fn keeps_factors(&self) -> bool {
        self.lengths.is_none() && self.products.can_keep_factors(&self.base.grid())
    }

    fn fill(&self, tile: &Tile, buffers: &mut Buffers, values: &mut [f32]) -> Result<()> {
        self.base.load(tile, buffers)?;
        let all = tile.rows.clone();
        self.base
            .decode(tile, all, buffers, Level::default(), Out::F32(values));
        self.products.add(tile, buffers)?;
        let mut added = AddedSums { values, sums: &mut buffers.sums, are_finite: false };
        perform(Level::default(), &mut added);
        if !added.are_finite {
            return Err(self.infinite());
        }
        if let Some(lengths) = &self.lengths {
            self.set_lengths(lengths, tile, buffers)?;
            let sums = values.iter_mut().zip(&buffers.sums);
            sums.for_each(|(value, &sum)| *value = sum as f32);
        }
        Ok(())
    }

    /// Gives the rows or columns of a tile, which are whole and lie in the sums, their lengths.
    fn set_lengths(&self, lengths: &Lengths, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { sums, factors, staging, .. } = buffers;
        factors.clear();
        let rows = sums.chunks_exact_mut(tile.cols.len().max(1));
        match lengths {
            Lengths::Rows(lengths) => {
                lengths.extend(tile.rows.clone(), 0..1, staging, factors)?;
                for (at, (row, &length)) in rows.zip(factors.iter()).enumerate() {
                    let squares = row.iter().map(|v| v * v).sum();
                    let factor = self.factor(length, squares, ("row", tile.rows.start + at))?;
                    row.iter_mut().for_each(|v| *v *= factor);
                }
            }
            &Lengths::Columns { ref lengths, group } => {
                // Tiles begin and end with a group.
                let groups = tile.cols.start / group..tile.cols.end / group;
                lengths.extend(0..1, groups.clone(), staging, factors)?;
                let mut squares = vec![0.0; groups.len()];
                for row in rows {
                    for (sum, values) in squares.iter_mut().zip(row.chunks_exact(group)) {
                        *sum += values.iter().map(|v| v * v).sum::<f64>();
                    }
                }
                let of_groups = squares.into_iter().zip(factors.iter()).zip(groups);
                let of_groups = of_groups.map(|((squares, &length), at)| {
                    self.factor(length, squares, ("column", at * group))
                });
                let of_groups: Vec<f64> = of_groups.collect::<Result<_>>()?;
                for row in sums.chunks_exact_mut(tile.cols.len().max(1)) {
                    for (values, factor) in row.chunks_exact_mut(group).zip(&of_groups) {
                        values.iter_mut().for_each(|v| *v *= factor);
                    }
                }
            }
        }
        Ok(())
    }

    /// What makes a vector `length` long whose values have the sum of squares `squares`.
    fn factor(&self, length: f32, squares: f64, (what, number): (&str, usize)) -> Result<f64> {
        let factor = f64::from(length) / squares.sqrt();
        if factor.is_finite() {
            return Ok(factor);
        }
        Err(self.refused(&format!(
            "{what} {number} is to be {length} long, and its values are all 0 or not finite"
        )))
    }

    fn infinite(&self) -> AnamnesisError {
        self.refused("what an adapter adds to it is not finite")
    }

    fn refused(&self, what: &str) -> AnamnesisError {
        AnamnesisError::parse(format!("{}: {what}", InTensor(&self.name)))
    }
}

impl Decode for AdaptedWeight<'_> {
    fn grid(&self) -> Grid {
        let base = self.base.grid();
        if self.keeps_factors() {
            let of_row = (64 * self.products.rank()) as f64;
            return Grid {
                col_align: lcm(base.col_align, PANEL),
                load_bits: base.load_bits + of_row / base.cols.max(1) as f64,
                ..base
            };
        }
        // Both factors of a product of values, of one row at least, and what they are read from.
        let of_factors = if self.products.are_low_rank() {
            0.0
        } else {
            160.0
        };
        Grid {
            // The length of a row or column needs all of it.
            col_align: match self.lengths {
                Some(Lengths::Rows(_)) => base.cols.max(1),
                Some(Lengths::Columns { group, .. }) => lcm(lcm(base.col_align, group), COLUMNS),
                None => base.col_align,
            },
            row_align: match self.lengths {
                Some(Lengths::Columns { .. }) => base.rows.max(1),
                _ => base.row_align,
            },
            // Beside what the base loads: the values in F32 and the sums in F64.
            load_bits: base.load_bits + 96.0 + of_factors,
            ..base
        }
    }

    fn rows_together(&self) -> usize {
        PRODUCT_ROWS
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        if self.is_late(tile) {
            let cols = self.base.grid().cols;
            if !self.products.load(tile, cols, buffers)? {
                return Err(self.infinite());
            }
            return self.base.load(tile, buffers);
        }
        load_values(tile, buffers, |values, buffers, _| self.fill(tile, buffers, values))
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        if !self.is_late(tile) {
            return decode_values(tile, rows, buffers, level, out);
        }
        let loaded = LoadedRows { tile, rows, buffers, level };
        self.products.decode(&*self.base, loaded, out);
    }
}
