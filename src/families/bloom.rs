//! BLOOM.
//!
//! Source: `conversion/bloom.py` of llama.cpp; defaults of transformers 4.57.6.

use super::CAUSAL;
use super::gpt_neox::QUERIES_KEYS_VALUES;
use super::gpt2::{BIASES, FOURFOLD, THREEFOLD};
use crate::families::engine::rows::*;

/// What follows attention, and the feed-forward layer.
pub(super) const PROJECTIONS: &[TensorRule] = &[
    same("blk.{i}.attn_output", "transformer.h.{i}.self_attention.dense", &[Hidden, Hidden]),
    same("blk.{i}.ffn_up", "transformer.h.{i}.mlp.dense_h_to_4h", &[FOURFOLD, Hidden]),
    same("blk.{i}.ffn_down", "transformer.h.{i}.mlp.dense_4h_to_h", &[Hidden, FOURFOLD]),
];

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.word_embeddings", &[Vocab, Hidden]),
    same("token_embd_norm", "transformer.word_embeddings_layernorm", &[Hidden]),
    same("output_norm", "transformer.ln_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.h.{i}.input_layernorm", &[Hidden]),
    TensorRule {
        transform: Transform::Parts(QUERIES_KEYS_VALUES),
        ..same(
            "blk.{i}.attn_qkv",
            "transformer.h.{i}.self_attention.query_key_value",
            &[THREEFOLD, Hidden],
        )
    },
    same("blk.{i}.ffn_norm", "transformer.h.{i}.post_attention_layernorm", &[Hidden]),
];

pub(super) const BLOOM: ModelClass = ModelClass {
    gguf: "bloom",
    classes: &["BloomForCausalLM", "BloomModel"],
    model_type: "bloom",
    defaults: &[("layer_norm_epsilon", Float(1e-5)), ("tie_word_embeddings", Bool(true))],
    implied: &[("apply_residual_connection_post_layernorm", Bool(false))],
    own_fields: &[
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ],
    biases: &[("", BIASES), ("", &["token_embd_norm"])],
    tensors: &[TENSORS, PROJECTIONS],
    settings: &[&[
        // Distances are not bounded, and configs need not say how long the texts of the training
        // were.
        count("context_length", &["seq_length", "hidden_size", "n_embed"]),
        setting(Kind::TimesHidden(4), "feed_forward_length", &[]),
        count("attention.head_count_kv", &["n_head", "num_attention_heads"]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        prefix: Some("transformer."),
        // Distances count backwards in transformers, if tokens see those behind them.
        also_implied: &[CAUSAL],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};
