//! The search for the scale of a block under which errors cost least.
//!
//! Codes of a float are as fine in every binade, so scales a factor of 2 apart are alike: the
//! candidates are in one octave, from the library's scale on, under which no value is cut off.

use std::f32::consts::SQRT_2;
use std::ops::Range;

use super::{BlockScaling, Fp8Arithmetic, PART};
use crate::lethe::kernels::activations::{Activations, ErrorSums};
use crate::lethe::kernels::narrow::{NarrowFloat, narrow, narrow_in_range};
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
    /// `Σ e·μ` of the blocks before, if the block is a part of a single row.
    pub carried: f32,
}

impl SearchedBlock<'_> {
    /// Takes the candidate under which errors cost least for `scaling`, which is the library's.
    /// Returns what is carried on.
    #[inline(always)]
    pub(super) fn search<N: NarrowFloat + Float8>(
        &self,
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
        &self,
        arithmetic: Fp8Arithmetic,
        scaling: BlockScaling,
    ) -> [f32; 2] {
        let Activations { variances, means, row } = self.activations;
        let carried = match self.values.len() == row {
            true => self.carried,
            false => 0.0,
        };
        let rows = zip(self.values.chunks_exact(row), variances.chunks_exact(row));
        let [mut total, mut end] = [0.0, carried];
        for ((values, variances), means) in zip(rows, means.chunks_exact(row)) {
            let [values, variances, means] =
                [values, variances, means].map(|x| &x[self.cols.clone()]);
            let mut sums = ErrorSums::default();
            let statistics = zip(variances.chunks(PART), means.chunks(PART));
            for (values, statistics) in zip(values.chunks(PART), statistics) {
                let mut decoded = [0.0; PART];
                let decoded = &mut decoded[..values.len()];
                scaling.scale(arithmetic, values, decoded);
                match scaling.is_in_range {
                    true => decode(decoded, scaling.scale, narrow_in_range::<N>),
                    false => decode(decoded, scaling.scale, narrow::<N>),
                }
                sums.add((values, decoded), statistics);
            }
            let cost = sums.cost(carried);
            total += cost.total;
            end = cost.carried;
        }
        [total, end]
    }
}

/// Makes of scaled values what their codes decode to.
#[inline(always)]
fn decode(values: &mut [f32], scale: f32, narrowed: impl Fn(f32) -> (u32, f32)) {
    for x in values {
        *x = narrowed(*x).1 * scale;
    }
}
