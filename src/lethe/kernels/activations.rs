//! What an importance matrix says of the activations that the values of a row are multiplied with,
//! and what errors of the values cost.
//!
//! Errors e of a row add `Σ e·h` to an output of the layer, whose activations are h. If these vary
//! independently of each other around their means μ, the mean square of that is
//! `Σ e²·var(h) + (Σ e·μ)²`. The second sum is of a whole row, so it is carried on from group to
//! group, and each group makes up for those before it.

use std::ops::{AddAssign, Range};

use crate::simd::{Level, Routine, from_fn, perform, zip};

/// Statistics of the activations of each value of a tile, if scales are searched; else empty.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Activations<'a> {
    /// The variances; mean squares if the means are not known.
    pub variances: &'a [f32],
    /// The means; zeros if they are not known.
    pub means: &'a [f32],
    /// Number of values of a row of the tile.
    pub row: usize,
}

impl<'a> Activations<'a> {
    /// Whether there are none, so that nothing is searched.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.variances.is_empty()
    }

    /// Those of a run of values, which begins with a row or lies in one.
    pub(crate) fn of_run(&self, run: Range<usize>) -> Self {
        let of = |all: &'a [f32]| all.get(run.clone()).unwrap_or_default();
        Self { variances: of(self.variances), means: of(self.means), row: self.row }
    }

    /// Whether group `i` of groups of `group` values begins in another row than the one before, so
    /// that nothing is carried on.
    #[inline(always)]
    pub(crate) fn begins_row(&self, i: usize, group: usize) -> bool {
        i == 0 || i * group / self.row != (i - 1) * group / self.row
    }
}

/// Mean squares of the outputs of a layer, summed over its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct OutputSquares {
    /// Of what errors add to them.
    pub errors: f64,
    /// Of the outputs themselves.
    pub values: f64,
}

impl AddAssign for OutputSquares {
    fn add_assign(&mut self, other: Self) {
        self.errors += other.errors;
        self.values += other.values;
    }
}

impl Activations<'_> {
    /// The outputs of `values`, and what they lose where these decode to `back`.
    pub(crate) fn outputs(&self, values: &[f32], back: &[f32], level: Level) -> OutputSquares {
        let mut sums =
            SumOutputs { activations: *self, values, back, found: OutputSquares::default() };
        perform(level, &mut sums);
        sums.found
    }
}

struct SumOutputs<'a> {
    activations: Activations<'a>,
    values: &'a [f32],
    back: &'a [f32],
    found: OutputSquares,
}

impl Routine for SumOutputs<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let Activations { variances, means, row } = self.activations;
        let row = row.max(1);
        let rows = zip(self.values.chunks(row), self.back.chunks(row));
        let statistics = zip(variances.chunks(row), means.chunks(row));
        for ((values, back), (variances, means)) in zip(rows, statistics) {
            // In F64, for values of any size have squares there. Lanes fix the order of the sums.
            let mut sums = [[0.0f64; LANES]; 4];
            let values = zip(values.chunks(LANES), back.chunks(LANES));
            let statistics = zip(variances.chunks(LANES), means.chunks(LANES));
            for ((values, back), (variances, means)) in zip(values, statistics) {
                let lanes = zip(zip(values.iter(), back), zip(variances.iter(), means));
                for (i, ((&x, &back), (&variance, &mean))) in lanes.enumerate() {
                    let (x, back) = (f64::from(x), f64::from(back));
                    let (variance, mean, error) = (f64::from(variance), f64::from(mean), back - x);
                    sums[0][i] += variance * error * error;
                    sums[1][i] += mean * error;
                    sums[2][i] += variance * x * x;
                    sums[3][i] += mean * x;
                }
            }
            let mut of_row = [0.0; 4];
            for (sum, lanes) in zip(&mut of_row[..], &sums) {
                for lane in lanes {
                    *sum += lane;
                }
            }
            let [squares, errors, value_squares, outputs] = of_row;
            self.found.errors += squares + errors * errors;
            self.found.values += value_squares + outputs * outputs;
        }
    }
}

/// A group whose scale is searched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchedGroup<'a> {
    pub values: &'a [f32],
    pub variances: &'a [f32],
    pub means: &'a [f32],
    /// `Σ e·μ` of the groups before it in its row.
    pub carried: f32,
}

/// What the errors of a group cost, and `Σ e·μ` up to its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    pub total: f32,
    pub carried: f32,
}

