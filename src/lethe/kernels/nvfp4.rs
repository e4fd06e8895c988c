//! NVFP4: E2M1 in groups of 16 with a scale in E4M3 each, and a global scale in F32 for the whole
//! tensor.
//!
//! - modelopt 0.47.0, `NVFP4QTensor.quantize`: F32 throughout.
//! - compressed-tensors 0.20.0, `generate_gparam`, `calculate_qparams` and `_quantize`, as
//!   llm-compressor 0.14 calls them: the global scale is computed in the model's dtype, and so is a
//!   group's scale before the global one applies.
//! - comfy-kitchen 0.2.40, `TensorCoreNVFP4Layout.quantize`, `quantize_nvfp4` (eager backend): F32, but
//!   for the global scale, which is rounded to the model's dtype.

use super::groups::{GroupArithmetic, GroupScale};
use super::narrow::{Fp4E2M1, narrow, narrow_number};
use crate::TargetDtype;
use crate::remember::kernels::fp8::E4M3;
use crate::remember::kernels::nvfp4::{BLOCK, block_scale};

/// modelopt's global scale of a tensor, which multiplies. With it the largest magnitude is 6 · 448,
/// the largest code under the largest scale of a group.
pub(crate) fn global_multiplier(max_abs: f32) -> f32 {
    max_abs / 2688.0
}

/// compressed-tensors' global scale of a tensor, which divides. It is 1 where the model's dtype
/// cannot hold it.
pub(crate) fn global_divisor(dtype: TargetDtype, max_abs: f32) -> f32 {
    // torch computes a number over a tensor as the tensor's reciprocal times the number.
    let reciprocal = dtype.round(1.0 / max_abs.max(dtype.smallest_normal()));
    let divisor = dtype.round(reciprocal * 2688.0);
    if divisor.is_finite() { divisor } else { 1.0 }
}

/// comfy-kitchen's global scale of a tensor, which multiplies. It stays in F32 where the model's dtype
/// would make 0 of it, and the library zeros of all values.
pub(crate) fn comfy_multiplier(dtype: TargetDtype, max_abs: f32) -> f32 {
    let multiplier = global_multiplier(max_abs);
    let rounded = dtype.round(multiplier);
    if rounded == 0.0 { multiplier } else { rounded }
}

/// The `scale` of this byte, by which values are divided; `None` for 0, negative numbers and NaN.
#[inline(always)]
pub(super) fn divisor_of(byte: u8, scale: f32) -> Option<GroupScale> {
    let is_divisor = (1..=0x7e).contains(&byte) && scale != 0.0;
    is_divisor.then_some(GroupScale { byte, factor: scale, scale })
}

/// `NVFP4QTensor.quantize` of modelopt, with the tensor's [`global_multiplier`].
pub(crate) struct ModelOptNvfp4(pub f32);

impl GroupArithmetic<BLOCK> for ModelOptNvfp4 {
    type Code = Fp4E2M1;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        // In a tensor of zeros the global scale is 0, too, and the library divides zero by zero.
        // Here it gets scales of 1.
        let scale = if max_abs == 0.0 {
            0.0
        } else {
            max_abs / (6.0 * self.0)
        };
        let scale = if scale == 0.0 { 1.0 } else { scale };
        // The least scale of a group is the smallest E4M3 above zero, 2^-9, so that no group
        // divides by 0.
        let byte = narrow::<E4M3>(scale.max(1.0 / 512.0)).0 as u8;
        let scale = block_scale(byte, self.0, false);
        // Under a global scale of 0 zeros are divided by 1 and not by 0, and so have the code of
        // zero.
        GroupScale { byte, factor: if scale == 0.0 { 1.0 } else { scale }, scale }
    }

    #[inline(always)]
    fn scale_of(&self, byte: u8) -> Option<GroupScale> {
        divisor_of(byte, block_scale(byte, self.0, false))
    }

    #[inline(always)]
    fn scaled(&self, x: f32, factor: f32) -> f32 {
        x / factor
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        let (code, value) = narrow_number::<Fp4E2M1>(x + 0.0);
        // A small negative value keeps its sign in the code, and the library's table has +0 there.
        // -0 itself becomes +0.
        (code, value + 0.0)
    }
}

/// `calculate_qparams` and `_quantize` of compressed-tensors, with the tensor's [`global_divisor`],
/// for a model in this dtype.
pub(crate) struct CompressedTensorsNvfp4(pub f32, pub TargetDtype);

