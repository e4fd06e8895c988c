//! StarCoder and SantaCoder (GPTBigCode): GPT-2 whose heads share one of keys and values.
//!
//! Source: `conversion/starcoder.py` of llama.cpp; defaults of transformers 5.24.

use super::gemma::approximate_gelu;
use super::gpt2::{FOURFOLD, GPT2};
use crate::families::engine::dims::Dim;
use crate::families::engine::table::{
    Default, Kind, ModelClass, TensorRule, Traits, optional, same, setting,
};

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Dim::Vocab, Dim::Hidden]),
    same("position_embd", "transformer.wpe", &[Dim::Field("n_positions"), Dim::Hidden]),
    same("output_norm", "transformer.ln_f", &[Dim::Hidden]),
    optional("output", "lm_head", &[Dim::Vocab, Dim::Hidden]),
    same("blk.{i}.attn_norm", "transformer.h.{i}.ln_1", &[Dim::Hidden]),
    same(
        "blk.{i}.attn_qkv",
        "transformer.h.{i}.attn.c_attn",
        &[Dim::Sum(&[Dim::Hidden, Dim::Head, Dim::Head]), Dim::Hidden],
    ),
    same("blk.{i}.attn_output", "transformer.h.{i}.attn.c_proj", &[Dim::Hidden, Dim::Hidden]),
    same("blk.{i}.ffn_norm", "transformer.h.{i}.ln_2", &[Dim::Hidden]),
    same("blk.{i}.ffn_up", "transformer.h.{i}.mlp.c_fc", &[FOURFOLD, Dim::Hidden]),
    same("blk.{i}.ffn_down", "transformer.h.{i}.mlp.c_proj", &[Dim::Hidden, FOURFOLD]),
];

pub(super) const GPT_BIGCODE: ModelClass = ModelClass {
    gguf: "starcoder",
    classes: &["GPTBigCodeForCausalLM"],
    model_type: "gpt_bigcode",
    defaults: &[
        ("n_positions", Default::Int(1024)),
        ("layer_norm_epsilon", Default::Float(1e-5)),
        ("activation_function", Default::Text("gelu_pytorch_tanh")),
        ("tie_word_embeddings", Default::Bool(true)),
    ],
    implied: &[
        ("multi_query", Default::Bool(true)),
        ("scale_attn_weights", Default::Bool(true)),
        ("add_cross_attention", Default::Bool(false)),
    ],
    equal_fields: &[],
    tensors: &[TENSORS],
    settings: &[&[
        setting(Kind::TimesHidden(4), "feed_forward_length", &["n_inner"]),
        setting(Kind::Fixed(1), "attention.head_count_kv", &[]),
    ]],
    traits: Traits { laws: &[approximate_gelu], ..GPT2.traits },
    ..GPT2
};
