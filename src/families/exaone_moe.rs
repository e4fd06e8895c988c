//! K-EXAONE: experts behind the dense layers, windows in three of four layers. Layers that see the
//! whole text have no positions.
//!
//! Source: `ExaoneMoEModel` in `conversion/exaone.py` of llama.cpp; defaults of transformers 5.24.

use super::{DENSE_MLP, ENDS, F32_CHOICE_BIAS, HEAD_NORMS, NORMS, QUERIES, SPARSE_MLP, VALUES};
use crate::Result;
use crate::families::engine::fields::wrong;
use crate::families::engine::rope::WINDOWED;
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;
use crate::remember::EncodedAs;

/// Width of all experts that every token sees.
const SHARED: Dim = Product(&[ExpertInner, Field(SHARED_COUNT)]);
const SHARED_COUNT: &str = "num_shared_experts";

const fn shared(rule: TensorRule, shape: &'static [Dim]) -> TensorRule {
    TensorRule { need: Need::SparseIf(SHARED_COUNT), shape, ..rule }
}

/// Experts, and those that every token sees, by another field than that of [`SPARSE_MLP`].
pub(super) const EXPERTS: &[TensorRule] = &[
    SPARSE_MLP[1],
    SPARSE_MLP[2],
    SPARSE_MLP[3],
    shared(SPARSE_MLP[4], &[SHARED, Hidden]),
    shared(SPARSE_MLP[5], &[SHARED, Hidden]),
    shared(SPARSE_MLP[6], &[Hidden, SHARED]),
];

const ROUTER: &[TensorRule] = &[
    SPARSE_MLP[0],
    TensorRule { hf: "model.layers.{i}.mlp.e_score_correction_bias", ..F32_CHOICE_BIAS[0] },
];

pub(super) const EXAONE_MOE: ModelClass = ModelClass {
    gguf: "exaone-moe",
    classes: &["ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"],
    model_type: "exaone_moe",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("num_key_value_heads", Int(32)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("sliding_window", Int(4096)),
        ("first_k_dense_replace", Int(1)),
        ("moe_intermediate_size", Int(1024)),
        ("num_experts", Int(64)),
        ("num_experts_per_tok", Int(8)),
        ("num_shared_experts", Int(1)),
        ("norm_topk_prob", Bool(true)),
        ("routed_scaling_factor", Float(2.5)),
        ("n_group", Int(1)),
        ("topk_group", Int(1)),
        // llama.cpp has to be told.
        ("scoring_func", Text("sigmoid")),
    ],
    implied: &[("hidden_act", Text("silu")), ("scoring_func", Text("sigmoid"))],
    own_fields: &[("num_local_experts", "num_experts")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, DENSE_MLP, ROUTER, EXPERTS],
    settings: &[&[
        count("vocab_size", &["vocab_size"]),
        setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
        setting(Kind::Layers("sliding_attention"), "attention.sliding_window_pattern", &[]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        setting(Kind::Required, "expert_shared_count", &["num_shared_experts"]),
        setting(
            Kind::Product,
            "expert_shared_feed_forward_length",
            &["moe_intermediate_size", "num_shared_experts"],
        ),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
        count("leading_dense_block_count", &["first_k_dense_replace"]),
        setting(Kind::Fixed(0), "nextn_predict_layers", &[]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
    ]],
    traits: Traits {
        has_expert_groups: true,
        layer_kinds: Some(("sliding_attention", 4)),
        prediction: Prediction::LeftOut,
        ..Traits::PLAIN
    },
    mlx: Some(&EXAONE_MOE_MLX),
    ..ModelClass::PLAIN
};

const EXAONE_MOE_MLX: MlxClass = MlxClass {
    renamed: &[
        STACKS[0],
        STACKS[1],
        STACKS[2],
        (F32_CHOICE_BIAS[0].gguf, "model.layers.{i}.mlp.gate.e_score_correction_bias"),
    ],
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    kept_types: &[F32_CHOICE_BIAS[0].gguf],
    implied: &[SILU, NO_BIAS, ("scoring_func", Text("sigmoid")), ("topk_method", Text("noaux_tc"))],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "max_position_embeddings",
            "num_key_value_heads",
            "head_dim",
            "moe_intermediate_size",
            "num_experts",
            "num_experts_per_tok",
            "num_shared_experts",
            "sliding_window",
            "layer_types",
            "is_moe_layer",
            "n_group",
            "topk_group",
            "routed_scaling_factor",
            "norm_topk_prob",
        ],
    ],
    laws: &[windows_turn],
    ..MlxClass::PLAIN
};

/// mlx-lm turns heads of layers with a window alone, or of all layers where none has one;
/// transformers goes by the window.
fn windows_turn(model: &Model<'_>) -> Result<Option<String>> {
    let has_window = model.fields.count(&["sliding_window"])?.is_some();
    match model.dims.has_kind(WINDOWED) == has_window {
        true => Ok(None),
        false => Err(wrong(
            "layer_types",
            "mlx-lm's exaone_moe turns heads by these, and transformers by `sliding_window`",
        )),
    }
}
