//! BitsAndBytes: double-quantized scales and LLM.int8() rows. The 4-bit codes themselves are
//! [`codebook`](super::codebook) blocks of the flattened tensor, `code[q] * absmax`, high nibble
//! first.
//!
//! Formulas: bitsandbytes `functional.dequantize_4bit`, `functional.dequantize_blockwise` (nested
//! absmax) and `functional.int8_vectorwise_dequant`.

use std::ops::Range;

use crate::element::Element;
use crate::simd::{Kernel, zip};

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
const INT8_SCALE: f32 = 0.007_874_015_718_698_502_f64 as f32;

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
