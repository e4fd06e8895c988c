//! DeepSeek MoE, the first of the name: attention of Llama, and experts behind the dense layers.
//!
//! Source: `DeepseekModel` in `conversion/deepseek.py` of llama.cpp; defaults of the code beside
//! published models.

use super::llama::ROTATED;
use super::{DENSE_MLP, ENDS, NORMS, SPARSE_MLP, VALUES};
use crate::families::engine::rows::*;

pub(super) const DEEPSEEK: ModelClass = ModelClass {
    gguf: "deepseek",
    classes: &["DeepseekForCausalLM"],
    model_type: "deepseek",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("first_k_dense_replace", Int(0)),
        ("norm_topk_prob", Bool(false)),
        ("scoring_func", Text("softmax")),
        // What the class does not scale by.
        ("routed_scaling_factor", Float(1.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("norm_topk_prob", Bool(false)),
        ("scoring_func", Text("softmax")),
        ("moe_layer_freq", Int(1)),
        ("routed_scaling_factor", Float(1.0)),
    ],
    own_fields: &[("num_local_experts", "n_routed_experts")],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, DENSE_MLP, SPARSE_MLP],
    settings: &[&[
        setting(Kind::HeadSize, "rope.dimension_count", &["head_dim"]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
        count("leading_dense_block_count", &["first_k_dense_replace"]),
        count("vocab_size", &["vocab_size"]),
        count("expert_feed_forward_length", &["moe_intermediate_size"]),
        number("expert_weights_scale", &["routed_scaling_factor"]),
        setting(Kind::Required, "expert_shared_count", &["n_shared_experts"]),
    ]],
    traits: Traits { head_dim: HeadDim::Derived, ..Traits::PLAIN },
    ..ModelClass::PLAIN
};
