//! One and two bits a value under one f16 scale: the ternary types TQ1_0 and TQ2_0, the signs Q1_0,
//! and Q2_0. PrismML's PTQ1_0 and PQ2_0 are TQ1_0 and Q2_0 with a scale for 128 values.

use super::{DecodeBlock, DecodeRowBlock, f16_at};
use crate::simd::zip;

pub(super) struct TQ1_0;
pub(super) struct TQ2_0;
pub(super) struct Q1_0;
pub(super) struct Q2_0;
pub(super) struct PQ2_0;
pub(super) struct PTQ1_0;

/// Decodes digit `n` (the most significant is 0) of the five base-3 digits of each byte: the digit
/// less one, times `d`.
///
/// A byte is a fraction of 256, rounded up: `0.abcde` in base 3. Multiplying by 3ⁿ modulo 256
/// shifts the first `n` digits out; the integer part of three times the rest is the next digit.
#[inline(always)]
fn digits(bytes: &[u8], n: usize, out: &mut [f32], d: f32) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    for (out, &byte) in zip(&mut out[..], bytes) {
        let fraction = byte.wrapping_mul(POWERS[n]);
        *out = (((i32::from(fraction) * 3) >> 8) - 1) as f32 * d;
    }
}

/// Decodes the base-3 digits of each of `BYTES` bytes: digit `n` of all belongs to the `n`-th run
/// of as many values.
#[inline(always)]
fn digit_runs<const BYTES: usize>(bytes: &[u8], out: &mut [f32], d: f32) {
    for (n, out) in out.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
        digits(bytes, n, out, d);
    }
}

/// `codes[48] | codes[4] | d`: five digits to a byte in 32 bytes and then in 16, four to each of
/// the last four bytes. Digit `n` of a run of bytes belongs to the `n`-th run of as many values.
impl DecodeBlock<54, 256> for TQ1_0 {
    const IS_APART: bool = true;

    #[inline(always)]
    fn decode(block: &[u8; 54], out: &mut [f32; 256]) {
        let d = f16_at(block, 52);
        let (first, rest) = out.split_at_mut(160);
        let (second, last) = rest.split_at_mut(80);
        digit_runs::<32>(&block[..32], first, d);
        digit_runs::<16>(&block[32..48], second, d);
        digit_runs::<4>(&block[48..52], last, d);
    }
}

/// `codes[24] | codes[2] | d`: as [`TQ1_0`], in runs of 16, 8 and 2 bytes.
impl DecodeRowBlock<28, 128> for PTQ1_0 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 28], out: &mut [f32; 128]) {
        let d = f16_at(block, 26);
        let (first, rest) = out.split_at_mut(80);
        let (second, last) = rest.split_at_mut(40);
        digit_runs::<16>(&block[..16], first, d);
        digit_runs::<8>(&block[16..24], second, d);
        digit_runs::<2>(&block[24..26], last, d);
    }
}

/// `codes[64] | d`, values `(q - 1) * d`. Of each 128 values, 32 bytes hold value `l` of the `n`-th
/// 32 in bits `2n` and `2n + 1` of byte `l`.
impl DecodeBlock<66, 256> for TQ2_0 {
    const IS_APART: bool = true;

    #[inline(always)]
    fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
        let d = f16_at(block, 64);
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let at = g / 4 * 32;
            for (out, &q) in zip(&mut out[..], &block[at..at + 32]) {
                *out = (i32::from(q >> (g % 4 * 2) & 3) - 1) as f32 * d;
            }
        }
    }
}

/// `d | signs[16]`: a set bit is `d`, a clear one `-d`, the lowest bit of a byte first.
impl DecodeBlock<18, 128> for Q1_0 {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 128]) {
        let d = f16_at(block, 0).to_bits();
        for (out, &bits) in zip(out.as_chunks_mut::<8>().0, &block[2..]) {
            for (j, out) in out.iter_mut().enumerate() {
                // The sign of a clear bit is set, and the magnitude stays `d` without a product.
                *out = f32::from_bits(d ^ (u32::from(!bits) >> j & 1) << 31);
            }
        }
    }
}

/// Values `(q - 1) * d`: four consecutive codes to a byte, the lowest bits first.
#[inline(always)]
fn pairs_of_bits(codes: &[u8], out: &mut [f32], d: f32) {
    for (out, &bits) in zip(out.as_chunks_mut::<4>().0, codes) {
        for (j, out) in out.iter_mut().enumerate() {
            *out = (i32::from(bits >> (2 * j) & 3) - 1) as f32 * d;
        }
    }
}

/// `d | codes[16]`.
impl DecodeBlock<18, 64> for Q2_0 {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 64]) {
        pairs_of_bits(&block[2..], out, f16_at(block, 0));
    }
}

/// `d | codes[32]`.
impl DecodeRowBlock<34, 128> for PQ2_0 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 34], out: &mut [f32; 128]) {
        pairs_of_bits(&block[2..], out, f16_at(block, 0));
    }
}
