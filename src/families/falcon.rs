//! Falcon: the 7B model, whose heads share one of keys and values, and the later ones with groups
//! of heads and two norms, or one (11B).
//!
//! Source: `conversion/falcon.py` of llama.cpp; defaults of transformers 4.57.6.

use serde_json::{Map, Value};

use super::internlm::GROUP;
use crate::families::engine::rows::*;

use super::bloom::PROJECTIONS;
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, HEADS};

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.word_embeddings", &[Vocab, Hidden]),
    same("output_norm", "transformer.ln_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    TensorRule {
        transform: Transform::Parts(Parts::all(GROUP)),
        ..same(
            "blk.{i}.attn_qkv",
            "transformer.h.{i}.self_attention.query_key_value",
            &[Sum(&[Queries, Keys, Keys]), Hidden],
        )
    },
];

const ONE_NORM: &[TensorRule] =
    &[same("blk.{i}.attn_norm", "transformer.h.{i}.input_layernorm", &[Hidden])];

/// Norms in front of the feed-forward layer and of attention.
const TWO_NORMS: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "transformer.h.{i}.ln_mlp", &[Hidden]),
    same("blk.{i}.attn_norm_2", "transformer.h.{i}.ln_attn", &[Hidden]),
];

const SETTINGS: &[Setting] = &[
    setting(Kind::Fixed(2048), "context_length", &[]),
    setting(Kind::Text("jploski"), "tensor_data_layout", &[]),
    setting(Kind::TimesHidden(4), "feed_forward_length", &["ffn_hidden_size"]),
];

const TRAITS: Traits = Traits {
    head_dim: HeadDim::Derived,
    rope: RopeTraits::FIXED,
    prefix: Some("transformer."),
    ..Traits::PLAIN
};

pub(super) const FALCON: ModelClass = ModelClass {
    gguf: "falcon",
    // The second is that of the code beside the first models.
    classes: &["FalconForCausalLM", "RWForCausalLM"],
    model_type: "falcon",
    defaults: &[
        ("layer_norm_epsilon", Float(1e-5)),
        ("multi_query", Bool(true)),
        ("tie_word_embeddings", Bool(true)),
    ],
    implied: &[
        ("max_position_embeddings", Int(2048)),
        ("alibi", Bool(false)),
        ("bias", Bool(false)),
        ("parallel_attn", Bool(true)),
        ("activation", Text("gelu")),
        ("new_decoder_architecture", Bool(false)),
    ],
    own_fields: &[
        ("layer_norm_eps", "layer_norm_epsilon"),
        ("num_key_value_heads", "num_kv_heads"),
    ],
    biases: &[("", &["output_norm", "blk.{i}.attn_norm"])],
    tensors: &[TENSORS, PROJECTIONS, ONE_NORM],
    settings: &[SETTINGS],
    traits: Traits { completes: &[complete_kv_heads], restores: &[restore_multi_query], ..TRAITS },
    ..ModelClass::PLAIN
};

pub(super) const FALCON_NEW: ModelClass = ModelClass {
    defaults: &[("layer_norm_epsilon", Float(1e-5)), ("tie_word_embeddings", Bool(true))],
    implied: &[
        ("max_position_embeddings", Int(2048)),
        ("alibi", Bool(false)),
        ("bias", Bool(false)),
        ("activation", Text("gelu")),
        ("new_decoder_architecture", Bool(true)),
        (NORMS_OF_LAYER, Int(2)),
    ],
    biases: &[("", &["output_norm", "blk.{i}.attn_norm", "blk.{i}.attn_norm_2"])],
    tensors: &[TENSORS, PROJECTIONS, TWO_NORMS],
    traits: Traits {
        config_sign: Some("new_decoder_architecture"),
        sign: Sign::Tensor("blk.0.attn_norm_2.weight"),
        ..TRAITS
    },
    ..FALCON
};

/// Later models with one norm in front of both parts of a layer.
pub(super) const FALCON_11B: ModelClass = ModelClass {
    implied: &[
        ("max_position_embeddings", Int(2048)),
        ("alibi", Bool(false)),
        ("bias", Bool(false)),
        ("activation", Text("gelu")),
        ("new_decoder_architecture", Bool(true)),
        (NORMS_OF_LAYER, Int(1)),
    ],
    biases: FALCON.biases,
    tensors: FALCON.tensors,
    traits: Traits {
        config_sign: Some("new_decoder_architecture"),
        config_value: Some((NORMS_OF_LAYER, Int(1))),
        sign: Sign::Never,
        ..TRAITS
    },
    ..FALCON_NEW
};

const NORMS_OF_LAYER: &str = "num_ln_in_parallel_attn";

/// Field of whether all heads share one of keys and values. Else none do, but in [`FALCON_11B`].
const MULTI_QUERY: &str = "multi_query";

fn complete_kv_heads(fields: &mut Fields) -> Result<()> {
    let heads = match fields.flag(MULTI_QUERY) {
        true => 1,
        false => fields.need(HEADS)?,
    };
    fields.0.insert("num_kv_heads".to_owned(), heads.into());
    Ok(())
}

fn restore_multi_query(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let is_multi_query = match (dims.heads, dims.kv_heads) {
        (_, 1) => true,
        (heads, kv_heads) if heads == kv_heads => false,
        (_, kv_heads) => {
            config.insert("num_kv_heads".to_owned(), kv_heads.into());
            config.insert("new_decoder_architecture".to_owned(), true.into());
            config.insert(NORMS_OF_LAYER.to_owned(), 1.into());
            config.remove(MULTI_QUERY);
            return Ok(());
        }
    };
    config.insert(MULTI_QUERY.to_owned(), is_multi_query.into());
    Ok(())
}
