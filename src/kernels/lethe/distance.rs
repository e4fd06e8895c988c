//! The distance of decoded values from those that were encoded: sums in F64, in one order at every CPU level.

use std::ops::AddAssign;

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

impl AddAssign for DistanceSums {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.absolute += other.absolute;
        self.largest = self.largest.max(other.largest);
        self.square += other.square;
        self.norm += other.norm;
    }
}

/// Partial sums that are taken side by side. F64 addition is not associative: the lanes fix its order, so that LLVM may
/// vectorise it and every CPU level gives the same bits.
const LANES: usize = 8;

struct Compare<'a> {
    values: &'a [f32],
    back: &'a [f32],
    sums: DistanceSums,
}

impl Routine for Compare<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let (mut absolute, mut square, mut norm) = ([0f64; LANES], [0f64; LANES], [0f64; LANES]);
        let mut largest = [0f32; LANES];
        let (values, rest) = self.values.as_chunks::<LANES>();
        let (back, other) = self.back.as_chunks::<LANES>();
        let mut add = |x: f32, y: f32, i: usize| {
            // F64 holds the square of an F32 exactly, and the difference of two unless their
            // exponents are far apart.
            let d = (f64::from(x) - f64::from(y)).abs();
            absolute[i] += d;
            square[i] += d * d;
            norm[i] += f64::from(x) * f64::from(x);
            // The largest difference is reported as an F32, and taken from the F32 difference so
            // that its lanes stay narrow.
            let d = (x - y).abs();
            largest[i] = if d > largest[i] { d } else { largest[i] };
        };
        for (x, y) in values.iter().zip(back) {
            for i in 0..LANES {
                add(x[i], y[i], i);
            }
        }
        // The rest takes the lanes from the first on, as a last chunk would.
        rest.iter()
            .zip(other)
            .enumerate()
            .for_each(|(i, (&x, &y))| add(x, y, i));
        self.sums.count = self.values.len() as u64;
        // Lane by lane in a fixed order, which makes the sum the same at every level.
        for i in 0..LANES {
            self.sums.absolute += absolute[i];
            self.sums.square += square[i];
            self.sums.norm += norm[i];
            self.sums.largest = self.sums.largest.max(largest[i]);
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

/// Index of the first value that is NaN or infinite.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<usize> {
    // The largest magnitude of a chunk, as bits, is vectorised, which a search that may end early is not.
    let largest = |chunk: &[f32]| {
        chunk
            .iter()
            .fold(0u32, |max, x| max.max(x.to_bits() & 0x7fff_ffff))
    };
    let found = values
        .chunks(1024)
        .position(|chunk| largest(chunk) >= 0x7f80_0000)?
        * 1024;
    // Only the chunk with a finding is searched value by value.
    values[found..]
        .iter()
        .position(|x| !x.is_finite())
        .map(|i| found + i)
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

    #[test]
    fn what_is_not_finite_is_found() {
        let mut values = vec![f32::MAX; 3000];
        assert_eq!(first_not_finite(&values), None);
        values[2050] = f32::NAN;
        assert_eq!(first_not_finite(&values), Some(2050));
        values[7] = f32::NEG_INFINITY;
        assert_eq!(first_not_finite(&values), Some(7));
    }
}
