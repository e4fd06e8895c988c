//! BitsAndBytes: double-quantized scales and LLM.int8() rows. The 4-bit codes themselves are
//! [`codebook`](super::codebook) blocks of the flattened tensor, `code[q] * absmax`, high nibble
//! first.
//!
//! Formulas: bitsandbytes `functional.dequantize_4bit`, `functional.dequantize_blockwise` (nested
//! absmax) and `functional.int8_vectorwise_dequant`.

use std::ops::Range;

use crate::element::Element;
use crate::simd::{Kernel, zip};

/// The levels of NF4, by code.
#[rustfmt::skip]
pub const NF4_CODEBOOK: [f32; 16] = [
    -1.0, -0.696_192_8, -0.525_073_05, -0.394_917_5, -0.284_441_38, -0.184_773_43, -0.091_050_036, 0.0,
    0.079_580_3, 0.160_930_2, 0.246_112_3, 0.337_915_24, 0.440_709_83, 0.562_617, 0.722_956_84, 1.0,
];

/// The levels of FP4, by code. bitsandbytes decodes code 8 to -0; the map in its files has +0
/// there.
#[rustfmt::skip]
pub const FP4_CODEBOOK: [f32; 16] = [
    0.0, 0.005_208_333_5, 0.666_666_7, 1.0, 0.333_333_34, 0.5, 0.166_666_67, 0.25,
    -0.0, -0.005_208_333_5, -0.666_666_7, -1.0, -0.333_333_34, -0.5, -0.166_666_67, -0.25,
];

// The digits above have to give the library's floats, whose bits are known.
const _: () =
    assert!(NF4_CODEBOOK[1].to_bits() == 0xbf32_39b1 && NF4_CODEBOOK[14].to_bits() == 0x3f39_13b3);
const _: () =
    assert!(FP4_CODEBOOK[1].to_bits() == 0x3baa_aaab && FP4_CODEBOOK[2].to_bits() == 0x3f2a_aaab);

/// `f32(code2[q] * absmax2) + offset` for each double-quantized absmax of blocks `blocks`.
pub(crate) fn nested_absmax(
    codes: &[u8],
    blocks: Range<usize>,
    codebook: &[f32],
    scales: &[f32],
    nested_block: usize,
    offset: f32,
    out: &mut Vec<f32>,
) {
    let first = blocks.start / nested_block;
    out.extend(
        zip(codes.iter(), blocks)
            .map(|(&q, b)| codebook[usize::from(q)] * scales[b / nested_block - first] + offset),
    );
}

/// The codebook of FP4 as the kernels have it: code 8 is -0, where the stored map has 0.
pub(crate) fn fp4_codebook(mut map: [f32; 16]) -> [f32; 16] {
    // bitsandbytes picks its table by type and ignores the stored map. Only this code differs, and
    // only by its sign, so a map with another value is taken as it is.
    if map[8] == 0.0 {
        map[8] = -0.0;
    }
    map
}

/// 1/127 as bitsandbytes has it, rounded to f32.
pub(crate) const INT8_SCALE: f32 = 0.007_874_015_718_698_502_f64 as f32;

/// Rows of int8: `(q * scb) * (1 / 127)`, in that order.
pub(crate) struct Int8Rows<'a> {
    pub codes: &'a [u8],
    pub cols: usize,
    /// One for each row.
    pub scb: &'a [f32],
}

impl Kernel for Int8Rows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let width = self.cols.max(1);
        for ((codes, out), &scb) in
            zip(zip(self.codes.chunks_exact(width), out.chunks_exact_mut(width)), self.scb)
        {
            for (o, &q) in zip(&mut out[..], codes) {
                // Two products, each rounded: the constant may not be merged into the scale, which
                // gives other bits.
                *o = E::from_f32(f32::from(q as i8) * scb * INT8_SCALE);
            }
        }
    }
}
