//! MLX's floating-point modes: MXFP4, MXFP8 and NVFP4, with a byte as scale of each group.
//!
//! Formulas: MLX 0.32.4 `mlx/ops.cpp` (`fp_quantize`), as its CPU wheel computes them: exponents of MX are rounded up, and
//! wrap around below 2^-127; of two FP4 values that are equally near it takes the smaller one; nothing becomes a negative
//! zero of FP4. Everything is rounded to the type of the model in between. Only where a value is 2^20 times the largest
//! scale of NVFP4 this differs: all FP4 values are equally far in F32 then, and MLX takes zero; here it is the largest.

#[cfg(test)]
mod tests;

use std::marker::PhantomData;

use half::{bf16, f16};

use super::groups::Recipe;
use super::mx::Ggml;
use super::narrow::narrow;
use crate::TargetDtype;
use crate::element::Element;
use crate::kernels::remember::fp8::{E4M3, Float8, f32_from_exponent};
use crate::kernels::remember::grouped::{CodeValue, E2M1};
use crate::simd::{Level, Routine, perform};

/// What codes and scales are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

impl Mode {
    /// Values of a group.
    pub(crate) fn group(self) -> usize {
        if self == Self::Nvfp4 { 16 } else { 32 }
    }

    /// Bits of a code.
    pub(crate) fn bits(self) -> usize {
        if self == Self::Mxfp8 { 8 } else { 4 }
    }
}

/// `x` rounded to `E`.
#[inline(always)]
fn rounded<E: Element>(x: f32) -> f32 {
    E::from_f32(x).to_f32()
}

/// The smallest exponent whose power of two is not below `x`; 0 for zero.
#[inline(always)]
fn exponent_above(x: f32) -> i32 {
    let bits = x.to_bits();
    let (exponent, mantissa) = ((bits >> 23) as i32, bits & 0x7f_ffff);
    match (exponent, mantissa) {
        (0, 0) => 0,
        // Multiples of the smallest subnormal.
        (0, _) => 32 - (mantissa - 1).leading_zeros() as i32 - 149,
        _ => exponent - 127 + i32::from(mantissa != 0),
    }
}

/// 2^`exponent`, from the smallest subnormal on.
#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    if exponent < -126 {
        f32::from_bits(1 << (exponent + 149))
    } else {
        f32::from_bits(((exponent + 127) as u32) << 23)
    }
}

/// E4M3, to nearest even; what is too large becomes the largest.
#[inline(always)]
fn e4m3(x: f32) -> u8 {
    narrow::<E4M3>(x).0 as u8
}

/// FP4, to nearest; the smaller magnitude of two. ggml rounds likewise.
#[inline(always)]
fn e2m1(x: f32) -> u8 {
    Ggml.code(x).0 as u8
}

/// FP4 as it is decoded.
const FP4: E2M1 = E2M1 {
    factor: 1.0,
    plain_zero: false,
};

/// How codes and scales of a mode are made: codes of FP4, unless it says otherwise. `#[inline(always)]`, all of it.
trait Float {
    const GROUP: usize;
    /// The largest value of a code.
    const LARGEST: f32 = 6.0;

    /// The scale of a group that would be `scale`: as it is stored, what values are divided by, and what decoding makes
    /// of it.
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

/// An exponent as a scale.
#[inline(always)]
fn exponent(scale: f32) -> (u8, f32, f32) {
    let exponent = exponent_above(scale);
    let stored = (exponent + 127) as u8;
    (stored, power_of_two(exponent), f32_from_exponent(stored))
}

struct Mxfp4;
struct Mxfp8;
struct Nvfp4;

impl Float for Mxfp4 {
    const GROUP: usize = 32;

    #[inline(always)]
    fn scale(scale: f32) -> (u8, f32, f32) {
        exponent(scale)
    }
}

impl Float for Mxfp8 {
    const GROUP: usize = 32;
    const LARGEST: f32 = 448.0;

    #[inline(always)]
    fn scale(scale: f32) -> (u8, f32, f32) {
        exponent(scale)
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

impl Float for Nvfp4 {
    const GROUP: usize = 16;

    #[inline(always)]
    fn scale(scale: f32) -> (u8, f32, f32) {
        let stored = e4m3(scale);
        let widened = E4M3::widen(stored);
        // What would be divided by zero gets code 0.
        (
            stored,
            if stored == 0 { f32::INFINITY } else { widened },
            widened,
        )
    }
}

/// All groups of a run of values.
struct Run<'a, F, E> {
    values: &'a [f32],
    back: &'a mut [f32],
    codes: &'a mut [u8],
    scales: &'a mut [u8],
    types: PhantomData<(F, E)>,
}

impl<F: Float, E: Element> Routine for Run<'_, F, E> {
    #[inline(always)]
    fn run(&mut self) {
        let groups = self
            .values
            .chunks_exact(F::GROUP)
            .zip(self.back.chunks_exact_mut(F::GROUP));
        let stored = self.codes.chunks_exact_mut(F::GROUP).zip(&mut *self.scales);
        for ((values, back), (codes, scale)) in groups.zip(stored) {
            let mut lanes = [0.0f32; 16];
            for run in values.as_chunks::<16>().0 {
                for (lane, x) in lanes.iter_mut().zip(run) {
                    *lane = lane.max(x.abs());
                }
            }
            let most = lanes.into_iter().fold(0.0f32, |most, x| most.max(x));
            let (stored, divisor, factor) = F::scale(rounded::<E>(most / F::LARGEST));
            *scale = stored;
            for ((&x, code), back) in values.iter().zip(codes).zip(back) {
                *code = F::code(rounded::<E>(x / divisor));
                *back = F::widen(*code) * factor;
            }
        }
    }
}

/// Encodes whole groups: a byte for each code and each scale; `back` is what decoding will give.
pub(crate) fn encode(
    mode: Mode,
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
                &mut Run {
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
        Mode::Mxfp4 => of_dtype!(Mxfp4),
        Mode::Mxfp8 => of_dtype!(Mxfp8),
        Mode::Nvfp4 => of_dtype!(Nvfp4),
    }
}
