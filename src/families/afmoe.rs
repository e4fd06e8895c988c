//! AFMoE (Trinity): gates behind attention, norms before and behind both halves of a layer, experts
//! behind the dense layers. Layers that see the whole text have no positions.
//!
//! Source: `conversion/afmoe.py` of llama.cpp; defaults of transformers 5.24.

use super::exaone_moe::EXPERTS;
use super::llama::{LLAMA_TOKENIZER, SETTINGS};
use super::{DENSE_MLP, ENDS, F32_CHOICE_BIAS, HEAD_NORMS, QUERIES, SPARSE_MLP, VALUES};
use crate::families::engine::rows::*;

const NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "model.layers.{i}.input_layernorm", &[Hidden]),
    same("blk.{i}.post_attention_norm", "model.layers.{i}.post_attention_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.pre_mlp_layernorm", &[Hidden]),
    same("blk.{i}.post_ffw_norm", "model.layers.{i}.post_mlp_layernorm", &[Hidden]),
];

pub(super) const GATE: &[TensorRule] =
    &[same("blk.{i}.attn_gate", "model.layers.{i}.self_attn.gate_proj", &[Queries, Hidden])];

const ROUTER: &[TensorRule] = &[
    TensorRule { hf: "model.layers.{i}.mlp.router.gate", ..SPARSE_MLP[0] },
    TensorRule { hf: "model.layers.{i}.mlp.expert_bias", ..F32_CHOICE_BIAS[0] },
];

pub(super) const AFMOE: ModelClass = ModelClass {
    gguf: "afmoe",
    classes: &["AfmoeForCausalLM"],
    model_type: "afmoe",
    defaults: &[
        ("max_position_embeddings", Int(16_384)),
        ("head_dim", Int(128)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("moe_intermediate_size", Int(1408)),
        ("num_dense_layers", Int(1)),
        ("num_experts", Int(64)),
        ("num_experts_per_tok", Int(6)),
        ("num_shared_experts", Int(2)),
        ("sliding_window", Int(1024)),
        ("mup_enabled", Bool(false)),
        // The class always does so, and llama.cpp has to be told.
        ("route_norm", Bool(true)),
        ("route_scale", Float(1.0)),
        ("score_func", Text("sigmoid")),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mup_enabled", Bool(true)),
        ("route_norm", Bool(true)),
        ("score_func", Text("sigmoid")),
        ("global_attn_every_n_layers", Int(4)),
    ],
    own_fields: &[("num_local_experts", "num_experts")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, HEAD_NORMS, GATE, DENSE_MLP, ROUTER, EXPERTS],
    settings: &[
        SETTINGS,
        &[
            setting(Kind::Required, "expert_shared_count", &["num_shared_experts"]),
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            count("leading_dense_block_count", &["num_dense_layers"]),
            setting(Kind::Flag, "expert_weights_norm", &["route_norm"]),
            number("expert_weights_scale", &["route_scale"]),
            setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
        ],
    ],
    traits: Traits {
        full_attention_every: Some(4),
        layer_kinds: Some(("sliding_attention", 4)),
        ..Traits::PLAIN
    },
    tokenizer: &LLAMA_TOKENIZER,
    mlx: Some(&AFMOE_MLX),
    ..ModelClass::PLAIN
};

const AFMOE_MLX: MlxClass = MlxClass {
    renamed: &[
        ("blk.{i}.ffn_gate_exps", "model.layers.{i}.mlp.experts.gate_proj"),
        ("blk.{i}.ffn_up_exps", "model.layers.{i}.mlp.experts.up_proj"),
        ("blk.{i}.ffn_down_exps", "model.layers.{i}.mlp.experts.down_proj"),
    ],
    modes: ROUTER_8_BITS,
    kept_types: &["blk.{i}.exp_probs_b.bias"],
    implied: &[SILU, NO_BIAS],
    stated_fields: &[
        COMMON_FIELDS,
        &[
            "layer_types",
            "max_position_embeddings",
            "num_key_value_heads",
            "head_dim",
            "moe_intermediate_size",
            "num_experts",
            "num_experts_per_tok",
            "num_shared_experts",
            "num_dense_layers",
            "route_norm",
            "route_scale",
            "score_func",
            "sliding_window",
            "mup_enabled",
        ],
    ],
    ..MlxClass::PLAIN
};
