//! ggml's block types: every block decoded by ggml's reference arithmetic, each product rounded, no FMA.
//!
//! Formulas: ggml `ggml-quants.c`, `dequantize_row_*`; gguf-py `quants.py`.

#![allow(non_camel_case_types)] // ggml's own names

mod fp4;
pub(crate) mod grids;
mod iq;
mod k_quants;
mod legacy;
mod ternary;
#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use crate::Dtype;
use crate::element::{Element, Out, f32_from_f16};
use crate::simd::{Kernel, Level, dispatch};

/// A block type: `BYTES` bytes that hold `ELEMS` values.
pub(crate) trait Block<const BYTES: usize, const ELEMS: usize> {
    /// Decodes one block. `#[inline(always)]`, with everything that it calls.
    fn decode(block: &[u8; BYTES], out: &mut [f32; ELEMS]);
}

/// Blocks that are decoded before any value is rounded: a load of what a store has just written waits for it.
const TILE: usize = 4;

/// Whole blocks of one type, one after the other.
struct Blocks<'a, B, const BYTES: usize, const ELEMS: usize> {
    bytes: &'a [u8],
    /// Multiplies every decoded value.
    scale: Option<f32>,
    block: PhantomData<B>,
}

impl<B: Block<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize> Kernel
    for Blocks<'_, B, BYTES, ELEMS>
{
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let mut tile = [[0.0; ELEMS]; TILE];
        let (blocks, _) = self.bytes.as_chunks::<BYTES>();
        let n = (128 / ELEMS).clamp(1, TILE);
        for (blocks, out) in blocks.chunks(n).zip(out.chunks_mut(n * ELEMS)) {
            for (block, values) in blocks.iter().zip(&mut tile) {
                B::decode(block, values);
            }
            let values = &mut tile.as_flattened_mut()[..blocks.len() * ELEMS];
            if let Some(scale) = self.scale {
                values.iter_mut().for_each(|v| *v *= scale);
            }
            E::store(values, out);
        }
    }
}

/// Decodes whole blocks, and multiplies by a scale if there is one.
pub(crate) type Decoder = fn(&[u8], Option<f32>, Level, Out<'_>);

fn decode<B: Block<BYTES, ELEMS>, const BYTES: usize, const ELEMS: usize>(
    bytes: &[u8],
    scale: Option<f32>,
    level: Level,
    out: Out<'_>,
) {
    dispatch(
        level,
        &Blocks {
            bytes,
            scale,
            block: PhantomData::<B>,
        },
        out,
    );
}

macro_rules! blocks {
    ($($dtype:ident $module:ident $bytes:literal $elems:literal;)*) => {
        /// The decoder of a block type.
        pub(crate) fn decoder(dtype: Dtype) -> Option<Decoder> {
            match dtype {
                $(Dtype::$dtype => Some(decode::<$module::$dtype, $bytes, $elems>),)*
                _ => None,
            }
        }
    };
}

blocks! {
    Q4_0 legacy 18 32;
    Q4_1 legacy 20 32;
    Q5_0 legacy 22 32;
    Q5_1 legacy 24 32;
    Q8_0 legacy 34 32;
    Q8_1 legacy 36 32;
    Q2_K k_quants 84 256;
    Q3_K k_quants 110 256;
    Q4_K k_quants 144 256;
    Q5_K k_quants 176 256;
    Q6_K k_quants 210 256;
    Q8_K k_quants 292 256;
    IQ1_S iq 50 256;
    IQ1_M iq 56 256;
    IQ2_XXS iq 66 256;
    IQ2_XS iq 74 256;
    IQ2_S iq 82 256;
    IQ3_XXS iq 98 256;
    IQ3_S iq 110 256;
    IQ4_NL iq 18 32;
    IQ4_XS iq 136 256;
    TQ1_0 ternary 54 256;
    TQ2_0 ternary 66 256;
    Q1_0 ternary 18 128;
    Q2_0 ternary 18 64;
    MXFP4 fp4 17 32;
    NVFP4 fp4 36 64;
}

/// The f16 at byte `at`.
#[inline(always)]
pub(crate) fn half(block: &[u8], at: usize) -> f32 {
    f32_from_f16(word(block, at))
}

/// The u16 at byte `at`.
#[inline(always)]
fn word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The u32 at byte `at`.
#[inline(always)]
fn double_word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}
