//! The arithmetic of each library.

use std::marker::PhantomData;

#[cfg(any(feature = "gptq", feature = "awq"))]
use half::f16;

use super::{Numbers, Recipe, clamp, nearest};
use crate::element::Element;

/// `x` rounded to `E`.
#[inline(always)]
fn rounded<E: Element>(x: f32) -> f32 {
    E::from_f32(x).to_f32()
}

/// The largest code.
fn largest(bits: usize) -> f32 {
    ((1u32 << bits) - 1) as f32
}

/// compressed-tensors, in the type of the model. The zero point of symmetric ones is the middle of the range.
///
/// Formulas: compressed-tensors 0.20 `quantization/utils/helpers.py` (`calculate_qparams`), of a min-max observer's
/// extremes; `quantization/lifecycle/forward_helpers.py` (`_quantize`).
#[derive(Clone, Copy)]
pub(super) struct Signed<E, const SYMMETRIC: bool> {
    half: f32,
    epsilon: f32,
    dtype: PhantomData<E>,
}

impl<E: Element, const SYMMETRIC: bool> Signed<E, SYMMETRIC> {
    /// `epsilon` is the step of the type at one: what a scale is that would be zero.
    pub(super) fn new(bits: usize, epsilon: E) -> Self {
        let epsilon = epsilon.to_f32();
        Self {
            half: (1u32 << (bits - 1)) as f32,
            epsilon,
            dtype: PhantomData,
        }
    }
}

impl<E: Element, const SYMMETRIC: bool> Recipe for Signed<E, SYMMETRIC> {
    #[inline(always)]
    fn take(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn numbers(self, min: f32, max: f32) -> Numbers {
        let (min, max) = (min.min(0.0), max.max(0.0));
        let range = 2.0 * self.half - 1.0;
        let (scale, zero) = if SYMMETRIC {
            (rounded::<E>((-min).max(max) / (range / 2.0)), 0.0)
        } else {
            let scale = rounded::<E>(rounded::<E>(max - min) / range);
            // NaN of zero by zero becomes the integer 0.
            let zero = rounded::<E>(-self.half - rounded::<E>(min / scale));
            (
                scale,
                if zero.is_nan() {
                    0.0
                } else {
                    nearest(clamp(zero, -self.half, self.half - 1.0))
                },
            )
        };
        let scale = if scale == 0.0 { self.epsilon } else { scale };
        Numbers {
            scale,
            offset: zero,
            stored_scale: scale,
            stored_offset: zero + self.half,
        }
    }

    #[inline(always)]
    fn code(self, x: f32, numbers: &Numbers) -> f32 {
        let mut x = rounded::<E>(x / numbers.scale);
        if !SYMMETRIC {
            x = rounded::<E>(x + numbers.offset);
        }
        nearest(clamp(x, -self.half, self.half - 1.0)) + self.half
    }

    #[inline(always)]
    fn back(self, code: f32, numbers: &Numbers) -> f32 {
        (code - numbers.stored_offset) * numbers.stored_scale
    }
}

/// gptqmodel: extremes and codes in F32, the stored scale in F16. Codes are of the scale before that rounding.
///
/// Formulas: gptqmodel 7.7.0 `quantization/quantizer.py` (`Quantizer.find_params`, without `mse`), and
/// `nn_modules/qlinear/__init__.py` (`pack_original`) of the weight as it was. Where a scale vanishes in F32, codes that
/// the library makes of NaN are 0 here, and zero points beyond the range are its end.
#[cfg(feature = "gptq")]
#[derive(Clone, Copy)]
pub(super) struct Gptq {
    largest: f32,
    symmetric: bool,
}

#[cfg(feature = "gptq")]
impl Gptq {
    pub(super) fn new(bits: usize, symmetric: bool) -> Self {
        Self {
            largest: largest(bits),
            symmetric,
        }
    }
}

#[cfg(feature = "gptq")]
impl Recipe for Gptq {
    #[inline(always)]
    fn take(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn numbers(self, min: f32, max: f32) -> Numbers {
        let (mut min, mut max) = (min.min(0.0), max.max(0.0));
        if self.symmetric {
            max = max.max(-min);
            min = if min < 0.0 { -max } else { min };
        }
        if min == 0.0 && max == 0.0 {
            (min, max) = (-1.0, 1.0);
        }
        let scale = (max - min) / self.largest;
        let zero = if self.symmetric {
            (self.largest + 1.0) / 2.0
        } else {
            nearest(clamp(-min / scale, 0.0, self.largest))
        };
        Numbers {
            scale,
            offset: zero * scale,
            stored_scale: rounded::<f16>(scale),
            stored_offset: zero,
        }
    }

    #[inline(always)]
    fn code(self, x: f32, numbers: &Numbers) -> f32 {
        nearest(clamp(
            (x + numbers.offset) / numbers.scale,
            0.0,
            self.largest,
        ))
    }

    #[inline(always)]
    fn back(self, code: f32, numbers: &Numbers) -> f32 {
        (code - numbers.stored_offset) * numbers.stored_scale
    }
}

/// AutoAWQ without its search for scales: four bits, everything in F16.
///
/// Formulas: AutoAWQ 0.2.9 `quantize/quantizer.py` (`pseudo_quantize_tensor`). `modules/linear/gemm.py`
/// (`WQLinear_GEMM.from_linear`) finds the same codes again.
#[cfg(feature = "awq")]
#[derive(Clone, Copy)]
pub(super) struct Awq;

#[cfg(feature = "awq")]
impl Recipe for Awq {
    #[inline(always)]
    fn take(self, x: f32) -> f32 {
        rounded::<f16>(x)
    }

