//! SVDQuant: a quantized weight with a product of low rank beside it, `b` `[out, r]` times `a` `[r,
//! in]`.

use std::ops::Range;

use super::strips::{LoadedRows, STRIP};
use crate::Result;
use crate::element::Out;
use crate::model::Tensor;
use crate::remember::kernels::low_rank::panels::{
    DivideValue, LowRankRows, MAX_RANK, PANEL, ScaleSum, TILE_ROWS, pack_panels,
};
use crate::remember::kernels::low_rank::{ColumnStep, Corrected, add_product};
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Buffers, Decode, Grid, TableOwner, TensorRole, Tile, TileTable, lcm};
use crate::simd::{Level, dispatch};

/// Elements of both factors that are read at once. The rank has no bound, so factors are not read
/// whole.
pub(super) const PIECE: usize = 64 << 10;

/// Most ranks whose terms are added at once: the kernel copies eight columns of them.
const MAX_RANKS: usize = 4096;

/// Most numbers of a right factor that each worker keeps for all tiles of a weight: 8 MiB. A larger
/// one is read again for each tile.
const MAX_KEPT: usize = 2 << 20;

/// Values of a strip while the product is computed.
const PRODUCT_STRIP: usize = 64 << 10;

/// Rows that have the product computed together, or more. Each panel of the right factor is taken
/// from the second-level cache, or from memory if it has many columns, once a strip.
pub(super) const PRODUCT_ROWS: usize = 4 * TILE_ROWS;

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

/// Adds `scale` times `b` × `a`, a product of rank `rank`, to the sums of the tile. A weight of
/// several matrices of `matrix_rows` rows, one below the other, has so many `a` below each other as
/// well, and each belongs to one of them.
pub(super) fn add_factors(
    (b, a): (&dyn ScaleMatrix, &dyn ScaleMatrix),
    (rank, scale, matrix_rows): (usize, f64, usize),
    tile: &Tile,
    buffers: &mut Buffers,
) -> Result<()> {
    let Buffers { sums, factors, staging, .. } = buffers;
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
    quantized: Box<dyn Decode + 'm>,
    factors: LowRankFactors<'m>,
    columns: Option<ColumnNumbers<'m>>,
    /// Of the right factor in panels.
    owner: TableOwner,
}

/// A number for each column, and what becomes of it.
pub(crate) type ColumnNumbers<'m> = (ColumnStep, Box<dyn ScaleMatrix + 'm>);

impl<'m> LowRankSum<'m> {
    pub(crate) fn new(
        quantized: Box<dyn Decode + 'm>,
        factors: LowRankFactors<'m>,
        columns: Option<ColumnNumbers<'m>>,
    ) -> Self {
        Self { quantized, factors, columns, owner: TableOwner::default() }
    }

    /// Whether workers keep the right factor, in panels, and compute the product while decoding.
    /// Otherwise it is computed for a tile while that is loaded.
    fn keeps_factor(&self) -> bool {
        can_keep(self.factors.rank, self.quantized.grid().cols)
    }

    /// Whether the product of `tile`, which begins with a panel then, is computed while decoding.
    fn is_late(&self, tile: &Tile) -> bool {
        self.keeps_factor() && tile.cols.start.is_multiple_of(PANEL)
    }

    fn step(&self) -> ColumnStep {
        match &self.columns {
            Some((step, _)) => *step,
            None => ColumnStep::ScaleSum,
        }
    }

    /// Appends the numbers of the columns of `tile`.
    fn extend_columns(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { factors, staging, .. } = buffers;
        match &self.columns {
            Some((_, columns)) => columns.extend(0..1, tile.cols.clone(), staging, factors),
            None => Ok(()),
        }
    }
}

/// Whether workers can keep a right factor of `cols` columns in panels.
pub(super) fn can_keep(rank: usize, cols: usize) -> bool {
    (1..=MAX_RANK).contains(&rank) && cols <= MAX_KEPT && numbers_kept(rank, cols) <= MAX_KEPT
}

/// Numbers of a right factor in panels.
fn numbers_kept(rank: usize, cols: usize) -> usize {
    cols.next_multiple_of(PANEL) * rank
}

