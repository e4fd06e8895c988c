//! ComfyUI's formats beside FP8: `X.weight`, its scales, and `X.comfy_quant`, a JSON text that names
//! the format.

mod blocks;
mod rotated;

pub(super) use self::blocks::ComfyBlocks;
pub(super) use self::rotated::ComfyConvRot;
use super::seam::rows::stored_tensor;
use super::{StoredTensor, WeightInfo};
use crate::Dtype;
use crate::remember::QuantScheme;

/// The tensor that has the `description` of how `weight` is stored.
pub(super) fn marker(weight: &WeightInfo<'_>, description: &str) -> StoredTensor {
    stored_tensor(format!("{}.comfy_quant", weight.base()), Dtype::U8, &[description.len()])
}

/// Whether `scheme` is one of ComfyUI's, whose tensors have a marker by which a copy is read.
fn has_marker(scheme: QuantScheme) -> bool {
    matches!(scheme, QuantScheme::Grouped { family: "ComfyUI", .. })
}
