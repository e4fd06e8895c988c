//! DistilBERT: BERT without types of tokens, under other names.
//!
//! Source: `DistilBertModel` in `conversion/bert.py` of llama.cpp; defaults of transformers 4.57.6.

use super::bert::{BERT, SETTINGS};
use crate::arch::dims::Dim;
use crate::arch::table::{Default, ModelClass, Sign, TensorRule, Traits, number, same};

const TENSORS: &[TensorRule] = &[
    same(
        "token_embd",
        "embeddings.word_embeddings",
        &[Dim::Vocab, Dim::Hidden],
    ),
    same(
        "position_embd",
        "embeddings.position_embeddings",
        &[Dim::Field("max_position_embeddings"), Dim::Hidden],
    ),
    same("token_embd_norm", "embeddings.LayerNorm", &[Dim::Hidden]),
    same(
        "blk.{i}.attn_q",
        "transformer.layer.{i}.attention.q_lin",
        &[Dim::Hidden, Dim::Hidden],
    ),
    same(
        "blk.{i}.attn_k",
        "transformer.layer.{i}.attention.k_lin",
        &[Dim::Hidden, Dim::Hidden],
    ),
    same(
        "blk.{i}.attn_v",
        "transformer.layer.{i}.attention.v_lin",
        &[Dim::Hidden, Dim::Hidden],
    ),
    same(
        "blk.{i}.attn_output",
        "transformer.layer.{i}.attention.out_lin",
        &[Dim::Hidden, Dim::Hidden],
    ),
    same(
        "blk.{i}.attn_output_norm",
        "transformer.layer.{i}.sa_layer_norm",
        &[Dim::Hidden],
    ),
    same(
        "blk.{i}.ffn_up",
        "transformer.layer.{i}.ffn.lin1",
        &[Dim::Inner, Dim::Hidden],
    ),
    same(
        "blk.{i}.ffn_down",
        "transformer.layer.{i}.ffn.lin2",
        &[Dim::Hidden, Dim::Inner],
    ),
    same(
        "blk.{i}.layer_output_norm",
        "transformer.layer.{i}.output_layer_norm",
        &[Dim::Hidden],
    ),
];

pub(super) const DISTILBERT: ModelClass = ModelClass {
    classes: &["DistilBertModel", "DistilBertForMaskedLM"],
    model_type: "distilbert",
    defaults: &[
        ("max_position_embeddings", Default::Int(512)),
        ("n_layers", Default::Int(6)),
        ("n_heads", Default::Int(12)),
        ("dim", Default::Int(768)),
        ("hidden_dim", Default::Int(3072)),
        ("pad_token_id", Default::Int(0)),
        ("layer_norm_eps", EPSILON),
    ],
    // The class has no field for the epsilon, and this is its number.
    implied: &[
        ("activation", Default::Text("gelu")),
        ("layer_norm_eps", EPSILON),
    ],
    own_fields: &[
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_heads"),
        ("hidden_size", "dim"),
        ("intermediate_size", "hidden_dim"),
    ],
    tensors: &[TENSORS],
    settings: &[
        SETTINGS,
        &[number("attention.layer_norm_epsilon", &["layer_norm_eps"])],
    ],
    traits: Traits {
        prefix: Some("distilbert."),
        left_out: &["vocab_transform.", "vocab_layer_norm.", "vocab_projector."],
        sign: Sign::Tokenizer("bert"),
        ..BERT.traits
    },
    ..BERT
};

const EPSILON: Default = Default::Float(1e-12);