impl GroupArithmetic<BLOCK> for CompressedTensorsNvfp4 {
    type Code = Fp4E2M1;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        // The group's scale is rounded in the model's dtype, and its product with the global one in
        // F32.
        let byte = narrow::<E4M3>(self.1.round(max_abs / 6.0) * self.0).0 as u8;
        // `calculate_qparams` takes the step of E4M3 at 1 for a scale of 0.
        let byte = if byte == 0 {
            narrow::<E4M3>(0.125).0 as u8
        } else {
            byte
        };
        let scale = block_scale(byte, self.0, true);
        GroupScale { byte, factor: scale, scale }
    }

    #[inline(always)]
    fn scale_of(&self, byte: u8) -> Option<GroupScale> {
        divisor_of(byte, block_scale(byte, self.0, true))
    }

    #[inline(always)]
    fn scaled(&self, x: f32, factor: f32) -> f32 {
        x / factor
    }

    #[inline(always)]
    fn code(&self, x: f32) -> (u32, f32) {
        // -0 becomes +0, as by the library's zero point.
        narrow_number::<Fp4E2M1>(x + 0.0)
    }
}

/// `quantize_nvfp4` of comfy-kitchen, with the tensor's [`comfy_multiplier`].
pub(crate) struct ComfyNvfp4(pub f32);

impl GroupArithmetic<BLOCK> for ComfyNvfp4 {
    type Code = Fp4E2M1;

    #[inline(always)]
    fn group_scale(&self, max_abs: f32) -> GroupScale {
        // Zeros in a tensor of zeros are not divided by its scale, which is 0 as well.
        let scale = if max_abs == 0.0 {
            0.0
        } else {
            max_abs / 6.0 / self.0
        };
        let byte = narrow_number::<E4M3>(scale).0 as u8;
        let scale = block_scale(byte, self.0, false);
        GroupScale { byte, factor: scale, scale }
    }

    #[inline(always)]
    fn scale_of(&self, byte: u8) -> Option<GroupScale> {
        divisor_of(byte, block_scale(byte, self.0, false))
    }

    /// Zeros under a scale of 0.
    #[inline(always)]
    fn scaled(&self, x: f32, factor: f32) -> f32 {
        if factor == 0.0 { 0.0 } else { x / factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lethe::kernels::activations::Activations;
    use crate::lethe::kernels::groups::EncodeGroups;
    use crate::simd::{Level, perform};

    fn encoded_zeros(
        level: Level,
        arithmetic: &impl GroupArithmetic<BLOCK>,
    ) -> ([u8; 16], [u8; 2]) {
        let (mut codes, mut shared, mut back) = ([0xff; 16], [0xff; 2], [f32::NAN; 32]);
        perform(
            level,
            &mut EncodeGroups {
                arithmetic,
                values: &[-0.0; 32],
                activations: Activations::default(),
                codes: &mut codes,
                scale_bytes: &mut shared,
                back: &mut back,
            },
        );
        assert_eq!(back, [0.0; 32]);
        (codes, shared)
    }

    /// The libraries' own result is NaN: zero over zero.
    #[test]
    fn nothing_but_zero() {
        for level in Level::available() {
            let multiplier = global_multiplier(0.0);
            assert_eq!(encoded_zeros(level, &ModelOptNvfp4(multiplier)), ([0; 16], [0x38; 2]));
            let multiplier = comfy_multiplier(TargetDtype::BF16, 0.0);
            assert_eq!(encoded_zeros(level, &ComfyNvfp4(multiplier)), ([0; 16], [0; 2]));
        }
    }

    #[test]
    fn scales_of_tensors() {
        assert_eq!(global_multiplier(2688.0), 1.0);
        assert_eq!(global_divisor(TargetDtype::F32, 2688.0), 1.0);
        // Too large for F16: the library then has one.
        assert_eq!(
            (global_divisor(TargetDtype::F16, 0.04), global_divisor(TargetDtype::F16, 0.25)),
            (1.0, 10752.0)
        );
        assert_eq!(global_divisor(TargetDtype::BF16, 0.0), 1.0);
        assert_eq!(comfy_multiplier(TargetDtype::BF16, 3000.0), 1.1171875);
        // 0 in F16.
        assert_eq!(comfy_multiplier(TargetDtype::F16, 2e-5), 2e-5 / 2688.0);
    }
}
