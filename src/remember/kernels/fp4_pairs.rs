//! FP4 codes whose two in a byte belong to one column of two rows, with a power of two for each 32
//! values of a column.
//!
//! Formula: transformers `_convert_moe_packed_tensors`, which has no NaN: exponent 255 is 2^128,
//! which F32 cannot hold. Doubled values of codes and halved powers give the same products, and all
//! of them are finite.

use zerocopy::{FromBytes, IntoBytes};

use crate::element::Element;
use crate::remember::kernels::fp8::half_of_exponent;
use crate::remember::kernels::nvfp4::doubled_magnitude;
use crate::simd::{Kernel, Side, zip};

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
    /// Lines of `pitch` bytes, a byte for each column: line i has rows 2i, in the low nibbles, and
    /// 2i + 1.
    pub codes: &'a [u8],
    /// Lines of `pitch` bytes, a byte for each column: line i has the exponents of rows 32i to
    /// 32i + 31.
    pub exponents: &'a [u8],
    /// The first row that is decoded.
    pub first: usize,
    pub cols: usize,
    pub pitch: usize,
}

impl Kernel for Fp4Pairs<'_> {
    const ROUNDS_ON_THE_WAY: bool = true;

    fn is_rounded_last(&self) -> bool {
        false
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let cols = self.cols.max(1);
        let (mut row, mut rest) = (self.first, out);
        while !rest.is_empty() {
            let n = (BLOCK - row % BLOCK).min(rest.len() / cols);
            let (block, next) = rest.split_at_mut(n * cols);
            let exponents = &self.exponents[row / BLOCK * self.pitch..][..cols];
            for (left, exponents) in zip((0..).step_by(STRIP), exponents.chunks(STRIP)) {
                let strip = Strip { left, exponents, row };
                match halves::<E>(exponents) {
                    Some(halves) => self.shifted(&strip, &halves, block),
                    None => self.scaled(&strip, block),
                }
            }
            (row, rest) = (row + n, next);
        }
    }
}

/// Columns of a block of rows.
struct Strip<'a> {
    /// The first column.
    left: usize,
    exponents: &'a [u8],
    /// The first row.
    row: usize,
}

impl Fp4Pairs<'_> {
    /// The codes of a row of a strip, in the lower halves of bytes.
    #[inline(always)]
    fn codes(&self, strip: &Strip<'_>, row: usize) -> impl Side<Item = u8> {
        let codes = &self.codes[row / 2 * self.pitch + strip.left..][..strip.exponents.len()];
        let shift = row % 2 * 4;
        codes.iter().map(move |&pair| pair >> shift)
    }

    /// Decodes with scales in F32.
    #[inline(always)]
    fn scaled<E: Element>(&self, strip: &Strip<'_>, block: &mut [E]) {
        let mut scales = [0f32; STRIP];
        for (scale, &exponent) in zip(&mut scales[..], strip.exponents) {
            *scale = half_of_exponent(exponent);
        }
        for (row, out) in zip(strip.row.., block.chunks_exact_mut(self.cols)) {
            let out = &mut out[strip.left..][..strip.exponents.len()];
            let mut values = [0; STRIP];
            for (value, code) in zip(&mut values[..], self.codes(strip, row)) {
                *value = doubled(code);
            }
            for ((out, &value), &scale) in zip(zip(&mut out[..], &values), &scales) {
                *out = E::from_f32(widen(value) * scale);
            }
        }
    }

    /// Decodes to a type of two bytes, of which all values of the columns are normal numbers or
    /// zero: a power of two is added to their exponents. `halves` are the bits of 0.5 in each
    /// column.
    #[inline(always)]
    fn shifted<E: Element>(&self, strip: &Strip<'_>, halves: &[u16; STRIP], block: &mut [E]) {
        let last = E::MANTISSA - 1;
        for (row, out) in zip(strip.row.., block.chunks_exact_mut(self.cols)) {
            let out = &mut out[strip.left..][..strip.exponents.len()];
            let out = out.as_mut_bytes().as_chunks_mut::<2>().0;
            for ((out, code), &half) in zip(zip(&mut out[..], self.codes(strip, row)), halves) {
                let (sign, code) = (u16::from(code & 8) << 12, u16::from(code & 7));
                // From 1 on, the low bit is the mantissa and those above it the exponent. Code 1 is
                // half of that, a power of two: no bit of the mantissa is left.
                let magnitude = half + (code << last) - (u16::from(code == 1) << last);
                let magnitude = if code == 0 { 0 } else { magnitude };
                *out = (sign | magnitude).to_ne_bytes();
            }
        }
    }
}

/// The bits of 0.5 times the power of two of each exponent, in a type of two bytes. `None` if it is
/// another type, or if 0.5 or 6, the least and the largest value, would be no normal number.
#[inline(always)]
fn halves<E: Element>(exponents: &[u8]) -> Option<[u16; STRIP]> {
    let half = u16::read_from_bytes(E::from_f32(0.5).as_bytes()).ok()?;
    let bias = (half >> E::MANTISSA) + 1;
    let normal = 129 - bias..=125 + bias;
    let mut halves = [0; STRIP];
    let mut is_normal = true;
    for (bits, &exponent) in zip(&mut halves[..], exponents) {
        let exponent = u16::from(exponent);
        is_normal &= normal.contains(&exponent);
        *bits = half.wrapping_add(exponent.wrapping_sub(127) << E::MANTISSA);
    }
    is_normal.then_some(halves)
}
