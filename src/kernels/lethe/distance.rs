//! The distance of decoded values from those that were encoded: sums in one order at every CPU level.

use std::ops::AddAssign;

use super::codebook::absmax;
use crate::simd::{Level, Routine, perform};

/// Sums over pairs of a value and what its code decodes to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct DistanceSums {
    pub count: u64,
    /// Sum of the magnitudes of differences.
    pub absolute: f64,
    /// The largest magnitude of a difference.
    pub largest: f32,
    /// Sum of the squares of differences.
    pub square: f64,
    /// Sum of the squares of values.
    pub norm: f64,
}

impl DistanceSums {
    /// Whether all values were finite, and all that they were compared with. Sums of finite F32 are far below the largest
    /// F64.
    pub(crate) fn is_finite(&self) -> bool {
        self.absolute.is_finite()
    }
}

impl AddAssign for DistanceSums {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.absolute += other.absolute;
        self.largest = self.largest.max(other.largest);
        self.square += other.square;
        self.norm += other.norm;
    }
}

/// Partial sums that are taken side by side. Addition of floats is not associative: the lanes fix its order, so that LLVM may
/// vectorise it and every CPU level gives the same bits.
const LANES: usize = 16;

/// Chunks of lanes that are summed in F32 before the sums are added in F64: 512 values, whose sum is as exact as six places
/// of a report need. F64 throughout takes three times as long.
const BLOCK: usize = 32;

/// Block sums of squares within these bounds are trusted. Outside, single squares may have overflowed or may have become zero,
/// and the block is summed again in F64, which holds the squares of all F32.
const TRUSTED: std::ops::Range<f32> = 1e-20..1e30;

/// The sums of each lane.
#[derive(Default)]
struct LaneSums {
    absolute: [f64; LANES],
    square: [f64; LANES],
    norm: [f64; LANES],
    largest: [f32; LANES],
}

impl LaneSums {
    /// Adds a block of pairs.
    #[inline(always)]
    fn add(&mut self, x: &[[f32; LANES]], y: &[[f32; LANES]]) {
        let (mut absolute, mut square, mut norm) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        let mut largest = self.largest;
        for (x, y) in x.iter().zip(y) {
            for l in 0..LANES {
                let d = (x[l] - y[l]).abs();
                largest[l] = if d > largest[l] { d } else { largest[l] };
                absolute[l] += d;
                square[l] += d * d;
                norm[l] += x[l] * x[l];
            }
        }
        self.largest = largest;
        let (mut squares, mut norms) = (0.0f32, 0.0f32);
        for l in 0..LANES {
            squares += square[l];
            norms += norm[l];
        }
        // NaN is in no range. If both sums are small enough, so is that of the magnitudes.
        if !TRUSTED.contains(&norms) || squares.is_nan() || squares >= TRUSTED.end {
            return self.add_in_f64(x, y);
        }
        for l in 0..LANES {
            self.absolute[l] += f64::from(absolute[l]);
            self.square[l] += f64::from(square[l]);
            self.norm[l] += f64::from(norm[l]);
        }
    }

    /// Adds to all sums but the largest difference.
    #[inline(always)]
    fn add_in_f64(&mut self, x: &[[f32; LANES]], y: &[[f32; LANES]]) {
        for (x, y) in x.iter().zip(y) {
            for l in 0..LANES {
                let (x, y) = (f64::from(x[l]), f64::from(y[l]));
                self.absolute[l] += (x - y).abs();
                self.square[l] += (x - y) * (x - y);
                self.norm[l] += x * x;
            }
        }
    }
}

struct Compare<'a> {
    values: &'a [f32],
    back: &'a [f32],
    sums: DistanceSums,
}

impl Routine for Compare<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        let mut lanes = LaneSums::default();
        let (values, rest) = self.values.as_chunks::<LANES>();
        let (back, other) = self.back.as_chunks::<LANES>();
        for (x, y) in values.chunks(BLOCK).zip(back.chunks(BLOCK)) {
            lanes.add(x, y);
        }
        // The rest takes the lanes from the first on. What fills the last chunk adds zeros to sums that are not negative.
        let (mut x, mut y) = ([0.0; LANES], [0.0; LANES]);
        x[..rest.len()].copy_from_slice(rest);
        y[..other.len()].copy_from_slice(other);
        lanes.add(&[x], &[y]);
        self.sums.count = self.values.len() as u64;
        // Lane by lane in a fixed order, which makes the sum the same at every level.
        for i in 0..LANES {
            self.sums.absolute += lanes.absolute[i];
            self.sums.square += lanes.square[i];
            self.sums.norm += lanes.norm[i];
            self.sums.largest = self.sums.largest.max(lanes.largest[i]);
        }
    }
}

