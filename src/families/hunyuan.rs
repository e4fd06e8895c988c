//! Hunyuan, without and with experts.
//!
//! Source: `conversion/hunyuan.py` of llama.cpp; defaults of transformers 4.57.6.

use super::{ENDS, HEAD_NORMS, MLP, NORMS, QUERIES, SPARSE_MLP, VALUES};
use crate::families::engine::dims::Dim;
use crate::families::engine::table::{
    Default, Kind, ModelClass, Need, TensorRule, Traits, count, in_layers, same, setting,
};

const NORMS_OF_HEADS: &[TensorRule] = &[
    same(HEAD_NORMS[0].gguf, "model.layers.{i}.self_attn.query_layernorm", &[Dim::Head]),
    same(HEAD_NORMS[1].gguf, "model.layers.{i}.self_attn.key_layernorm", &[Dim::Head]),
];

pub(super) const HUNYUAN: ModelClass = ModelClass {
    gguf: "hunyuan-dense",
    classes: &["HunYuanDenseV1ForCausalLM"],
    model_type: "hunyuan_v1_dense",
    defaults: &[
        ("max_position_embeddings", Default::Int(2048)),
        ("rms_norm_eps", Default::Float(1e-5)),
        ("rope_theta", Default::Float(10_000.0)),
        ("tie_word_embeddings", Default::Bool(false)),
    ],
    implied: &[("hidden_act", Default::Text("silu")), ("attention_bias", Default::Bool(false))],
    own_fields: &[],
    equal_fields: &[],
    biases: &[],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, NORMS_OF_HEADS, MLP],
    other_tensors: &[],
    settings: &[],
    traits: Traits { has_alpha_rope: true, ..Traits::PLAIN },
};

/// Experts in every layer, and one as wide that every token sees.
const EXPERTS: &[TensorRule] = &[
    // The router is F32 in models of every type.
    TensorRule {
        keeps_f32: true,
        ..same(SPARSE_MLP[0].gguf, "model.layers.{i}.mlp.gate.wg", &[Dim::Experts, Dim::Hidden])
    },
    in_layers(Need::All, SPARSE_MLP[1]),
    in_layers(Need::All, SPARSE_MLP[2]),
    in_layers(Need::All, SPARSE_MLP[3]),
    same(
        SPARSE_MLP[4].gguf,
        "model.layers.{i}.mlp.shared_mlp.gate_proj",
        &[Dim::Inner, Dim::Hidden],
    ),
    same(SPARSE_MLP[5].gguf, "model.layers.{i}.mlp.shared_mlp.up_proj", &[Dim::Inner, Dim::Hidden]),
    same(
        SPARSE_MLP[6].gguf,
        "model.layers.{i}.mlp.shared_mlp.down_proj",
        &[Dim::Hidden, Dim::Inner],
    ),
];

pub(super) const HUNYUAN_MOE: ModelClass = ModelClass {
    gguf: "hunyuan-moe",
    classes: &["HunYuanMoEV1ForCausalLM"],
    model_type: "hunyuan_v1_moe",
    own_fields: &[("num_local_experts", "num_experts"), ("num_experts_per_tok", "moe_topk")],
    // llama.cpp and transformers take the one for the other.
    equal_fields: &[("moe_intermediate_size", "intermediate_size")],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, NORMS_OF_HEADS, EXPERTS],
    settings: &[&[
        count("expert_shared_feed_forward_length", &["intermediate_size"]),
        setting(Kind::Required, "expert_feed_forward_length", &["moe_intermediate_size"]),
        setting(Kind::Required, "expert_used_count", &["moe_topk"]),
        setting(Kind::Required, "expert_shared_count", &["num_shared_expert"]),
    ]],
    traits: Traits {
        has_alpha_rope: true,
        listed_by_layer: &["moe_intermediate_size", "moe_topk", "num_shared_expert"],
        also_implied: &[
            ("norm_topk_prob", Default::Bool(true)),
            ("use_qk_norm", Default::Bool(true)),
            ("use_rotary_pos_emb", Default::Bool(true)),
            ("use_mixed_mlp_moe", Default::Bool(true)),
            ("use_cla", Default::Bool(false)),
            ("use_mla", Default::Bool(false)),
            ("mlp_bias", Default::Bool(false)),
            ("group_limited_greedy", Default::Bool(false)),
            ("moe_layer_num_skipped", Default::Int(0)),
        ],
        ..Traits::PLAIN
    },
    ..HUNYUAN
};
