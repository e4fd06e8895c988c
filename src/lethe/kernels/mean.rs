//! The mean of F32 values as torch computes it on one thread: a sum in levels, so that rounding
//! errors grow slowly.
//!
//! The lowest level adds up rows of values. When it has as many rows as a level takes, its sum is
//! added to the next level, and so on. torch splits more than 32768 values among its threads, and
//! has wider vectors on other CPUs; there its mean may differ in the last place.
//!
//! Algorithm: torch 2.15 `aten/src/ATen/native/cpu/SumKernel.cpp`, `cascade_sum`, with vectors of 8
//! (AVX2).

use crate::simd::zip;

/// Values of a vector.
const LANES: usize = 8;
/// Vectors of a row, which are added to sums of their own: `ilp_factor` of `row_sum`.
const VECTORS: usize = 4;

/// Levels of sums: `num_levels` of `multi_row_sum`.
const DEPTH: usize = 4;

/// A row of values, or a sum of rows.
type VectorRow<const V: usize> = [[f32; V]; VECTORS];

/// The mean of a known number of values that are pushed one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Mean {
    count: usize,
    /// A level is carried up when it has 2^`level_power` rows or sums of rows.
    level_power: usize,
    /// Values that do not make a row yet.
    pending: Vec<f32>,
    /// Rows added so far.
    rows: usize,
    levels: [VectorRow<LANES>; DEPTH],
}

impl Mean {
    /// The mean of `count` values, none of which is known yet. The count decides the levels.
    pub(crate) fn new(count: usize) -> Self {
        // The number of rows of all values, as torch knows it before it begins.
        let level_power = level_power(count / LANES / VECTORS);
        Self {
            count,
            level_power,
            pending: Vec::new(),
            rows: 0,
            levels: [[[0.0; LANES]; VECTORS]; DEPTH],
        }
    }

    /// Adds the next value.
    pub(crate) fn push(&mut self, value: f32) {
        self.pending.push(value);
        if let [row] = rows_of::<LANES>(&self.pending) {
            accumulate(&mut self.levels[0], row);
            self.rows += 1;
            carry_up(&mut self.levels, self.rows, self.level_power);
            self.pending.clear();
        }
    }

    /// The mean of all values; NaN if there are none.
    pub(crate) fn finish(&self) -> f32 {
        let values = self.pending.as_slice();
        // Fewer values than a vector are summed by themselves, as vectors of one.
        let sum = if self.count < LANES {
            let vectors = values.as_chunks::<1>().0;
            let (rows, rest) = vectors.as_chunks::<VECTORS>();
            let mut levels = [[[0.0; 1]; VECTORS]; DEPTH];
            rows.iter().for_each(|row| accumulate(&mut levels[0], row));
            sum_levels(levels, rest)[0]
        } else {
            let (vectors, rest) = values.as_chunks::<LANES>();
            let start = rest.iter().fold(0.0, |sum, x| sum + x);
            sum_levels(self.levels, vectors)
                .iter()
                .fold(start, |sum, x| sum + x)
        };
        sum / self.count as f32
    }
}

/// The whole rows that `values` begin with.
fn rows_of<const V: usize>(values: &[f32]) -> &[VectorRow<V>] {
    values.as_chunks::<V>().0.as_chunks::<VECTORS>().0
}

/// log2 of the rows that a level takes, if there are `rows` in all.
fn level_power(rows: usize) -> usize {
    let depth = rows.next_power_of_two().trailing_zeros() as usize;
    (depth / DEPTH).max(4)
}

/// Carries the lowest level up if `rows` rows fill it, and each level above that is filled by this.
fn carry_up<const V: usize>(levels: &mut [VectorRow<V>; DEPTH], rows: usize, level_power: usize) {
    let mask = (1usize << level_power) - 1;
    if rows & mask != 0 {
        return;
    }
    for level in 1..DEPTH {
        let below = std::mem::replace(&mut levels[level - 1], [[0.0; V]; VECTORS]);
        accumulate(&mut levels[level], &below);
        if rows & (mask << (level * level_power)) != 0 {
            break;
        }
    }
}

/// The sum of all levels and of the vectors in `rest`, which do not make a row. `rest` is added to
/// the first sum of the row before the others are, as in `row_sum`.
fn sum_levels<const V: usize>(levels: [VectorRow<V>; DEPTH], rest: &[[f32; V]]) -> [f32; V] {
    let mut sums = levels[0];
    levels[1..]
        .iter()
        .for_each(|level| accumulate(&mut sums, level));
    let first = rest.iter().fold(sums[0], add);
    sums[1..].iter().fold(first, add)
}

fn add<const V: usize>(mut sum: [f32; V], x: &[f32; V]) -> [f32; V] {
    zip(&mut sum[..], x).for_each(|(sum, x)| *sum += x);
    sum
}

fn accumulate<const V: usize>(sums: &mut VectorRow<V>, row: &VectorRow<V>) {
    zip(&mut sums[..], row).for_each(|(sum, x)| *sum = add(*sum, x));
}

/// The mean of `values`.
#[cfg(test)]
pub(crate) fn mean(values: &[f32]) -> f32 {
    let mut mean = Mean::new(values.len());
    values.iter().for_each(|&x| mean.push(x));
    mean.finish()
}
