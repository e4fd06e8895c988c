//! FP4 codes whose two in a byte belong to one column of two rows, with a power of two for each 32 values of a column.
//!
//! Formula: transformers `_convert_moe_packed_tensors`, which has no NaN: exponent 255 is 2^128, which F32 cannot hold. Doubled
//! values of codes and halved powers give the same products, and all of them are finite.

use crate::element::Element;
use crate::kernels::remember::fp8::half_of_exponent;
use crate::kernels::remember::nvfp4::doubled_magnitude;
use crate::simd::Kernel;

/// Rows whose values of a column share an exponent.
pub(crate) const BLOCK: usize = 32;

/// Columns whose scales are made at once, for all rows of a block: they stay in the first cache.
const STRIP: usize = 512;

/// Twice the value of a code, with its sign in the highest bit.
#[inline(always)]
fn doubled(code: u8) -> u8 {
    doubled_magnitude(code) | (code & 8) << 4
}

/// The float of a [`doubled`] code, whose zeros have signs, too.
#[inline(always)]
fn widen(doubled: u8) -> f32 {
    f32::from_bits(f32::from(doubled & 0x7f).to_bits() | u32::from(doubled & 0x80) << 24)
}

/// Rows of a matrix that is stored transposed.
pub(crate) struct Fp4Pairs<'a> {
    /// Lines of `pitch` bytes, a byte for each column: line i has rows 2i, in the low nibbles, and 2i + 1.
    pub codes: &'a [u8],
    /// Lines of `pitch` bytes, a byte for each column: line i has the exponents of rows 32i to 32i + 31.
    pub exponents: &'a [u8],
    /// The first row that is decoded.
    pub first: usize,
    pub cols: usize,
    pub pitch: usize,
}

impl Kernel for Fp4Pairs<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let cols = self.cols.max(1);
        let (mut row, mut rest) = (self.first, out);
        while !rest.is_empty() {
            let n = (BLOCK - row % BLOCK).min(rest.len() / cols);
            let (block, next) = rest.split_at_mut(n * cols);
            let exponents = &self.exponents[row / BLOCK * self.pitch..][..cols];
            for (left, exponents) in (0..).step_by(STRIP).zip(exponents.chunks(STRIP)) {
                let mut scales = [0f32; STRIP];
                for (scale, &exponent) in scales.iter_mut().zip(exponents) {
                    *scale = half_of_exponent(exponent);
                }
                for (row, out) in (row..).zip(block.chunks_exact_mut(cols)) {
                    let codes = &self.codes[row / 2 * self.pitch + left..][..exponents.len()];
                    let out = &mut out[left..left + exponents.len()];
                    let shift = row % 2 * 4;
                    let mut values = [0; STRIP];
                    for (value, &pair) in values.iter_mut().zip(codes) {
                        *value = doubled(pair >> shift);
                    }
                    for ((out, &value), &scale) in out.iter_mut().zip(&values).zip(&scales) {
                        *out = E::from_f32(widen(value) * scale);
                    }
                }
            }
            (row, rest) = (row + n, next);
        }
    }
}
