//! MXFP4, MXFP6 and MXFP8: a power of two for each 32 values. How it is found is not part of the format;
//! every library has a way of its own:
//!
//! - compressed-tensors 0.20.0: `quantization/utils/mxfp_utils.py`, `generate_mx_scales`;
//!   `calculate_qparams`; `compressors/mx_utils.py`, `compress_mx_scale`.
//! - modelopt 0.47.0: `MXFP4QTensor.quantize`, `MXFP8QTensor.quantize`.
//! - torchao 0.18.0: `prototype/mx_formats/mx_tensor.py`, `to_mx`, with each
//!   `ScaleCalculationMode`.
//! - ggml: `quantize_row_mxfp4_ref`.
//! - comfy-kitchen 0.2.40: `quantize_mxfp8` (eager backend).

use std::marker::PhantomData;

use super::groups::{GroupArithmetic, GroupScale};
use super::narrow::{Fp4E2M1, Fp6E2M3, NarrowFloat, ceil_log2, floor_log2, narrow_number};
use crate::TargetDtype;
use crate::remember::kernels::fp8::{E4M3, f32_from_exponent};

/// Values that share a power of two.
pub(crate) const BLOCK: usize = 32;

/// An element type of MX formats.
pub(crate) trait MxElement: NarrowFloat {
    /// Exponent of the power of two at or below the largest value, as `emax_elem` of the OCP
    /// specification.
    const MAX_EXPONENT: i32 = ((Self::MAX.to_bits() >> 23) as i32) - 127;
    /// Bits of mantissa to half a step of which compressed-tensors rounds the largest magnitude up.
    const SCALE_MANTISSA_BITS: u32 = 1;
    /// Whether compressed-tensors makes the positive zero of a negative one.
    const DROPS_SIGN_OF_ZERO: bool = true;
}

impl MxElement for Fp4E2M1 {}
impl MxElement for Fp6E2M3 {
    const SCALE_MANTISSA_BITS: u32 = Self::MANTISSA_BITS;
    const DROPS_SIGN_OF_ZERO: bool = false;
}
impl MxElement for E4M3 {}

/// The scale 2^(`exponent` - 127), with `factor` as the operand of `scaled`. Where a library
/// divides by a power of two, multiplication by its reciprocal, which is exact, gives the same
/// bits.
#[inline(always)]
fn power_of_two_scale(exponent: i32, factor: f32) -> GroupScale {
    let byte = exponent as u8;
    GroupScale { byte, factor, scale: f32_from_exponent(byte) }
}

/// Biased exponent of the power of two at or below `x`, which is not negative; 0 for subnormals.
#[inline(always)]
fn biased_exponent(x: f32) -> i32 {
    (x.to_bits() >> 23) as i32
}

/// `x` plus half a step of a mantissa of `bits` bits: of one bit, it carries into the next power of
/// two from 1.75 times a power on.
#[inline(always)]
fn half_step_up(x: f32, bits: u32) -> f32 {
    f32::from_bits(x.to_bits() + (1 << (22 - bits)))
}

/// `generate_mx_scales` and `_quantize` of compressed-tensors, for a model in this dtype.
pub(crate) struct CompressedTensorsMx<N>(pub TargetDtype, pub PhantomData<N>);

impl<N: MxElement> GroupArithmetic<BLOCK> for CompressedTensorsMx<N> {
    type Code = N;

    const ROUNDS: bool = true;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        // `round_to_power_2` adds half a step of E2M1, for MXFP8 as well, or of E2M3 to the bits of
        // the model's dtype, and clears the mantissa. In F32 the sum is the same for what is normal
        // in that dtype. A subnormal has no implicit bit: from three quarters (15 of 16 parts) of the
        // smallest normal value on it carries into that, below it becomes 0.
        let smallest_normal = self.0.smallest_normal();
        let carries_from = 1.0 - f32_from_exponent((126 - N::SCALE_MANTISSA_BITS) as u8);
        let power = if max_abs < carries_from * smallest_normal {
            0.0
        } else {
            half_step_up(max_abs.max(smallest_normal), N::SCALE_MANTISSA_BITS)
        };
        // Negative exponents are cut off at 2^-127, the smallest that the byte has.
        let exponent = (biased_exponent(power) - N::MAX_EXPONENT).max(0);
        if self
            .0
            .round(f32::from_bits((biased_exponent(power) as u32) << 23))
            == f32::INFINITY
        {
            // The next power of two may be infinity in F16. Values over it are zeros, and the byte
            // that the library stores for its exponent is that of 1.
            return power_of_two_scale(127, 0.0);
        }
        // A power of two that the model's dtype cannot hold is 0 there, and the library takes 1 for
        // it.
        let scale = self.0.round(f32_from_exponent(exponent as u8));
        if scale == 0.0 {
            power_of_two_scale(127, 1.0)
        } else {
            power_of_two_scale(exponent, 1.0 / scale)
        }
    }

    /// Loaders hold a scale in the model's dtype.
    #[inline(always)]
    fn scale_of(&self, byte: u8) -> Option<GroupScale> {
        let scale = f32_from_exponent(byte);
        let is_held = byte < u8::MAX && self.0.round(scale) == scale;
        is_held.then(|| GroupScale { byte, factor: 1.0 / scale, scale })
    }

    #[inline(always)]
    fn round(&self, scaled: &mut [f32]) {
        self.0.round_quotients(scaled);
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        // -0 becomes +0: the library adds a zero point, which is +0, and rounds FP4 as `sign(x)`
        // times a magnitude. FP6 has none.
        narrow_number::<N>(if N::DROPS_SIGN_OF_ZERO { x + 0.0 } else { x })
    }
}

