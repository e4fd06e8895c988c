//! SVDQuant: a quantized weight with a product of low rank beside it, `b` `[out, r]` times `a` `[r, in]`.

use std::ops::Range;

use crate::Result;
use crate::containers::model::Tensor;
use crate::element::Out;
use crate::kernels::remember::low_rank::{ColumnStep, Corrected, add_product};
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::{Buffers, Decode, Floats, Grid, TensorRole, Tile};
use crate::simd::{Level, dispatch};

/// Elements of both factors that are read at once. The rank has no bound, so factors are not read whole.
const PIECE: usize = 64 << 10;

/// Values of the quantized part that are decoded at once, or a row if that is longer: 64 KiB, so that they stay in the
/// second-level cache until the product is added.
const STRIP: usize = 16 << 10;

/// The two factors of the product that belongs to a weight.
pub(crate) struct LowRankFactors<'m> {
    pub tensors: [Tensor<'m>; 2],
    /// `[r, in]`.
    pub a: Box<dyn ScaleMatrix + 'm>,
    /// `[out, r]`.
    pub b: Box<dyn ScaleMatrix + 'm>,
    pub rank: usize,
}

impl<'m> LowRankFactors<'m> {
    pub(crate) fn parts(&self) -> [(TensorRole, Tensor<'m>); 2] {
        self.tensors.map(|t| (TensorRole::LowRank, t))
    }
}

/// The decoder of a quantized weight and a product of low rank that is added to it.
pub(crate) struct LowRankSum<'m> {
    pub quantized: Box<dyn Decode + 'm>,
    pub factors: LowRankFactors<'m>,
    /// A number for each column, and what becomes of it.
    pub columns: Option<(ColumnStep, Floats<'m>)>,
}

impl Decode for LowRankSum<'_> {
    fn grid(&self) -> Grid {
        let grid = self.quantized.grid();
        Grid {
            // A value in F64 for each value of the tile.
            load_bits: grid.load_bits + 64.0,
            ..grid
        }
    }

    /// Computes the product while loading: the factors' rank has no bound, and the product of a tile has its size.
    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.quantized.load(tile, buffers)?;
        let Buffers {
            sums,
            factors,
            staging,
            ..
        } = buffers;
        let (rank, cols) = (self.factors.rank, self.quantized.grid().cols);
        let (height, width) = (tile.rows.len(), tile.cols.len());
        sums.clear();
        sums.resize(height * width, 0.0);
        // At least one rank at a time, however large the tile is.
        let piece = (PIECE / (height + width).max(1)).max(1);
        for first in (0..rank).step_by(piece) {
            let ranks = first..(first + piece).min(rank);
            factors.clear();
            self.factors
                .b
                .extend(tile.rows.clone(), ranks.clone(), staging, factors)?;
            self.factors
                .a
                .extend(ranks.clone(), tile.cols.clone(), staging, factors)?;
            let (b, a) = factors.split_at(height * ranks.len());
            add_product(b, a, ranks.len(), width, sums);
        }
        factors.clear();
        match &self.columns {
            Some((_, columns)) => columns.extend(cols, 0..1, tile.cols.clone(), staging, factors),
            None => Ok(()),
        }
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        mut out: Out<'_>,
    ) {
        let width = tile.cols.len();
        let height = (STRIP / width.max(1)).clamp(1, rows.len().max(1));
        // The quantized part is decoded to F32 and not to the output's type: it must be rounded
        // once, after the sum.
        let mut values = vec![0.0; height * width];
        for first in rows.clone().step_by(height) {
            let strip = first..(first + height).min(rows.end);
            let values = &mut values[..strip.len() * width];
            self.quantized
                .decode(tile, strip.clone(), buffers, level, Out::F32(values));
            let at = (first - tile.rows.start) * width;
            let sums = &buffers.sums[at..at + values.len()];
            let kernel = Corrected {
                values,
                sums,
                width,
                columns: &buffers.factors,
                step: self.columns.as_ref().map_or(ColumnStep::ScaleSum, |c| c.0),
            };
            let (now, rest) = out.split_at(values.len());
            dispatch(level, &kernel, now);
            out = rest;
        }
    }
}
