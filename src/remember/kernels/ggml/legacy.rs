//! ggml's first block types: 32 values under one f16 scale, and in the `_1` types an f16 minimum.
//!
//! In the 4- and 5-bit types the low nibbles of 16 bytes are the first 16 codes, the high nibbles
//! the last 16. The fifth bits are a word of 32 bits, one for each value.

use super::{DecodeBlock, f16_at, u32_at};
use crate::simd::zip;

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Q8_1;

/// Decodes nibbles: the low ones are the first half of the values, the high ones the second.
/// `value` is given a nibble and the index of its value.
#[inline(always)]
pub(super) fn nibble_halves(nibbles: &[u8], out: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    let half = nibbles.len();
    let (low, high) = out.split_at_mut(half);
    for (j, ((&q, low), high)) in zip(zip(nibbles.iter(), low), high).enumerate() {
        *low = value(q & 15, j);
        *high = value(q >> 4, j + half);
    }
}

/// `d | codes[16]`, values `(q - 8) * d`.
impl DecodeBlock<18, 32> for Q4_0 {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
        let d = f16_at(block, 0);
        nibble_halves(&block[2..], out, |q, _| (i32::from(q) - 8) as f32 * d);
    }
}

/// `d | min | codes[16]`, values `q * d + min`.
impl DecodeBlock<20, 32> for Q4_1 {
    #[inline(always)]
    fn decode(block: &[u8; 20], out: &mut [f32; 32]) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        nibble_halves(&block[4..], out, |q, _| f32::from(q) * d + m);
    }
}

/// Bit `j` of the fifth bits, shifted to where it belongs in the code of value `j`.
#[inline(always)]
pub(super) fn fifth_bit(bits: u32, j: usize) -> i32 {
    (bits >> j << 4 & 16) as i32
}

/// `d | fifth bits[4] | codes[16]`, values `(q - 16) * d`.
impl DecodeBlock<22, 32> for Q5_0 {
    #[inline(always)]
    fn decode(block: &[u8; 22], out: &mut [f32; 32]) {
        let (d, bits) = (f16_at(block, 0), u32_at(block, 2));
        nibble_halves(&block[6..], out, |q, j| {
            ((i32::from(q) | fifth_bit(bits, j)) - 16) as f32 * d
        });
    }
}

/// `d | min | fifth bits[4] | codes[16]`, values `q * d + min`.
impl DecodeBlock<24, 32> for Q5_1 {
    #[inline(always)]
    fn decode(block: &[u8; 24], out: &mut [f32; 32]) {
        let (d, m, bits) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
        nibble_halves(&block[8..], out, |q, j| (i32::from(q) | fifth_bit(bits, j)) as f32 * d + m);
    }
}

/// Decodes signed bytes: each times `d`.
#[inline(always)]
pub(super) fn scaled_bytes(codes: &[u8], out: &mut [f32], d: f32) {
    for (&q, out) in zip(codes.iter(), out) {
        *out = f32::from(q as i8) * d;
    }
}

/// `d | codes[32]`, values `q * d`.
impl DecodeBlock<34, 32> for Q8_0 {
    #[inline(always)]
    fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
        scaled_bytes(&block[2..], out, f16_at(block, 0));
    }
}

/// `d | sum | codes[32]`, values `q * d`. The sum of the values serves ggml's dot products and is
/// not decoded.
impl DecodeBlock<36, 32> for Q8_1 {
    #[inline(always)]
    fn decode(block: &[u8; 36], out: &mut [f32; 32]) {
        scaled_bytes(&block[4..], out, f16_at(block, 0));
    }
}
