//! The arithmetic of each library for integers by groups.

use crate::simd::zip;

use half::f16;

use super::{BATCH, Fit, IntegerArithmetic, QuantParams, clamp, min_max_of_groups, round_to_even};
use crate::TargetDtype;
use crate::element::{Element, ROUND_TO_INTEGER};
use crate::lethe::kernels::narrow::max_abs;
use crate::remember::kernels::bnb::INT8_SCALE;

/// The largest code of `bits` bits.
pub(super) fn max_code(bits: usize) -> f32 {
    ((1u32 << bits) - 1) as f32
}

/// The largest magnitudes of groups as their largest values, and zeros: where only the larger
/// magnitude counts, half of the comparisons are enough.
#[inline(always)]
pub(super) fn bounds_by_magnitude(values: &[f32], group: usize) -> [[f32; BATCH]; 2] {
    let mut max = [0.0; BATCH];
    for (max, values) in zip(&mut max[..], values.chunks_exact(group)) {
        *max = max_abs(values, 0.0);
    }
    [[0.0; BATCH], max]
}

/// compressed-tensors, in the model's dtype. The zero point of symmetric groups is the middle of
/// the range.
///
/// Formulas: compressed-tensors 0.20 `quantization/utils/helpers.py` (`calculate_qparams`), with
/// the minimum and maximum of llm-compressor's min-max observer;
/// `quantization/lifecycle/forward_helpers.py` (`_quantize`).
#[derive(Clone, Copy)]
pub(super) struct CompressedTensorsInt {
    /// Half the number of codes: what is added to a signed code to store it.
    half: f32,
    symmetric: bool,
    dtype: TargetDtype,
}

impl CompressedTensorsInt {
    pub(super) fn new(bits: usize, symmetric: bool, dtype: TargetDtype) -> Self {
        Self { half: (1u32 << (bits - 1)) as f32, symmetric, dtype }
    }
}

impl IntegerArithmetic for CompressedTensorsInt {
    const ROUNDS: bool = true;

