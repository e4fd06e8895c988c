//! GPT-2, whose matrices are stored as `[in, out]`.
//!
//! Source: `conversion/gpt2.py` of llama.cpp; defaults of transformers 4.57.6.

use crate::families::engine::dims::Dim;
use crate::families::engine::table::{
    Default, HeadDim, Kind, ModelClass, TensorRule, Traits, Transform, optional, same, setting,
};

/// Width of the feed-forward layer.
pub(super) const FOURFOLD: Dim = Dim::Sum(&[Dim::Hidden, Dim::Hidden, Dim::Hidden, Dim::Hidden]);
/// Queries, keys and values.
pub(super) const THREEFOLD: Dim = Dim::Sum(&[Dim::Hidden, Dim::Hidden, Dim::Hidden]);

/// A matrix `[in, out]`, which GGUF has as `[out, in]`.
const fn matrix(
    gguf: &'static str,
    hf: &'static str,
    (shape, gguf_shape): (&'static [Dim], &'static [Dim]),
) -> TensorRule {
    TensorRule {
        transform: Transform::Matrix,
        gguf_shape: Some(gguf_shape),
        ..same(gguf, hf, shape)
    }
}

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Dim::Vocab, Dim::Hidden]),
    same("position_embd", "transformer.wpe", &[Dim::Field("n_positions"), Dim::Hidden]),
    same("output_norm", "transformer.ln_f", &[Dim::Hidden]),
    optional("output", "lm_head", &[Dim::Vocab, Dim::Hidden]),
    same("blk.{i}.attn_norm", "transformer.h.{i}.ln_1", &[Dim::Hidden]),
    matrix(
        "blk.{i}.attn_qkv",
        "transformer.h.{i}.attn.c_attn",
        (&[Dim::Hidden, THREEFOLD], &[THREEFOLD, Dim::Hidden]),
    ),
    matrix(
        "blk.{i}.attn_output",
        "transformer.h.{i}.attn.c_proj",
        (&[Dim::Hidden, Dim::Hidden], &[Dim::Hidden, Dim::Hidden]),
    ),
    same("blk.{i}.ffn_norm", "transformer.h.{i}.ln_2", &[Dim::Hidden]),
    matrix(
        "blk.{i}.ffn_up",
        "transformer.h.{i}.mlp.c_fc",
        (&[Dim::Hidden, FOURFOLD], &[FOURFOLD, Dim::Hidden]),
    ),
    matrix(
        "blk.{i}.ffn_down",
        "transformer.h.{i}.mlp.c_proj",
        (&[FOURFOLD, Dim::Hidden], &[Dim::Hidden, FOURFOLD]),
    ),
];

/// What always has a bias.
pub(super) const BIASES: &[&str] = &[
    "output_norm",
    "blk.{i}.attn_norm",
    "blk.{i}.attn_qkv",
    "blk.{i}.attn_output",
    "blk.{i}.ffn_norm",
    "blk.{i}.ffn_up",
    "blk.{i}.ffn_down",
];

pub(super) const GPT2: ModelClass = ModelClass {
    gguf: "gpt2",
    classes: &["GPT2LMHeadModel"],
    model_type: "gpt2",
    defaults: &[
        ("n_positions", Default::Int(1024)),
        ("layer_norm_epsilon", Default::Float(1e-5)),
        ("tie_word_embeddings", Default::Bool(true)),
    ],
    implied: &[
        ("activation_function", Default::Text("gelu_new")),
        ("scale_attn_weights", Default::Bool(true)),
        ("scale_attn_by_inverse_layer_idx", Default::Bool(false)),
        ("add_cross_attention", Default::Bool(false)),
    ],
    own_fields: &[
        ("max_position_embeddings", "n_positions"),
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ],
    equal_fields: &[("n_ctx", "n_positions")],
    biases: &[("", BIASES)],
    tensors: &[TENSORS],
    other_tensors: &[],
    settings: &[&[
        setting(Kind::TimesHidden(4), "feed_forward_length", &["n_inner"]),
        // Heads of keys and values are those of queries.
        setting(Kind::Omitted, "attention.head_count_kv", &[]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        has_fixed_rope: true,
        prefix: Some("transformer."),
        ..Traits::PLAIN
    },
};
