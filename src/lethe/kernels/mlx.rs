//! MLX's floating-point modes: MXFP4, MXFP8 and NVFP4, with a scale of one byte for each group.
//!
//! Formulas: MLX 0.32.4 `mlx/ops.cpp` (`fp_quantize`), as its CPU wheel computes them. Each
//! operation is rounded to the model's dtype. Exponents of MX are rounded up, and wrap around below
//! 2^-127. Of two FP4 values that are equally near the smaller magnitude is taken, and no value
//! becomes the negative zero of FP4.
//!
//! The codes differ from MLX's only where a value is 2^20 times the largest scale of NVFP4. All FP4
//! values are equally far in F32 then: MLX takes zero, this module the largest.

#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use super::groups::{GroupArithmetic, GroupBuffers, GroupScale};
use super::mx::{BLOCK as MX_BLOCK, GgmlMxfp4};
use super::narrow::{Fp4E2M1, NarrowFloat, narrow};
use super::nvfp4::divisor_of;
use crate::TargetDtype;
use crate::remember::kernels::fp8::{E4M3, f32_from_exponent};
use crate::remember::kernels::nvfp4::{BLOCK as NVFP4_BLOCK, block_scale};

/// A floating-point `mode` of `mx.quantize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MlxFloatMode {
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

impl MlxFloatMode {
    /// Number of values that share a scale.
    pub(crate) fn group(self) -> usize {
        if self == Self::Nvfp4 {
            NVFP4_BLOCK
        } else {
            MX_BLOCK
        }
    }

    /// Bits of a code.
    pub(crate) fn bits(self) -> usize {
        if self == Self::Mxfp8 { 8 } else { 4 }
    }
}

/// The smallest exponent whose power of two is not below `x`; 0 for zero.
#[inline(always)]
fn exponent_above(x: f32) -> i32 {
    let bits = x.to_bits();
    let (exponent, mantissa) = ((bits >> 23) as i32, bits & 0x7f_ffff);
    match (exponent, mantissa) {
        (0, 0) => 0,
        // A subnormal is `mantissa` times 2^-149: the exponent is that of the power of two at or
        // above `mantissa`.
        (0, _) => 32 - (mantissa - 1).leading_zeros() as i32 - 149,
        _ => exponent - 127 + i32::from(mantissa != 0),
    }
}

/// 2^`exponent`, for exponents from -149, the smallest subnormal, to 127.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    if exponent < -126 {
        f32::from_bits(1 << (exponent + 149))
    } else {
        f32::from_bits(((exponent + 127) as u32) << 23)
    }
}

/// The scale of a group of an MX mode: the next power of two, stored as its biased exponent.
/// `scale` is the group's largest magnitude over the largest value of a code.
#[inline(always)]
fn exponent_scale(scale: f32) -> GroupScale {
    let exponent = exponent_above(scale);
    let byte = (exponent + 127) as u8;
    GroupScale { byte, factor: power_of_two(exponent), scale: f32_from_exponent(byte) }
}

/// The scale of this byte, by which values are divided; `None` for NaN.
#[inline(always)]
fn divisor_of_exponent(byte: u8) -> Option<GroupScale> {
    let scale = f32_from_exponent(byte);
    (byte < u8::MAX).then_some(GroupScale { byte, factor: scale, scale })
}

/// Groups of an MX mode with codes `N`, of a model in this dtype.
struct MlxMx<N>(TargetDtype, PhantomData<N>);

impl GroupArithmetic<MX_BLOCK> for MlxMx<Fp4E2M1> {
    type Code = Fp4E2M1;

    const ROUNDS: bool = true;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        // MLX divides in the dtype of the model, so the quotient is rounded before the exponent is
        // found.
        exponent_scale(self.0.round(max_abs / Fp4E2M1::MAX))
    }

    #[inline(always)]
    fn scale_of(&self, byte: u8) -> Option<GroupScale> {
        divisor_of_exponent(byte)
    }

    #[inline(always)]
    fn scaled(&self, x: f32, factor: f32) -> f32 {
        x / factor
    }

    #[inline(always)]
    fn round(&self, scaled: &mut [f32]) {
        self.0.round_all(scaled);
    }

    /// To nearest, the smaller magnitude of two: ggml's rounding is MLX's.
    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        GgmlMxfp4.code(x)
    }
}

impl GroupArithmetic<MX_BLOCK> for MlxMx<E4M3> {
    type Code = E4M3;

    const ROUNDS: bool = true;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        exponent_scale(self.0.round(max_abs / E4M3::MAX))
    }

    #[inline(always)]
    fn scale_of(&self, byte: u8) -> Option<GroupScale> {
        divisor_of_exponent(byte)
    }

    #[inline(always)]
    fn scaled(&self, x: f32, factor: f32) -> f32 {
        x / factor
    }

    #[inline(always)]
    fn round(&self, scaled: &mut [f32]) {
        self.0.round_all(scaled);
    }
}

/// Groups of the NVFP4 mode, of a model in this dtype.
struct MlxNvfp4(TargetDtype);

impl GroupArithmetic<NVFP4_BLOCK> for MlxNvfp4 {
    type Code = Fp4E2M1;

    const ROUNDS: bool = true;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        let (byte, scale) = narrow::<E4M3>(self.0.round(max_abs / Fp4E2M1::MAX));
        GroupScale {
            byte: byte as u8,
            // Values over a scale that is rounded to zero get code 0, by division by infinity.
            factor: if scale == 0.0 { f32::INFINITY } else { scale },
            scale,
        }
    }

    #[inline(always)]
    fn scale_of(&self, byte: u8) -> Option<GroupScale> {
        divisor_of(byte, block_scale(byte, 1.0, false))
    }

    #[inline(always)]
    fn scaled(&self, x: f32, factor: f32) -> f32 {
        x / factor
    }

    #[inline(always)]
    fn round(&self, scaled: &mut [f32]) {
        self.0.round_all(scaled);
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        GgmlMxfp4.code(x)
    }
}

/// Encodes whole groups of a model in `dtype`.
pub(crate) fn encode(mode: MlxFloatMode, dtype: TargetDtype, groups: GroupBuffers<'_>) {
    match mode {
        MlxFloatMode::Mxfp4 => groups.encode_with(&MlxMx::<Fp4E2M1>(dtype, PhantomData)),
        MlxFloatMode::Mxfp8 => groups.encode_with(&MlxMx::<E4M3>(dtype, PhantomData)),
        MlxFloatMode::Nvfp4 => groups.encode_with(&MlxNvfp4(dtype)),
    }
}