    #[inline(always)]
    fn cast(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn bounds(self, values: &[f32], group: usize) -> [[f32; BATCH]; 2] {
        if !self.symmetric {
            return min_max_of_groups(values, group, |x| x);
        }
        bounds_by_magnitude(values, group)
    }

    #[inline(always)]
    fn params(self, min: f32, max: f32) -> QuantParams {
        let dtype = self.dtype;
        // The range always contains 0, so that 0 has a code.
        let (min, max) = (min.min(0.0), max.max(0.0));
        let range = 2.0 * self.half - 1.0;
        let (scale, zero) = if self.symmetric {
            // Half of an odd number of steps: 2 amax / (2^b - 1), with codes from -2^(b-1) on.
            (dtype.round((-min).max(max) / (range / 2.0)), 0.0)
        } else {
            let scale = dtype.round(dtype.round(max - min) / range);
            // A group of zeros divides zero by zero. torch's cast makes the integer 0 of that NaN.
            let zero = dtype.round(-self.half - dtype.round(min / scale));
            (
                scale,
                if zero.is_nan() {
                    0.0
                } else {
                    round_to_even(clamp(zero, -self.half, self.half - 1.0))
                },
            )
        };
        // `torch.finfo(dtype).eps` in the library, for a scale that is 0 or has underflowed.
        let scale = if scale == 0.0 { dtype.epsilon() } else { scale };
        QuantParams { scale, offset: zero, stored_scale: scale, stored_offset: zero + self.half }
    }

    #[inline(always)]
    fn fitted(self, fit: Fit) -> QuantParams {
        let scale = self.dtype.round(fit.scale);
        QuantParams {
            scale,
            offset: fit.zero - self.half,
            stored_scale: scale,
            stored_offset: fit.zero,
        }
    }

    #[inline(always)]
    fn divide(self, values: &[f32], params: &QuantParams, quotients: &mut [f32]) {
        self.dtype.divide_all(values, params.scale, quotients);
        if !self.symmetric {
            for x in &mut *quotients {
                *x += params.offset;
            }
            self.dtype.round_all(quotients);
        }
    }

    #[inline(always)]
    fn code(self, steps: f32, _: &QuantParams) -> f32 {
        // The sum with `half` is a stored code from 0 on, and is exact. Added before, the half of
        // two codes would change ties.
        (clamp(steps, -self.half, self.half - 1.0) + ROUND_TO_INTEGER) + self.half
    }
}

/// gptqmodel: scales and codes in F32. The stored scale is F16, and codes are made with the scale
/// before that rounding.
///
/// Formulas: gptqmodel 7.7.0 `quantization/quantizer.py` (`Quantizer.find_params`, without `mse`),
/// and `nn_modules/qlinear/__init__.py` (`pack_original`) of the unchanged weight. Where a scale
/// underflows to 0 in F32, the library casts NaN to codes; here these codes are 0, and zero points
/// outside the range become its nearer end.
#[derive(Clone, Copy)]
pub(super) struct GptqInt {
    max_code: f32,
    symmetric: bool,
}

impl GptqInt {
    pub(super) fn new(bits: usize, symmetric: bool) -> Self {
        Self { max_code: max_code(bits), symmetric }
    }
}

impl IntegerArithmetic for GptqInt {
    #[inline(always)]
    fn cast(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn params(self, min: f32, max: f32) -> QuantParams {
        let (mut min, mut max) = (min.min(0.0), max.max(0.0));
        if self.symmetric {
            max = max.max(-min);
            // Without a negative value the range stays one-sided, as in `find_params`.
            min = if min < 0.0 { -max } else { min };
        }
        // A group of zeros has the range -1 to 1 in the library, and so scale and codes that decode
        // to 0.
        if min == 0.0 && max == 0.0 {
            (min, max) = (-1.0, 1.0);
        }
        let scale = (max - min) / self.max_code;
        let zero = if self.symmetric {
            (self.max_code + 1.0) / 2.0
        } else {
            round_to_even(clamp(-min / scale, 0.0, self.max_code))
        };
        QuantParams {
            scale,
            // `pack_original` adds `zero * scale` to the weight before it divides by the scale.
            offset: zero * scale,
            stored_scale: f16::rounded(scale),
            stored_offset: zero,
        }
    }

    #[inline(always)]
    fn fitted(self, fit: Fit) -> QuantParams {
        let scale = f16::rounded(fit.scale);
        QuantParams {
            scale,
            offset: fit.zero * scale,
            stored_scale: scale,
            stored_offset: fit.zero,
        }
    }

    #[inline(always)]
    fn dividend(self, x: f32, params: &QuantParams) -> f32 {
        x + params.offset
    }

    #[inline(always)]
    fn code(self, quotient: f32, _: &QuantParams) -> f32 {
        clamp(quotient, 0.0, self.max_code) + ROUND_TO_INTEGER
    }
}

/// AutoAWQ without its search for scales of columns: four bits, everything in F16.
///
/// Formulas: AutoAWQ 0.2.9 `quantize/quantizer.py` (`pseudo_quantize_tensor`).
/// `modules/linear/gemm.py` (`WQLinear_GEMM.from_linear`) computes the same codes from the
/// dequantized weight.
#[derive(Clone, Copy)]
pub(super) struct AwqInt;

impl IntegerArithmetic for AwqInt {
    #[inline(always)]
    fn cast(self, x: f32) -> f32 {
        f16::rounded(x)
    }

    #[inline(always)]
    fn params(self, min: f32, max: f32) -> QuantParams {
        // The library clamps the range, and not the scale, to 1e-5.
        let least = f16::rounded(1e-5);
        let range = f16::rounded(max - min).max(least);
        let scale = f16::rounded(range / 15.0);
        // Clamping to integers commutes with rounding. It comes first, so that the magnitude is in
        // `round_to_even`'s range.
        let zero = round_to_even(clamp(-f16::rounded(min / scale), 0.0, 15.0));
        QuantParams { scale, offset: zero, stored_scale: scale, stored_offset: zero }
    }

    #[inline(always)]
    fn fitted(self, fit: Fit) -> QuantParams {
        let scale = f16::rounded(fit.scale);
        QuantParams { scale, offset: fit.zero, stored_scale: scale, stored_offset: fit.zero }
    }

