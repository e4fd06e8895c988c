//! Ling 2 and Ring 2 (BailingMoE 2), with experts in groups that are chosen by a bias of their own.
//!
//! Source: `BailingMoeV2Model` in `conversion/bailingmoe.py` of llama.cpp; defaults of the
//! `configuration_bailing_moe_v2.py` that published models have beside them.

use super::{DENSE_MLP, NORMS, SPARSE_MLP, sparse};
use crate::families::engine::rows::*;

const ENDS: &[TensorRule] = &[
    same("token_embd", "model.word_embeddings", &[Vocab, Hidden]),
    same("output_norm", "model.norm", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
];

const ATTENTION: &[TensorRule] = &[
    same(
        "blk.{i}.attn_qkv",
        "model.layers.{i}.attention.query_key_value",
        &[Sum(&[Queries, Keys, Keys]), Hidden],
    ),
    same("blk.{i}.attn_output", "model.layers.{i}.attention.dense", &[Hidden, Queries]),
    same("blk.{i}.attn_q_norm", "model.layers.{i}.attention.query_layernorm", &[Head]),
    same("blk.{i}.attn_k_norm", "model.layers.{i}.attention.key_layernorm", &[Head]),
];

const CHOICE_BIAS: &[TensorRule] = &[sparse(parameter(
    "blk.{i}.exp_probs_b.bias",
    "model.layers.{i}.mlp.gate.expert_bias",
    (Transform::None, &[Experts], &[Experts]),
))];

const SETTINGS: &[Setting] = &[
    setting(Kind::Rotating, "rope.dimension_count", &["partial_rotary_factor"]),
    count("leading_dense_block_count", &["first_k_dense_replace"]),
    count("vocab_size", &["vocab_size"]),
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    count(
        "expert_shared_feed_forward_length",
        &["moe_shared_expert_intermediate_size", "moe_intermediate_size"],
    ),
    number("expert_weights_scale", &["routed_scaling_factor"]),
    setting(Kind::Required, "expert_shared_count", &["num_shared_experts"]),
    setting(Kind::Flag, "expert_weights_norm", &["norm_topk_prob"]),
];

pub(super) const BAILING_MOE2: ModelClass = ModelClass {
    gguf: "bailingmoe2",
    classes: &["BailingMoeV2ForCausalLM"],
    model_type: "bailing_moe",
    defaults: &[
        ("max_position_embeddings", Int(32_768)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(600_000.0)),
        ("routed_scaling_factor", Float(2.5)),
        ("norm_topk_prob", Bool(true)),
        ("score_function", Text("sigmoid")),
        ("moe_router_enable_expert_bias", Bool(true)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("use_bias", Bool(false)),
        ("use_qkv_bias", Bool(false)),
        ("use_qk_norm", Bool(true)),
        ("use_rmsnorm", Bool(true)),
        ("norm_topk_prob", Bool(true)),
        ("score_function", Text("sigmoid")),
        ("moe_router_enable_expert_bias", Bool(true)),
        // Of several, llama.cpp and the class do not take the same widths.
        ("num_shared_experts", Int(1)),
    ],
    own_fields: &[("num_local_experts", "num_experts"), ("n_shared_experts", "num_shared_experts")],
    tensors: &[ENDS, NORMS, ATTENTION, DENSE_MLP, SPARSE_MLP, CHOICE_BIAS],
    settings: &[SETTINGS],
    traits: Traits {
        has_expert_groups: true,
        partial_rotary: Some(0.5),
        needs_output: true,
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};
