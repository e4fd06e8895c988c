//! Decoders of ggml's block types. Results are bit-equal to ggml's reference: every product and sum
//! is rounded, without FMA, in the reference's order.
//!
//! Formulas: ggml `ggml-quants.c`, `dequantize_row_*`; gguf-py `quants.py`. The layout of a block
//! is given as `field[bytes] | …` in the order of its bytes; `d` is its scale and `dmin` the scale
//! of its minimums, both in f16.

#![allow(non_camel_case_types)] // ggml's own names

mod fp4;
pub(crate) mod grids;
mod ik;
pub(crate) mod interleaved;
mod iq;
mod k_quants;
mod legacy;
mod old;
mod ternary;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;

pub(crate) use self::ik::row_scale;
use self::{fp4::*, ik::*, iq::*, k_quants::*, legacy::*, old::*, ternary::*}; // their block types, which the table names
use crate::Dtype;
use crate::dtype::ggml::ggml_block_types;
use crate::element::{Element, Out, f32_from_f16};
use crate::simd::{Flat, Kernel, Level, dispatch, zip};

/// A block type as a decoder sees it: `BYTES` bytes hold `VALUES` values. Mirrored by
/// `lethe::ggml::EncodeBlock`.
pub(crate) trait DecodeBlock<const BYTES: usize, const VALUES: usize> {
    /// Whether a block is decoded by a function of its own, with the instructions of the baseline.
    /// LLVM makes other loops of some types where they are inlined, which take up to twice as long
    /// even with AVX2.
    const IS_APART: bool = false;

    /// Decodes one block. Must be `#[inline(always)]` with everything it calls, as [`Kernel`]
    /// demands.
    fn decode(block: &[u8; BYTES], out: &mut [f32; VALUES]);
}

/// The most blocks that are decoded before their values are rounded.
///
/// Values go through an array in memory, and a load of what a store has just written waits for that
/// store. With several short blocks in the array, the first is written before the last is decoded.
const TILE: usize = 4;

/// How [`decode_tiles`] decodes a block: a method that is inlined, for a function that is passed
/// may stay a call, which runs code of the baseline.
trait DecodeOne<const BYTES: usize, const VALUES: usize> {
    /// See [`DecodeBlock::IS_APART`].
    const IS_APART: bool;

    fn decode_one(&self, block: &[u8; BYTES], out: &mut [f32; VALUES]);
}

/// Decodes consecutive blocks of one type by `decoder`, and multiplies every value by `scale` if
/// there is one.
#[inline(always)]
fn decode_tiles<
    E: Element,
    D: DecodeOne<BYTES, VALUES>,
    const BYTES: usize,
    const VALUES: usize,
>(
    bytes: &[u8],
    scale: Option<f32>,
    decoder: &D,
    out: &mut [E],
) {
    let mut tile = [[0.0; VALUES]; TILE];
    // The caller passes whole blocks.
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    // Four blocks of 32 values, two of 64, one of 128 or 256.
    let n = (128 / VALUES).clamp(1, TILE);
    for (blocks, out) in zip(blocks.chunks(n), out.chunks_mut(n * VALUES)) {
        for (block, values) in zip(blocks.iter(), &mut tile) {
            if D::IS_APART {
                decode_apart(decoder, block, values);
            } else {
                decoder.decode_one(block, values);
            }
        }
        let values = &mut tile.flat_mut()[..blocks.len() * VALUES];
        // Before the only rounding: the scale of NVFP4 belongs to the weight.
        if let Some(scale) = scale {
            values.iter_mut().for_each(|v| *v *= scale);
        }
        E::store(values, out);
    }
}

/// [`decode_one`](DecodeOne::decode_one) as a function of its own.
#[inline(never)]
fn decode_apart<D: DecodeOne<BYTES, VALUES>, const BYTES: usize, const VALUES: usize>(
    decoder: &D,
    block: &[u8; BYTES],
    out: &mut [f32; VALUES],
) {
    decoder.decode_one(block, out);
}

/// The kernel of ggml's block types: consecutive blocks of one type.
struct GgmlBlocks<'a, B, const BYTES: usize, const VALUES: usize> {
    bytes: &'a [u8],
    /// Multiplies every decoded value.
    scale: Option<f32>,
    block: PhantomData<B>,
}

impl<B: DecodeBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize>
    DecodeOne<BYTES, VALUES> for GgmlBlocks<'_, B, BYTES, VALUES>
{
    const IS_APART: bool = B::IS_APART;

    #[inline(always)]
    fn decode_one(&self, block: &[u8; BYTES], out: &mut [f32; VALUES]) {
        B::decode(block, out);
    }
}

