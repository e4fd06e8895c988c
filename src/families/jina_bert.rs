//! Jina's embeddings of version 2: BERT whose positions are slopes, with gates.
//!
//! Source: `JinaBertV2Model` in `conversion/bert.py` of llama.cpp; defaults of the code beside
//! published models.

use super::bert::SETTINGS;
use crate::families::engine::rows::*;

const TENSORS: &[TensorRule] = &[
    same("token_embd", "embeddings.word_embeddings", &[Vocab, Hidden]),
    same("token_types", "embeddings.token_type_embeddings", &[Field("type_vocab_size"), Hidden]),
    same("token_embd_norm", "embeddings.LayerNorm", &[Hidden]),
    same("blk.{i}.attn_q", "encoder.layer.{i}.attention.self.query", &[Hidden, Hidden]),
    same("blk.{i}.attn_k", "encoder.layer.{i}.attention.self.key", &[Hidden, Hidden]),
    same("blk.{i}.attn_v", "encoder.layer.{i}.attention.self.value", &[Hidden, Hidden]),
    same("blk.{i}.attn_output", "encoder.layer.{i}.attention.output.dense", &[Hidden, Hidden]),
    same("blk.{i}.attn_output_norm", "encoder.layer.{i}.attention.output.LayerNorm", &[Hidden]),
    // The gate and the projection are one matrix.
    same("blk.{i}.ffn_up", "encoder.layer.{i}.mlp.gated_layers", &[TwoInner, Hidden]),
    same("blk.{i}.ffn_down", "encoder.layer.{i}.mlp.wo", &[Hidden, Inner]),
    same("blk.{i}.layer_output_norm", "encoder.layer.{i}.mlp.layernorm", &[Hidden]),
];

pub(super) const JINA_BERT2: ModelClass = ModelClass {
    gguf: "jina-bert-v2",
    classes: &["JinaBertForMaskedLM", "JinaBertModel"],
    model_type: "bert",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("type_vocab_size", Int(2)),
        ("layer_norm_eps", Float(1e-12)),
        ("feed_forward_type", Text("geglu")),
        ("position_embedding_type", Text("alibi")),
    ],
    implied: &[
        ("feed_forward_type", Text("geglu")),
        ("position_embedding_type", Text("alibi")),
        ("is_decoder", Bool(false)),
        ("type_vocab_size", Int(2)),
    ],
    biases: &[(
        "",
        &[
            "token_embd_norm",
            "blk.{i}.attn_q",
            "blk.{i}.attn_k",
            "blk.{i}.attn_v",
            "blk.{i}.attn_output",
            "blk.{i}.attn_output_norm",
            "blk.{i}.ffn_down",
            "blk.{i}.layer_output_norm",
        ],
    )],
    tensors: &[TENSORS],
    settings: &[&[SETTINGS[0], SETTINGS[1], SETTINGS[3]]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        // An encoder has no `lm_head`.
        ties_output: true,
        prefix: Some("bert."),
        left_out: &["pooler.dense.", "cls.predictions."],
        ..Traits::PLAIN
    },
    tokenizer: &TOKENIZER,
    ..ModelClass::PLAIN
};

const TOKENIZER: TokenizerRules = TokenizerRules {
    after: &[KeyRule::Own(|_, keys| {
        if keys.get("tokenizer.ggml.token_type_count").is_none() {
            keys.ggml_number("token_type_count", 2);
        }
        Ok(())
    })],
    ..TokenizerRules::PLAIN
};
