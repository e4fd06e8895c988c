//! The search for the scale and the zero point of a group under which its errors cost least.
//!
//! For given codes the best scale is a quotient of two sums, and the cost that is left follows from
//! them, as in ggml's `make_qx_quants`. So a candidate is only a scale by which codes are found, and a
//! few of them, of both signs or with several zero points, reach nearly all that trying every scale
//! gains (`kernels/tests/searches`).
//!
//! Candidates are tried side by side: vectors hold one value's codes under each of them, so that
//! nothing is summed across a vector.
//!
//! What is carried on is one more value of these sums: its code is `Σ μ·code`, and with what is
//! `Σ μ·x` less what the groups before have carried on, all is made up for.

use super::{clamp, larger, round_to_even, smaller};
use crate::lethe::kernels::activations::{SearchedGroup, TRIED, has_means, index_of_largest};
use crate::simd::{Routine, from_fn, zip};

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
const FACTORS: [f32; TRIED] =
    [0.30, 0.36, 0.42, 0.48, 0.54, 0.60, 0.66, 0.72, 0.78, 0.84, 0.90, 0.96, 1.02, 1.08, 1.15, 1.3];

/// The best scale lies between two candidates: what is added of the best one so far, in each round.
/// The last steps are of the fitted scale itself, under which codes may be others.
const STEPS: [[f32; TRIED]; 3] = [steps(0.008), steps(0.003), steps(0.001)];

/// Lines that are tried side by side. The sums of more would not stay in registers, and the next ones
/// are better chosen the sooner the best of these is known.
const LINES: usize = 8;

/// Candidates for the scale of a line, as [`FACTORS`]. Few are small, for a line that cuts off much of
/// one side is met by rounds that move it.
const LINE_FACTORS: [f32; LINES] = [0.5, 0.593, 0.686, 0.779, 0.871, 0.964, 1.057, 1.15];

/// Around the best line of all before, each round tries lines with [`LINE_STEPS`] and [`LINE_SHIFTS`]
/// times this.
const ROUNDS: [f32; 4] = [5.0, 2.5, 1.2, 0.6];

/// What is added of the scale of a line.
const LINE_STEPS: [f32; 2] = [-0.02, 0.02];

/// How far the middle of a line is moved, in codes: for the bias there are as many good numbers as
/// codes.
const LINE_SHIFTS: [f32; 4] = [-0.2, -0.07, 0.07, 0.2];

/// Values that are summed before their sums are added to those of others: of eight bits, errors are
/// about as far below the squares as the last places of a sum of a thousand squares.
const PART: usize = 64;

/// Steps of this size in both directions, and none.
const fn steps(size: f32) -> [f32; TRIED] {
    let (mut steps, mut i) = ([0.0; TRIED], 0);
    while i < TRIED {
        steps[i] = (i as f32 - 8.0) * size;
        i += 1;
    }
    steps
}

/// Finds the fit of a group.
pub(super) struct FitGroup<'a> {
    /// The largest code.
    pub max_code: f32,
    pub zero: ZeroPoint,
    pub group: SearchedGroup<'a>,
    pub fit: Fit,
}

impl Routine for FitGroup<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.fit = match has_means(self.group.means) {
            true => Candidates::<true>::new(self.group, self.max_code).fit(self.zero),
            false => Candidates::<false>::new(self.group, self.max_code).fit(self.zero),
        };
    }
}

/// What codes of the values of a group explain. Without means, a seventh of the operations is saved.
struct Candidates<'a, const HAS_MEANS: bool> {
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

impl<'a, const HAS_MEANS: bool> Candidates<'a, HAS_MEANS> {
    #[inline(always)]
    fn new(group: SearchedGroup<'a>, max_code: f32) -> Self {
        let [product, mean] = match HAS_MEANS {
            true => group.sums_of_means(),
            false => [0.0; 2],
        };
        let spread = smaller(4.0 / (max_code + 1.0).sqrt(), 1.0);
        Self { group, max_code, spread, target: product - group.carried, mean }
    }

