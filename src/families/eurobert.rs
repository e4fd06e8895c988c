//! EuroBERT: an encoder with the layers of Llama.
//!
//! Source: `EuroBertModel` in `conversion/bert.py` of llama.cpp; defaults of transformers 5.24.

use super::{ENDS, MLP, NORMS, QUERIES, VALUES};
use crate::families::engine::pooling::POOLING;
use crate::families::engine::rows::*;

pub(super) const EUROBERT: ModelClass = ModelClass {
    gguf: "eurobert",
    classes: &["EuroBertModel", "JinaEmbeddingsV5Model"],
    model_type: "eurobert",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("attention_bias", Bool(false)),
        ("mlp_bias", Bool(false)),
    ],
    tensors: &[&[ENDS[0], ENDS[1]], NORMS, QUERIES, VALUES, MLP],
    settings: &[&[
        setting(Kind::FixedFlag(false), "attention.causal", &[]),
        setting(Kind::Text("none"), "rope.scaling.type", &[]),
        count(POOLING, &[POOLING]),
    ]],
    // An encoder has no `lm_head`.
    traits: Traits { ties_output: true, ..Traits::PLAIN },
    tokenizer: &TokenizerRules {
        before: &[KeyRule::Flag("add_bos_token", false)],
        ..TokenizerRules::PLAIN
    },
    ..ModelClass::PLAIN
};
