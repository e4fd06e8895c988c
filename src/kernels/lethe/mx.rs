//! MXFP4 and MXFP8: a power of two for each 32 values. How it is found is no part of the format, and every library has
//! a way of its own:
//!
//! - compressed-tensors 0.20.0: `quantization/utils/mxfp_utils.py`, `generate_mx_scales`; `calculate_qparams`;
//!   `compressors/mx_utils.py`, `compress_mx_scale`.
//! - modelopt 0.47.0: `MXFP4QTensor.quantize`, `MXFP8QTensor.quantize`.
//! - torchao 0.18.0: `prototype/mx_formats/mx_tensor.py`, `to_mx`, with each `ScaleCalculationMode`.
//! - ggml: `quantize_row_mxfp4_ref`.

use std::marker::PhantomData;

use super::fp8::Own;
use super::groups::{Recipe, Shared};
use super::narrow::{E2M1, Narrow, ceil_log2, floor_log2, narrow};
use crate::kernels::remember::fp8::{E4M3, f32_from_exponent};

/// Values that share a power of two.
pub(crate) const BLOCK: usize = 32;

/// An element of MX formats.
pub(crate) trait Format: Narrow {
    /// The exponent of its largest value.
    const EXPONENT: i32 = ((Self::MAX.to_bits() >> 23) as i32) - 127;
}

impl Format for E2M1 {}
impl Format for E4M3 {}

/// The power of two of a stored exponent, and what values are multiplied by: where libraries divide by a power of two,
/// its inverse gives the same bits.
#[inline(always)]
fn shared(exponent: i32, factor: f32) -> Shared {
    let byte = exponent as u8;
    Shared {
        byte,
        factor,
        scale: f32_from_exponent(byte),
    }
}

/// Exponent of the power of two at or below `x`, biased; zero for subnormals.
#[inline(always)]
fn biased(x: f32) -> i32 {
    (x.to_bits() >> 23) as i32
}

/// `x`, half of a last place of E2M1 more: the next power of two if it is nearer to that than codes can tell.
#[inline(always)]
fn bumped(x: f32) -> f32 {
    f32::from_bits(x.to_bits() + (1 << 21))
}

/// compressed-tensors, of a model in `E`.
pub(crate) struct CompressedTensors<E, N>(pub PhantomData<(E, N)>);

impl<E: Own, N: Format> Recipe<BLOCK> for CompressedTensors<E, N> {
    type Code = N;

    #[inline(always)]
    fn share(&self, max: f32) -> Shared {
        // The bits of the model's own type are rounded, of which subnormals are not normal in F32.
        let tiny = max < E::SMALLEST;
        let power = if tiny && max < 0.75 * E::SMALLEST {
            0.0
        } else {
            bumped(max.max(E::SMALLEST))
        };
        let exponent = (biased(power) - N::EXPONENT).max(0);
        if E::round(f32::from_bits((biased(power) as u32) << 23)) == f32::INFINITY {
            // Nothing is left of a value over infinity, and infinity's exponent as an integer is none.
            return shared(127, 0.0);
        }
        let scale = E::round(f32_from_exponent(exponent as u8));
        if scale == 0.0 {
            shared(127, 1.0)
        } else {
            shared(exponent, 1.0 / scale)
        }
    }

    #[inline(always)]
    fn meet(&self, x: f32, factor: f32) -> f32 {
        E::round(x * factor)
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        // The sign of zero is lost in both: to a zero point, and to a function of the sign.
        narrow::<N>(x + 0.0)
    }
}

/// modelopt.
pub(crate) struct ModelOpt<N>(pub PhantomData<N>);

impl Recipe<BLOCK> for ModelOpt<E2M1> {
    type Code = E2M1;

    #[inline(always)]
    fn share(&self, max: f32) -> Shared {
        let descale = max / 6.0;
        let exponent = if descale > 0.0 {
            ceil_log2(descale).max(-127)
        } else {
            -127
        };
        shared(
            exponent + 127,
            1.0 / f32_from_exponent((exponent + 127) as u8),
        )
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        let (code, value) = halves_down(x);
        // Zero counts as negative.
        let zero = x == 0.0;
        (if zero { 8 } else { code }, if zero { -0.0 } else { value })
    }
}

impl Recipe<BLOCK> for ModelOpt<E4M3> {
    type Code = E4M3;

    #[inline(always)]
    fn share(&self, max: f32) -> Shared {
        let descale = max / 448.0;
        let exponent = if descale > 0.0 {
            ceil_log2(descale).clamp(-127, 127)
        } else {
            -127
        };
        shared(exponent + 127, f32_from_exponent((127 - exponent) as u8))
    }
}

/// E2M1 where the middle between two values becomes the smaller.
#[inline(always)]
fn halves_down(x: f32) -> (u32, f32) {
    // Of all middles, these are the ones that would become the larger.
    let middle = [0.75, 1.75, 3.5]
        .iter()
        .fold(false, |found, &middle| found | (x.abs() == middle));
    // A little less than the middle is nearer to the smaller.
    let bits = x.to_bits() - u32::from(middle);
    narrow::<E2M1>(f32::from_bits(bits))
}

/// torchao. What the largest magnitude's power of two is depends on `MODE`.
pub(crate) struct TorchAo<const MODE: u8, N>(pub PhantomData<N>);

pub(crate) const FLOOR: u8 = 0;
pub(crate) const CEIL: u8 = 1;
pub(crate) const EVEN: u8 = 2;

impl<const MODE: u8, N: Format> Recipe<BLOCK> for TorchAo<MODE, N> {
    type Code = N;

    #[inline(always)]
    fn share(&self, max: f32) -> Shared {
        let exponent = match MODE {
            CEIL => biased(max) + i32::from(max.to_bits() & 0x7f_ffff > 0),
            EVEN => biased(f32::from_bits(max.to_bits() + (1 << (22 - N::MANTISSA)))),
            _ => biased(max),
        };
        let exponent = (exponent - N::EXPONENT).max(0);
        shared(exponent, 1.0 / f32_from_exponent(exponent.max(1) as u8))
    }
}

/// torchao's `RCEIL`, which is what NVIDIA's instructions do.
pub(crate) struct Rceil<N>(pub PhantomData<N>);

impl<N: Format> Recipe<BLOCK> for Rceil<N> {
    type Code = N;

    #[inline(always)]
    fn share(&self, max: f32) -> Shared {
        let descale = max / N::MAX;
        let exponent = if descale > 0.0 {
            ceil_log2(descale).clamp(-127, 127)
        } else {
            -127
        };
        let factor = if exponent == -127 {
            1.0
        } else {
            f32_from_exponent((127 - exponent) as u8)
        };
        shared(exponent + 127, factor)
    }
}

/// ggml. The first of the nearest codes, so that the middle becomes the smaller, and zero has no sign.
pub(crate) struct Ggml;

impl Recipe<BLOCK> for Ggml {
    type Code = E2M1;

    #[inline(always)]
    fn share(&self, max: f32) -> Shared {
        let exponent = if max > 0.0 { floor_log2(max) + 125 } else { 0 };
        shared(exponent, 1.0 / f32_from_exponent(exponent as u8))
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        let (code, value) = halves_down(x);
        let zero = code & 7 == 0;
        (if zero { 0 } else { code }, if zero { 0.0 } else { value })
    }
}
