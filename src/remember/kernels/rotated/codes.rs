//! Codes of rotated weights: bytes, nibbles, and the levels of W4A8 and W6A8, which are integers of
//! eight bits made from narrower codes and the scales of their groups.

use super::{CHUNK, RotatedCodes};
use crate::element::ROUND_TO_INTEGER;
use crate::simd::zip;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, from_fn};

/// Signed bytes.
pub(crate) struct ByteCodes<'a> {
    pub bytes: &'a [u8],
    pub row_bytes: usize,
}

impl RotatedCodes for ByteCodes<'_> {
    #[inline(always)]
    fn fill(&self, row: usize, at: usize, out: &mut [i16]) {
        let bytes = &self.bytes[row * self.row_bytes + at..];
        for (out, &byte) in zip(&mut out[..], bytes) {
            *out = i16::from(byte as i8);
        }
    }
}

/// Nibbles in two's complement, the low one first.
pub(crate) struct NibbleCodes<'a> {
    pub bytes: &'a [u8],
    pub row_bytes: usize,
}

impl RotatedCodes for NibbleCodes<'_> {
    #[inline(always)]
    fn fill(&self, row: usize, at: usize, out: &mut [i16]) {
        let bytes = &self.bytes[row * self.row_bytes + at / 2..];
        for (out, &byte) in zip(out.as_chunks_mut::<2>().0, bytes) {
            // Shifted to the upper end of a byte, and back with the sign.
            *out = [i16::from((byte << 4) as i8 >> 4), i16::from(byte as i8 >> 4)];
        }
    }
}

/// Value of each code of 6 bits before its scale: half of the range is subtracted.
const SIX_BITS: f32 = 32.0;

/// Unsigned codes `q` of groups with a scale `s` each. The integer is `round(c * s)` within ±127,
/// with ties to even and the product in F32; `c` is `codebook[q]`. Codes of 6 bits lie in bytes and
/// have no codebook: `c` is `q - 32`.
pub(crate) struct LevelCodes<'a> {
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    /// The value of each code of 4 bits, low nibble first; `None`: codes of 6 bits, a byte each.
    pub codebook: Option<[f32; 16]>,
    /// Scales of the groups of the loaded columns, row by row. They are finite.
    pub scales: &'a [f32],
    /// Scales of a row.
    pub groups: usize,
    /// Columns of a group.
    pub width: usize,
}

impl LevelCodes<'_> {
    /// Writes the values of codes from column `at` on.
    #[inline(always)]
    fn values(&self, row: usize, at: usize, out: &mut [f32]) {
        let bytes = &self.bytes[row * self.row_bytes..];
        let Some(codebook) = &self.codebook else {
            for (out, &code) in zip(&mut out[..], &bytes[at..]) {
                *out = f32::from(code) - SIX_BITS;
            }
            return;
        };
        for (out, &byte) in zip(out.as_chunks_mut::<2>().0, &bytes[at / 2..]) {
            *out = [codebook[usize::from(byte & 15)], codebook[usize::from(byte >> 4)]];
        }
    }

    /// Multiplies values by the scales of their groups and rounds them.
    #[inline(always)]
    fn levels(&self, row: usize, at: usize, mut values: &[f32], mut out: &mut [i16]) {
        let scales = &self.scales[row * self.groups + at / self.width..];
        if self.width.is_multiple_of(STEP) {
            return levels_of_steps(scales, [at, self.width], values, out);
        }
        // The first group may begin before the chunk, and the last end behind it.
        let mut left = self.width - at % self.width;
        for &scale in scales {
            let n = left.min(out.len());
            let (target, tail) = out.split_at_mut(n);
            for (out, &value) in zip(&mut target[..], values) {
                *out = level(value * scale);
            }
            (values, out, left) = (&values[n..], tail, self.width);
            if out.is_empty() {
                break;
            }
        }
    }
}

/// Columns of groups of this many, or of a multiple, are rounded together: with a length that the
/// compiler knows, the loop becomes vectors without a remainder.
const STEP: usize = 16;

/// Multiplies values from column `at` on, a multiple of [`STEP`], by the scales of groups of
/// `width` columns, and rounds.
#[inline(always)]
fn levels_of_steps(scales: &[f32], [at, width]: [usize; 2], values: &[f32], out: &mut [i16]) {
    let steps = values.as_chunks::<STEP>().0.iter();
    let mut groups = scales.iter();
    // Steps that are left of a group, the first of which may begin before the chunk.
    let (mut left, mut scale) = ((width - at % width) / STEP, groups.next().unwrap_or(&0.0));
    for (out, values) in zip(out.as_chunks_mut::<STEP>().0, steps) {
        if left == 0 {
            (left, scale) = (width / STEP, groups.next().unwrap_or(&0.0));
        }
        for (out, &value) in zip(&mut out[..], values) {
            *out = level(value * scale);
        }
        left -= 1;
    }
}

/// `x` rounded to nearest, with ties to even, within ±127.
#[inline(always)]
fn level(x: f32) -> i16 {
    // Both bounds are integers, so that limiting first gives what limiting last does.
    let x = x.clamp(-127.0, 127.0);
    ((x + ROUND_TO_INTEGER).to_bits() as i32 - ROUND_TO_INTEGER.to_bits() as i32) as i16
}

impl RotatedCodes for LevelCodes<'_> {
    #[inline(always)]
    fn fill(&self, row: usize, at: usize, out: &mut [i16]) {
        let mut values = [0.0; CHUNK];
        let values = &mut values[..out.len()];
        self.values(row, at, values);
        self.levels(row, at, values, out);
    }

    /// Looks values up in registers: LLVM would load them one by one. The table of 16-bit entries
    /// has the lower halves of the values, another one the upper halves.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn fill_avx2(&self, row: usize, at: usize, out: &mut [i16], avx2: Avx2) {
        let Some(codebook) = &self.codebook else {
            return self.fill(row, at, out);
        };
        let low = avx2.table(from_fn(|i| codebook[i].to_bits() as u16));
        let high = avx2.table(from_fn(|i| (codebook[i].to_bits() >> 16) as u16));
        let mut values = [0.0; CHUNK];
        let values = &mut values[..out.len()];
        let bytes = &self.bytes[row * self.row_bytes + at / 2..][..values.len() / 2];
        let blocks = bytes.as_chunks::<32>().0;
        for (values, &bytes) in zip(values.as_chunks_mut::<64>().0, blocks) {
            let (low, high) = (low.look_up(bytes, false), high.look_up(bytes, false));
            for ((value, low), high) in zip(zip(&mut values[..], low), high) {
                *value = f32::from_bits(u32::from(low) | u32::from(high) << 16);
            }
        }
        let done = values.len() - values.len() % 64;
        self.values(row, at + done, &mut values[done..]);
        self.levels(row, at, values, out);
    }
}
