//! NVFP4: E2M1 codes in blocks of 16 along a row, an E4M3 scale each, and a global f32 scale that
//! multiplies (ModelOpt) or divides (compressed-tensors). Low nibble first.
//!
//! Formulas: modelopt `NVFP4QTensor.dequantize`; compressed-tensors `nvfp4/base.py`, `_dequantize`.

use crate::element::Element;
use crate::remember::codebook::Pairs;
use crate::remember::fp8::{Code, E4M3};
use crate::simd::Kernel;

/// Values that share a scale.
pub(crate) const BLOCK: usize = 16;

/// E2M1 by code. ModelOpt's table has a plain zero for code 8, compressed-tensors' a negative one.
pub(crate) const fn e2m1(divides: bool) -> [f32; 16] {
    let zero = if divides { -0.0 } else { 0.0 };
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, zero, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
}

/// The scale of a block, rounded to f32 before it meets a code.
#[inline(always)]
pub(crate) fn block_scale(code: u8, global: f32, divides: bool) -> f32 {
    if divides { E4M3::widen(code) / global } else { E4M3::widen(code) * global }
}

/// Whole blocks: `E2M1[code] * scale`.
pub(crate) struct Blocks<'a> {
    pub pairs: &'a Pairs,
    pub bytes: &'a [u8],
    /// One for each 16 values.
    pub scales: &'a [f32],
}

impl Kernel for Blocks<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let blocks = self.bytes.as_chunks::<{ BLOCK / 2 }>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0);
        for ((bytes, out), &scale) in blocks.zip(self.scales) {
            self.pairs.scaled(bytes, scale, out);
        }
    }
}
