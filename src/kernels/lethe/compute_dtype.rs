//! The types in which libraries compute, and rounding to them after each operation.
//!
//! torch computes an operation on F16 or BF16 tensors in F32 and rounds its result. So a kernel that holds everything
//! in F32 and rounds after each operation gives the library's bits.

use half::{bf16, f16};

use crate::element::Element;

/// The dtype of a model's values, in which its library computes.
pub(crate) trait ComputeDtype: Element {
    /// Distance from 1 to the next value, as in `torch.finfo(dtype).eps`.
    const EPSILON: f32;
    /// The smallest normal value, as in `torch.finfo(dtype).tiny`.
    const SMALLEST_NORMAL: f32;

    /// `x` rounded to the dtype, to nearest even.
    #[inline(always)]
    fn round(x: f32) -> f32 {
        Self::rounded(x)
    }
}

impl ComputeDtype for f32 {
    const EPSILON: f32 = f32::EPSILON;
    const SMALLEST_NORMAL: f32 = f32::MIN_POSITIVE;
}

impl ComputeDtype for f16 {
    const EPSILON: f32 = 1.0 / 1024.0;
    const SMALLEST_NORMAL: f32 = 1.0 / 16384.0;
}

impl ComputeDtype for bf16 {
    const EPSILON: f32 = 1.0 / 128.0;
    const SMALLEST_NORMAL: f32 = f32::MIN_POSITIVE;

    /// `x` rounded to bfloat16, without the select for NaN that [`Element::rounded`] has.
    #[inline(always)]
    fn round(x: f32) -> f32 {
        // The sum carries out of a NaN only if nearly all bits of its payload are set. Encoders have finite values, and a
        // NaN that an operation on these gives has no payload but the quiet bit: it stays NaN.
        let bits = x.to_bits();
        f32::from_bits(bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
    }
}
