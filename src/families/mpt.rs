//! MPT, whose attention has a config of its own inside the config.
//!
//! Source: `conversion/mpt.py` of llama.cpp; defaults of transformers 5.24. Published models have
//! the code of their class beside them, which reads more fields than transformers does.

use serde_json::{Map, Value, json};

use super::CAUSAL;
use super::gpt2::{FOURFOLD, THREEFOLD};
use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, wrong};
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataValue;

const TENSORS: &[TensorRule] = &[
    same("token_embd", "transformer.wte", &[Vocab, Hidden]),
    same("output_norm", "transformer.norm_f", &[Hidden]),
    optional("output", "lm_head", &[Vocab, Hidden]),
    same("blk.{i}.attn_norm", "transformer.blocks.{i}.norm_1", &[Hidden]),
    same("blk.{i}.attn_qkv", "transformer.blocks.{i}.attn.Wqkv", &[THREEFOLD, Hidden]),
    same("blk.{i}.attn_output", "transformer.blocks.{i}.attn.out_proj", &[Hidden, Hidden]),
    same("blk.{i}.ffn_norm", "transformer.blocks.{i}.norm_2", &[Hidden]),
    same("blk.{i}.ffn_up", "transformer.blocks.{i}.ffn.up_proj", &[FOURFOLD, Hidden]),
    same("blk.{i}.ffn_down", "transformer.blocks.{i}.ffn.down_proj", &[Hidden, FOURFOLD]),
];