/// [`ceil_log2`] of a scale, within what its byte holds; -127 for zero.
#[inline(always)]
fn clamped_ceil_log2(scale: f32) -> i32 {
    if scale > 0.0 {
        // The exponent ends at 127: 254 is the last byte that is a number.
        ceil_log2(scale).clamp(-127, 127)
    } else {
        -127
    }
}

/// `MXFP4QTensor.quantize` and `MXFP8QTensor.quantize` of modelopt: the exponent is the least under
/// which no value exceeds the largest code.
pub(crate) struct ModelOptMx<N>(pub PhantomData<N>);

impl GroupArithmetic<BLOCK> for ModelOptMx<Fp4E2M1> {
    type Code = Fp4E2M1;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        let exponent = clamped_ceil_log2(max_abs / 6.0);
        power_of_two_scale(exponent + 127, 1.0 / f32_from_exponent((exponent + 127) as u8))
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        let (code, value) = narrow_ties_down(x);
        // `cast_fp4` makes the sign bit `(2 - sign(x)) // 2`, which is 1 for zero.
        let zero = x == 0.0;
        (if zero { 8 } else { code }, if zero { -0.0 } else { value })
    }
}

impl GroupArithmetic<BLOCK> for ModelOptMx<E4M3> {
    type Code = E4M3;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        let exponent = clamped_ceil_log2(max_abs / 448.0);
        power_of_two_scale(exponent + 127, f32_from_exponent((127 - exponent) as u8))
    }
}

/// `quantize_mxfp8` of comfy-kitchen: modelopt's exponents, but the least one decodes to 0. Values under
/// it are zeros; the library divides them by 0.
pub(crate) struct ComfyMxfp8;

impl GroupArithmetic<BLOCK> for ComfyMxfp8 {
    type Code = E4M3;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        let scale = ModelOptMx::<E4M3>(PhantomData).group_scale(max_abs);
        match scale.byte {
            0 => GroupScale { byte: 0, factor: 0.0, scale: 0.0 },
            _ => scale,
        }
    }

    #[inline(always)]
    fn scaled(&self, x: f32, factor: f32) -> f32 {
        if factor == 0.0 { 0.0 } else { x * factor }
    }
}

/// Rounding to E2M1 in which the middle between two values becomes the smaller magnitude.
#[inline(always)]
fn narrow_ties_down(x: f32) -> (u32, f32) {
    // Of the seven middles, ties to even takes these three to the larger value.
    let middle = [0.75, 1.75, 3.5]
        .iter()
        .fold(false, |found, &middle| found | (x.abs() == middle));
    // One place of F32 less is nearer to the smaller.
    let bits = x.to_bits() - u32::from(middle);
    narrow_number::<Fp4E2M1>(f32::from_bits(bits))
}

/// `ScaleCalculationMode` of torchao: which power of two is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleMode {
    /// That at or below the largest magnitude.
    Floor,
    /// That at or above the largest magnitude.
    Ceil,
    /// That at or below the largest magnitude rounded half up to the mantissa of the codes.
    Even,
    /// That at or above the largest magnitude over the largest value of a code, as NVIDIA's
    /// instructions do it.
    Rceil,
}

/// `to_mx` of torchao. A mode is chosen for each group, which costs less than a copy of the loops
/// for each mode.
pub(crate) struct TorchAoMx<N>(pub ScaleMode, pub PhantomData<N>);

impl<N: MxElement> GroupArithmetic<BLOCK> for TorchAoMx<N> {
    type Code = N;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        let exponent = match self.0 {
            ScaleMode::Floor => biased_exponent(max_abs),
            // A value that is a power of two keeps its exponent; every mantissa above it rounds up.
            ScaleMode::Ceil => {
                biased_exponent(max_abs) + i32::from(max_abs.to_bits() & 0x7f_ffff > 0)
            }
            // Half a step of the codes' mantissa.
            ScaleMode::Even => {
                biased_exponent(f32::from_bits(max_abs.to_bits() + (1 << (22 - N::MANTISSA_BITS))))
            }
            ScaleMode::Rceil => {
                let exponent = clamped_ceil_log2(max_abs / N::MAX);
                // torchao multiplies by 1 where the stored exponent is 0.
                let factor = if exponent == -127 {
                    1.0
                } else {
                    f32_from_exponent((127 - exponent) as u8)
                };
                return power_of_two_scale(exponent + 127, factor);
            }
        };
        let exponent = (exponent - N::MAX_EXPONENT).max(0);
        // Values are divided by a normal number: by 2^-126 where 2^-127 is stored.
        power_of_two_scale(exponent, 1.0 / f32_from_exponent(exponent.max(1) as u8))
    }
}

/// `quantize_row_mxfp4_ref` of ggml. It takes the first of the nearest codes: a middle becomes the
/// smaller magnitude, and zero has no sign.
pub(crate) struct GgmlMxfp4;

impl GroupArithmetic<BLOCK> for GgmlMxfp4 {
    type Code = Fp4E2M1;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        let exponent = if max_abs > 0.0 {
            floor_log2(max_abs) + 125
        } else {
            0
        };
        power_of_two_scale(exponent, 1.0 / f32_from_exponent(exponent as u8))
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        let (code, value) = narrow_ties_down(x);
        let zero = code & 7 == 0;
        (if zero { 0 } else { code }, if zero { 0.0 } else { value })
    }
}