    #[inline(always)]
    fn fit(&self, zero: ZeroPoint) -> Fit {
        match zero {
            ZeroPoint::Any => self.fit_line(),
            zero => self.fit_scale(zero),
        }
    }

    /// A candidate of [`FACTORS`] for as many codes as there are.
    #[inline(always)]
    fn candidate(&self, factor: f32) -> f32 {
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
        let scales = from_fn(|i| width / most * self.candidate(FACTORS[i]));
        // The zero points with which as much is cut off on either side.
        let centred: [f32; TRIED] = from_fn(|i| {
            round_to_even(clamp(most / 2.0 - (high + low) / 2.0 / scales[i], 0.0, most))
        });
        let mut best = Found::default();
        for i in 0..zeros {
            let zeros = match zero {
                ZeroPoint::Middle => [middle - i as f32; TRIED],
                _ => from_fn(|lane| clamp(centred[lane] + (i as f32 - 2.0), 0.0, most)),
            };
            best = self.best_scale(best, scales, zeros);
        }
        for steps in STEPS {
            let Fit { scale, zero } = best.fit;
            let scales = from_fn(|i| scale + scale * (steps[i] * self.spread));
            best = self.best_scale(best, scales, [zero; TRIED]);
        }
        let found = best.fit;
        match zero {
            // Codes from `1 - middle` to `middle` are those of the negative scale.
            ZeroPoint::Middle if found.zero < middle => Fit { scale: -found.scale, zero: middle },
            _ => found,
        }
    }

    /// The best of `found` and of the scales that fit the codes that values get by `scales` and
    /// `zeros`.
    #[inline(always)]
    fn best_scale(
        &self,
        found: Found<Fit>,
        scales: [f32; TRIED],
        zeros: [f32; TRIED],
    ) -> Found<Fit> {
        let [products, squares] = self.sums_of_scales(scales, zeros);
        let (mut fitted, mut explained) = ([0.0; TRIED], [0.0; TRIED]);
        for i in 0..TRIED {
            fitted[i] = products[i] / squares[i];
            explained[i] = if products[i] > 0.0 {
                products[i] * fitted[i]
            } else {
                0.0
            };
        }
        let i = index_of_largest(&explained);
        let fit = Fit { scale: fitted[i], zero: zeros[i] };
        found.or(Found { fit, explained: explained[i] })
    }

    /// Weighted sums of the products of codes, counted from the zero point, with their values, and of
    /// the squares of codes.
    #[inline(always)]
    fn sums_of_scales(&self, scales: [f32; TRIED], zeros: [f32; TRIED]) -> [[f32; TRIED]; 2] {
        let inverses: [f32; TRIED] = from_fn(|i| 1.0 / scales[i]);
        let most = self.max_code;
        let mut totals = [[0.0; TRIED]; 3];
        for [values, variances, means] in self.parts() {
            let [mut products, mut squares, mut of_means] = [[0.0; TRIED]; 3];
            for ((&x, &variance), &mean) in zip(zip(values, variances), means) {
                for i in 0..TRIED {
                    let code =
                        round_to_even(clamp(x * inverses[i] + zeros[i], 0.0, most)) - zeros[i];
                    let weighted = variance * code;
                    products[i] += weighted * x;
                    squares[i] += weighted * code;
                    if HAS_MEANS {
                        of_means[i] += mean * code;
                    }
                }
            }
            add(&mut totals, &[products, squares, of_means]);
        }
        let [mut products, mut squares, means] = totals;
        for i in 0..TRIED {
            products[i] += means[i] * self.target;
            squares[i] += means[i] * means[i];
        }
        [products, squares]
    }

    /// Values with their variances and means, a part at a time.
    #[inline(always)]
    fn parts(&self) -> impl Iterator<Item = [&'a [f32]; 3]> {
        let SearchedGroup { values, variances, means, .. } = self.group;
        let statistics = zip(variances.chunks(PART), means.chunks(PART));
        zip(values.chunks(PART), statistics)
            .map(|(values, (variances, means))| [values, variances, means])
    }

