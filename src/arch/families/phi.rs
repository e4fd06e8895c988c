//! Phi 3 and 4, whose projections are fused.
//!
//! Source: `conversion/phi.py` of llama.cpp; defaults of transformers 4.57.6.

use super::{ENDS, FUSED_MLP, NORMS};
use crate::arch::dims::Dim;
use crate::arch::table::{
    Default, HeadDim, Kind, ModelClass, TensorRule, Traits, count, same, setting,
};

const FUSED_ATTENTION: &[TensorRule] = &[
    same(
        "blk.{i}.attn_qkv",
        "model.layers.{i}.self_attn.qkv_proj",
        &[Dim::Sum(&[Dim::Queries, Dim::Keys, Dim::Keys]), Dim::Hidden],
    ),
    same(
        "blk.{i}.attn_output",
        "model.layers.{i}.self_attn.o_proj",
        &[Dim::Hidden, Dim::Queries],
    ),
];

pub(super) const PHI3: ModelClass = ModelClass {
    gguf: "phi3",
    classes: &["Phi3ForCausalLM"],
    model_type: "phi3",
    defaults: &[
        ("max_position_embeddings", Default::Int(4096)),
        ("original_max_position_embeddings", Default::Int(4096)),
        ("rms_norm_eps", Default::Float(1e-5)),
        ("rope_theta", Default::Float(10_000.0)),
    ],
    implied: &[("hidden_act", Default::Text("silu"))],
    own_fields: &[],
    equal_fields: &[],
    biases: &[],
    tensors: &[ENDS, NORMS, FUSED_ATTENTION, FUSED_MLP],
    other_tensors: &[],
    settings: &[&[
        count(
            "rope.scaling.original_context_length",
            &["original_max_position_embeddings"],
        ),
        setting(
            Kind::Rotating,
            "rope.dimension_count",
            &["partial_rotary_factor"],
        ),
        // 0 tells Phi 4 from Phi 3 in llama.cpp.
        setting(
            Kind::OrZero,
            "attention.sliding_window",
            &["sliding_window"],
        ),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        partial_rotary: Some(1.0),
        has_long_factors: true,
        ..Traits::PLAIN
    },
};
