//! The search for the scale of a block under which errors cost least.
//!
//! Codes of a float are as fine in every binade, so scales a factor of 2 apart are alike: the
//! candidates are in one octave, from the library's scale on, under which no value is cut off.

use std::f32::consts::SQRT_2;
use std::ops::Range;

use super::{BlockScaling, Fp8Arithmetic};
use crate::lethe::kernels::activations::{Activations, SearchedGroup};
use crate::lethe::kernels::narrow::NarrowFloat;
use crate::remember::kernels::fp8::Float8;
use crate::simd::zip;

/// Candidates for a scale, as multiples of the library's: powers of the sixteenth root of 2.
const FACTORS: [f32; 16] = [
    1.0,
    1.044_273_8,
    1.090_507_7,
    1.138_788_6,
    1.189_207_1,
    1.241_857_8,
    1.296_839_6,
    1.354_255_6,
    SQRT_2,
    1.476_826_1,
    1.542_210_8,
    1.610_490_3,
    1.681_792_9,
    1.756_252_2,
    1.834_008_1,
    1.915_206_6,
];

/// A block whose scale is searched.
pub(super) struct SearchedBlock<'a> {
    /// Whole rows of the tile, as many as the block has.
    pub values: &'a [f32],
    /// Those of `values`, with the width of the tile.
    pub activations: Activations<'a>,
    /// Columns of the block.
    pub cols: Range<usize>,
    /// Hold what candidates give. `codes` are as many as `values`.
    pub codes: &'a mut [u8],
    pub back: &'a mut [f32],
    /// `Σ e·μ` of the blocks before, if the block is a part of a single row.
    pub carried: f32,
}

impl SearchedBlock<'_> {
    /// Takes the candidate under which errors cost least for `scaling`, which is the library's.
    /// Returns what is carried on.
    #[inline(always)]
    pub(super) fn search<N: NarrowFloat + Float8>(
        &mut self,
        arithmetic: Fp8Arithmetic,
        max_abs: f32,
        scaling: &mut BlockScaling,
    ) -> f32 {
        let (plain, mut least, mut carried) = (*scaling, f32::INFINITY, self.carried);
        for factor in FACTORS {
            let tried = match factor == 1.0 {
                true => plain,
                false => {
                    let operands = arithmetic.operands(plain.scale * factor);
                    BlockScaling::of::<N>(arithmetic, operands, max_abs)
                }
            };
            let [cost, end] = self.cost_of::<N>(arithmetic, tried);
            if cost < least {
                (least, carried, *scaling) = (cost, end, tried);
            }
        }
        carried
    }

    /// What errors under this scale cost, and what is carried on.
    #[inline(always)]
    fn cost_of<N: NarrowFloat + Float8>(
        &mut self,
        arithmetic: Fp8Arithmetic,
        scaling: BlockScaling,
    ) -> [f32; 2] {
        let Activations { variances, means, row } = self.activations;
        let (cols, is_row) = (self.cols.clone(), self.values.len() == row);
        let rows = zip(self.values.chunks_exact(row), self.codes.chunks_exact_mut(row));
        let statistics = zip(variances.chunks_exact(row), means.chunks_exact(row));
        let rows = zip(zip(rows, self.back.chunks_exact_mut(row)), statistics);
        let carried = if is_row { self.carried } else { 0.0 };
        let [mut total, mut end] = [0.0, carried];
        for (((values, codes), back), (variances, means)) in rows {
            let (values, back) = (&values[cols.clone()], &mut back[cols.clone()]);
            scaling.encode::<N>(arithmetic, values, &mut codes[cols.clone()], back);
            let (variances, means) = (&variances[cols.clone()], &means[cols.clone()]);
            let cost = SearchedGroup { values, variances, means, carried }.cost_of(back);
            total += cost.total;
            end = cost.carried;
        }
        [total, end]
    }
}
