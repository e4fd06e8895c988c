//! Hunyuan without experts.
//!
//! Source: `conversion/hunyuan.py` of llama.cpp; defaults of transformers 4.57.6.

use super::{ENDS, HEAD_NORMS, MLP, NORMS, QUERIES, VALUES};
use crate::arch::dims::Dim;
use crate::arch::table::{Default, ModelClass, TensorRule, Traits, same};

const NORMS_OF_HEADS: &[TensorRule] = &[
    same(
        HEAD_NORMS[0].gguf,
        "model.layers.{i}.self_attn.query_layernorm",
        &[Dim::Head],
    ),
    same(
        HEAD_NORMS[1].gguf,
        "model.layers.{i}.self_attn.key_layernorm",
        &[Dim::Head],
    ),
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
    implied: &[("hidden_act", Default::Text("silu"))],
    own_fields: &[],
    equal_fields: &[],
    biases: &[],
    tensors: &[ENDS, NORMS, QUERIES, VALUES, NORMS_OF_HEADS, MLP],
    other_tensors: &[],
    settings: &[],
    traits: Traits {
        has_alpha_rope: true,
        ..Traits::PLAIN
    },
};
