//! NVFP4: E2M1 codes in blocks of 16 along a row, an E4M3 scale each, and a global f32 scale that
//! multiplies (ModelOpt) or divides (compressed-tensors). Low nibble first:
//! [`codebook`](super::codebook) blocks.
//!
//! Formulas: modelopt `NVFP4QTensor.dequantize`; compressed-tensors `nvfp4/base.py`, `_dequantize`;
//! auto-round `experimental/qmodules/nvfp4.py`, `_dequant_nvfp4_tensor`.

use crate::remember::kernels::fp8::{E4M3, Float8};

/// Values that share a scale.
pub(crate) const BLOCK: usize = 16;

/// The value of each E2M1 code. Code 8 is 0 in ModelOpt's table, and -0 in that of
/// compressed-tensors and in Quark.
pub(crate) const fn e2m1(has_signed_zero: bool) -> [f32; 16] {
    let zero = if has_signed_zero { -0.0 } else { 0.0 };
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, zero, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
}

/// Twice the magnitude of an E2M1 code, whose sign does not matter: 0, 1, 2, 3, 4, 6, 8 or 12. In a
/// loop of nothing but bytes LLVM does that for 32 codes at once.
#[inline(always)]
pub(crate) fn doubled_magnitude(code: u8) -> u8 {
    let code = code & 7;
    // From 4 on the steps are 2, and the last is 4.
    code + code.saturating_sub(4) + 2 * code.saturating_sub(6)
}

/// The factor that AutoRound applies to codes: the reciprocal of a global scale, and 0 for 0
/// (`get_reciprocal`).
pub(crate) fn inverse(global: f32) -> f32 {
    if global == 0.0 { 0.0 } else { 1.0 / global }
}

/// The scale of a block, rounded to F32 before a code's value is multiplied by it.
#[inline(always)]
pub(crate) fn block_scale(code: u8, global: f32, divides: bool) -> f32 {
    if divides {
        E4M3::widen(code) / global
    } else {
        E4M3::widen(code) * global
    }
}
