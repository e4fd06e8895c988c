//! Arctic: a feed-forward layer behind attention, and experts beside both.
//!
//! Source: `conversion/arctic.py` of llama.cpp; defaults of the code beside the published model.

use super::llama::{MIXTRAL_EXPERTS, ROTATED, SETTINGS};
use super::{ENDS, NORMS, VALUES};
use crate::families::engine::rows::*;

/// The feed-forward layer, which is as wide as the hidden state, with the norm in front of it, and
/// the norm in front of the experts.
const RESIDUAL: &[TensorRule] = &[
    NORMS[0],
    same("blk.{i}.ffn_norm", "model.layers.{i}.residual_layernorm", &[Hidden]),
    same("blk.{i}.ffn_gate", "model.layers.{i}.residual_mlp.w1", &[Hidden, Hidden]),
    same("blk.{i}.ffn_down", "model.layers.{i}.residual_mlp.w2", &[Hidden, Hidden]),
    same("blk.{i}.ffn_up", "model.layers.{i}.residual_mlp.w3", &[Hidden, Hidden]),
    same("blk.{i}.ffn_norm_exps", "model.layers.{i}.post_attention_layernorm", &[Hidden]),
];

pub(super) const ARCTIC: ModelClass = ModelClass {
    gguf: "arctic",
    classes: &["ArcticForCausalLM"],
    model_type: "arctic",
    defaults: &[
        ("max_position_embeddings", Int(4096)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
        ("num_local_experts", Int(8)),
        ("num_experts_per_tok", Int(1)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("moe_layer_frequency", Int(1)),
        ("parallel_attn_mlp_res", Bool(true)),
        ("use_residual", Bool(true)),
    ],
    tensors: &[ENDS, RESIDUAL, ROTATED, VALUES, MIXTRAL_EXPERTS],
    settings: &[SETTINGS],
    traits: Traits {
        head_dim: HeadDim::Derived,
        also_implied: &[("sliding_window", Absent), ("attention_bias", Bool(false))],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};
