//! Block types of ggml from before May 2023: of files of llama.cpp before GGUF, and of whisper.cpp of
//! that time. The numbers behind `V` are those of the versions of blocks: 0 until 12 May 2023, 1 until 19 May.
//! Q8_0 had the same blocks in both.
//!
//! Formulas: `dequantize_row_*` of `ggml.c` in llama.cpp before and after
//! [#1405](https://github.com/ggml-org/llama.cpp/pull/1405); Q4_3 before
//! [#1218](https://github.com/ggml-org/llama.cpp/pull/1218) removed it.

use super::legacy::{fifth_bit, nibble_halves, scaled_bytes};
use super::{DecodeRowBlock, f16_at, u32_at};
use crate::simd::zip;

pub(super) struct Q4_0_V0;
pub(super) struct Q4_1_V0;
pub(super) struct Q4_2;
pub(super) struct Q4_3;
pub(super) struct Q5_0_V0;
pub(super) struct Q5_1_V0;
pub(super) struct Q8_0_V0;
pub(super) struct Q4_0_V1;
pub(super) struct Q4_1_V1;

/// The F32 at byte `at`.
#[inline(always)]
fn f32_at(block: &[u8], at: usize) -> f32 {
    f32::from_bits(u32_at(block, at))
}

/// Decodes nibbles: the low and the high one of a byte are neighbours. `value` is given a nibble and
/// the index of its value.
#[inline(always)]
fn nibble_pairs(nibbles: &[u8], out: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    let pairs = out.as_chunks_mut::<2>().0;
    for (j, (&q, pair)) in zip(nibbles.iter(), pairs).enumerate() {
        *pair = [value(q & 15, 2 * j), value(q >> 4, 2 * j + 1)];
    }
}

/// `d in f32 | codes[16]`, values `(q - 8) * d`.
impl DecodeRowBlock<20, 32> for Q4_0_V0 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 20], out: &mut [f32; 32]) {
        let d = f32_at(block, 0);
        nibble_pairs(&block[4..], out, |q, _| (i32::from(q) - 8) as f32 * d);
    }
}

/// `d in f32 | min in f32 | codes[16]`, values `q * d + min`.
impl DecodeRowBlock<24, 32> for Q4_1_V0 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 24], out: &mut [f32; 32]) {
        let (d, m) = (f32_at(block, 0), f32_at(block, 4));
        nibble_pairs(&block[8..], out, |q, _| f32::from(q) * d + m);
    }
}

/// `d | codes[8]`, values `(q - 8) * d`.
impl DecodeRowBlock<10, 16> for Q4_2 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 10], out: &mut [f32; 16]) {
        let d = f16_at(block, 0);
        nibble_pairs(&block[2..], out, |q, _| (i32::from(q) - 8) as f32 * d);
    }
}

/// `d | min | codes[8]`, values `q * d + min`.
impl DecodeRowBlock<12, 16> for Q4_3 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 12], out: &mut [f32; 16]) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        nibble_pairs(&block[4..], out, |q, _| f32::from(q) * d + m);
    }
}

/// `d | fifth bits[4] | codes[16]`, values `(q - 16) * d`.
impl DecodeRowBlock<22, 32> for Q5_0_V0 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 22], out: &mut [f32; 32]) {
        let (d, bits) = (f16_at(block, 0), u32_at(block, 2));
        nibble_pairs(&block[6..], out, |q, j| {
            ((i32::from(q) | fifth_bit(bits, j)) - 16) as f32 * d
        });
    }
}

/// `d | min | fifth bits[4] | codes[16]`, values `q * d + min`.
impl DecodeRowBlock<24, 32> for Q5_1_V0 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 24], out: &mut [f32; 32]) {
        let (d, m, bits) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
        nibble_pairs(&block[8..], out, |q, j| (i32::from(q) | fifth_bit(bits, j)) as f32 * d + m);
    }
}

/// `d in f32 | codes[32]`, values `q * d`.
impl DecodeRowBlock<36, 32> for Q8_0_V0 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 36], out: &mut [f32; 32]) {
        scaled_bytes(&block[4..], out, f32_at(block, 0));
    }
}

/// `d in f32 | codes[16]`, values `(q - 8) * d`, in today's order.
impl DecodeRowBlock<20, 32> for Q4_0_V1 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 20], out: &mut [f32; 32]) {
        let d = f32_at(block, 0);
        nibble_halves(&block[4..], out, |q, _| (i32::from(q) - 8) as f32 * d);
    }
}

/// `d in f32 | min in f32 | codes[16]`, values `q * d + min`, in today's order.
impl DecodeRowBlock<24, 32> for Q4_1_V1 {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 24], out: &mut [f32; 32]) {
        let (d, m) = (f32_at(block, 0), f32_at(block, 4));
        nibble_halves(&block[8..], out, |q, _| f32::from(q) * d + m);
    }
}
