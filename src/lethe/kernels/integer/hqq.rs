//! HQQ: integers whose zero point, any number, is optimised for errors that few values have.
//!
//! Formulas: hqq 0.2.8 `core/quantize.py` (`Quantizer.quantize`), `core/optimize.py`
//! (`optimize_weights_proximal_legacy`), in F32 on CPU. Scales multiply, and their reciprocals are
//! stored. The library stops when the mean error of the whole tensor does not fall; the number of
//! steps is found first, of [`StepErrors`].
//!
//! Powers are computed in F64 and rounded, the library's have an error of one in the last place. They
//! count only for values whose error is above 0.14.

use std::ops::AddAssign;

use super::{
    BATCH, Fit, IntegerArithmetic, IntegerQuantizer, IntegerRule, LANES, QuantParams,
    ROUND_TO_INTEGER, clamp, larger, min_max, round_to_even, smaller,
};
use crate::TargetDtype;
use crate::lethe::kernels::mean::Mean;
use crate::simd::{Level, Routine, perform, zip};

/// Steps at most.
const STEPS: usize = 20;

/// The largest reciprocal of a scale.
const MAX_SCALE: f32 = 2e4;

/// `1 / beta` of the shrinking operator `|x| - |x|^(p - 1) / beta`, and `p - 1`.
const SHRINK: f32 = 0.1;
const POWER: f64 = -0.3f32 as f64;

/// No error up to this is left by the shrinking operator: 0.1^(1 / 1.3) is 0.17.
const SHRUNK_TO_ZERO: f32 = 0.14;

/// Sums of the magnitudes of errors before each step.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepErrors([f64; STEPS]);

impl AddAssign<&Self> for StepErrors {
    fn add_assign(&mut self, other: &Self) {
        for (sum, x) in zip(&mut self.0[..], &other.0) {
            *sum += x;
        }
    }
}

impl StepErrors {
    /// Number of steps that the library takes for `count` values: it stops with the first in which
    /// the mean error is not below that before.
    pub(crate) fn steps(&self, count: usize) -> usize {
        let mut least = f32::INFINITY;
        for (step, sum) in self.0.iter().enumerate() {
            let mean = (sum / count.max(1) as f64) as f32;
            // A mean that is not a number ends the loop, too.
            if mean < least {
                least = mean;
            } else {
                return step + 1;
            }
        }
        STEPS
    }
}

/// The arithmetic of HQQ.
#[derive(Clone, Copy)]
pub(super) struct HqqInt {
    max_code: f32,
    /// Whether the first zero point is an integer.
    rounds_zero: bool,
    dtype: TargetDtype,
    steps: usize,
}

impl HqqInt {
    pub(super) fn new(bits: usize, dtype: TargetDtype, steps: usize) -> Self {
        Self { max_code: super::rules::max_code(bits), rounds_zero: bits == 4, dtype, steps }
    }

    /// The scale of a group, and the zero point that it begins with.
    #[inline(always)]
    fn first(self, values: &[f32]) -> (f32, f32) {
        let (low, high) = min_max(values, |x| x);
        let low = low.iter().fold(f32::INFINITY, |a, &b| smaller(a, b));
        let high = high.iter().fold(f32::NEG_INFINITY, |a, &b| larger(a, b));
        let range = high - low;
        // torch multiplies a number over a tensor with the tensor's reciprocal.
        let scale = if range <= 1e-4 {
            1.0
        } else {
            smaller(1.0 / range * self.max_code, MAX_SCALE)
        };
        let zero = -low * scale;
        (
            scale,
            if self.rounds_zero {
                zero.round_ties_even()
            } else {
                zero
            },
        )
    }

    /// The code of `x`.
    #[inline(always)]
    fn nearest(self, x: f32, scale: f32, zero: f32) -> f32 {
        round_to_even(clamp(x * scale + zero, 0.0, self.max_code))
    }

    /// The zero point that follows `zero`, and the sum of the errors' magnitudes under `zero`.
    #[inline(always)]
    fn step(self, values: &[f32], scale: f32, zero: f32) -> (f32, f32) {
        let (rows, rest) = values.as_chunks::<{ 2 * LANES }>();
        if rest.is_empty() && rows.len() <= 16 {
            let (mut sums, mut errors) = ([0.0f32; 2 * LANES], [0.0f32; 2 * LANES]);
            let mut largest = [0.0f32; 2 * LANES];
            for row in rows {
                for i in 0..2 * LANES {
                    let code = self.nearest(row[i], scale, zero);
                    let error = (row[i] - (code - zero) / scale).abs();
                    errors[i] += error;
                    largest[i] = larger(largest[i], error);
                    sums[i] += code - row[i] * scale;
                }
            }
            if largest.iter().all(|&error| error < SHRUNK_TO_ZERO) {
                return (mean_of(&sums, values.len()), errors.iter().sum());
            }
        }
        self.step_by_value(values, scale, zero)
    }

