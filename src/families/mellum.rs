//! Mellum 2: experts in all layers, and windows in some.
//!
//! Source: `conversion/mellum.py` of llama.cpp; defaults of transformers 5.24.

use super::olmo::WINDOWS;
use super::qwen::EXPERTS;
use super::{ENDS, HEAD_NORMS, NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::fields::{FULL_ATTENTION, LAYER_KINDS, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;

pub(super) const MELLUM: ModelClass = ModelClass {
    gguf: "mellum",
    classes: &["MellumForCausalLM"],
    model_type: "mellum",
    defaults: &[
        ("max_position_embeddings", Int(131_072)),
        ("num_key_value_heads", Int(4)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-6)),
        ("sliding_window", Int(1024)),
        ("num_experts", Int(64)),
        ("num_experts_per_tok", Int(8)),
        ("moe_intermediate_size", Int(896)),
        ("norm_topk_prob", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("norm_topk_prob", Bool(true)),
        ("use_sliding_window", Bool(true)),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, EXPERTS],
    settings: &[&[count("expert_feed_forward_length", &["moe_intermediate_size"])], WINDOWS],
    traits: Traits {
        needs_output: true,
        rope: RopeTraits { by_kind: true, has_two_bases: true, ..RopeTraits::PLAIN },
        laws: &[one_base],
        layer_kinds: Some(("full_attention", 1)),
        prediction: Prediction::LeftOut,
        ..Traits::PLAIN
    },
    mlx: Some(&MELLUM_MLX),
    ..ModelClass::PLAIN
};

const MELLUM_MLX: MlxClass = MlxClass {
    renamed: STACKS,
    modes: ROUTER_8_BITS,
    implied: &[SILU, NO_BIAS, ("use_sliding_window", Bool(true))],
    scalings: &["llama3", "yarn"],
    stated_fields: &[&[
        "rms_norm_eps",
        "max_position_embeddings",
        "num_key_value_heads",
        "head_dim",
        "sliding_window",
        LAYER_KINDS,
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "norm_topk_prob",
    ]],
    laws: &[whole_text_in_mlx],
    rope: RopeFields::NestedByKind,
    ..MlxClass::PLAIN
};

/// mlx-lm needs a layer that sees the whole text.
fn whole_text_in_mlx(model: &Model<'_>) -> Result<Option<String>> {
    match model.dims.has_kind(FULL_ATTENTION) {
        true => Ok(None),
        false => Err(wrong(LAYER_KINDS, "mlx-lm's mellum needs a layer that sees the whole text")),
    }
}

/// llama.cpp turns heads of all layers by the base of those that see the whole text.
fn one_base(model: &Model<'_>) -> Result<Option<String>> {
    match model
        .rope
        .local_base
        .filter(|base| Some(*base) != model.rope.base)
    {
        None => Ok(None),
        Some(base) => {
            let what =
                format!("it is {base} in layers with a window, and {} has one base", model.owner());
            Err(wrong("rope_theta", what))
        }
    }
}
