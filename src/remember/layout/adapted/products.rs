//! What adapters add to a weight: computed for a tile that is loaded, or, if all of it are products
//! of low rank, for rows that are decoded.

use std::ops::Range;

use super::super::low_rank::{PIECE, add_factors, can_keep, load_panels, product_strip};
use super::super::strips::LoadedRows;
use crate::Result;
use crate::element::Out;
use crate::remember::kernels::low_rank::panels::{InDouble, LowRankRows, have_exact_products};
use crate::remember::seam::decode::AdapterFactors;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Buffers, Decode, Grid, TableOwner, Tile};
use crate::simd::dispatch;

/// `scale` times `b` `[rows, rank]` times `a` `[rank, cols]`. A stack of n matrices has a product
/// for each of them: the n `b` lie one below the other, and so do the n `a`.
pub(crate) struct ScaledProduct {
    pub a: Box<dyn ScaleMatrix>,
    pub b: Box<dyn ScaleMatrix>,
    pub rank: usize,
    pub scale: f64,
    /// Rows of each matrix of the stack; as many as the weight has, or more: it is one matrix.
    pub matrix_rows: usize,
}

/// What an adapter adds to a weight, or a factor of that.
pub(crate) enum AddedMatrix {
    LowRank(ScaledProduct),
    /// `scale` times the values of a matrix.
    Stored {
        matrix: Box<dyn ScaleMatrix>,
        scale: f64,
    },
    /// The values of two matrices, multiplied one by one.
    Hadamard(Box<[AddedMatrix; 2]>),
}

impl AddedMatrix {
    /// Adds the values of a tile to the sums.
    fn add(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        match self {
            Self::LowRank(product) => {
                let ScaledProduct { a, b, .. } = product;
                let sizes = (product.rank, product.scale, product.matrix_rows);
                add_factors((&**b, &**a), sizes, tile, buffers)?;
            }
            Self::Stored { matrix, scale } => {
                for (rows, values) in strips(tile) {
                    let Buffers { sums, factors, staging, .. } = &mut *buffers;
                    factors.clear();
                    matrix.extend(rows, tile.cols.clone(), staging, factors)?;
                    let pairs = sums[values].iter_mut().zip(&*factors);
                    pairs.for_each(|(sum, &value)| *sum += f64::from(value) * scale);
                }
            }
            Self::Hadamard(both) => {
                for (rows, values) in strips(tile) {
                    let strip = Tile { rows, cols: tile.cols.clone() };
                    let sums = std::mem::take(&mut buffers.sums);
                    let [left, right] = both.each_ref().map(|of| of.values(&strip, buffers));
                    let (left, right) = (left?, right?);
                    buffers.sums = sums;
                    let pairs = left.iter().zip(&right);
                    let pairs = buffers.sums[values].iter_mut().zip(pairs);
                    pairs.for_each(|(sum, (left, right))| *sum += left * right);
                }
            }
        }
        Ok(())
    }

    /// Another matrix: `rows` makes what tells its rows of what tells these, and `cols` of columns.
    pub(crate) fn map(
        self,
        rows: &dyn Fn(Box<dyn ScaleMatrix>) -> Box<dyn ScaleMatrix>,
        cols: &dyn Fn(Box<dyn ScaleMatrix>) -> Box<dyn ScaleMatrix>,
    ) -> Self {
        match self {
            Self::LowRank(ScaledProduct { a, b, rank, scale, matrix_rows }) => {
                let (a, b) = (cols(a), rows(b));
                Self::LowRank(ScaledProduct { a, b, rank, scale, matrix_rows })
            }
            Self::Stored { matrix, scale } => Self::Stored { matrix: cols(rows(matrix)), scale },
            Self::Hadamard(both) => Self::Hadamard(Box::new(both.map(|of| of.map(rows, cols)))),
        }
    }

    /// This times `factor`.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        match self {
            Self::LowRank(ScaledProduct { a, b, rank, scale, matrix_rows }) => {
                let scale = scale * factor;
                Self::LowRank(ScaledProduct { a, b, rank, scale, matrix_rows })
            }
            Self::Stored { matrix, scale } => Self::Stored { matrix, scale: scale * factor },
            Self::Hadamard(both) => {
                let [left, right] = *both;
                Self::Hadamard(Box::new([left.scaled(factor), right]))
            }
        }
    }

    /// The values of a tile. The sums are scratch.
    fn values(&self, tile: &Tile, buffers: &mut Buffers) -> Result<Vec<f64>> {
        buffers.sums = vec![0.0; tile.values()];
        self.add(tile, buffers)?;
        Ok(std::mem::take(&mut buffers.sums))
    }
}

/// The rows of a tile, some at a time, and where their values are in it: what is computed before it
/// is added takes memory of its own.
fn strips(tile: &Tile) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let (all, width) = (tile.rows.clone(), tile.cols.len());
    let height = (PIECE / width.max(1)).max(1);
    all.clone().step_by(height).map(move |first| {
        let rows = first..(first + height).min(all.end);
        let values = (first - all.start) * width..(rows.end - all.start) * width;
        (rows, values)
    })
}

/// What is added to a weight, in that order.
pub(super) struct Products {
    all: Vec<AddedMatrix>,
    /// Of the right factors in panels.
    owner: TableOwner,
}

