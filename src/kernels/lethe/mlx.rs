//! MLX's floating-point modes: MXFP4, MXFP8 and NVFP4, with a scale of one byte for each group.
//!
//! Formulas: MLX 0.32.4 `mlx/ops.cpp` (`fp_quantize`), as its CPU wheel computes them. Each operation is rounded to the
//! model's dtype. Exponents of MX are rounded up, and wrap around below 2^-127. Of two FP4 values that are equally near
//! the smaller magnitude is taken, and no value becomes the negative zero of FP4.
//!
//! The codes differ from MLX's only where a value is 2^20 times the largest scale of NVFP4. All FP4 values are equally
//! far in F32 then: MLX takes zero, this module the largest.

#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use half::{bf16, f16};

use super::groups::GroupArithmetic;
use super::mx::GgmlMxfp4;
use super::narrow::narrow;
use crate::TargetDtype;
use crate::element::Element;
use crate::kernels::remember::fp8::{E4M3, Float8, f32_from_exponent};
use crate::kernels::remember::grouped::{CodeValue, E2M1};
use crate::simd::{Level, Routine, perform};

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
        if self == Self::Nvfp4 { 16 } else { 32 }
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
        // A subnormal is `mantissa` times 2^-149: the exponent is that of the power of two at or above `mantissa`.
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

/// The code of `x` in E4M3, to nearest even; 448 for what is larger.
#[inline(always)]
fn e4m3(x: f32) -> u8 {
    narrow::<E4M3>(x).0 as u8
}

/// The code of `x` in FP4, to nearest, the smaller magnitude of two: ggml's rounding is MLX's.
#[inline(always)]
fn e2m1(x: f32) -> u8 {
    GgmlMxfp4.code(x).0 as u8
}

/// FP4 as MLX decodes it.
const FP4: E2M1 = E2M1 {
    factor: 1.0,
    plain_zero: false,
};

/// The arithmetic of a mode; codes are FP4 by default. Implementations are `#[inline(always)]`.
trait MlxFloatArithmetic {
    const GROUP: usize;
    /// The largest value that a code decodes to.
    const MAX: f32 = 6.0;

    /// Rounds `scale`, the group's largest magnitude over [`MAX`](Self::MAX). Returns the byte that is stored, the divisor
    /// of values, and the value of the byte, by which decoding multiplies.
    fn scale(scale: f32) -> (u8, f32, f32);

    #[inline(always)]
    fn code(x: f32) -> u8 {
        e2m1(x)
    }

    #[inline(always)]
    fn widen(code: u8) -> f32 {
        FP4.value(code)
    }
}

/// [`MlxFloatArithmetic::scale`] of the MX modes: the next power of two, stored as its biased exponent.
#[inline(always)]
fn exponent_scale(scale: f32) -> (u8, f32, f32) {
    let exponent = exponent_above(scale);
    let stored = (exponent + 127) as u8;
    (stored, power_of_two(exponent), f32_from_exponent(stored))
}

struct MlxMxfp4;
struct MlxMxfp8;
struct MlxNvfp4;

impl MlxFloatArithmetic for MlxMxfp4 {
    const GROUP: usize = 32;

    #[inline(always)]
    fn scale(scale: f32) -> (u8, f32, f32) {
        exponent_scale(scale)
    }
}

impl MlxFloatArithmetic for MlxMxfp8 {
    const GROUP: usize = 32;
    const MAX: f32 = 448.0;

    #[inline(always)]
    fn scale(scale: f32) -> (u8, f32, f32) {
        exponent_scale(scale)
    }

    #[inline(always)]
    fn code(x: f32) -> u8 {
        e4m3(x)
    }

    #[inline(always)]
    fn widen(code: u8) -> f32 {
        E4M3::widen(code)
    }
}

impl MlxFloatArithmetic for MlxNvfp4 {
    const GROUP: usize = 16;

    #[inline(always)]
    fn scale(scale: f32) -> (u8, f32, f32) {
        let stored = e4m3(scale);
        let widened = E4M3::widen(stored);
        // Values over a scale that is rounded to zero get code 0, by division by infinity.
        (
            stored,
            if stored == 0 { f32::INFINITY } else { widened },
            widened,
        )
    }
}

/// Encodes whole groups that lie one after the other.
struct EncodeMlxGroups<'a, F, E> {
    values: &'a [f32],
    back: &'a mut [f32],
    codes: &'a mut [u8],
    scales: &'a mut [u8],
    types: PhantomData<(F, E)>,
}

impl<F: MlxFloatArithmetic, E: Element> Routine for EncodeMlxGroups<'_, F, E> {
    #[inline(always)]
    fn run(&mut self) {
        let groups = self
            .values
            .chunks_exact(F::GROUP)
            .zip(self.back.chunks_exact_mut(F::GROUP));
        let stored = self.codes.chunks_exact_mut(F::GROUP).zip(&mut *self.scales);
        for ((values, back), (codes, scale)) in groups.zip(stored) {
            // Maxima are exact in any order; 16 lanes are what LLVM vectorises.
            let mut lanes = [0.0f32; 16];
            for chunk in values.as_chunks::<16>().0 {
                for (lane, x) in lanes.iter_mut().zip(chunk) {
                    *lane = lane.max(x.abs());
                }
            }
            let max_abs = lanes.into_iter().fold(0.0f32, |max_abs, x| max_abs.max(x));
            // MLX divides in the dtype of the model, so the quotient is rounded before the exponent
            // is found.
            let (stored, divisor, factor) = F::scale(E::rounded(max_abs / F::MAX));
            *scale = stored;
            for ((&x, code), back) in values.iter().zip(codes).zip(back) {
                // The divisor is a power of two or an E4M3 value, and MLX rounds the quotient to
                // the model's dtype.
                *code = F::code(E::rounded(x / divisor));
                *back = F::widen(*code) * factor;
            }
        }
    }
}

/// Encodes whole groups of a model in `dtype`: `codes` becomes a byte for each value, `scales` a byte for each group, and
/// `back` receives the values that decoding gives.
pub(crate) fn encode(
    mode: MlxFloatMode,
    dtype: TargetDtype,
    values: &[f32],
    level: Level,
    back: &mut [f32],
    codes: &mut Vec<u8>,
    scales: &mut Vec<u8>,
) {
    codes.resize(values.len(), 0);
    scales.resize(values.len() / mode.group(), 0);
    macro_rules! run {
        ($mode:ident, $dtype:ident) => {
            perform(
                level,
                &mut EncodeMlxGroups {
                    values,
                    back,
                    codes,
                    scales,
                    types: PhantomData::<($mode, $dtype)>,
                },
            )
        };
    }
    macro_rules! of_dtype {
        ($mode:ident) => {
            match dtype {
                TargetDtype::F32 => run!($mode, f32),
                TargetDtype::F16 => run!($mode, f16),
                TargetDtype::BF16 => run!($mode, bf16),
            }
        };
    }
    match mode {
        MlxFloatMode::Mxfp4 => of_dtype!(MlxMxfp4),
        MlxFloatMode::Mxfp8 => of_dtype!(MlxMxfp8),
        MlxFloatMode::Nvfp4 => of_dtype!(MlxNvfp4),
    }
}
