//! ComfyUI's formats. `X.comfy_quant`, JSON in a tensor of bytes, says how `X.weight` is quantized.
//! Some files have one metadata value `_quantization_metadata` for all layers instead.
//!
//! | format | weight | `X.weight_scale` |
//! |---|---|---|
//! | `float8_e4m3fn`, `float8_e5m2` | FP8 | floats |
//! | `int8_tensorwise` | I8 | floats, one for the tensor or one for each row |
//! | `float8_e4m3fn_rowwise` | F8_E4M3 | floats, one for each row |
//! | `float8_e4m3fn_blockwise`, `int8_blockwise` | F8_E4M3, I8 | floats, one for each square |
//! | `nvfp4` | U8 `[out, in / 2]`, high nibble first | E4M3, one for 16 values, [tiled](crate::remember::layout::tiled) |
//! | `mxfp8` | F8_E4M3 | exponents, one for 32 values, tiled |
//! | `hybrid_mxfp8` | the same, and `X.weight_scalar` for GPUs without MXFP8, which replaces these scales there | |
//!
//! A bank of experts is `[experts, out, in]`, or of INT8 and `asym_w4a8_int8` `[experts * out, in]`
//! with `num_experts` in the description. `X.pre_quant_scale` `[in]` beside `nvfp4` multiplies the
//! input of the layer, as ModelOpt's does.
//!
//! `int8_tensorwise` with `convrot`, `convrot_w4a4` and `asym_w4a8_int8` are in [`rotated`],
//! `awq_w4a16` and `svdquant_w4a4` in [`int4`].
//!
//! `X.weight_scale_2` of `nvfp4` is a factor of the scales, multiplied in F32.
//!
//! Weights of `nvfp4` and `mxfp8` are padded to whole blocks in both dimensions. The file does not
//! say how much of a weight is padding, so it is decoded with its padding.
//!
//! Formulas: comfy-kitchen, `dequantize` of its layouts, eager backend; rows and squares:
//! convert_to_quant `comfy/quant_ops.py`.

mod blocks;
mod description;
mod int4;
mod rotated;

use std::collections::HashMap;

use self::description::{ComfyDescription, ComfyLayers, METADATA};
use super::fp8::Fp8;
use super::int8::Int8;
use crate::model::Tensor;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::{
    Group, Identity, Index, Prepared, QuantScheme, Scheme, Sibling, TensorRole, refused, wrong,
};
use crate::{Dtype, Result};

/// Name in listings.
const FAMILY: &str = "ComfyUI";

pub(super) struct ComfyUi;

static IDENTITY: Identity = Identity {
    name: REFUSED,
    over: &["FP8", "INT8", "NVFP4"],
    methods: &[],
    codes: &[],
    companions: &[
        (Ends(".comfy_quant"), TensorRole::QuantState),
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends("weight_scale_2"), TensorRole::Scale),
        (Ends(".weight_scalar"), TensorRole::Scale),
        (Ends(".weight_s_rel"), TensorRole::Scale),
        (Ends(".weight_s_channel"), TensorRole::Scale),
        (Ends(".weight_codebook"), TensorRole::QuantMap),
        (Ends(".weight_correction"), TensorRole::Offset),
        (Ends(".weight_zero"), TensorRole::Offset),
        (Ends(".weight_zeros"), TensorRole::Offset),
        (Ends(".weight_smooth_factor"), TensorRole::Scale),
        (Ends(".weight_proj_down"), TensorRole::LowRank),
        (Ends(".weight_proj_up"), TensorRole::LowRank),
    ],
    optional: &[Sibling::OfWeight("_codebook"), Sibling::OfWeight("_correction")],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

/// What errors say is not decoded.
const REFUSED: &str = "ComfyUI quantization";

impl Scheme for ComfyUi {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn prepare(&self, all: &Index<'_>) -> Option<Prepared> {
        ComfyLayers::of(all.model).map(|layers| Box::new(layers) as Prepared)
    }

    fn descriptions(&self, _metadata: &HashMap<String, String>) -> Vec<String> {
        vec![METADATA.to_owned()]
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(layers) = all.prepared::<ComfyLayers>() else {
            return Ok(None);
        };
        let Some(description) = ComfyDescription::find(t, layers, all)? else {
            // Codes that no description covers must not be left to schemes that would guess their
            // layout. Only codes have to be described: a float with a `_scale` beside it can be an
            // ordinary tensor.
            let scaled = !t.dtype().is_floating_point() && all.at(t.name(), "_scale").is_some();
            let what =
                "the file describes how its layers are quantized, and this one is not among them";
            return match scaled {
                true => Err(refused(t, REFUSED, what)),
                false => Ok(None),
            };
        };
        let format = description.format.as_str();
        check_description(t, &description)?;
        // The other scheme may find no scale that it takes, for instance exponents beside
        // `float8_e4m3fn`.
        let Some(mut group) = claim_format(t, &description, all)? else {
            let scale = all.need(t, t.name(), "_scale")?;
            let what =
                format!("its `{}` is no scale of a weight of format `{format}`", scale.name());
            return Err(wrong(t, what));
        };
        // The FP8 schemes have a name of their own without a producer.
        if let QuantScheme::Grouped { family, .. } = &mut group.scheme {
            *family = FAMILY;
        }
        let marker = description.marker;
        let marker = marker.map(|marker| (TensorRole::QuantState, marker));
        group.parts.extend(marker);
        let scalar = all.at(t.name(), "_scalar");
        let scalar = scalar.filter(|_| format == "hybrid_mxfp8");
        group.parts.extend(scalar.map(|s| (TensorRole::Scale, s)));
        Ok(Some(group))
    }
}