impl<B: DecodeBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize> Kernel
    for GgmlBlocks<'_, B, BYTES, VALUES>
{
    const FUSES_BF16: bool = true;

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        decode_tiles(self.bytes, self.scale, self, out);
    }
}

/// The kernel of ik_llama.cpp's block types: consecutive blocks of a row.
struct GgmlRowBlocks<'a, B, const BYTES: usize, const VALUES: usize> {
    bytes: &'a [u8],
    /// The row's scale.
    d: f32,
    block: PhantomData<B>,
}

impl<B: DecodeRowBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize>
    DecodeOne<BYTES, VALUES> for GgmlRowBlocks<'_, B, BYTES, VALUES>
{
    const IS_APART: bool = B::IS_APART;

    #[inline(always)]
    fn decode_one(&self, block: &[u8; BYTES], out: &mut [f32; VALUES]) {
        B::decode(self.d, block, out);
    }
}

impl<B: DecodeRowBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize> Kernel
    for GgmlRowBlocks<'_, B, BYTES, VALUES>
{
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        decode_tiles(self.bytes, None, self, out);
    }
}

/// Decodes consecutive blocks into as many values as they hold. The scale, if there is one,
/// multiplies each value of ggml's types; of ik_llama.cpp's types whose rows have one it is the
/// scale of the row, and the blocks are of one row.
pub(crate) type GgmlDecoder = fn(&[u8], Option<f32>, Level, Out<'_>);

/// Values that are decoded before they are rounded: in F32 they stay in the first-level cache.
const PIECE: usize = 4096;

/// Decodes blocks a [`PIECE`] at a time.
fn in_pieces<const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    mut out: Out<'_>,
    decode: impl Fn(&[u8], Out<'_>),
) {
    for bytes in bytes.chunks(PIECE / VALUES * BYTES) {
        let (piece, rest) = out.split_at(bytes.len() / BYTES * VALUES);
        decode(bytes, piece);
        out = rest;
    }
}

fn decode<B: DecodeBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    scale: Option<f32>,
    level: Level,
    out: Out<'_>,
) {
    in_pieces::<BYTES, VALUES>(bytes, out, |bytes, out| {
        dispatch(level, &GgmlBlocks { bytes, scale, block: PhantomData::<B> }, out);
    });
}

fn decode_row<B: DecodeRowBlock<BYTES, VALUES>, const BYTES: usize, const VALUES: usize>(
    bytes: &[u8],
    scale: Option<f32>,
    level: Level,
    out: Out<'_>,
) {
    let d = scale.unwrap_or(1.0);
    in_pieces::<BYTES, VALUES>(bytes, out, |bytes, out| {
        dispatch(level, &GgmlRowBlocks { bytes, d, block: PhantomData::<B> }, out);
    });
}

macro_rules! decoder {
    ({ $($block:ident $number:literal $bytes:literal / $values:literal $what:literal $words:tt;)* }
     { $($ik:ident $id:literal $header:literal + $size:literal / $n:literal $about:literal;)* } $interleaved:tt) => {
        /// The decoder of a block type; `None` for any other dtype, and for types that interleave
        /// rows.
        pub(crate) fn decoder(dtype: Dtype) -> Option<GgmlDecoder> {
            match dtype {
                $(Dtype::$block => Some(decode::<$block, $bytes, $values>),)*
                $(Dtype::$ik => Some(decode_row::<$ik, $size, $n>),)*
                _ => None,
            }
        }
    };
}
ggml_block_types! { decoder {} }

/// Scale and minimum, from 0 to 63, of group `g` of Q4_K and Q5_K: those of eight groups are packed
/// into 12 bytes in 6 bits each. The first eight bytes have the scales and minimums of groups 0 to
/// 3 in their low six bits, and in their high two the high bits of groups 4 to 7; the last four
/// bytes have the low nibbles of the latter.
///
/// As ggml's `get_scale_min_k4`.
#[inline(always)]
pub(crate) fn scale_min(packed: &[u8], g: usize) -> (f32, f32) {
    let (scale, min) = if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        (packed[g + 4] & 15 | packed[g - 4] >> 6 << 4, packed[g + 4] >> 4 | packed[g] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

/// The f16 at byte `at`.
#[inline(always)]
pub(crate) fn f16_at(block: &[u8], at: usize) -> f32 {
    f32_from_f16(u16_at(block, at))
}

/// The u16 at byte `at`.
#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The u32 at byte `at`.
#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
