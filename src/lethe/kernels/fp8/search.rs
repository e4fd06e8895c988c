//! The search for the scale of a block under which errors cost least.
//!
//! Codes of a float are as fine in every binade, so scales a factor of 2 apart are alike: the
//! candidates are in one octave, from the library's scale on, under which no value is cut off.

use std::f32::consts::SQRT_2;
use std::ops::Range;

use super::{BlockScaling, Fp8Arithmetic, PART};
use crate::lethe::kernels::activations::{Activations, ErrorSums, TRIED};
use crate::lethe::kernels::narrow::{NarrowFloat, narrow, narrow_in_range};
use crate::remember::kernels::fp8::Float8;
use crate::simd::{from_fn, zip};

/// Candidates for a scale, as multiples of the library's: powers of the sixteenth root of 2.
const FACTORS: [f32; TRIED] = [
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

/// Steps to the candidates between two of [`FACTORS`]. Errors of a block are noise over the scale, so
/// that each candidate may be the best, however near it is to others.
const STEPS: [f32; 2] = [1.0, 1.021_897_1];

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
        let plain = *scaling;
        let (mut least, mut found) = (f32::INFINITY, (plain.scale, plain.factor));
        for step in STEPS {
            let operands: [_; TRIED] =
                from_fn(|i| arithmetic.operands(plain.scale * FACTORS[i] * step));
            let costs = self.estimates::<N>(from_fn(|i| operands[i].0));
            for (operands, cost) in zip(operands, costs) {
                if cost < least {
                    (least, found) = (cost, operands);
                }
            }
        }
        let [plain_cost, mut carried] = self.cost_of::<N>(arithmetic, plain);
        let tried = BlockScaling::of::<N>(arithmetic, found, max_abs);
        let [cost, end] = self.cost_of::<N>(arithmetic, tried);
        if cost < plain_cost {
            (carried, *scaling) = (end, tried);
        }
        carried
    }

    /// What is carried to each row of the block.
    #[inline(always)]
    fn carried_to_rows(&self) -> f32 {
        match self.values.len() == self.activations.row {
            true => self.carried,
            false => 0.0,
        }
    }

    /// Values of each row of the block, with their variances and means.
    #[inline(always)]
    fn rows(&self) -> impl Iterator<Item = [&[f32]; 3]> {
        let Activations { variances, means, row } = self.activations;
        let statistics = zip(variances.chunks_exact(row), means.chunks_exact(row));
        zip(self.values.chunks_exact(row), statistics).map(|(values, (variances, means))| {
            [values, variances, means].map(|x| &x[self.cols.clone()])
        })
    }

    /// About what errors under each of these scales cost. Values are rounded as if each binade were
    /// normal and no dtype of a library between, in half of the operations: that decides on few codes
    /// and on small errors.
    #[inline(always)]
    fn estimates<N: NarrowFloat>(&self, scales: [f32; TRIED]) -> [f32; TRIED] {
        let inverses: [f32; TRIED] = from_fn(|i| 1.0 / scales[i]);
        let mut totals = [0.0; TRIED];
        for [values, variances, means] in self.rows() {
            let [mut squares, mut errors] = [[0.0; TRIED]; 2];
            for ((&x, &variance), &mean) in zip(zip(values, variances), means) {
                for i in 0..TRIED {
                    let scaled = x * inverses[i];
                    let error = with_mantissa_of::<N>(scaled) - scaled;
                    squares[i] += variance * error * error;
                    errors[i] += mean * error;
                }
            }
            for i in 0..TRIED {
                let carried = self.carried_to_rows() + errors[i] * scales[i];
                totals[i] += squares[i] * scales[i] * scales[i] + carried * carried;
            }
        }
        totals
    }

    /// What errors under this scale cost, and what is carried on.
    #[inline(always)]
    fn cost_of<N: NarrowFloat + Float8>(
        &self,
        arithmetic: Fp8Arithmetic,
        scaling: BlockScaling,
    ) -> [f32; 2] {
        let [mut total, mut end] = [0.0; 2];
        for [values, variances, means] in self.rows() {
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
            let cost = sums.cost(self.carried_to_rows());
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

/// `x` with as many bits of mantissa as codes have, as Veltkamp splits numbers: the product with
/// 2^s + 1 less its difference to `x` has s bits less.
#[inline(always)]
fn with_mantissa_of<N: NarrowFloat>(x: f32) -> f32 {
    let product = x * ((1u32 << (23 - N::MANTISSA_BITS)) + 1) as f32;
    product - (product - x)
}
