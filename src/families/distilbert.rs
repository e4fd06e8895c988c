//! DistilBERT: BERT without types of tokens, under other names.
//!
//! Source: `DistilBertModel` in `conversion/bert.py` of llama.cpp; defaults of transformers 4.57.6.

use super::bert::{BERT, RANK_SETTINGS, SETTINGS};
use crate::families::engine::rows::*;

/// Tensors whose names in transformers begin with a prefix.
macro_rules! encoder {
    ($prefix:literal) => {
        &[
            same("token_embd", concat!($prefix, "embeddings.word_embeddings"), &[Vocab, Hidden]),
            same(
                "position_embd",
                concat!($prefix, "embeddings.position_embeddings"),
                &[Field("max_position_embeddings"), Hidden],
            ),
            same("token_embd_norm", concat!($prefix, "embeddings.LayerNorm"), &[Hidden]),
            same(
                "blk.{i}.attn_q",
                concat!($prefix, "transformer.layer.{i}.attention.q_lin"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.attn_k",
                concat!($prefix, "transformer.layer.{i}.attention.k_lin"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.attn_v",
                concat!($prefix, "transformer.layer.{i}.attention.v_lin"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.attn_output",
                concat!($prefix, "transformer.layer.{i}.attention.out_lin"),
                &[Hidden, Hidden],
            ),
            same(
                "blk.{i}.attn_output_norm",
                concat!($prefix, "transformer.layer.{i}.sa_layer_norm"),
                &[Hidden],
            ),
            same(
                "blk.{i}.ffn_up",
                concat!($prefix, "transformer.layer.{i}.ffn.lin1"),
                &[Inner, Hidden],
            ),
            same(
                "blk.{i}.ffn_down",
                concat!($prefix, "transformer.layer.{i}.ffn.lin2"),
                &[Hidden, Inner],
            ),
            same(
                "blk.{i}.layer_output_norm",
                concat!($prefix, "transformer.layer.{i}.output_layer_norm"),
                &[Hidden],
            ),
        ]
    };
}

pub(super) const DISTILBERT: ModelClass = ModelClass {
    classes: &["DistilBertModel", "DistilBertForMaskedLM"],
    model_type: "distilbert",
    defaults: &[
        ("max_position_embeddings", Int(512)),
        ("n_layers", Int(6)),
        ("n_heads", Int(12)),
        ("dim", Int(768)),
        ("hidden_dim", Int(3072)),
        ("pad_token_id", Int(0)),
        ("layer_norm_eps", EPSILON),
    ],
    // The class has no field for the epsilon, and this is its number.
    implied: &[("activation", Text("gelu")), ("layer_norm_eps", EPSILON)],
    own_fields: &[
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_heads"),
        ("hidden_size", "dim"),
        ("intermediate_size", "hidden_dim"),
    ],
    tensors: &[encoder!("")],
    settings: &[SETTINGS, NORMS],
    traits: Traits {
        prefix: Some("distilbert."),
        left_out: &["vocab_transform.", "vocab_layer_norm.", "vocab_projector."],
        sign: Sign::Tokenizer("bert"),
        ..BERT.traits
    },
    ..BERT
};

/// DistilBERT that ranks or classifies texts.
pub(super) const DISTILBERT_CLASSIFIER: ModelClass = ModelClass {
    classes: &["DistilBertForSequenceClassification"],
    biases: &[BERT.biases[0], ("", &["cls", "cls.output"])],
    tensors: &[encoder!("distilbert."), CLASSIFIER],
    settings: &[RANK_SETTINGS, NORMS],
    traits: Traits {
        sign: Sign::All(&[Sign::Tokenizer("bert"), Sign::Tensor("cls.output.weight")]),
        other_scores: Some([OTHER_FUNCTION, OTHER_FUNCTION]),
        ..DISTILBERT.traits
    },
    ..DISTILBERT
};

const CLASSIFIER: &[TensorRule] = &[
    same("cls", "pre_classifier", &[Hidden, Hidden]),
    same("cls.output", "classifier", &[Labels, Hidden]),
];

const OTHER_FUNCTION: &str =
    "behind `pre_classifier` llama.cpp has tanh, and transformers ReLU: their scores differ";

const NORMS: &[Setting] = &[number("attention.layer_norm_epsilon", &["layer_norm_eps"])];

const EPSILON: Default = Float(1e-12);
