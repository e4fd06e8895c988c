//! BitsAndBytes: 4-bit codebooks in blocks of a flattened tensor, and LLM.int8() rows.
//!
//! Formulas: bitsandbytes `functional.dequantize_4bit`, `functional.dequantize_blockwise` (nested
//! absmax) and `functional.int8_vectorwise_dequant`.

use std::ops::Range;

use crate::element::Element;
use crate::remember::codebook::Pairs;
use crate::simd::Kernel;

/// Elements of a flattened 4-bit tensor: `code[q] * absmax[i / block]`, high nibble first.
pub(crate) struct Blocks<'a> {
    pub pairs: &'a Pairs,
    pub bytes: &'a [u8],
    /// Elements of the tensor that `bytes` hold, from an even one on.
    pub elements: Range<usize>,
    pub block: usize,
    /// Scales, from the block of the first element on.
    pub absmax: &'a [f32],
}

impl Kernel for Blocks<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, mut out: &mut [E]) {
        let mut bytes = self.bytes;
        let mut left = self.block - self.elements.start % self.block;
        for &absmax in self.absmax {
            let n = left.min(out.len());
            let (head, tail) = out.split_at_mut(n);
            let (now, later) = bytes.split_at(n.div_ceil(2).min(bytes.len()));
            self.pairs.scaled(now, absmax, head);
            (out, bytes, left) = (tail, later, self.block);
        }
    }
}

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
        codes.iter().zip(blocks).map(|(&q, b)| codebook[usize::from(q)] * scales[b / nested_block - first] + offset),
    );
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
        for ((codes, out), &scb) in self.codes.chunks_exact(width).zip(out.chunks_exact_mut(width)).zip(self.scb) {
            for (o, &q) in out.iter_mut().zip(codes) {
                *o = E::from_f32(f32::from(q as i8) * scb * INT8_SCALE);
            }
        }
    }
}
