//! The search for the scale and the zero point of a group under which its errors cost least.
//!
//! For given codes the best scale is a quotient of two sums, and the cost that is left follows from
//! them, as in ggml's `make_qx_quants`. So a candidate is only a scale by which codes are found, and a
//! few of them, of both signs or with several zero points, reach nearly all that trying every scale
//! gains (`kernels/tests/searches`).
//!
//! What is carried on is one more value of these sums: its code is `Σ μ·code`, and with what is
//! `Σ μ·x` less what the groups before have carried on, all is made up for.

use super::{LANES, clamp, larger, round_to_even, smaller};
use crate::lethe::kernels::activations::{SearchedGroup, sum_of};
use crate::simd::{Routine, zip};

/// Which zero points a search may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZeroPoint {
    /// The middle of all codes. The scale may be negative, so that the one code more of one side is
    /// on either side.
    Middle,
    /// One of the codes.
    Code,
    /// Any number.
    Any,
}

/// `scale * (code - zero)` is the value of a code. A `scale` of 0 is that of a group in which
/// nothing was found.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fit {
    pub scale: f32,
    pub zero: f32,
}

/// Candidates for a scale, as a part of the scale under which the range of a group is just that of
/// the codes, for up to four bits. The best scale cuts off extreme values, more of them the fewer
/// codes there are and the less they count; it is larger than 1 where few codes meet most values.
const FACTORS: [f32; 16] =
    [0.30, 0.36, 0.42, 0.48, 0.54, 0.60, 0.66, 0.72, 0.78, 0.84, 0.90, 0.96, 1.02, 1.08, 1.15, 1.3];

/// The best scale lies between two candidates: what is added of the better one to come to the next.
const STEPS: [f32; 4] = [-0.03, -0.015, 0.015, 0.03];

/// Candidates for the scale of a line: it adapts to its codes, so that fewer lead as far.
const LINE_FACTORS: [f32; 7] = [0.4, 0.51, 0.62, 0.73, 0.84, 0.94, 1.05];

/// Around the best line of all before, each round tries lines with other scales, [`STEPS`] times this,
/// and with [`SHIFTS`] times this: for the bias there are as many good numbers as codes.
const ROUNDS: [f32; 3] = [3.3, 2.0, 0.9];

/// How far the middle of a line is moved, in codes.
const SHIFTS: [f32; 2] = [-0.15, 0.15];

/// Finds the fit of a group.
pub(super) struct FitGroup<'a> {
    /// The largest code.
    pub max_code: f32,
    pub zero: ZeroPoint,
    pub group: SearchedGroup<'a>,
    pub fit: Fit,
}

impl Routine for FitGroup<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let candidates = Candidates::new(self.group, self.max_code);
        self.fit = match self.zero {
            ZeroPoint::Any => candidates.fit_line(),
            zero => candidates.fit_scale(zero),
        };
    }
}

/// What codes of the values of a group explain.
struct Candidates<'a> {
    group: SearchedGroup<'a>,
    max_code: f32,
    /// How far apart candidates are, in those of four bits. Of more bits the best scale is nearer to the
    /// range of the group, and smaller steps change as many codes.
    spread: f32,
    /// `Σ μ·x` less what is carried on.
    target: f32,
    /// `Σ μ`.
    mean: f32,
}

impl<'a> Candidates<'a> {
    #[inline(always)]
    fn new(group: SearchedGroup<'a>, max_code: f32) -> Self {
        let [product, mean] = group.sums_of_means();
        let spread = smaller(4.0 / (max_code + 1.0).sqrt(), 1.0);
        Self { group, max_code, spread, target: product - group.carried, mean }
    }

    /// A candidate of [`FACTORS`] or [`LINE_FACTORS`] for as many codes as there are.
    #[inline(always)]
    fn spread(&self, factor: f32) -> f32 {
        1.0 + (factor - 1.0) * self.spread
    }

