//! The mean of many F32 as torch computes it on one thread: a sum in levels, so that rounding errors grow slowly.
//! torch splits more than 32768 values among its threads, and has wider vectors on other CPUs; there its mean may be
//! another in the last place.
//!
//! Algorithm: torch 2.15 `aten/src/ATen/native/cpu/SumKernel.cpp`, `cascade_sum`, with vectors of 8 (AVX2).

/// Sums that are kept beside each other: vectors of 8, four at a time.
const LANES: usize = 8;
const ROWS: usize = 4;

/// Levels of sums.
const DEPTH: usize = 4;

/// A row of such vectors.
type Row<const V: usize> = [[f32; V]; ROWS];

/// The mean of so many values that come one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Mean {
    count: usize,
    /// The lowest level is passed up each time that it has two to this power of rows.
    power: usize,
    /// Values that are no row yet.
    pending: Vec<f32>,
    rows: usize,
    levels: [Row<LANES>; DEPTH],
}

impl Mean {
    /// Of `count` values.
    pub(crate) fn new(count: usize) -> Self {
        let power = power(count / LANES / ROWS);
        Self {
            count,
            power,
            pending: Vec::new(),
            rows: 0,
            levels: [[[0.0; LANES]; ROWS]; DEPTH],
        }
    }

    /// Takes the next value.
    pub(crate) fn push(&mut self, value: f32) {
        self.pending.push(value);
        if let [row] = rows_of::<LANES>(&self.pending) {
            accumulate(&mut self.levels[0], row);
            self.rows += 1;
            pass_up(&mut self.levels, self.rows, self.power);
            self.pending.clear();
        }
    }

    /// The mean of all; of none, NaN.
    pub(crate) fn finish(&self) -> f32 {
        let values = self.pending.as_slice();
        let sum = if self.count < LANES {
            let vectors = values.as_chunks::<1>().0;
            let (rows, rest) = vectors.as_chunks::<ROWS>();
            let mut levels = [[[0.0; 1]; ROWS]; DEPTH];
            rows.iter().for_each(|row| accumulate(&mut levels[0], row));
            total(levels, rest)[0]
        } else {
            let (vectors, rest) = values.as_chunks::<LANES>();
            let start = rest.iter().fold(0.0, |sum, x| sum + x);
            total(self.levels, vectors)
                .iter()
                .fold(start, |sum, x| sum + x)
        };
        sum / self.count as f32
    }
}

/// Values as whole rows.
fn rows_of<const V: usize>(values: &[f32]) -> &[Row<V>] {
    values.as_chunks::<V>().0.as_chunks::<ROWS>().0
}

/// The power of two of a level's rows.
fn power(rows: usize) -> usize {
    let depth = rows.next_power_of_two().trailing_zeros() as usize;
    (depth / DEPTH).max(4)
}

/// Passes the lowest level up, once `rows` rows fill it.
fn pass_up<const V: usize>(levels: &mut [Row<V>; DEPTH], rows: usize, power: usize) {
    let mask = (1usize << power) - 1;
    if rows & mask != 0 {
        return;
    }
    for level in 1..DEPTH {
        let below = std::mem::replace(&mut levels[level - 1], [[0.0; V]; ROWS]);
        accumulate(&mut levels[level], &below);
        if rows & (mask << (level * power)) != 0 {
            break;
        }
    }
}

/// The sum of all levels, and of vectors that are no row.
fn total<const V: usize>(levels: [Row<V>; DEPTH], rest: &[[f32; V]]) -> [f32; V] {
    let mut sums = levels[0];
    levels[1..]
        .iter()
        .for_each(|level| accumulate(&mut sums, level));
    let first = rest.iter().fold(sums[0], add);
    sums[1..].iter().fold(first, add)
}

fn add<const V: usize>(mut sum: [f32; V], x: &[f32; V]) -> [f32; V] {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
    sum
}

fn accumulate<const V: usize>(sums: &mut Row<V>, row: &Row<V>) {
    sums.iter_mut()
        .zip(row)
        .for_each(|(sum, x)| *sum = add(*sum, x));
}

/// The mean of `values`.
#[cfg(test)]
pub(crate) fn mean(values: &[f32]) -> f32 {
    let mut mean = Mean::new(values.len());
    values.iter().for_each(|&x| mean.push(x));
    mean.finish()
}