    #[inline(always)]
    fn numbers(self, min: f32, max: f32) -> Numbers {
        let least = rounded::<f16>(1e-5);
        let range = rounded::<f16>(max - min).max(least);
        let scale = rounded::<f16>(range / 15.0);
        // Clamped before it is rounded, which is the same between integers.
        let zero = nearest(clamp(-rounded::<f16>(min / scale), 0.0, 15.0));
        Numbers {
            scale,
            offset: zero,
            stored_scale: scale,
            stored_offset: zero,
        }
    }

    #[inline(always)]
    fn code(self, x: f32, numbers: &Numbers) -> f32 {
        let steps = nearest(clamp(rounded::<f16>(x / numbers.scale), -16.0, 16.0));
        clamp(steps + numbers.offset, 0.0, 15.0)
    }

    #[inline(always)]
    fn back(self, code: f32, numbers: &Numbers) -> f32 {
        (code - numbers.stored_offset) * numbers.stored_scale
    }
}

/// MLX's affine mode: F32, only the stored numbers are of the model's type. Codes are of the numbers before that rounding.
///
/// Formulas: MLX 0.32.4 `mlx/backend/cpu/quantized.cpp` (`quantize`).
#[derive(Clone, Copy)]
pub(super) struct Mlx<E> {
    largest: f32,
    dtype: PhantomData<E>,
}

impl<E> Mlx<E> {
    pub(super) fn new(bits: usize) -> Self {
        Self {
            largest: largest(bits),
            dtype: PhantomData,
        }
    }
}

impl<E: Element> Recipe for Mlx<E> {
    #[inline(always)]
    fn take(self, x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn numbers(self, min: f32, max: f32) -> Numbers {
        let scale = ((max - min) / self.largest).max(1e-7);
        let (edge, scale) = if min.abs() > max.abs() {
            (min, scale)
        } else {
            (max, -scale)
        };
        let steps = edge / scale;
        // Larger ones are rare.
        let steps = if steps.abs() < 4_194_304.0 {
            nearest(steps)
        } else {
            steps.round_ties_even()
        };
        let (scale, bias) = if steps == 0.0 {
            (scale, 0.0)
        } else {
            (edge / steps, edge)
        };
        Numbers {
            scale,
            offset: bias,
            stored_scale: rounded::<E>(scale),
            stored_offset: rounded::<E>(bias),
        }
    }

    #[inline(always)]
    fn code(self, x: f32, numbers: &Numbers) -> f32 {
        nearest(clamp(
            (x - numbers.offset) / numbers.scale,
            0.0,
            self.largest,
        ))
    }

    #[inline(always)]
    fn back(self, code: f32, numbers: &Numbers) -> f32 {
        code * numbers.stored_scale + numbers.stored_offset
    }
}