/// The distance of `back`, which decoding gives, from `values`.
pub(crate) fn compare(values: &[f32], back: &[f32], level: Level) -> DistanceSums {
    let mut compare = Compare {
        values,
        back,
        sums: DistanceSums::default(),
    };
    perform(level, &mut compare);
    compare.sums
}

/// Takes the largest magnitude of each run of values.
struct Largest<'a> {
    values: &'a [f32],
    run: usize,
    largest: &'a mut [f32],
}

impl Routine for Largest<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        for (largest, values) in self.largest.iter_mut().zip(self.values.chunks(self.run)) {
            *largest = absmax(values);
        }
    }
}

/// The largest magnitude of each `run` of values, of which the last may be shorter. Infinity and NaN are larger than numbers.
pub(crate) fn largest_magnitudes(values: &[f32], run: usize, level: Level) -> Vec<f32> {
    let run = run.max(1);
    let mut largest = vec![0.0; values.len().div_ceil(run)];
    let largest_of_runs = &mut Largest {
        values,
        run,
        largest: &mut largest,
    };
    perform(level, largest_of_runs);
    largest
}

/// Index of the first value that is NaN or infinite.
pub(crate) fn first_not_finite(values: &[f32], level: Level) -> Option<usize> {
    // The largest magnitude is vectorised, which a search that may end early is not. Only if that is not finite, values
    // are searched one by one.
    let mut largest = [0.0];
    let largest_of_all = &mut Largest {
        values,
        run: values.len().max(1),
        largest: &mut largest,
    };
    perform(level, largest_of_all);
    if largest[0].is_finite() {
        return None;
    }
    values.iter().position(|x| !x.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_do_not_depend_on_the_level() {
        let values: Vec<f32> = (0..1003).map(|i| (i as f32 * 0.37).sin() * 10.0).collect();
        let back: Vec<f32> = values.iter().map(|x| x.round()).collect();
        let sums = compare(&values, &back, Level::Baseline);
        for level in Level::available() {
            assert_eq!(compare(&values, &back, level), sums);
        }
        let naive = values
            .iter()
            .zip(&back)
            .map(|(x, y)| f64::from((x - y).abs()))
            .sum::<f64>();
        assert!((sums.absolute - naive).abs() < 1e-3 && sums.count == 1003);
        assert!(sums.largest <= 0.5 && sums.largest > 0.49);
    }

    /// Squares of these values overflow F32, or become zero in it.
    #[test]
    fn sums_hold_for_values_of_any_size() {
        for size in [1e-30f32, 1e-15, 1e15, 1e30] {
            let values: Vec<f32> = (1..1500).map(|i| (i as f32 * 0.37).sin() * size).collect();
            let back: Vec<f32> = values.iter().map(|x| x * 1.01).collect();
            let pairs = values.iter().zip(&back);
            let (mut absolute, mut square) = (0.0, 0.0);
            for (&x, &y) in pairs {
                let d = f64::from(x) - f64::from(y);
                (absolute, square) = (absolute + d.abs(), square + d * d);
            }
            for level in Level::available() {
                let sums = compare(&values, &back, level);
                assert!((sums.absolute / absolute - 1.0).abs() < 1e-6, "{size:e}");
                assert!((sums.square / square - 1.0).abs() < 1e-6, "{size:e}");
                assert!((sums.square / sums.norm).sqrt() - 0.01 < 1e-6);
            }
        }
    }

    #[test]
    fn what_is_not_finite_is_found() {
        for level in Level::available() {
            let mut values = vec![f32::MAX; 3000];
            assert_eq!(first_not_finite(&values, level), None);
            assert_eq!(
                largest_magnitudes(&values, 1001, level),
                [f32::MAX, f32::MAX, f32::MAX]
            );
            assert_eq!(largest_magnitudes(&[], 7, level), [0.0; 0]);
            values[1500..].fill(-3.5);
            assert_eq!(largest_magnitudes(&values, 1500, level), [f32::MAX, 3.5]);
            values[2050] = f32::NAN;
            assert_eq!(first_not_finite(&values, level), Some(2050));
            values[7] = f32::NEG_INFINITY;
            assert_eq!(first_not_finite(&values, level), Some(7));
        }
    }

    /// Sums are infinite or NaN if and only if a decoded value is.
    #[test]
    fn sums_tell_what_is_not_finite() {
        let values = [f32::MAX; 100];
        for level in Level::available() {
            assert!(compare(&values, &[-f32::MAX; 100], level).is_finite());
            for (i, x) in [(3, f32::NAN), (64, f32::INFINITY), (99, f32::NEG_INFINITY)] {
                let mut back = values;
                back[i] = x;
                assert!(!compare(&values, &back, level).is_finite());
            }
        }
    }
}