    /// The scale and the zero point, which is the middle of the codes or any code.
    #[inline(always)]
    fn fit_scale(&self, zero: ZeroPoint) -> Fit {
        let most = self.max_code;
        let (low, high) = range(self.group.values);
        let (low, high) = (low.min(0.0), high.max(0.0));
        let middle = (most + 1.0) / 2.0;
        let (width, zeros) = match zero {
            ZeroPoint::Middle => (larger(-low, high) * most / middle, 2),
            _ => (high - low, 5),
        };
        let mut best = Found::default();
        for factor in FACTORS {
            let scale = width / most * self.spread(factor);
            // The zero point with which as much is cut off on either side.
            let centred = round_to_even(clamp(most / 2.0 - (high + low) / 2.0 / scale, 0.0, most));
            for i in 0..zeros {
                let zero = match zero {
                    ZeroPoint::Middle => middle - i as f32,
                    _ => clamp(centred + (i as f32 - 2.0), 0.0, most),
                };
                best = best.or(self.scaled(scale, zero));
            }
        }
        let Fit { scale, zero: at } = best.fit;
        for step in STEPS {
            best = best.or(self.scaled(scale + scale * (step * self.spread), at));
        }
        best = best.or(self.scaled(best.fit.scale, at));
        let found = best.fit;
        match zero {
            // Codes from `1 - middle` to `middle` are those of the negative scale.
            ZeroPoint::Middle if found.zero < middle => Fit { scale: -found.scale, zero: middle },
            _ => found,
        }
    }

    /// The best scale for the codes that values get by `scale` and `zero`.
    #[inline(always)]
    fn scaled(&self, scale: f32, zero: f32) -> Found<Fit> {
        let [product, square] = self.sums(scale, zero);
        match product > 0.0 {
            true => Found {
                fit: Fit { scale: product / square, zero },
                explained: product * product / square,
            },
            false => Found::default(),
        }
    }

    /// Weighted sums of the products of codes, counted from `zero`, with their values, and of the
    /// squares of codes.
    #[inline(always)]
    fn sums(&self, scale: f32, zero: f32) -> [f32; 2] {
        let (inverse, low, high) = (1.0 / scale, -zero, self.max_code - zero);
        let mut sums = [[0.0; LANES]; 3];
        self.for_each_part(|values, variances, means| {
            for i in 0..LANES {
                let code = round_to_even(clamp(values[i] * inverse, low, high));
                let weighted = variances[i] * code;
                sums[0][i] += weighted * values[i];
                sums[1][i] += weighted * code;
                sums[2][i] += means[i] * code;
            }
        });
        let [product, square, mean] = sums.map(|lanes| sum_of(&lanes));
        [product + mean * self.target, square + mean * mean]
    }

    /// The scale and the zero point, which is any number.
    #[inline(always)]
    fn fit_line(&self) -> Fit {
        let half = self.max_code / 2.0;
        let (low, high) = range(self.group.values);
        let sums = self.sums_of_weights(low);
        let (middle, width) = ((high + low) / 2.0, (high - low) / self.max_code);
        let mut best = Found::<Line>::default();
        for factor in LINE_FACTORS {
            let scale = width * self.spread(factor);
            best = best.or(self.line_of(Line { scale, bias: middle - scale * half }, sums));
        }
        for round in ROUNDS {
            let Line { scale: found, bias } = best.fit;
            let middle = bias + found * half;
            for step in STEPS {
                let scale = found + found * (step * self.spread * round);
                for shift in SHIFTS {
                    let bias = middle - scale * (half + shift * round);
                    best = best.or(self.line_of(Line { scale, bias }, sums));
                }
            }
        }
        for _ in 0..2 {
            best = best.or(self.line_of(best.fit, sums));
        }
        match best.fit {
            Line { scale: 0.0, .. } => Fit::default(),
            Line { scale, bias } => Fit { scale, zero: -bias / scale },
        }
    }