    /// [`step`](Self::step) for a group of any length, and with errors that the shrinking operator
    /// leaves.
    #[cold]
    fn step_by_value(self, values: &[f32], scale: f32, zero: f32) -> (f32, f32) {
        let (mut mean, mut errors) = (Mean::new(values.len()), 0.0);
        for &x in values {
            let code = self.nearest(x, scale, zero);
            let error = x - (code - zero) / scale;
            errors += error.abs();
            mean.push(code - (x - shrunk(error)) * scale);
        }
        (mean.finish(), errors)
    }
}

/// The mean of `count` values of which each lane has the sum, as [`Mean`] adds them up.
#[inline(always)]
fn mean_of(sums: &[f32; 2 * LANES], count: usize) -> f32 {
    let mut sum = 0.0;
    for i in 0..8 {
        sum += sums[i] + sums[8 + i] + sums[16 + i] + sums[24 + i];
    }
    sum / count as f32
}

/// What the shrinking operator leaves of an error.
fn shrunk(error: f32) -> f32 {
    let size = error.abs();
    if size < SHRUNK_TO_ZERO {
        return 0.0;
    }
    let power = f64::from(size).powf(POWER) as f32;
    (size - SHRINK * power).max(0.0).copysign(error)
}

impl IntegerArithmetic for HqqInt {
    const ROUNDS: bool = true;

    #[inline(always)]
    fn cast(self, x: f32) -> f32 {
        x
    }

    /// The scale and the zero point of each group after all steps.
    #[inline(always)]
    fn bounds(self, values: &[f32], group: usize) -> [[f32; BATCH]; 2] {
        let (mut scales, mut zeros) = ([1.0; BATCH], [0.0; BATCH]);
        let groups = values.chunks_exact(group);
        for (values, (out_scale, out_zero)) in zip(groups, zip(&mut scales[..], &mut zeros)) {
            let (scale, mut zero) = self.first(values);
            for _ in 0..self.steps {
                let (next, _) = self.step(values, scale, zero);
                if next.to_bits() == zero.to_bits() {
                    break;
                }
                zero = next;
            }
            (*out_scale, *out_zero) = (scale, zero);
        }
        [scales, zeros]
    }

    #[inline(always)]
    fn params(self, scale: f32, zero: f32) -> QuantParams {
        QuantParams {
            scale,
            offset: zero,
            stored_scale: self.dtype.round(1.0 / scale),
            stored_offset: self.dtype.round(zero),
        }
    }

    #[inline(always)]
    fn fitted(self, fit: Fit) -> QuantParams {
        let (scale, zero) = (self.dtype.round(fit.scale), self.dtype.round(fit.zero));
        QuantParams { scale: 1.0 / scale, offset: zero, stored_scale: scale, stored_offset: zero }
    }

    #[inline(always)]
    fn divide(self, values: &[f32], params: &QuantParams, quotients: &mut [f32]) {
        for (quotient, &x) in zip(quotients, values) {
            *quotient = x * params.scale + params.offset;
        }
    }

    #[inline(always)]
    fn code(self, quotient: f32, _: &QuantParams) -> f32 {
        clamp(quotient, 0.0, self.max_code) + ROUND_TO_INTEGER
    }
}

/// Adds up errors of whole groups.
struct SumStepErrors<'a> {
    arithmetic: HqqInt,
    group: usize,
    values: &'a [f32],
    sums: StepErrors,
}

impl Routine for SumStepErrors<'_> {
    #[inline(always)]
    fn run(&mut self) {
        for values in self.values.chunks_exact(self.group) {
            let (scale, mut zero) = self.arithmetic.first(values);
            let mut last = None;
            for sum in &mut self.sums.0 {
                // Under the same zero point errors are the same.
                let error = match last {
                    Some(error) => error,
                    None => {
                        let (next, error) = self.arithmetic.step(values, scale, zero);
                        last = (next.to_bits() == zero.to_bits()).then_some(error);
                        zero = next;
                        error
                    }
                };
                *sum += f64::from(error);
            }
        }
    }
}

impl IntegerQuantizer {
    /// The errors of whole groups before each step of HQQ's optimiser.
    pub(crate) fn step_errors(&self, values: &[f32], level: Level) -> StepErrors {
        let arithmetic = HqqInt::new(self.bits, self.dtype, STEPS);
        let group = self.group.max(1);
        let mut sums = SumStepErrors { arithmetic, group, values, sums: StepErrors::default() };
        perform(level, &mut sums);
        sums.sums
    }

    /// The quantizer whose optimiser takes so many steps.
    pub(crate) fn with_steps(self, steps: usize) -> Self {
        Self { rule: IntegerRule::Hqq { steps }, ..self }
    }
}