/// Checks what `description` says of the codes `t`.
///
/// # Errors
/// They are rotated in a way that is not undone, or of a format that is not decoded or has another
/// dtype.
fn check_description(t: &Tensor<'_>, description: &ComfyDescription<'_>) -> Result<()> {
    let format = description.format.as_str();
    // Nodes for other GPUs (WINT8, TINT4) say so of rotations by a matrix of their own.
    if description.flag("quarot") {
        let what = "its columns are rotated (`quarot`), which is not decoded";
        return Err(refused(t, REFUSED, what));
    }
    let dtype = match format {
        "float8_e4m3fn"
        | "float8_e4m3fn_rowwise"
        | "float8_e4m3fn_blockwise"
        | "mxfp8"
        | "hybrid_mxfp8" => Dtype::F8E4M3,
        "float8_e5m2" => Dtype::F8E5M2,
        "int8_tensorwise" | "int8_blockwise" | "convrot_w4a4" | "asym_w4a8_int8" | "awq_w4a16"
        | "svdquant_w4a4" => Dtype::I8,
        "nvfp4" => Dtype::U8,
        _ => {
            let what = format!("its format is `{format}`, which is not decoded");
            return Err(refused(t, REFUSED, what));
        }
    };
    // The codes are those of the rotated weight. Without the inverse rotation they would decode to
    // another basis.
    let can_be_rotated = ["int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8"].contains(&format);
    if description.flag("convrot") && !can_be_rotated {
        let what =
            format!("its columns are rotated (`{format}` with `convrot`), which is not decoded");
        return Err(refused(t, REFUSED, what));
    }
    // The format and the dtype are stated in two places. If they contradict each other, either
    // could be meant.
    if t.dtype() != dtype {
        let what = format!("its format is said to be `{format}`, and that has {dtype}");
        return Err(wrong(t, what));
    }
    Ok(())
}

/// Claims codes of the format that `description` names. FP8 and INT8 with plain scales are laid out
/// as other producers do it; the others are ComfyUI's own.
fn claim_format<'m>(
    t: &Tensor<'m>,
    description: &ComfyDescription<'m>,
    all: &Index<'m>,
) -> Result<Option<Group<'m>>> {
    let scale = || all.need(t, t.name(), "_scale");
    Ok(match description.format.as_str() {
        "mxfp8" | "hybrid_mxfp8" => Some(blocks::mxfp8(t, &scale()?)?),
        "nvfp4" => Some(blocks::nvfp4(t, &scale()?, all)?),
        "float8_e4m3fn_blockwise" | "int8_blockwise" => {
            Some(blocks::squares(t, &scale()?, description)?)
        }
        "convrot_w4a4" => Some(rotated::w4a4(t, &scale()?, description, all)?),
        "asym_w4a8_int8" => Some(rotated::w4a8(t, description, all)?),
        "awq_w4a16" => Some(int4::awq(t, &scale()?, description, all)?),
        "svdquant_w4a4" => Some(int4::svdquant(t, &scale()?, description, all)?),
        format => {
            let scale = scale()?;
            check_plain_scale(t, &scale)?;
            match format {
                "int8_tensorwise" if description.flag("convrot") => {
                    Some(rotated::int8(t, &scale, description, all)?)
                }
                "int8_tensorwise" => int8(t, description, all)?,
                _ => Fp8.claim(t, all)?,
            }
        }
    })
}

/// `int8_tensorwise` without a rotation.
fn int8<'m>(
    t: &Tensor<'m>,
    description: &ComfyDescription<'m>,
    all: &Index<'m>,
) -> Result<Option<Group<'m>>> {
    let mut group = Int8.claim(t, all)?;
    if let Some(group) = &mut group {
        group.shape = description.output_shape(t, t.shape(), all)?.into();
    }
    Ok(group)
}

/// Checks that `scale` is one number, or one for each row or each expert, as comfy-kitchen's
/// `float8` and `int8_tensorwise` have it.
///
/// # Errors
/// It has another shape, or the weight has no rows.
fn check_plain_scale(t: &Tensor<'_>, scale: &Tensor<'_>) -> Result<()> {
    let is_one_a_row = match (scale.shape(), t.shape()) {
        (&[n] | &[n, 1], &[rows, ..]) => n == rows,
        (&[experts, n, 1], &[matrices, rows, _]) => [experts, n] == [matrices, rows],
        _ => false,
    };
    if t.shape().len() >= 2 && (scale.elements() == 1 || is_one_a_row) {
        return Ok(());
    }
    let what = format!(
        "its `{}` {:?} is neither one number nor one for each row",
        scale.name(),
        scale.shape()
    );
    Err(wrong(t, what))
}
