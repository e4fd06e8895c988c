//! InternLM 2, whose queries, keys and values are one projection, group by group of heads.
//!
//! Source: `InternLM2Model` in `conversion/internlm.py` of llama.cpp; defaults of the
//! `configuration_internlm2.py` that published models have beside them.

use super::lfm::INNER;
use crate::families::engine::dims::Dim;
use crate::families::engine::table::{
    Default, HeadDim, ModelClass, TensorRule, Traits, Transform, optional, same,
};

/// One of the three parts of the projection.
const fn part(part: usize, gguf: &'static str, gguf_shape: &'static [Dim]) -> TensorRule {
    const FUSED: &[Dim] = &[Dim::Sum(&[Dim::Queries, Dim::Keys, Dim::Keys]), Dim::Hidden];
    TensorRule {
        transform: Transform::GroupPart(part),
        gguf_shape: Some(gguf_shape),
        ..same(gguf, "model.layers.{i}.attention.wqkv", FUSED)
    }
}

const TENSORS: &[TensorRule] = &[
    same("token_embd", "model.tok_embeddings", &[Dim::Vocab, Dim::Hidden]),
    same("output_norm", "model.norm", &[Dim::Hidden]),
    optional("output", "output", &[Dim::Vocab, Dim::Hidden]),
    same("blk.{i}.attn_norm", "model.layers.{i}.attention_norm", &[Dim::Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.ffn_norm", &[Dim::Hidden]),
    part(0, "blk.{i}.attn_q", &[Dim::Queries, Dim::Hidden]),
    part(1, "blk.{i}.attn_k", &[Dim::Keys, Dim::Hidden]),
    part(2, "blk.{i}.attn_v", &[Dim::Keys, Dim::Hidden]),
    same("blk.{i}.attn_output", "model.layers.{i}.attention.wo", &[Dim::Hidden, Dim::Queries]),
];

pub(super) const INTERNLM2: ModelClass = ModelClass {
    gguf: "internlm2",
    classes: &["InternLM2ForCausalLM"],
    model_type: "internlm2",
    defaults: &[
        ("max_position_embeddings", Default::Int(2048)),
        ("rms_norm_eps", Default::Float(1e-6)),
        ("rope_theta", Default::Float(10_000.0)),
    ],
    implied: &[("hidden_act", Default::Text("silu")), ("bias", Default::Bool(false))],
    own_fields: &[],
    equal_fields: &[],
    biases: &[],
    tensors: &[TENSORS, INNER],
    other_tensors: &[],
    settings: &[],
    traits: Traits { head_dim: HeadDim::Derived, needs_output: true, ..Traits::PLAIN },
};
