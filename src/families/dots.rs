//! dots.llm1: experts behind dense layers, and attention as in Qwen 3.
//!
//! Source: `conversion/dots1.py` of llama.cpp; defaults of transformers 4.57.6.

use super::{CHOICE_BIAS, DENSE_MLP, ENDS, HEAD_NORMS, NORMS, QUERIES, SPARSE_MLP, VALUES};
use crate::families::engine::rows::*;
use crate::remember::EncodedAs;

/// Stacks of experts in mlx-lm.
const DOTS_STACKS: &[(&str, &str)] = &[
    ("blk.{i}.ffn_gate_exps", "model.layers.{i}.mlp.experts.gate_proj"),
    ("blk.{i}.ffn_up_exps", "model.layers.{i}.mlp.experts.up_proj"),
    ("blk.{i}.ffn_down_exps", "model.layers.{i}.mlp.experts.down_proj"),
];

pub(super) const DOTS1: ModelClass = ModelClass {
    gguf: "dots1",
    classes: &["Dots1ForCausalLM"],
    model_type: "dots1",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("num_key_value_heads", Int(32)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("first_k_dense_replace", Int(0)),
        ("norm_topk_prob", Bool(false)),
        ("routed_scaling_factor", Float(1.0)),
        ("scoring_func", Text("sigmoid")),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("scoring_func", Text("sigmoid")),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    // llama.cpp has as many heads of keys as of queries in this class.
    equal_fields: &[("num_key_value_heads", "num_attention_heads")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, DENSE_MLP, SPARSE_MLP, CHOICE_BIAS],
    settings: &[&[
        count("leading_dense_block_count", &["first_k_dense_replace"]),
        setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
    ]],
    traits: Traits {
        has_expert_groups: true,
        needs_output: true,
        lost_windows: LostWindows::From(62),
        default_window: Some(4096),
        ..Traits::PLAIN
    },
    mlx: Some(&DOTS1_MLX),
    ..ModelClass::PLAIN
};

const DOTS1_MLX: MlxClass = MlxClass {
    renamed: DOTS_STACKS,
    // A parameter of the router, and no linear module.
    modes: &[("blk.{i}.ffn_gate_inp", EncodedAs::Nothing)],
    implied: &[SILU, ("scoring_func", Text("sigmoid"))],
    lost_windows: LostWindows::From(62),
    bias_fields: &["attention_bias", "mlp_bias"],
    stated_fields: &[&[
        "rope_theta",
        "rms_norm_eps",
        "max_position_embeddings",
        "num_key_value_heads",
        "first_k_dense_replace",
        "norm_topk_prob",
        "routed_scaling_factor",
    ]],
    ..LIKE_LLAMA
};
