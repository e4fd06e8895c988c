//! CodeShell: GPT-2 with positions by rotation and groups of heads.
//!
//! Source: `conversion/codeshell.py` of llama.cpp; defaults of the code beside published models.

use serde_json::{Map, Value, json};

use super::gemma::approximate_gelu;
use super::gpt_bigcode::LINEAR;
use super::gpt2::BIASES;
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;

const OWN: &[TensorRule] = &[same(
    "blk.{i}.attn_qkv",
    "transformer.h.{i}.attn.c_attn",
    &[Sum(&[Hidden, Keys, Keys]), Hidden],
)];

pub(super) const CODESHELL: ModelClass = ModelClass {
    gguf: "codeshell",
    classes: &["CodeShellForCausalLM"],
    model_type: "codeshell",
    defaults: &[
        ("n_positions", Int(8192)),
        ("num_query_groups", Int(8)),
        ("layer_norm_epsilon", Float(1e-5)),
        ("activation_function", Text("gelu_pytorch_tanh")),
        ("rope_theta", Float(10_000.0)),
    ],
    implied: &[
        ("rope_theta", Float(10_000.0)),
        ("position_embedding_type", Text("rope")),
        ("group_query_attention", Bool(true)),
        ("scale_attn_weights", Bool(true)),
    ],
    own_fields: &[
        ("max_position_embeddings", "n_positions"),
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ],
    biases: &[("", BIASES)],
    tensors: &[LINEAR, OWN],
    settings: &[&[setting(Kind::TimesHidden(4), "feed_forward_length", &["n_inner"])]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        needs_output: true,
        laws: &[approximate_gelu],
        completes: &[complete],
        restores: &[restore],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

const GROUPS: &str = "num_query_groups";
const SCALING: &str = "rope_scaling";

/// GGUF has a scaling by 1, and the heads of keys under their usual name.
fn complete(fields: &mut Fields) -> Result<()> {
    let groups = fields.0.get(GROUPS).cloned();
    fields
        .0
        .extend(groups.map(|groups| ("num_key_value_heads".to_owned(), groups)));
    let none = json!({"type": "linear", "factor": 1.0});
    let is_none = |found: &Value| {
        let is_linear = found["type"] == "linear" || found["rope_type"] == "linear";
        is_linear && found["factor"].as_f64() == Some(1.0)
    };
    if fields.0.get(SCALING).is_some_and(|found| !is_none(found)) {
        return Err(wrong(SCALING, "llama.cpp's codeshell has none"));
    }
    fields.0.insert(SCALING.to_owned(), none);
    Ok(())
}

fn restore(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    config.remove("rope_theta");
    let groups = config.remove("num_key_value_heads");
    config.extend(groups.map(|groups| (GROUPS.to_owned(), groups)));
    Ok(())
}