pub(super) const MPT: ModelClass = ModelClass {
    gguf: "mpt",
    // The second is that of published models.
    classes: &["MptForCausalLM", "MPTForCausalLM"],
    model_type: "mpt",
    defaults: &[
        ("max_seq_len", Int(2048)),
        ("layer_norm_epsilon", Float(1e-5)),
        ("tie_word_embeddings", Bool(true)),
        (LARGEST_BIAS, Int(8)),
    ],
    implied: &[("expansion_ratio", Int(4)), ("no_bias", Bool(true))],
    own_fields: &[
        ("max_position_embeddings", "max_seq_len"),
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_heads"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ],
    tensors: &[TENSORS],
    settings: &[&[
        count("context_length", &["max_seq_len"]),
        setting(Kind::TimesHidden(4), "feed_forward_length", &[]),
        // Heads of keys and values are those of queries.
        setting(Kind::Omitted, "attention.head_count_kv", &[]),
        number("attention.clamp_kqv", &[CLAMP]),
        setting(Kind::Own(&BIAS), "attention.max_alibi_bias", &[LARGEST_BIAS]),
    ]],
    traits: Traits {
        head_dim: HeadDim::Derived,
        rope: RopeTraits::FIXED,
        prefix: Some("transformer."),
        also_implied: &[
            // Distances count backwards in transformers, if tokens see those behind them.
            CAUSAL,
            ("logit_scale", Absent),
            ("attn_config.attn_type", Text("multihead_attention")),
            ("attn_config.alibi", Bool(true)),
            ("attn_config.prefix_lm", Bool(false)),
            ("attn_config.qk_ln", Bool(false)),
            ("attn_config.qk_gn", Bool(false)),
            ("attn_config.rope", Bool(false)),
            ("attn_config.sliding_window_size", Float(-1.0)),
            ("attn_config.attn_logit_softcapping", Absent),
            ("ffn_config.ffn_type", Text("mptmlp")),
            ("ffn_config.ffn_act_fn", Absent),
        ],
        laws: &[norms, scale, heads_of_keys, slopes],
        completes: &[complete],
        restores: &[restore],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

/// The configs inside the config.
const NESTED: &[&str] = &["attn_config", "ffn_config"];
/// Field of what queries, keys and values are clamped to.
const CLAMP: &str = "attn_config.clip_qkv";
/// Field of the exponent of the last head's slope, by which a distance lowers scores.
const LARGEST_BIAS: &str = "attn_config.alibi_bias_max";
/// What transformers has there, whatever a config says.
const USUAL_BIAS: f64 = 8.0;

/// FLOAT32 that is above 0: without it llama.cpp knows no positions. The field is an integer.
const BIAS: OwnSetting = required(own(
    |setting, model| match model.fields.count(setting.fields)? {
        Some(0) | None => Err(setting.wrong("without it the model knows no positions")),
        Some(exponent) => Ok(Some(GgufMetadataValue::F32(exponent as f32))),
    },
    |stated, _| match *stated.value {
        GgufMetadataValue::F32(bias) if bias >= 1.0 && bias.fract() == 0.0 && bias < 1e6 => {
            Ok(Some(Value::from(bias as u32)))
        }
        _ => Err(stated.other_type()),
    },
));

/// Adds the fields of the configs `inside`, with the name of theirs in front.
pub(super) fn flatten(fields: &mut Fields, inside: &[&str]) -> Result<()> {
    for name in inside {
        let nested = match fields.0.get(*name) {
            None => continue,
            Some(Value::Object(nested)) => Fields::of(nested.clone()),
            Some(_) => return Err(wrong(name, "it is no object")),
        };
        let nested = nested.0.into_iter();
        fields
            .0
            .extend(nested.map(|(field, value)| (format!("{name}.{field}"), value)));
    }
    Ok(())
}

fn complete(fields: &mut Fields) -> Result<()> {
    flatten(fields, NESTED)?;
    match fields.number(&[CLAMP])? {
        // No clamp, in transformers and in llama.cpp.
        Some(0.0) => drop(fields.0.remove(CLAMP)),
        Some(..0.0) => return Err(wrong(CLAMP, "it is below 0")),
        _ => {}
    }
    Ok(())
}

/// Moves the fields of the config inside out of the one around it, with those of which the code of
/// published models has another default.
fn restore(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    // llama.cpp clamps above 0.
    let clamp = config.remove(CLAMP);
    let clamp = clamp.filter(|clamp| clamp.as_f64() > Some(0.0));
    let bias = config.remove(LARGEST_BIAS);
    let nested = json!({"alibi": true, "alibi_bias_max": bias, "clip_qkv": clamp});
    config.insert(NESTED[0].to_owned(), nested);
    Ok(())
}

/// Norms of published models may be of another kind, of which transformers does not ask.
fn norms(model: &Model<'_>) -> Result<Option<String>> {
    const FIELD: &str = "norm_type";
    match model.fields.0.get(FIELD) {
        Some(kind) if kind != "layernorm" && kind != "low_precision_layernorm" => {
            let what = format!("it is {kind}, and {} has layernorm", model.owner());
            Err(wrong(FIELD, what))
        }
        _ => Ok(None),
    }
}

/// llama.cpp scales by the length of a head alone.
fn scale(model: &Model<'_>) -> Result<Option<String>> {
    const FIELD: &str = "attn_config.softmax_scale";
    let usual = (model.dims.head as f64).sqrt().recip();
    let found = model.fields.number(&[FIELD])?;
    match found.filter(|found| (found - usual).abs() > usual * 1e-6) {
        None => Ok(None),
        Some(found) => {
            let what = format!("it is {found}, and {} has {usual}", model.owner());
            Err(wrong(FIELD, what))
        }
    }
}

/// The code of published models may have fewer heads of keys and values, and transformers has not.
fn heads_of_keys(model: &Model<'_>) -> Result<Option<String>> {
    model.expect("attn_config.kv_n_heads", &model.dims.heads.into())
}

fn slopes(model: &Model<'_>) -> Result<Option<String>> {
    let found = model.fields.number(&[LARGEST_BIAS])?;
    Ok(found.filter(|found| *found != USUAL_BIAS).map(|found| {
        format!("`{LARGEST_BIAS}` is {found}, as llama.cpp and the code of published models have it; transformers ignores it and takes {USUAL_BIAS}")
    }))
}
