//! SVDQuant: a quantized weight with a product of low rank beside it, `b` `[out, r]` times `a` `[r, in]`.

use std::ops::Range;

use super::strips::LoadedRows;
use crate::Result;
use crate::containers::model::Tensor;
use crate::element::Out;
use crate::kernels::remember::low_rank::{ColumnStep, Corrected, add_product};
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::{Buffers, Decode, Grid, TensorRole, Tile};
use crate::simd::{Level, dispatch};

/// Elements of both factors that are read at once. The rank has no bound, so factors are not read whole.
const PIECE: usize = 64 << 10;

/// Most ranks whose terms are added at once: the kernel copies eight columns of them.
const MAX_RANKS: usize = 4096;

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

/// Adds `scale` times `b` × `a`, a product of rank `rank`, to the sums of the tile. A weight of several matrices of
/// `matrix_rows` rows, one below the other, has so many `a` below each other as well, and each belongs to one of them.
pub(super) fn add_factors(
    (b, a): (&dyn ScaleMatrix, &dyn ScaleMatrix),
    (rank, scale, matrix_rows): (usize, f64, usize),
    tile: &Tile,
    buffers: &mut Buffers,
) -> Result<()> {
    let Buffers {
        sums,
        factors,
        staging,
        ..
    } = buffers;
    let (width, mut row) = (tile.cols.len(), tile.rows.start);
    while row < tile.rows.end {
        let matrix = row / matrix_rows.max(1);
        let rows = row..tile.rows.end.min((matrix + 1) * matrix_rows.max(1));
        let sums = &mut sums[(row - tile.rows.start) * width..][..rows.len() * width];
        // At least one rank at a time, however large the tile is.
        let piece = (PIECE / (rows.len() + width).max(1)).clamp(1, MAX_RANKS);
        for first in (0..rank).step_by(piece) {
            let ranks = first..(first + piece).min(rank);
            let a_rows = matrix * rank + ranks.start..matrix * rank + ranks.end;
            factors.clear();
            b.extend(rows.clone(), ranks.clone(), staging, factors)?;
            a.extend(a_rows, tile.cols.clone(), staging, factors)?;
            let both = factors.split_at(rows.len() * ranks.len());
            let sizes = (ranks.len(), width);
            add_product(both, scale, sizes, Level::default(), sums);
        }
        row = rows.end;
    }
    Ok(())
}

/// The decoder of a quantized weight and a product of low rank that is added to it.
pub(crate) struct LowRankSum<'m> {
    pub quantized: Box<dyn Decode + 'm>,
    pub factors: LowRankFactors<'m>,
    /// A number for each column, and what becomes of it.
    pub columns: Option<(ColumnStep, Box<dyn ScaleMatrix + 'm>)>,
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
        buffers.sums.clear();
        buffers.sums.resize(tile.values(), 0.0);
        let LowRankFactors { a, b, rank, .. } = &self.factors;
        let all = self.grid().rows;
        add_factors((&**b, &**a), (*rank, 1.0, all), tile, buffers)?;
        let Buffers {
            factors, staging, ..
        } = buffers;
        factors.clear();
        match &self.columns {
            Some((_, columns)) => columns.extend(0..1, tile.cols.clone(), staging, factors),
            None => Ok(()),
        }
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let loaded = LoadedRows {
            tile,
            rows,
            buffers,
            level,
        };
        let columns = self.columns.as_ref();
        // The quantized part is decoded to F32 and not to the output's type: it must be rounded
        // once, after the sum.
        loaded.each_strip(&*self.quantized, out, |values, at, out| {
            let kernel = Corrected {
                values,
                sums: &buffers.sums[at..at + values.len()],
                width: tile.cols.len(),
                columns: &buffers.factors,
                step: columns.map_or(ColumnStep::ScaleSum, |c| c.0),
            };
            dispatch(level, &kernel, out);
        });
    }
}