impl Cost {
    /// Of the weighted sums of the squares of a group's errors and of the errors.
    #[inline(always)]
    pub(crate) fn of([squares, errors]: [f32; 2], carried: f32) -> Self {
        let carried = carried + errors;
        Self { total: squares + carried * carried, carried }
    }
}

/// Candidates for a scale that are tried side by side: one in each lane of a vector.
pub(crate) const TRIED: usize = 16;

const LANES: usize = 16;

impl SearchedGroup<'_> {
    /// `Σ μ·x` and `Σ μ`.
    #[inline(always)]
    pub(crate) fn sums_of_means(&self) -> [f32; 2] {
        weighted_sums(self.values, 0.0, self.means)
    }

    /// `Σ var(h)·(x - start)` and `Σ var(h)`.
    #[inline(always)]
    pub(crate) fn sums_of_variances(&self, start: f32) -> [f32; 2] {
        weighted_sums(self.values, start, self.variances)
    }

    /// The cost of the errors of `back`, what the group is decoded to.
    #[inline(always)]
    pub(crate) fn cost_of(&self, back: &[f32]) -> Cost {
        let mut sums = ErrorSums::default();
        sums.add((self.values, back), (self.variances, self.means));
        sums.cost(self.carried)
    }
}

/// Weighted sums of the squares of a group's errors and of the errors, side by side.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ErrorSums([[f32; LANES]; 2]);

impl ErrorSums {
    /// Adds the errors of `back`, what `values` are decoded to. But for the last ones of a group, they
    /// are a multiple of 16.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        (values, back): (&[f32], &[f32]),
        (variances, means): (&[f32], &[f32]),
    ) {
        let [squares, sums] = &mut self.0;
        let mut add = |i: usize, [x, back, variance, mean]: [f32; 4]| {
            let error = back - x;
            squares[i] += variance * error * error;
            sums[i] += mean * error;
        };
        // Whole chunks by themselves: loops of a known length become vectors.
        let (values, last_values) = values.as_chunks::<LANES>();
        let (back, last_back) = back.as_chunks::<LANES>();
        let (variances, last_variances) = variances.as_chunks::<LANES>();
        let (means, last_means) = means.as_chunks::<LANES>();
        let pairs = zip(zip(values.iter(), back), zip(variances.iter(), means));
        for ((values, back), (variances, means)) in pairs {
            for i in 0..LANES {
                add(i, [values[i], back[i], variances[i], means[i]]);
            }
        }
        let pairs = zip(zip(last_values.iter(), last_back), zip(last_variances.iter(), last_means));
        for (i, ((&x, &back), (&variance, &mean))) in pairs.enumerate() {
            add(i % LANES, [x, back, variance, mean]);
        }
    }

    /// What the errors cost.
    #[inline(always)]
    pub(crate) fn cost(&self, carried: f32) -> Cost {
        Cost::of(from_fn(|i| sum_of(&self.0[i])), carried)
    }
}

/// Sums of `values`, counted from `start`, times their weights, and of the weights.
#[inline(always)]
fn weighted_sums(values: &[f32], start: f32, weights: &[f32]) -> [f32; 2] {
    let mut sums = [[0.0; LANES]; 2];
    for (values, weights) in zip(values.chunks(LANES), weights.chunks(LANES)) {
        for (i, (&x, &weight)) in zip(values.iter(), weights).enumerate() {
            sums[0][i] += weight * (x - start);
            sums[1][i] += weight;
        }
    }
    from_fn(|i| sum_of(&sums[i]))
}

/// Whether there are means: without, searches save a part of their operations.
#[inline(always)]
pub(crate) fn has_means(means: &[f32]) -> bool {
    let mut has_means = false;
    for &mean in means {
        has_means |= mean != 0.0;
    }
    has_means
}

/// The sum of all numbers: halves are added until one number is left.
#[inline(always)]
pub(crate) fn sum_of<const N: usize>(numbers: &[f32; N]) -> f32 {
    let mut sums = *numbers;
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}

/// Of lanes that are compared in pairs, half of them at a time. One after the other, each would be a
/// branch that nobody can foresee.
#[inline(always)]
pub(crate) fn index_of_largest<const N: usize>(lanes: &[f32; N]) -> usize {
    let (mut largest, mut at): ([f32; N], [u32; N]) = (*lanes, from_fn(|i| i as u32));
    let mut half = N / 2;
    while half > 0 {
        for i in 0..half {
            let is_larger = largest[i + half] > largest[i];
            at[i] = if is_larger { at[i + half] } else { at[i] };
            largest[i] = if is_larger {
                largest[i + half]
            } else {
                largest[i]
            };
        }
        half /= 2;
    }
    at[0] as usize % N
}
