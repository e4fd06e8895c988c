//! StarCoder and SantaCoder (GPTBigCode): GPT-2 whose heads share one of keys and values.
//!
//! Source: `conversion/starcoder.py` of llama.cpp; defaults of transformers 5.24.

use super::gemma::approximate_gelu;
use super::gpt2::{FOURFOLD, GPT2};
use crate::families::engine::rows::*;

/// What models of code have in common: GPT-2's names, and matrices that are `[out, in]`.
pub(super) const LINEAR: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Vocab, Hidden]),
    same("output_norm", "transformer.ln_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.h.{i}.ln_1", &[Hidden]),
    same("blk.{i}.attn_output", "transformer.h.{i}.attn.c_proj", &[Hidden, Hidden]),
    same("blk.{i}.ffn_norm", "transformer.h.{i}.ln_2", &[Hidden]),
    same("blk.{i}.ffn_up", "transformer.h.{i}.mlp.c_fc", &[FOURFOLD, Hidden]),
    same("blk.{i}.ffn_down", "transformer.h.{i}.mlp.c_proj", &[Hidden, FOURFOLD]),
];

const OWN: &[TensorRule] = &[
    same("position_embd", "transformer.wpe", &[Field("n_positions"), Hidden]),
    same(
        "blk.{i}.attn_qkv",
        "transformer.h.{i}.attn.c_attn",
        &[Sum(&[Hidden, Head, Head]), Hidden],
    ),
];

pub(super) const GPT_BIGCODE: ModelClass = ModelClass {
    gguf: "starcoder",
    classes: &["GPTBigCodeForCausalLM"],
    model_type: "gpt_bigcode",
    defaults: &[
        ("n_positions", Int(1024)),
        ("layer_norm_epsilon", Float(1e-5)),
        ("activation_function", Text("gelu_pytorch_tanh")),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("multi_query", Bool(true)),
        ("scale_attn_weights", Bool(true)),
        ("add_cross_attention", Bool(false)),
    ],
    equal_fields: &[],
    tensors: &[LINEAR, OWN],
    settings: &[&[
        setting(Kind::TimesHidden(4), "feed_forward_length", &["n_inner"]),
        setting(Kind::Fixed(1), "attention.head_count_kv", &[]),
    ]],
    traits: Traits { laws: &[approximate_gelu], ..GPT2.traits },
    mlx: Some(&GPT_BIGCODE_MLX),
    ..GPT2
};

const GPT_BIGCODE_MLX: MlxClass = MlxClass {
    implied: &[("multi_query", Bool(true)), ("scale_attn_weights", Bool(true))],
    activation: exact_gelu("activation_function"),
    stated_fields: &[&["n_inner", "n_positions", "layer_norm_epsilon"]],
    ..MlxClass::PLAIN
};
