//! NVFP4: E2M1 in groups of 16, of which each has a scale in E4M3, and all together one in F32.
//!
//! - modelopt 0.47.0, `NVFP4QTensor.quantize`: F32 throughout.
//! - compressed-tensors 0.20.0, `generate_gparam`, `calculate_qparams` and `_quantize`, as llm-compressor 0.14 calls
//!   them: the scale of all, and a group's before it meets that, are computed in the type of the model.

use std::marker::PhantomData;

use super::fp8::Own;
use super::groups::{Recipe, Shared};
use super::narrow::{E2M1, narrow};
use crate::kernels::remember::fp8::E4M3;
use crate::kernels::remember::nvfp4::{BLOCK, block_scale};

/// modelopt's scale of a whole tensor, which multiplies, by its largest magnitude.
pub(crate) fn multiplier(max: f32) -> f32 {
    max / 2688.0
}

/// compressed-tensors' scale of a whole tensor, which divides.
pub(crate) fn divisor<E: Own>(max: f32) -> f32 {
    // A number over a tensor is the tensor's reciprocal times the number.
    let divisor = E::round(E::round(1.0 / max.max(E::SMALLEST)) * 2688.0);
    if divisor.is_finite() { divisor } else { 1.0 }
}

/// modelopt, with the tensor's multiplier.
pub(crate) struct ModelOpt(pub f32);

impl Recipe<BLOCK> for ModelOpt {
    type Code = E2M1;

    #[inline(always)]
    fn share(&self, max: f32) -> Shared {
        // The library has NaN for what is zero throughout; no scale but zero would do any good there.
        let scale = if max == 0.0 {
            0.0
        } else {
            max / (6.0 * self.0)
        };
        let scale = if scale == 0.0 { 1.0 } else { scale };
        let byte = narrow::<E4M3>(scale.max(1.0 / 512.0)).0 as u8;
        let scale = block_scale(byte, self.0, false);
        // Nor is there a code for zero over zero.
        Shared {
            byte,
            factor: if scale == 0.0 { 1.0 } else { scale },
            scale,
        }
    }

    #[inline(always)]
    fn meet(&self, x: f32, factor: f32) -> f32 {
        x / factor
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        let (code, value) = narrow::<E2M1>(x + 0.0);
        // What becomes zero keeps its sign in the code, and has none in the library's table.
        (code, value + 0.0)
    }
}

/// compressed-tensors, with the tensor's divisor, of a model in `E`.
pub(crate) struct CompressedTensors<E>(pub f32, pub PhantomData<E>);

impl<E: Own> Recipe<BLOCK> for CompressedTensors<E> {
    type Code = E2M1;

    #[inline(always)]
    fn share(&self, max: f32) -> Shared {
        let byte = narrow::<E4M3>(E::round(max / 6.0) * self.0).0 as u8;
        let byte = if byte == 0 {
            narrow::<E4M3>(0.125).0 as u8
        } else {
            byte
        };
        let scale = block_scale(byte, self.0, true);
        Shared {
            byte,
            factor: scale,
            scale,
        }
    }

    #[inline(always)]
    fn meet(&self, x: f32, factor: f32) -> f32 {
        x / factor
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        narrow::<E2M1>(x + 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::lethe::groups::Groups;
    use crate::simd::{Level, perform};

    /// modelopt's own result is NaN: zero over zero.
    #[test]
    fn nothing_but_zero() {
        for level in Level::available() {
            let (mut codes, mut shared, mut back) = ([0xff; 16], [0; 2], [f32::NAN; 32]);
            let recipe = &ModelOpt(multiplier(0.0));
            perform(
                level,
                &mut Groups {
                    recipe,
                    values: &[-0.0; 32],
                    codes: &mut codes,
                    shared: &mut shared,
                    back: &mut back,
                },
            );
            assert_eq!((codes, shared, back), ([0; 16], [0x38; 2], [0.0; 32]));
        }
    }

    #[test]
    fn scales_of_tensors() {
        assert_eq!(multiplier(2688.0), 1.0);
        assert_eq!(divisor::<f32>(2688.0), 1.0);
        // Too large for F16: the library then has one.
        assert_eq!(
            (divisor::<half::f16>(0.04), divisor::<half::f16>(0.25)),
            (1.0, 10752.0)
        );
        assert_eq!(divisor::<half::bf16>(0.0), 1.0);
    }
}
