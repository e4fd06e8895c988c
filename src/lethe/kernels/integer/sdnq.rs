//! SDNQ, in F32: signed integers of which the largest is the largest magnitude, and unsigned ones
//! counted from the smallest value.
//!
//! Formulas: sdnq 0.2.8 `quant_utils.py` (`get_scale_symmetric`, `get_scale_asymmetric`,
//! `quantize_weight`), `dequantizer.py` (`dequantize_symmetric`, `dequantize_asymmetric`). A scale
//! may be 0: then zero over zero is the code 0, and any other value the one at its end.

use super::rules::bounds_by_magnitude;
use super::{BATCH, Fit, IntegerArithmetic, QuantParams, clamp, min_max_of_groups};
use crate::element::ROUND_TO_INTEGER;
use crate::remember::kernels::grouped::fused;
use crate::simd::zip;

/// Signed integers.
#[derive(Clone, Copy)]
pub(super) struct SdnqInt {
    /// Half the number of codes: what is added to a signed code to store it.
    half: f32,
}

impl SdnqInt {
    pub(super) fn new(bits: usize) -> Self {
        Self { half: (1u32 << (bits - 1)) as f32 }
    }
}

impl IntegerArithmetic for SdnqInt {
    #[inline(always)]
    fn cast(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn bounds(self, values: &[f32], group: usize) -> [[f32; BATCH]; 2] {
        bounds_by_magnitude(values, group)
    }

    #[inline(always)]
    fn params(self, _: f32, max: f32) -> QuantParams {
        let scale = max / (self.half - 1.0);
        QuantParams { scale, offset: 0.0, stored_scale: scale, stored_offset: self.half }
    }

    #[inline(always)]
    fn fitted(self, fit: Fit) -> QuantParams {
        let scale = fit.scale;
        QuantParams { scale, offset: 0.0, stored_scale: scale, stored_offset: self.half }
    }

    #[inline(always)]
    fn code(self, quotient: f32, _: &QuantParams) -> f32 {
        let quotient = if quotient.is_nan() { 0.0 } else { quotient };
        (clamp(quotient, -self.half, self.half - 1.0) + ROUND_TO_INTEGER) + self.half
    }
}

/// Unsigned integers.
#[derive(Clone, Copy)]
pub(super) struct SdnqUint {
    max_code: f32,
}

impl SdnqUint {
    pub(super) fn new(bits: usize) -> Self {
        Self { max_code: super::rules::max_code(bits) }
    }
}

impl IntegerArithmetic for SdnqUint {
    #[inline(always)]
    fn cast(self, x: f32) -> f32 {
        x
    }

    /// The library keeps the first of several smallest values, which tells the sign of a zero.
    #[inline(always)]
    fn bounds(self, values: &[f32], group: usize) -> [[f32; BATCH]; 2] {
        let [mut low, high] = min_max_of_groups(values, group, |x| x);
        for (low, values) in zip(&mut low[..], values.chunks_exact(group)) {
            if *low == 0.0 {
                *low = first_zero(values);
            }
        }
        [low, high]
    }

    #[inline(always)]
    fn params(self, min: f32, max: f32) -> QuantParams {
        // Of zeros of both signs, the difference is +0 in the library.
        let scale = (max - min + 0.0) / self.max_code;
        QuantParams { scale, offset: min, stored_scale: scale, stored_offset: min }
    }

    #[inline(always)]
    fn fitted(self, fit: Fit) -> QuantParams {
        let (scale, offset) = (fit.scale, -fit.zero * fit.scale);
        QuantParams { scale, offset, stored_scale: scale, stored_offset: offset }
    }

    #[inline(always)]
    fn dividend(self, x: f32, params: &QuantParams) -> f32 {
        x - params.offset
    }

    #[inline(always)]
    fn code(self, quotient: f32, _: &QuantParams) -> f32 {
        clamp(quotient, 0.0, self.max_code) + ROUND_TO_INTEGER
    }

    #[inline(always)]
    fn decode<const FMA: bool>(self, code: f32, params: &QuantParams) -> f32 {
        let (scale, offset) = (params.stored_scale, params.stored_offset);
        match FMA {
            true => code.mul_add(scale, offset),
            false => fused(code, scale, offset),
        }
    }
}

/// The first of `values` that is zero, of either sign.
#[cold]
fn first_zero(values: &[f32]) -> f32 {
    values.iter().copied().find(|&x| x == 0.0).unwrap_or(0.0)
}