impl Products {
    pub(super) fn new(all: Vec<AddedMatrix>) -> Self {
        Self { all, owner: TableOwner::default() }
    }

    fn low_rank(&self) -> impl Iterator<Item = &ScaledProduct> {
        self.all.iter().filter_map(|added| match added {
            AddedMatrix::LowRank(product) => Some(product),
            _ => None,
        })
    }

    /// Whether there are products of low rank alone.
    pub(super) fn are_low_rank(&self) -> bool {
        self.low_rank().count() == self.all.len()
    }

    /// Ranks of all products of low rank.
    pub(super) fn rank(&self) -> usize {
        self.low_rank().map(|product| product.rank).sum()
    }

    /// Whether workers can keep the right factors of a weight of this grid, in panels.
    pub(super) fn can_keep_factors(&self, grid: &Grid) -> bool {
        let is_one_matrix = |product: &ScaledProduct| product.matrix_rows >= grid.rows;
        self.are_low_rank()
            && self.low_rank().all(is_one_matrix)
            && can_keep(self.rank(), grid.cols)
    }

    /// Computes the sums of a tile.
    pub(super) fn add(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        buffers.sums.clear();
        buffers.sums.resize(tile.values(), 0.0);
        let mut all = self.all.iter();
        all.try_for_each(|added| added.add(tile, buffers))
    }

    /// Loads the factors of a tile of a weight of `cols` columns. Returns whether all sums are
    /// finite in F32.
    pub(super) fn load(&self, tile: &Tile, cols: usize, buffers: &mut Buffers) -> Result<bool> {
        self.load_right(cols, buffers)?;
        self.load_left(tile, buffers)?;
        let AdapterFactors { left, largest_right, .. } = &buffers.adapter;
        // Half of the largest number of F32: sums are rounded by far less than that.
        let most = f64::from(f32::MAX) / 2.0 / f64::from(*largest_right);
        let mut rows = left.chunks_exact(self.rank());
        // A NaN is not below.
        if rows.all(|row| row.iter().map(|b| b.abs()).sum::<f64>() < most) {
            return Ok(true);
        }
        self.add(tile, buffers)?;
        Ok(buffers.sums.iter().all(|&sum| (sum as f32).is_finite()))
    }

    fn load_right(&self, cols: usize, buffers: &mut Buffers) -> Result<()> {
        let Buffers { adapter, factors, staging, .. } = buffers;
        let AdapterFactors { panels, largest_right, .. } = adapter;
        let sizes = (self.rank(), cols);
        load_panels(sizes, (&self.owner, panels), factors, |cols, out| {
            let is_first = cols.start == 0;
            for product in self.low_rank() {
                let ranks = 0..product.rank;
                product.a.extend(ranks, cols.clone(), staging, out)?;
            }
            // The bits of a NaN are above those of all numbers.
            let largest = out.iter().map(|a| a.abs().to_bits()).max().unwrap_or(0);
            let before = if is_first { 0 } else { largest_right.to_bits() };
            *largest_right = f32::from_bits(largest.max(before));
            Ok(())
        })
    }

    fn load_left(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { adapter, factors, staging, .. } = buffers;
        let (left, rank) = (&mut adapter.left, self.rank());
        left.clear();
        left.resize(tile.rows.len() * rank, 0.0);
        let mut first = 0;
        for product in self.low_rank().filter(|product| product.rank > 0) {
            factors.clear();
            let (rows, ranks) = (tile.rows.clone(), 0..product.rank);
            product.b.extend(rows, ranks, staging, factors)?;
            let rows = factors.chunks_exact(product.rank);
            for (out, row) in left.chunks_exact_mut(rank).zip(rows) {
                for (out, &b) in out[first..].iter_mut().zip(row) {
                    *out = f64::from(b) * product.scale;
                }
            }
            first += product.rank;
        }
        adapter.is_exact = have_exact_products(left);
        Ok(())
    }

    /// Writes rows of `base` with their sums. The tile and its factors are loaded.
    pub(super) fn decode(&self, base: &dyn Decode, loaded: LoadedRows<'_>, out: Out<'_>) {
        let (tile, buffers, level) = (loaded.tile, loaded.buffers, loaded.level);
        let strip = product_strip(tile.cols.len());
        loaded.each_strip(base, strip, out, |values, at, out| {
            let kernel = self.kernel(values, (tile, at), buffers);
            dispatch(level, &kernel, out);
        });
    }

    /// Adds the sums of whole rows, the first value of which is value `at` of the tile.
    fn kernel<'b>(
        &self,
        values: &'b [f32],
        (tile, at): (&Tile, usize),
        buffers: &'b Buffers,
    ) -> LowRankRows<'b, InDouble> {
        let (rank, width) = (self.rank(), tile.cols.len());
        let (first, count) = (at / width.max(1), values.len() / width.max(1));
        let AdapterFactors { panels, left, is_exact, .. } = &buffers.adapter;
        LowRankRows {
            values,
            width,
            left: &left[first * rank..][..count * rank],
            rank,
            right: &panels.values()[tile.cols.start * rank..],
            columns: &[],
            addition: InDouble { is_exact: *is_exact },
        }
    }
}
