//! The largest magnitudes of runs of values, and whether all values are finite.

use super::codebook::absmax;
use crate::TargetDtype;
use crate::element::{f32_from_bf16, f32_from_f16};
use crate::simd::{Level, Routine, perform, zip};

/// Takes the largest magnitude of each run of values.
struct Largest<'a> {
    values: &'a [f32],
    run: usize,
    largest: &'a mut [f32],
}

impl Routine for Largest<'_> {
    #[inline(always)]
    fn run(&mut self) {
        for (largest, values) in zip(&mut self.largest[..], self.values.chunks(self.run)) {
            *largest = absmax(values);
        }
    }
}

/// The largest magnitude of each `run` of values, of which the last may be shorter. Infinity and
/// NaN are larger than numbers.
pub(crate) fn largest_magnitudes(values: &[f32], run: usize, level: Level) -> Vec<f32> {
    let run = run.max(1);
    let mut largest = vec![0.0; values.len().div_ceil(run)];
    find_largest(values, run, level, &mut largest);
    largest
}

/// Fills `largest` with the largest magnitude of each `run` of values.
fn find_largest(values: &[f32], run: usize, level: Level, largest: &mut [f32]) {
    let routine = &mut Largest { values, run, largest };
    perform(level, routine);
}

/// Whether no value is NaN or infinite.
pub(crate) fn are_finite(values: &[f32], level: Level) -> bool {
    // The largest magnitude is vectorised, which a search that may end early is not.
    let mut largest = [0.0];
    find_largest(values, values.len().max(1), level, &mut largest);
    largest[0].is_finite()
}

/// The largest magnitude of `halves`, which are F16 or BF16.
#[inline(always)]
fn largest_half(dtype: TargetDtype, halves: &[[u8; 2]]) -> f32 {
    // Magnitudes are ordered as their bits are. SSE2 has an instruction for signed numbers of two
    // bytes alone.
    let mut max = 0;
    for half in halves {
        max = (u16::from_le_bytes(*half) & 0x7fff).cast_signed().max(max);
    }
    match dtype {
        TargetDtype::F16 => f32_from_f16(max.cast_unsigned()),
        _ => f32_from_bf16(max.cast_unsigned()),
    }
}

/// Takes the largest magnitude of each run of F16 or BF16.
struct LargestHalves<'a> {
    dtype: TargetDtype,
    halves: &'a [[u8; 2]],
    run: usize,
    largest: &'a mut [f32],
}

impl Routine for LargestHalves<'_> {
    #[inline(always)]
    fn run(&mut self) {
        for (largest, halves) in zip(&mut self.largest[..], self.halves.chunks(self.run)) {
            *largest = largest_half(self.dtype, halves);
        }
    }
}

/// The largest magnitude of each `run` of values that are stored as F16 or BF16, as
/// [`largest_magnitudes`] finds it in F32.
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

/// Fills `largest` with the largest magnitude of each `run` of values that are stored as F16 or
/// BF16.
fn find_largest_halves(
    (dtype, bytes): (TargetDtype, &[u8]),
    run: usize,
    level: Level,
    largest: &mut [f32],
) {
    let routine = &mut LargestHalves { dtype, halves: bytes.as_chunks().0, run, largest };
    perform(level, routine);
}

/// Rows of values that are stored as F16 or BF16, divided into blocks beside each other, which are
/// as high as there are rows.
#[derive(Clone, Copy)]
pub(crate) struct HalfBlocks<'a> {
    pub dtype: TargetDtype,
    /// From the first value of the first row to the last of the last row.
    pub bytes: &'a [u8],
    /// Values from the beginning of a row to that of the next.
    pub pitch: usize,
    /// Values of a row.
    pub width: usize,
    /// Values of a row of a block; the last block may be narrower.
    pub cols: usize,
}

struct LargestOfBlocks<'a> {
    blocks: HalfBlocks<'a>,
    largest: &'a mut [f32],
}

impl Routine for LargestOfBlocks<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let HalfBlocks { dtype, bytes, pitch, width, cols } = self.blocks;
        let halves: &[[u8; 2]] = bytes.as_chunks().0;
        for row in halves.chunks(pitch) {
            for (block, largest) in zip(row[..width].chunks(cols), &mut *self.largest) {
                let max = largest_half(dtype, block);
                // Magnitudes, NaN included, are ordered as their bits are.
                *largest = f32::from_bits(largest.to_bits().max(max.to_bits()));
            }
        }
    }
}

/// Fills `largest` with the largest magnitude of each of `blocks`, from left to right. Infinity and
/// NaN are larger than numbers.
pub(crate) fn largest_of_blocks(blocks: HalfBlocks<'_>, level: Level, largest: &mut Vec<f32>) {
    let cols = blocks.cols.clamp(1, blocks.width.max(1));
    largest.clear();
    largest.resize(blocks.width.div_ceil(cols), 0.0);
    let blocks = HalfBlocks { cols, ..blocks };
    perform(level, &mut LargestOfBlocks { blocks, largest });
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
            assert_eq!(largest_magnitudes(&values, 1001, level), [f32::MAX, f32::MAX, f32::MAX]);
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
    fn largest_of_blocks_are_those_of_their_values() {
        let (rows, pitch) = (5, 700);
        let halves: Vec<u16> = (0..rows * pitch)
            .map(|i| (i as u16).wrapping_mul(40_503) & 0xf7ff)
            .collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        for level in Level::available() {
            for (width, cols) in [(700, 128), (699, 33), (640, 1), (100, 5000), (1, 1)] {
                let blocks = HalfBlocks {
                    dtype: TargetDtype::F16,
                    bytes: &bytes[..((rows - 1) * pitch + width) * 2],
                    pitch,
                    width,
                    cols,
                };
                let mut found = vec![7.0; 3];
                largest_of_blocks(blocks, level, &mut found);
                let expected: Vec<f32> = (0..width)
                    .step_by(cols)
                    .map(|left| {
                        let values = (0..rows).flat_map(|row| {
                            let cols = left..width.min(left + cols);
                            cols.map(move |col| row * pitch + col)
                        });
                        let magnitudes = values.map(|i| f32_from_f16(halves[i] & 0x7fff));
                        magnitudes.fold(0.0, f32::max)
                    })
                    .collect();
                assert_eq!(found, expected, "{width} in blocks of {cols} at {level:?}");
            }
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
