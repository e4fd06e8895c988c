//! Factors of weights that lie beside them: `X.scale` for `X.weight`, one for the tensor or one for
//! each matrix of a stack. llama.cpp multiplies the product of the layer by it; here it multiplies
//! the weight.
//!
//! llama.cpp reads them for the weights of [`LAYERS`], whatever the type of these: NVFP4 has them
//! from its first encoding, and keeps them when it is quantized to another type. Ternary models of
//! BitNet had them from llama.cpp's converter. It reads that of the head only for NVFP4, and loads
//! no file that has one beside another type. Some writers of NVFP4 name the scale `X.weight.scale`.
//!
//! Files that stable-diffusion.cpp has converted from weights in FP8 have `X.weight_scale`, one or
//! one for each row: its converter widens the codes and keeps their scales.
//!
//! Source: llama.cpp `llama-model.cpp`, `load_tensors`; `llama-graph.cpp`, `build_lora_mm`,
//! `build_lora_mm_id`. stable-diffusion.cpp `src/core/ggml_extend.hpp` (`Linear`),
//! `src/convert.cpp`.

use crate::model::Tensor;
use crate::remember::layout::rescaled::{Rescale, Rescaled};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::NestedOp;
use crate::remember::seam::{
    Decode, Floats, Group, Index, PlainFloats, QuantScheme, TensorRole, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

/// Last parts of the names of weights that may have a factor, whatever their type.
const LAYERS: &[&str] = &[
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_qkv",
    "attn_gate",
    "ffn_gate",
    "ffn_down",
    "ffn_up",
    "ffn_gate_shexp",
    "ffn_down_shexp",
    "ffn_up_shexp",
    "ffn_gate_exps",
    "ffn_down_exps",
    "ffn_up_exps",
    "ssm_in",
    "ssm_out",
    "ssm_alpha",
    "ssm_beta",
    "nextn.eh_proj",
    "nextn.shared_head_head",
];

/// Weights outside of layers that may have a factor.
const WHOLE_NAMES: &[&str] = &["output", "fc", "markov_w2"];

/// Architectures with parameters of such names, which the models multiply by as well: they stay
/// parameters.
const PARAMETERS: &[(&str, &[&str])] =
    &[("gemma4", &["ffn_down_exps"]), ("talkie", &["attn_output", "ffn_down"])];

/// Whether llama.cpp multiplies the product of the weight `base.weight` by `base.scale`, whatever
/// its type.
fn has_factor(base: &str, all: &Index<'_>) -> bool {
    if WHOLE_NAMES.contains(&base) {
        return true;
    }
    let layer = base
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    let Some((_, layer)) = layer.filter(|(_, layer)| LAYERS.contains(layer)) else {
        return false;
    };
    let gguf = all.model.gguf();
    let architecture = gguf.and_then(|gguf| gguf.metadata.get("general.architecture"));
    let architecture = architecture.as_ref().and_then(|value| value.as_string());
    let is_parameter =
        |(name, layers): &(&str, &[&str])| architecture == Some(name) && layers.contains(&layer);
    !PARAMETERS.iter().any(is_parameter)
}

/// Whether `t` scales the input of a layer whose weight may have a factor: it is no part of the
/// weight.
pub(super) fn is_input_scale(t: &Tensor<'_>, all: &Index<'_>) -> bool {
    let Some(base) = t.name().strip_suffix(".input_scale") else {
        return false;
    };
    let weight = all.at(base, ".weight").or_else(|| all.get(base));
    weight.is_some_and(|w| w.dtype() == Dtype::NVFP4 || has_factor(base, all))
}

/// The matrices of `t`: a stack is all dimensions but the last two.
fn matrices(t: &Tensor<'_>) -> usize {
    match t.shape() {
        [stack @ .., _, _] => stack.iter().product(),
        _ => 1,
    }
}

/// The scale of `t`, of what was FP8: floats beside the weight of a model of images or of its
/// encoders.
///
/// # Errors
/// `Unsupported` if `t` is INT8, whose columns may be rotated. `Parse` if the scale has neither one
/// value nor one for each row.
fn scale_of_fp8<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Tensor<'m>>> {
    let base = t.name().strip_suffix(".weight");
    let names = [".weight_scale", ".scale_weight"];
    let scale = base.and_then(|base| names.iter().find_map(|end| all.at(base, end)));
    let scale = scale.filter(|scale| Floats::ieee(scale).is_ok() && t.shape().len() >= 2);
    let Some(scale) = scale else { return Ok(None) };
    if t.dtype() == Dtype::I8 {
        let what = format!(
            "its scale is `{}`, and no GGUF file tells whether its columns are rotated",
            scale.name()
        );
        return Err(refused(t, "INT8 of ComfyUI in GGUF", what));
    }
    let (rows, _) = rows_and_cols(t.shape());
    match scale.elements() {
        n if n > 0 && (n == 1 || n == rows) => Ok(Some(scale)),
        _ => Err(wrong(&scale, format!("`{}` has {rows} rows", t.name()))),
    }
}

