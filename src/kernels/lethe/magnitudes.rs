//! The largest magnitudes of runs of values, and whether all values are finite.

use super::codebook::absmax;
use crate::TargetDtype;
use crate::element::{f32_from_bf16, f32_from_f16};
use crate::simd::{Level, Routine, perform};

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
    find_largest(values, run, level, &mut largest);
    largest
}

/// Fills `largest` with the largest magnitude of each `run` of values.
fn find_largest(values: &[f32], run: usize, level: Level, largest: &mut [f32]) {
    let routine = &mut Largest {
        values,
        run,
        largest,
    };
    perform(level, routine);
}

/// Whether no value is NaN or infinite.
pub(crate) fn are_finite(values: &[f32], level: Level) -> bool {
    // The largest magnitude is vectorised, which a search that may end early is not.
    let mut largest = [0.0];
    find_largest(values, values.len().max(1), level, &mut largest);
    largest[0].is_finite()
}

/// Takes the largest magnitude of each run of F16 or BF16.
struct LargestHalves<'a> {
    dtype: TargetDtype,
    halves: &'a [[u8; 2]],
    run: usize,
    largest: &'a mut [f32],
}

impl Routine for LargestHalves<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        for (largest, halves) in self.largest.iter_mut().zip(self.halves.chunks(self.run)) {
            // Magnitudes are ordered as their bits are. SSE2 has an instruction for signed numbers of two bytes alone.
            let mut max = 0;
            for half in halves {
                max = (u16::from_le_bytes(*half) & 0x7fff).cast_signed().max(max);
            }
            *largest = match self.dtype {
                TargetDtype::F16 => f32_from_f16(max.cast_unsigned()),
                _ => f32_from_bf16(max.cast_unsigned()),
            };
        }
    }
}

/// The largest magnitude of each `run` of values that are stored as F16 or BF16, as [`largest_magnitudes`] finds it in F32.
pub(crate) fn largest_halves(
    dtype: TargetDtype,
    bytes: &[u8],
    run: usize,
    level: Level,
) -> Vec<f32> {
    let run = run.max(1);
    let mut largest = vec![0.0; (bytes.len() / 2).div_ceil(run)];
    find_largest_halves((dtype, bytes), run, level, &mut largest);
    largest
}

/// Fills `largest` with the largest magnitude of each `run` of values that are stored as F16 or BF16.
fn find_largest_halves(
    (dtype, bytes): (TargetDtype, &[u8]),
    run: usize,
    level: Level,
    largest: &mut [f32],
) {
    let routine = &mut LargestHalves {
        dtype,
        halves: bytes.as_chunks().0,
        run,
        largest,
    };
    perform(level, routine);
}

/// Whether no value is NaN or infinite, of those that are stored as F16 or BF16.
pub(crate) fn are_finite_halves(dtype: TargetDtype, bytes: &[u8], level: Level) -> bool {
    let mut largest = [0.0];
    find_largest_halves((dtype, bytes), bytes.len().max(1), level, &mut largest);
    largest[0].is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_found() {
        for level in Level::available() {
            let mut values = vec![f32::MAX; 3000];
            assert!(are_finite(&values, level));
            assert_eq!(
                largest_magnitudes(&values, 1001, level),
                [f32::MAX, f32::MAX, f32::MAX]
            );
            assert_eq!(largest_magnitudes(&[], 7, level), [0.0; 0]);
            values[1500..].fill(-3.5);
            assert_eq!(largest_magnitudes(&values, 1500, level), [f32::MAX, 3.5]);
            values[2050] = f32::NAN;
            assert!(!are_finite(&values, level));
            values[2050] = 0.0;
            assert!(are_finite(&values, level));
            values[7] = f32::NEG_INFINITY;
            assert!(!are_finite(&values, level));
        }
    }

    #[test]
    fn largest_of_halves_is_that_of_their_values() {
        let bits = (0..3000u16).map(|i| i.wrapping_mul(40_503));
        for (dtype, widen, infinity) in [
            (TargetDtype::F16, f32_from_f16 as fn(u16) -> f32, 0x7c00),
            (TargetDtype::BF16, f32_from_bf16, 0x7f80),
        ] {
            let halves: Vec<u16> = bits.clone().filter(|b| b & 0x7fff < infinity).collect();
            let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
            let values: Vec<f32> = halves.iter().map(|&half| widen(half)).collect();
            for level in Level::available() {
                for run in [1, 7, 64, 10_000] {
                    let found = largest_halves(dtype, &bytes, run, level);
                    assert_eq!(found, largest_magnitudes(&values, run, level));
                }
                assert!(are_finite_halves(dtype, &bytes, level));
                for bits in [infinity, infinity + 1, infinity | 0x8000] {
                    let bytes = [0, 0x3c00, bits, 0x3c00].map(u16::to_le_bytes);
                    let found = largest_halves(dtype, bytes.as_flattened(), 4, level);
                    assert!(!found[0].is_finite());
                    assert!(!are_finite_halves(dtype, bytes.as_flattened(), level));
                }
            }
        }
    }
}
