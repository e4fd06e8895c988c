//! What a tensor that no scheme claimed must be, by its name.

use crate::scheme::seam::TensorRole;

/// Last parts of the names of tensors that hold scales or zero points of activations or of the KV cache,
/// behind a dot or an underscore (`X.input_scale`, `experts.gate_up_proj_input_scale`).
const ACTIVATION: &[&str] = &[
    "input_scale",
    "input_scale_ub",
    "activation_scale",
    "input_global_scale",
    "input_activation_scale",
    "output_activation_scale",
    "input_zero_point",
    "output_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "kv_scale",
    "k_cache_scale",
    "v_cache_scale",
    "prob_output_scale",
    "scale_input",
    "qscale_act",
    // ModelOpt's affine FP8 cache. Other models have biases of theirs called `k_bias`.
    "k_proj.k_bias",
    "v_proj.v_bias",
    "act_quant_scale",
    "act_quant_zero_point",
    "act_per_tensor_scale",
];

/// Last parts of the names of tensors that mean nothing without a quantized weight.
const COMPANION: &[(&str, TensorRole)] = &[
    ("weight_scale", TensorRole::Scale),
    ("_scale_inv", TensorRole::Scale),
    (".scale_weight", TensorRole::Scale),
    (".qscale_weight", TensorRole::Scale),
    ("weight_scale_2", TensorRole::Scale),
    (".weight_global_scale", TensorRole::Scale),
    ("pre_quant_scale", TensorRole::Scale),
    ("svdquant_lora_a", TensorRole::LowRank),
    ("svdquant_lora_b", TensorRole::LowRank),
    (".comfy_quant", TensorRole::QuantState),
    (".embedding_scale", TensorRole::Scale),
    (".weight._scale", TensorRole::Scale),
    (".weight._shift", TensorRole::ZeroPoint),
    (".weight_zero_point", TensorRole::ZeroPoint),
    (".weight_offset", TensorRole::ZeroPoint),
    (".weight_shape", TensorRole::QuantState),
    (".qzeros", TensorRole::ZeroPoint),
    (".scaled_zeros", TensorRole::ZeroPoint),
    (".g_idx", TensorRole::GroupIndex),
    (".weight_g_idx", TensorRole::GroupIndex),
    (".SCB", TensorRole::Scale),
    (".weight.absmax", TensorRole::Scale),
    (".quant_map", TensorRole::QuantMap),
    (".nested_absmax", TensorRole::NestedScale),
    (".nested_quant_map", TensorRole::QuantMap),
];

/// Whether `name` belongs to activations rather than to a weight.
pub(crate) fn is_activation(name: &str) -> bool {
    ACTIVATION.iter().any(|end| {
        let rest = name.strip_suffix(end);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(['.', '_']))
    })
}

/// Whether models have parameters of this name that scale the heads of their attention.
pub(crate) fn may_be_of_heads(name: &str) -> bool {
    ["q_scale", "k_scale", "v_scale", "output_scale"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Whether `name` marks a file as scaled FP8 and holds no weight itself (ComfyUI).
pub(crate) fn is_marker(name: &str) -> bool {
    name == "scaled_fp8" || name.ends_with(".scaled_fp8")
}

/// The role of a tensor that only makes sense beside a quantized weight.
pub(crate) fn companion(name: &str) -> Option<TensorRole> {
    if name.contains(".quant_state.bitsandbytes__") {
        return Some(TensorRole::QuantState);
    }
    COMPANION
        .iter()
        .find(|(end, _)| name.ends_with(end))
        .map(|&(_, role)| role)
}

/// The role of a tensor that is in no output.
pub(crate) fn role_of_dropped(name: &str) -> TensorRole {
    if is_marker(name) {
        TensorRole::QuantState
    } else {
        companion(name).unwrap_or(TensorRole::Activation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(is_activation("model.layers.0.self_attn.k_scale"));
        assert!(is_activation("experts.gate_up_proj_input_scale"));
        assert!(!is_activation("logit_scale"));
        assert!(!is_activation("model.task_scale"));
        assert_eq!(companion("l.0.weight_scale"), Some(TensorRole::Scale));
        assert_eq!(companion("l.0.norm.scale"), None);
    }
}
