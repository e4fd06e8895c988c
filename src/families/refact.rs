//! Refact: heads that share one of keys and values, and scores that fall with the distance.
//!
//! Source: `conversion/refact.py` of llama.cpp; defaults of the code beside published models.

use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, HIDDEN};
use crate::families::engine::rows::*;
use serde_json::{Map, Value};

const BOTH: Turn = Turn::Equal(2);
const KEYS: &str = "transformer.h.{i}.attn.kv";
const GATES: &str = "transformer.h.{i}.mlp.gate_up_proj";

/// The first or the second half of the rows of a matrix.
const fn half(
    gguf: &'static str,
    hf: &'static str,
    (half, shape, gguf_shape): (usize, &'static [Dim], &'static [Dim]),
) -> TensorRule {
    TensorRule {
        transform: Transform::Parts(Parts::one(BOTH, half)),
        gguf_shape: Some(gguf_shape),
        ..same(gguf, hf, shape)
    }
}

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Vocab, Hidden]),
    same("output_norm", "ln_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.h.{i}.ln_1", &[Hidden]),
    same("blk.{i}.attn_q", "transformer.h.{i}.attn.q", &[Hidden, Hidden]),
    half("blk.{i}.attn_k", KEYS, (0, &[Sum(&[Head, Head]), Hidden], &[Head, Hidden])),
    half("blk.{i}.attn_v", KEYS, (1, &[Sum(&[Head, Head]), Hidden], &[Head, Hidden])),
    same("blk.{i}.attn_output", "transformer.h.{i}.attn.c_proj", &[Hidden, Hidden]),
    same("blk.{i}.ffn_norm", "transformer.h.{i}.ln_2", &[Hidden]),
    half("blk.{i}.ffn_gate", GATES, (0, &[TwoInner, Hidden], &[Inner, Hidden])),
    half("blk.{i}.ffn_up", GATES, (1, &[TwoInner, Hidden], &[Inner, Hidden])),
    same("blk.{i}.ffn_down", "transformer.h.{i}.mlp.c_proj", &[Hidden, Inner]),
];

pub(super) const REFACT: ModelClass = ModelClass {
    gguf: "refact",
    classes: &["GPTRefactForCausalLM"],
    model_type: "gpt_refact",
    defaults: &[("n_positions", Int(4096)), ("layer_norm_epsilon", Float(1e-5))],
    implied: &[("activation_function", Text("silu")), ("multi_query", Bool(true))],
    own_fields: &[
        ("max_position_embeddings", "n_positions"),
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("rms_norm_eps", EPSILON),
    ],
    tensors: &[TENSORS],
    settings: &[&[
        setting(Kind::Fixed(1), "attention.head_count_kv", &[]),
        number("attention.layer_norm_rms_epsilon", &[EPSILON]),
        setting(Kind::Omitted, "attention.layer_norm_epsilon", &[]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        completes: &[complete],
        restores: &[restore],
        ..Traits::PLAIN
    },
    tokenizer: &TOKENIZER,
    ..ModelClass::PLAIN
};

const EPSILON: &str = "layer_norm_epsilon";
const WIDTH: &str = "intermediate_size";

/// Two thirds of four times the hidden size, to the next multiple of 256.
fn complete(fields: &mut Fields) -> Result<()> {
    let width = (u64::from(fields.need(HIDDEN)?) * 8 / 3).next_multiple_of(256);
    fields.0.insert(WIDTH.to_owned(), width.into());
    fields.0.insert("num_key_value_heads".to_owned(), 1.into());
    Ok(())
}

fn restore(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    config.remove(WIDTH);
    config.insert("multi_query".to_owned(), true.into());
    Ok(())
}

/// Tokens that stand around a gap in a text.
const TOKENIZER: TokenizerRules = TokenizerRules {
    after: &[
        KeyRule::Id("prefix_token_id", 1),
        KeyRule::Id("suffix_token_id", 3),
        KeyRule::Id("middle_token_id", 2),
    ],
    ..TokenizerRules::PLAIN
};