    #[inline(always)]
    fn code(self, quotient: f32, params: &QuantParams) -> f32 {
        // Beyond ±16 the sum with a zero point of 0..=15 is outside 0..=15 in any case.
        let steps = round_to_even(clamp(f16::rounded(quotient), -16.0, 16.0));
        clamp(steps + params.offset, 0.0, 15.0) + ROUND_TO_INTEGER
    }
}

/// LLM.int8() of bitsandbytes: the scale of a row is its largest magnitude, of weights in F16, to
/// which `nn.Int8Params` converts them first. It is infinite if there are values beyond F16.
///
/// Formulas: bitsandbytes 0.50.2 `backends/default/ops.py` (`int8_vectorwise_quant`, the path of
/// CPUs).
#[derive(Clone, Copy)]
pub(super) struct LlmInt8;

impl LlmInt8 {
    #[inline(always)]
    fn of_largest(largest: f32) -> QuantParams {
        // torch computes `127.0 / row_stats` as the reciprocal times 127. Codes of zeros are 0.
        let factor = match largest == 0.0 {
            true => 0.0,
            false => 1.0 / largest * 127.0,
        };
        QuantParams { scale: factor, offset: 0.0, stored_scale: largest, stored_offset: 128.0 }
    }
}

impl IntegerArithmetic for LlmInt8 {
    const ROUNDS: bool = true;

    #[inline(always)]
    fn cast(self, x: f32) -> f32 {
        f16::rounded(x)
    }

    #[inline(always)]
    fn bounds(self, values: &[f32], group: usize) -> [[f32; BATCH]; 2] {
        let [low, mut high] = bounds_by_magnitude(values, group);
        // Rounding keeps the order.
        for max in &mut high {
            *max = f16::rounded(*max);
        }
        [low, high]
    }

    #[inline(always)]
    fn params(self, _: f32, max: f32) -> QuantParams {
        Self::of_largest(max)
    }

    #[inline(always)]
    fn fitted(self, fit: Fit) -> QuantParams {
        // A largest magnitude has no sign.
        Self::of_largest(fit.scale.abs() * 127.0)
    }

    #[inline(always)]
    fn divide(self, values: &[f32], params: &QuantParams, quotients: &mut [f32]) {
        for (quotient, &x) in zip(quotients, values) {
            *quotient = f16::rounded(x) * params.scale;
        }
    }

    #[inline(always)]
    fn code(self, quotient: f32, _: &QuantParams) -> f32 {
        (clamp(quotient, -128.0, 127.0) + ROUND_TO_INTEGER) + 128.0
    }

    #[inline(always)]
    fn decode<const FMA: bool>(self, code: f32, params: &QuantParams) -> f32 {
        (code - 128.0) * params.stored_scale * INT8_SCALE
    }
}

/// MLX's affine mode, in F32. Scale and bias are stored in the model's dtype, and codes are made
/// with those before that rounding.
///
/// Formulas: MLX 0.32.4 `mlx/backend/cpu/quantized.cpp` (`quantize`).
#[derive(Clone, Copy)]
pub(super) struct MlxAffine {
    max_code: f32,
    dtype: TargetDtype,
}

impl MlxAffine {
    pub(super) fn new(bits: usize, dtype: TargetDtype) -> Self {
        Self { max_code: max_code(bits), dtype }
    }
}

impl IntegerArithmetic for MlxAffine {
    #[inline(always)]
    fn cast(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn params(self, min: f32, max: f32) -> QuantParams {
        // 1e-7 is MLX's least scale.
        let scale = ((max - min) / self.max_code).max(1e-7);
        // The edge of larger magnitude becomes the bias, so that its value is met exactly.
        let (edge, scale) = if min.abs() > max.abs() {
            (min, scale)
        } else {
            (max, -scale)
        };
        let steps = edge / scale;
        // `round_to_even` reaches to 2^22; groups with more steps, which are rare, take the slow
        // way.
        let steps = if steps.abs() < 4_194_304.0 {
            round_to_even(steps)
        } else {
            steps.round_ties_even()
        };
        // The scale is adjusted so that 0 falls on a code, which `edge / scale` rounded says.
        let (scale, bias) = if steps == 0.0 {
            (scale, 0.0)
        } else {
            (edge / steps, edge)
        };
        QuantParams {
            scale,
            offset: bias,
            stored_scale: self.dtype.round(scale),
            stored_offset: self.dtype.round(bias),
        }
    }

    #[inline(always)]
    fn fitted(self, fit: Fit) -> QuantParams {
        let scale = self.dtype.round(fit.scale);
        let bias = self.dtype.round(-fit.zero * fit.scale);
        QuantParams { scale, offset: bias, stored_scale: scale, stored_offset: bias }
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
        code * params.stored_scale + params.stored_offset
    }
}
