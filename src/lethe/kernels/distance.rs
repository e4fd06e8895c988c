//! The distance of decoded values from those that were encoded: sums in one order at every CPU
//! level.

use std::ops::AddAssign;

use super::activations::OutputSquares;
use crate::simd::{Level, Routine, copy, perform, zip};

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
    /// Sum of the products of values and what their codes decode to.
    pub product: f64,
    /// Zeros where nothing is known of activations.
    pub outputs: OutputSquares,
}

impl DistanceSums {
    /// Whether all values were finite, and all that they were compared with. Sums of finite F32 are
    /// far below the largest F64.
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
        self.product += other.product;
        self.outputs += other.outputs;
    }
}

/// Partial sums that are taken side by side. Addition of floats is not associative: the lanes fix
/// its order, so that LLVM may vectorise it and every CPU level gives the same bits.
const LANES: usize = 16;

/// Chunks of lanes that are summed in F32 before the sums are added in F64: 512 values, whose sum
/// is as exact as six places of a report need. F64 throughout takes three times as long.
const BLOCK: usize = 32;

/// Values of such a block.
pub(crate) const COMPARED: usize = BLOCK * LANES;

/// Block sums of squares within these bounds are trusted. Outside, single squares may have
/// overflowed or may have become zero, and the block is summed again in F64, which holds the
/// squares of all F32.
const TRUSTED: std::ops::Range<f32> = 1e-20..1e30;

/// The sums of each lane.
#[derive(Debug, Default)]
struct LaneSums {
    absolute: [f64; LANES],
    square: [f64; LANES],
    norm: [f64; LANES],
    product: [f64; LANES],
    largest: [f32; LANES],
}

impl LaneSums {
    /// Adds a block of pairs.
    #[inline(always)]
    fn add(&mut self, x: &[[f32; LANES]], y: &[[f32; LANES]]) {
        let (mut absolute, mut square) = ([0.0; LANES], [0.0; LANES]);
        let (mut norm, mut product) = ([0.0; LANES], [0.0; LANES]);
        let mut largest = self.largest;
        for (x, y) in zip(x.iter(), y) {
            for l in 0..LANES {
                let d = (x[l] - y[l]).abs();
                largest[l] = if d > largest[l] { d } else { largest[l] };
                absolute[l] += d;
                square[l] += d * d;
                norm[l] += x[l] * x[l];
                product[l] += x[l] * y[l];
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
            self.product[l] += f64::from(product[l]);
        }
    }

    /// Adds to all sums but the largest difference.
    #[inline(always)]
    fn add_in_f64(&mut self, x: &[[f32; LANES]], y: &[[f32; LANES]]) {
        for (x, y) in zip(x.iter(), y) {
            for l in 0..LANES {
                let (x, y) = (f64::from(x[l]), f64::from(y[l]));
                self.absolute[l] += (x - y).abs();
                self.square[l] += (x - y) * (x - y);
                self.norm[l] += x * x;
                self.product[l] += x * y;
            }
        }
    }
}

struct Compare<'a> {
    values: &'a [f32],
    back: &'a [f32],
    lanes: &'a mut LaneSums,
}

impl Routine for Compare<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        let lanes = &mut *self.lanes;
        let (values, rest) = self.values.as_chunks::<LANES>();
        let (back, other) = self.back.as_chunks::<LANES>();
        for (x, y) in zip(values.chunks(BLOCK), back.chunks(BLOCK)) {
            lanes.add(x, y);
        }
        if rest.is_empty() {
            return;
        }
        // The rest takes the lanes from the first on. What fills the last chunk adds zeros to sums
        // that are not negative.
        let (mut x, mut y) = ([0.0; LANES], [0.0; LANES]);
        copy(rest, &mut x[..rest.len()]);
        copy(other, &mut y[..other.len()]);
        lanes.add(&[x], &[y]);
    }
}

/// A comparison of values that come in parts. Each part but the last is a multiple of [`COMPARED`]
/// values, so that the sums do not depend on how values are parted.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    lanes: LaneSums,
    count: u64,
    outputs: OutputSquares,
}

impl Comparison {
    /// Adds the distance of `back`, which decoding gives, from `values`.
    pub(crate) fn add(&mut self, values: &[f32], back: &[f32], level: Level) {
        let lanes = &mut self.lanes;
        perform(level, &mut Compare { values, back, lanes });
        self.count += values.len() as u64;
    }

    /// Adds what is lost of outputs.
    pub(crate) fn add_outputs(&mut self, outputs: OutputSquares) {
        self.outputs += outputs;
    }

    /// The distance of all values that were added.
    pub(crate) fn sums(&self) -> DistanceSums {
        let (lanes, count) = (&self.lanes, self.count);
        let mut sums = DistanceSums { count, outputs: self.outputs, ..DistanceSums::default() };
        // Lane by lane in a fixed order, which makes the sum the same at every level.
        for i in 0..LANES {
            sums.absolute += lanes.absolute[i];
            sums.square += lanes.square[i];
            sums.norm += lanes.norm[i];
            sums.product += lanes.product[i];
            sums.largest = sums.largest.max(lanes.largest[i]);
        }
        sums
    }
}

/// The distance of `back`, which decoding gives, from `values`.
pub(crate) fn compare(values: &[f32], back: &[f32], level: Level) -> DistanceSums {
    let mut comparison = Comparison::default();
    comparison.add(values, back, level);
    comparison.sums()
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
                assert!((sums.product / sums.norm - 1.01).abs() < 1e-6, "{size:e}");
                assert!((sums.square / sums.norm).sqrt() - 0.01 < 1e-6);
            }
        }
    }

    #[test]
    fn sums_do_not_depend_on_the_parts() {
        let values: Vec<f32> = (0..5 * COMPARED + 77)
            .map(|i| (i as f32 * 0.37).sin() * 10.0)
            .collect();
        let back: Vec<f32> = values.iter().map(|x| x.round()).collect();
        for part in [COMPARED, 2 * COMPARED, 4 * COMPARED] {
            let mut comparison = Comparison::default();
            for (values, back) in values.chunks(part).zip(back.chunks(part)) {
                comparison.add(values, back, Level::detect());
            }
            assert_eq!(comparison.sums(), compare(&values, &back, Level::Baseline));
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
