//! Block types that ik_llama.cpp adds to ggml's. Rows of most of them begin with a scale, `d`,
//! which multiplies the integer scale of a group before that multiplies a value; `DecodeRowBlock`
//! gets it with each block.
//!
//! Formulas: ik_llama.cpp at commit
//! [8337e4c](https://github.com/ikawrakow/ik_llama.cpp/tree/8337e4cd3861406fc04e0854b1409cd1b027fbc9),
//! `ggml/src/iqk/iqk_quantize.cpp`, `dequantize_row_*`; of Q6_0 `ggml/src/ggml-quants.c`. Its
//! decoders of IQ1_BN and IQ2_BN leave the row's scale out, and its products of matrices multiply
//! by it (`ggml/src/iqk/iqk_gemm_1bit.cpp`).
//!
//! "Run `n`" is values `32 * n` to `32 * n + 31` of a block, and "group `g`" values `16 * g` to
//! `16 * g + 15`.

mod codebooks;
mod trellis;

pub(super) use self::{codebooks::*, trellis::*};
use super::iq::{iq1_entry, iq1_value};
use super::legacy::scaled_bytes;
use super::{f16_at, u16_at, u32_at};
use crate::simd::zip;

/// A block type of ik_llama.cpp as a decoder sees it: `BYTES` bytes hold `VALUES` values of a row,
/// whose scale is `d`.
pub(crate) trait DecodeRowBlock<const BYTES: usize, const VALUES: usize> {
    /// As [`DecodeBlock::IS_APART`](super::DecodeBlock::IS_APART).
    const IS_APART: bool = false;

    /// Decodes one block. A type whose rows have no scale ignores `d`. Must be `#[inline(always)]`
    /// with everything it calls, as [`Kernel`](crate::simd::Kernel) demands.
    fn decode(d: f32, block: &[u8; BYTES], out: &mut [f32; VALUES]);
}

/// The scale that a row's header begins with: F16 if the header has two bytes, else F32. Q8_KV has
/// behind it the sum of the row's codes, which serves dot products and is not decoded.
#[inline]
pub(crate) fn row_scale(header: &[u8]) -> f32 {
    match header.len() {
        2 => f16_at(header, 0),
        _ => f32::from_bits(u32_at(header, 0)),
    }
}

pub(in super::super) struct Q6_0;
pub(in super::super) struct IQ1_BN;
pub(in super::super) struct IQ2_BN;
pub(in super::super) struct Q8_KV;
/// A row's part of a block of interleaved rows.
pub(in super::super) struct IQ1_S_R4;
/// A row's part of a block of interleaved rows.
pub(in super::super) struct IQ1_M_R4;

/// `d in f16 | high pairs[8] | codes[16]`, values `(q - 32) * d`. Low nibbles are the first 16
/// values, high nibbles the last 16. Byte `l` of the pairs has those of values `l`, `l + 16`, `l +
/// 8` and `l + 24`, the lowest first.
impl DecodeRowBlock<26, 32> for Q6_0 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 26], out: &mut [f32; 32]) {
        let d = f16_at(block, 0);
        for (n, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let (half, nibble) = (n % 2, n / 2);
            let codes = &block[10 + 8 * half..18 + 8 * half];
            for ((out, &q), &high) in zip(zip(&mut out[..], codes), &block[2..10]) {
                let high = high >> (4 * half + 2 * nibble) & 3;
                *out = (i32::from(q >> (4 * nibble) & 15 | high << 4) - 32) as f32 * d;
            }
        }
    }
}

/// The five digits of base 3 of each byte, less one, the last digit first.
///
/// A byte is a fraction of 256, `0.edcba` in base 3: times a power of three, modulo 256, it begins
/// with a later digit. A table, because computing a digit takes longer than looking up five.
static DIGITS: [[f32; 5]; 256] = {
    let mut table = [[0.0; 5]; 256];
    let mut i = 0;
    while i < 5 * 256 {
        let fraction = (i / 5) * [81, 27, 9, 3, 1][i % 5] % 256;
        table[i / 5][i % 5] = (3 * fraction / 256) as f32 - 1.0;
        i += 1;
    }
    table
};

/// `codes[12] | extra`, values `(digit - 1) * d`. Of each 16 values, three bytes have five digits
/// each and `extra` has the last one.
impl DecodeRowBlock<13, 64> for IQ1_BN {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 13], out: &mut [f32; 64]) {
        let (codes, extra) = (block[..12].as_chunks::<3>().0, DIGITS[usize::from(block[12])]);
        for ((out, codes), extra) in zip(zip(out.as_chunks_mut::<16>().0, codes), extra) {
            for (out, &code) in zip(out.as_chunks_mut::<5>().0, codes) {
                *out = DIGITS[usize::from(code)];
            }
            out[15] = extra;
        }
        out.iter_mut().for_each(|out| *out *= d);
    }
}

/// `codes[16]`, values `(q - 1) * d`: value `l` of the `n`-th 16 in bits `2n` and `2n + 1` of byte
/// `l`.
impl DecodeRowBlock<16, 64> for IQ2_BN {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 16], out: &mut [f32; 64]) {
        for (n, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            for (out, &q) in zip(&mut out[..], block) {
                *out = d * (i32::from(q >> (2 * n) & 3) - 1) as f32;
            }
        }
    }
}

/// `codes[32]`, values `q * d`.
impl DecodeRowBlock<32, 32> for Q8_KV {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 32], out: &mut [f32; 32]) {
        scaled_bytes(block, out, d);
    }
}

/// Decodes four entries of the IQ1 grid, each with a scale.
#[inline(always)]
fn decode_iq1(out: &mut [f32; 32], entry: impl Fn(usize) -> u64, scale: impl Fn(usize) -> f32) {
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let dl = scale(i);
        for (out, byte) in zip(&mut out[..], entry(i).to_le_bytes()) {
            *out = dl * iq1_value(byte);
        }
    }
}

/// `indices[4] | word`: the word is that of 32 values of IQ1_S.
impl DecodeRowBlock<6, 32> for IQ1_S_R4 {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 6], out: &mut [f32; 32]) {
        let bits = u16_at(block, 4);
        let dl = d * f32::from(2 * (bits >> 12 & 7) + 1);
        let entry = |i: usize| {
            let high = usize::from(bits >> (3 * i) & 7) << 8;
            iq1_entry(usize::from(block[i]) | high, bits & 0x8000 != 0)
        };
        decode_iq1(out, entry, |_| dl);
    }
}

/// `indices[4] | nibbles[2] | scales`: nibbles as those of IQ1_M; the scale of the first 16 values
/// is the low nibble.
impl DecodeRowBlock<7, 32> for IQ1_M_R4 {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 7], out: &mut [f32; 32]) {
        let entry = |i: usize| {
            let bits = usize::from(block[4 + i / 2] >> (4 * (i % 2)) & 15);
            iq1_entry(usize::from(block[i]) | (bits & 7) << 8, bits & 8 != 0)
        };
        decode_iq1(out, entry, |i| d * f32::from(block[6] >> (4 * (i / 2)) & 15));
    }
}