/// The factor of `t`, if it has one.
///
/// # Errors
/// Both names are there, or the factor does not have 1 value or one for each matrix; or those of
/// [`scale_of_fp8`].
pub(super) fn scale_of<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Tensor<'m>>> {
    if let Some(scale) = scale_of_fp8(t, all)? {
        return Ok(Some(scale));
    }
    let base = t.name().strip_suffix(".weight");
    let beside = base.and_then(|base| all.at(base, ".scale"));
    let scale = if t.dtype() == Dtype::NVFP4 {
        match (beside, all.at(t.name(), ".scale")) {
            // One of the names is written. Two tensors could be two factors or one factor twice.
            (Some(one), Some(two)) => {
                let (one, two) = (one.name(), two.name());
                let what = format!("both `{one}` and `{two}` could be its scale");
                return Err(wrong(t, what));
            }
            (one, two) => one.or(two),
        }
    } else {
        beside.filter(|_| base.is_some_and(|base| has_factor(base, all)))
    };
    let n = matrices(t);
    match scale {
        Some(scale) if scale.elements() != 1 && scale.elements() != n || scale.elements() == 0 => {
            Err(wrong(&scale, format!("`{}` has {n} matrices", t.name())))
        }
        scale => Ok(scale),
    }
}

/// The weight `t` of floats, if it has a factor.
///
/// # Errors
/// Those of [`scale_of`], or the factor is not of floats.
pub(super) fn scaled_floats<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
    let Some(scale) = scale_of(t, all)? else {
        return Ok(None);
    };
    let Some(floats) = PlainFloats::of(t) else {
        return Ok(None);
    };
    let decoder = scaled(t, Box::new(floats), scale)?;
    let parts = vec![(TensorRole::Passthrough, *t), (TensorRole::Scale, scale)];
    let (name, shape) = (t.name(), t.shape());
    Ok(Some(Group {
        keeps: TargetDtype::of(t.dtype()),
        ..Group::new(name, shape, QuantScheme::Unquantized, parts, decoder)
    }))
}

/// The decoder of the values of `t` multiplied by `scale`, its factor.
///
/// # Errors
/// The factor is not of floats.
pub(super) fn scaled<'m>(
    t: &Tensor<'m>,
    values: Box<dyn Decode + 'm>,
    numbers: Tensor<'m>,
) -> Result<Box<dyn Decode + 'm>> {
    Floats::ieee(&numbers)?;
    let (rows, _) = rows_and_cols(t.shape());
    let by = Rescale::Matrices {
        rows: (rows / numbers.elements().max(1)).max(1),
        numbers,
        op: NestedOp::Multiply,
    };
    Ok(Box::new(Rescaled { values, by }))
}