    /// Sums of the weights and of their products with values, counted from `low`.
    #[inline(always)]
    fn sums_of_weights(&self, low: f32) -> Weights {
        let mut sums = [[0.0; LANES]; 2];
        self.for_each_part(|values, variances, _| {
            for i in 0..LANES {
                sums[0][i] += variances[i];
                sums[1][i] += variances[i] * (values[i] - low);
            }
        });
        let [weight, product] = sums.map(|lanes| sum_of(&lanes));
        Weights { low, weight, product }
    }

    /// The line through the values over their codes on `line`, by weighted least squares.
    #[inline(always)]
    fn line_of(&self, line: Line, weights: Weights) -> Found<Line> {
        let (inverse, bias, most) = (1.0 / line.scale, line.bias, self.max_code);
        let mut sums = [[0.0; LANES]; 4];
        self.for_each_part(|values, variances, means| {
            for i in 0..LANES {
                let x = values[i] - bias;
                let code = round_to_even(clamp(x * inverse, 0.0, most));
                let weighted = variances[i] * code;
                sums[0][i] += weighted;
                sums[1][i] += weighted * x;
                sums[2][i] += weighted * code;
                sums[3][i] += means[i] * code;
            }
        });
        let [code, product, square, mean] = sums.map(|lanes| sum_of(&lanes));
        let Weights { low, weight, product: x } = weights;
        let (target, x) = (self.target - bias * self.mean, x - (bias - low) * weight);
        let (weight, x) = (weight + self.mean * self.mean, x + self.mean * target);
        let (code, product) = (code + mean * self.mean, product + mean * target);
        let square = square + mean * mean;
        let (covariance, variance) = (product - code * x / weight, square - code * code / weight);
        let scale = covariance / variance;
        match variance > 0.0 && covariance > 0.0 {
            true => Found {
                fit: Line { scale, bias: bias + (x - scale * code) / weight },
                explained: covariance * scale,
            },
            false => Found::default(),
        }
    }

    /// Calls `add` with the values, variances and means of [`LANES`] lanes at a time; all are 0 in
    /// lanes behind the last value.
    #[inline(always)]
    fn for_each_part(&self, mut add: impl FnMut(&[f32; LANES], &[f32; LANES], &[f32; LANES])) {
        let (values, rest) = self.group.values.as_chunks::<LANES>();
        let (variances, rest_variances) = self.group.variances.as_chunks::<LANES>();
        let (means, rest_means) = self.group.means.as_chunks::<LANES>();
        for ((values, variances), means) in zip(zip(values.iter(), variances), means) {
            add(values, variances, means);
        }
        if !rest.is_empty() {
            let mut last = [[0.0; LANES]; 3];
            for (lanes, rest) in zip(&mut last[..], &[rest, rest_variances, rest_means]) {
                for (lane, &x) in zip(&mut lanes[..], *rest) {
                    *lane = x;
                }
            }
            add(&last[0], &last[1], &last[2]);
        }
    }
}

/// What was found for a group, and what part of the squares of its values that explains.
#[derive(Clone, Copy, Default)]
struct Found<F> {
    fit: F,
    explained: f32,
}

impl<F> Found<F> {
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        match other.explained > self.explained {
            true => other,
            false => self,
        }
    }
}

/// Sums over a group for all of its lines.
#[derive(Clone, Copy)]
struct Weights {
    low: f32,
    weight: f32,
    /// Of the products with values, counted from `low`.
    product: f32,
}

/// `scale * code + bias` is the value of a code.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    bias: f32,
}

/// The smallest and the largest value.
#[inline(always)]
fn range(values: &[f32]) -> (f32, f32) {
    let (low, high) = super::min_max(values, |x| x);
    let low = low.iter().fold(f32::INFINITY, |a, &b| smaller(a, b));
    (low, high.iter().fold(f32::NEG_INFINITY, |a, &b| larger(a, b)))
}