    /// The scale and the zero point, which is any number.
    #[inline(always)]
    fn fit_line(&self) -> Fit {
        let half = self.max_code / 2.0;
        let (low, high) = range(self.group.values);
        let [product, weight] = self.group.sums_of_variances(low);
        let sums = Weights { low, weight, product };
        let (middle, width) = ((high + low) / 2.0, (high - low) / self.max_code);
        let scales = from_fn(|i| width * self.candidate(LINE_FACTORS[i]));
        let biases = from_fn(|i| middle - scales[i] * half);
        let mut best = self.best_line(Found::default(), sums, scales, biases);
        for round in ROUNDS {
            let Line { scale: found, bias } = best.fit;
            let middle = bias + found * half;
            let scales: [f32; LINES] =
                from_fn(|i| found + found * (LINE_STEPS[i / 4] * self.spread * round));
            let biases = from_fn(|i| middle - scales[i] * (half + LINE_SHIFTS[i % 4] * round));
            best = self.best_line(best, sums, scales, biases);
        }
        match best.fit {
            Line { scale: 0.0, .. } => Fit::default(),
            Line { scale, bias } => Fit { scale, zero: -bias / scale },
        }
    }

    /// The best of `found` and of the lines through the values over their codes on lines with `scales`
    /// and `biases`, by weighted least squares.
    #[inline(always)]
    fn best_line(
        &self,
        found: Found<Line>,
        weights: Weights,
        scales: [f32; LINES],
        biases: [f32; LINES],
    ) -> Found<Line> {
        let [fitted, starts, explained] = self.lines(weights, scales, biases);
        let i = index_of_largest(&explained);
        let fit = Line { scale: fitted[i], bias: starts[i] };
        found.or(Found { fit, explained: explained[i] })
    }

    /// The scales and biases of the lines, and what they explain.
    #[inline(always)]
    fn lines(
        &self,
        weights: Weights,
        scales: [f32; LINES],
        biases: [f32; LINES],
    ) -> [[f32; LINES]; 3] {
        let (inverses, most): ([f32; LINES], _) = (from_fn(|i| 1.0 / scales[i]), self.max_code);
        let mut totals = [[0.0; LINES]; 4];
        for [values, variances, means] in self.parts() {
            let [mut codes, mut products, mut squares, mut of_means] = [[0.0; LINES]; 4];
            for ((&x, &variance), &mean) in zip(zip(values, variances), means) {
                for i in 0..LINES {
                    let x = x - biases[i];
                    let code = round_to_even(clamp(x * inverses[i], 0.0, most));
                    let weighted = variance * code;
                    codes[i] += weighted;
                    products[i] += weighted * x;
                    squares[i] += weighted * code;
                    if HAS_MEANS {
                        of_means[i] += mean * code;
                    }
                }
            }
            add(&mut totals, &[codes, products, squares, of_means]);
        }
        let [codes, products, squares, of_means] = totals;
        let Weights { low, weight, product: above_low } = weights;
        let all = weight + self.mean * self.mean;
        let [mut fitted, mut starts, mut explained] = [[0.0; LINES]; 3];
        for i in 0..LINES {
            let bias = biases[i];
            let target = self.target - bias * self.mean;
            let x = above_low - (bias - low) * weight + self.mean * target;
            let code = codes[i] + of_means[i] * self.mean;
            let product = products[i] + of_means[i] * target;
            let square = squares[i] + of_means[i] * of_means[i];
            let (covariance, variance) = (product - code * x / all, square - code * code / all);
            let scale = covariance / variance;
            fitted[i] = scale;
            starts[i] = bias + (x - scale * code) / all;
            explained[i] = if variance > 0.0 && covariance > 0.0 {
                covariance * scale
            } else {
                0.0
            };
        }
        [fitted, starts, explained]
    }
}

/// Adds the sums of a part to those of the parts before it.
#[inline(always)]
fn add<const N: usize, const L: usize>(totals: &mut [[f32; L]; N], sums: &[[f32; L]; N]) {
    for (totals, sums) in zip(&mut totals[..], sums) {
        for (total, sum) in zip(&mut totals[..], sums) {
            *total += sum;
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