/// Reads all of a right factor of which `extend` appends all `rank` rows of some columns, some
/// columns at a time. `factors` is scratch.
pub(super) fn load_panels(
    (rank, cols): (usize, usize),
    (owner, panels): (&TableOwner, &mut TileTable),
    factors: &mut Vec<f32>,
    mut extend: impl FnMut(Range<usize>, &mut Vec<f32>) -> Result<()>,
) -> Result<()> {
    panels.load(owner, |panels| {
        let piece = (PIECE / rank).next_multiple_of(PANEL);
        panels.reserve_exact(numbers_kept(rank, cols));
        for first in (0..cols).step_by(piece) {
            let some = first..(first + piece).min(cols);
            factors.clear();
            extend(some.clone(), factors)?;
            pack_panels(factors, some.len(), panels);
        }
        Ok(())
    })
}

/// Values of a strip of rows of `width` values while a product is computed: whole tiles of the
/// kernel. A decoder is asked for so many rows only if they are not too long.
pub(super) fn product_strip(width: usize) -> usize {
    let rows = PRODUCT_STRIP / width.max(1) / TILE_ROWS * TILE_ROWS;
    rows.max(PRODUCT_ROWS) * width
}

impl Decode for LowRankSum<'_> {
    fn grid(&self) -> Grid {
        let grid = self.quantized.grid();
        if !self.keeps_factor() {
            return Grid {
                // A value in F64 for each value of the tile.
                load_bits: grid.load_bits + 64.0,
                ..grid
            };
        }
        Grid {
            col_align: lcm(grid.col_align, PANEL),
            // Numbers of the left factor for each row.
            load_bits: grid.load_bits + (32 * self.factors.rank) as f64 / grid.cols.max(1) as f64,
            ..grid
        }
    }

    fn rows_together(&self) -> usize {
        PRODUCT_ROWS
    }

    /// The product of a tile has its size, so it can be computed while loading even if the rank has
    /// no bound.
    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.quantized.load(tile, buffers)?;
        let LowRankFactors { a, b, rank, .. } = &self.factors;
        if self.is_late(tile) {
            let Buffers { panels, factors, staging, .. } = &mut *buffers;
            let sizes = (*rank, self.quantized.grid().cols);
            load_panels(sizes, (&self.owner, panels), factors, |cols, out| {
                a.extend(0..*rank, cols, staging, out)
            })?;
            buffers.factors.clear();
            self.extend_columns(tile, buffers)?;
            let Buffers { factors, staging, .. } = buffers;
            return b.extend(tile.rows.clone(), 0..*rank, staging, factors);
        }
        buffers.sums.clear();
        buffers.sums.resize(tile.values(), 0.0);
        let rows = self.quantized.grid().rows;
        add_factors((&**b, &**a), (*rank, 1.0, rows), tile, buffers)?;
        buffers.factors.clear();
        self.extend_columns(tile, buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let loaded = LoadedRows { tile, rows, buffers, level };
        let (rank, width, step) = (self.factors.rank, tile.cols.len(), self.step());
        // The quantized part is decoded to F32 and not to the output's type: it must be rounded
        // once, after the sum.
        if !self.is_late(tile) {
            return loaded.each_strip(&*self.quantized, STRIP, out, |values, at, out| {
                let kernel = Corrected {
                    values,
                    sums: &buffers.sums[at..at + values.len()],
                    width,
                    columns: &buffers.factors,
                    step,
                };
                dispatch(level, &kernel, out);
            });
        }
        let of_columns = if self.columns.is_some() { width } else { 0 };
        let (columns, left) = buffers.factors.split_at(of_columns);
        let right = &buffers.panels.values()[tile.cols.start * rank..];
        let strip = product_strip(width);
        loaded.each_strip(&*self.quantized, strip, out, |values, at, out| {
            let (first, count) = (at / width.max(1), values.len() / width.max(1));
            let left = &left[first * rank..][..count * rank];
            let kernel =
                LowRankRows { values, width, left, rank, right, columns, addition: ScaleSum };
            match step {
                ColumnStep::ScaleSum => dispatch(level, &kernel, out),
                ColumnStep::DivideValue => dispatch(level, &kernel.with(DivideValue), out),
            }
        });
    }
}
