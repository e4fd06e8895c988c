//! ChatGLM: GLM 4 of 2024 under the names of the code beside it, with one matrix of queries, keys and
//! values.
//!
//! Source: `conversion/chatglm.py` of llama.cpp; defaults of the code beside published models.

use serde_json::{Map, Value, json};

use super::glm::GLM;
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, LAYERS};
use crate::families::engine::rows::*;

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.embedding.word_embeddings", &[Vocab, Hidden]),
    same("output_norm", "transformer.encoder.final_layernorm", &[Hidden]),
    optional("output", "transformer.output_layer", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.encoder.layers.{i}.input_layernorm", &[Hidden]),
    same("blk.{i}.ffn_norm", "transformer.encoder.layers.{i}.post_attention_layernorm", &[Hidden]),
    same(
        "blk.{i}.attn_qkv",
        "transformer.encoder.layers.{i}.self_attention.query_key_value",
        &[Sum(&[Hidden, Keys, Keys]), Hidden],
    ),
    same(
        "blk.{i}.attn_output",
        "transformer.encoder.layers.{i}.self_attention.dense",
        &[Hidden, Hidden],
    ),
    same("blk.{i}.ffn_up", "transformer.encoder.layers.{i}.mlp.dense_h_to_4h", &[TwoInner, Hidden]),
    same("blk.{i}.ffn_down", "transformer.encoder.layers.{i}.mlp.dense_4h_to_h", &[Hidden, Inner]),
];

pub(super) const CHATGLM: ModelClass = ModelClass {
    classes: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
    model_type: "chatglm",
    defaults: &[
        ("seq_length", Int(2048)),
        ("ffn_hidden_size", Int(13_696)),
        ("layernorm_epsilon", Float(1e-5)),
        (RATIO, Float(1.0)),
    ],
    implied: &[
        ("rmsnorm", Bool(true)),
        ("post_layer_norm", Bool(true)),
        ("add_bias_linear", Bool(false)),
        ("add_qkv_bias", Bool(true)),
        ("multi_query_attention", Bool(true)),
        ("apply_residual_connection_post_layernorm", Bool(false)),
    ],
    biases: &[("", &["blk.{i}.attn_qkv"])],
    tensors: &[TENSORS],
    traits: Traits {
        left_out: &["transformer.rotary_pos_emb.", "transformer.vision."],
        also_implied: &[("original_rope", Bool(true))],
        completes: &[complete],
        restores: &[restore],
        sign: Sign::Tensor("blk.0.attn_qkv.weight"),
        ..GLM.traits
    },
    ..GLM
};

/// Usual names of fields, and those of the class.
const OWN: &[(&str, &str)] = &[
    ("num_hidden_layers", "num_layers"),
    ("num_key_value_heads", "multi_query_group_num"),
    ("intermediate_size", "ffn_hidden_size"),
    ("rms_norm_eps", "layernorm_epsilon"),
    ("max_position_embeddings", "seq_length"),
    ("vocab_size", "padded_vocab_size"),
];
/// Field of how many times 10000 the base of rope is.
const RATIO: &str = "rope_ratio";
const BASE: &str = "rope_theta";

fn complete(fields: &mut Fields) -> Result<()> {
    fields.need(LAYERS)?;
    for (usual, own) in OWN {
        let value = fields.0.get(*own).cloned();
        fields
            .0
            .extend(value.map(|value| ((*usual).to_owned(), value)));
    }
    let ratio = fields.number(&[RATIO])?.unwrap_or(1.0);
    fields.0.insert(BASE.to_owned(), json!(ratio * 10_000.0));
    Ok(())
}

fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    for (usual, own) in OWN {
        let value = config.remove(*usual);
        config.extend(value.map(|value| ((*own).to_owned(), value)));
    }
    let base = config.remove(BASE).and_then(|base| base.as_f64());
    config.insert(RATIO.to_owned(), json!(base.unwrap_or(10_000.0) / 10_000.0));
    config.insert("kv_channels".to_owned(), dims.head.into());
    config.insert("original_rope".to_owned(), true.into());
    Ok(())
}
