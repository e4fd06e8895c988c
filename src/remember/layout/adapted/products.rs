//! The products of low rank that adapters add to a weight: computed for a tile that is loaded, or
//! for rows that are decoded.

use super::super::low_rank::{add_factors, can_keep, load_panels, product_strip};
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
    /// Rows of each matrix of the stack, or all rows of a weight that is one matrix.
    pub matrix_rows: usize,
}

/// The products of a weight, in the order in which they are added.
pub(super) struct Products {
    all: Vec<ScaledProduct>,
    /// Of the right factors in panels.
    owner: TableOwner,
}

impl Products {
    pub(super) fn new(all: Vec<ScaledProduct>) -> Self {
        Self { all, owner: TableOwner::default() }
    }

    /// Ranks of all products.
    pub(super) fn rank(&self) -> usize {
        self.all.iter().map(|product| product.rank).sum()
    }

    /// Whether workers can keep the right factors of a weight of this grid, in panels.
    pub(super) fn can_keep_factors(&self, grid: &Grid) -> bool {
        let is_one_matrix = |product: &ScaledProduct| product.matrix_rows >= grid.rows;
        self.all.iter().all(is_one_matrix) && can_keep(self.rank(), grid.cols)
    }

    /// Computes the sums of a tile.
    pub(super) fn add(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        buffers.sums.clear();
        buffers.sums.resize(tile.values(), 0.0);
        for product in &self.all {
            let ScaledProduct { a, b, .. } = product;
            let sizes = (product.rank, product.scale, product.matrix_rows);
            add_factors((&**b, &**a), sizes, tile, buffers)?;
        }
        Ok(())
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
            for product in &self.all {
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
        for product in self.all.iter().filter(|product| product.rank > 0) {
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
