//! MiniMax Text 01 and M1: linear attention with decays in most layers, and experts in all.
//!
//! Source: `MiniMaxText01Model` in `conversion/minimax.py` of llama.cpp; configs of the published
//! models.

use serde_json::{Map, Value};

use super::llama::MIXTRAL_EXPERTS;
use super::{ENDS, NORMS, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{FULL_ATTENTION, Fields, LAYER_KINDS, LAYERS, array, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;
use crate::model::gguf::GgufMetadataArray;

const LINEAR: &str = "linear_attention";
const DECAYING: Need = Need::Kind(LINEAR);
const FULL: Need = Need::Kind(FULL_ATTENTION);

const ATTENTION: &[TensorRule] = &[
    in_layers(FULL, QUERIES[0]),
    in_layers(FULL, QUERIES[1]),
    in_layers(FULL, VALUES[0]),
    in_layers(FULL, VALUES[1]),
    only(
        DECAYING,
        "blk.{i}.attn_qkv",
        "model.layers.{i}.self_attn.qkv_proj",
        &[Sum(&[Queries, Queries, Queries]), Hidden],
    ),
    only(
        DECAYING,
        "blk.{i}.attn_gate",
        "model.layers.{i}.self_attn.output_gate",
        &[Queries, Hidden],
    ),
    only(DECAYING, "blk.{i}.attn_norm_2", "model.layers.{i}.self_attn.norm", &[Queries]),
    only(
        DECAYING,
        "blk.{i}.attn_output",
        "model.layers.{i}.self_attn.out_proj",
        &[Hidden, Queries],
    ),
];

/// Fields of what the inputs of a layer's halves are multiplied by before they are added again.
const FULL_ALPHA: &str = "layernorm_full_attention_alpha";
const LINEAR_ALPHA: &str = "layernorm_linear_attention_alpha";
const MLP_ALPHA: &str = "layernorm_mlp_alpha";

pub(super) const MINIMAX_01: ModelClass = ModelClass {
    gguf: "minimax-01",
    classes: &["MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"],
    model_type: "minimax_text_01",
    defaults: &[
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(1e6)),
        (FULL_ALPHA, Float(1.0)),
        (LINEAR_ALPHA, Float(1.0)),
        (MLP_ALPHA, Float(1.0)),
    ],
    implied: &[
        ("hidden_act", Text("silu")),
        ("postnorm", Bool(true)),
        ("shared_intermediate_size", Int(0)),
        ("layernorm_full_attention_beta", Float(1.0)),
        ("layernorm_linear_attention_beta", Float(1.0)),
        ("layernorm_mlp_beta", Float(1.0)),
    ],
    equal_fields: &[(LINEAR_ALPHA, FULL_ALPHA), (MLP_ALPHA, FULL_ALPHA)],
    tensors: &[ENDS, NORMS, ATTENTION, MIXTRAL_EXPERTS],
    settings: &[&[
        setting(Kind::Own(&PATTERN), "attention.recurrent_layers", &[LAYER_KINDS]),
        number("residual_scale", &[FULL_ALPHA]),
        setting(Kind::Required, "rope.dimension_count", &["rotary_dim"]),
    ]],
    traits: Traits {
        rope: RopeTraits::partial(1.0),
        laws: &[one_epsilon],
        completes: &[kinds],
        restores: &[list],
        ..Traits::PLAIN
    },
    ..ModelClass::PLAIN
};

/// The class has a constant in the norms of linear attention.
fn one_epsilon(model: &Model<'_>) -> Result<Option<String>> {
    const CONSTANT: f64 = 1e-6;
    const FIELD: &str = "rms_norm_eps";
    let found = model.fields.number(&[FIELD])?;
    Ok(found.filter(|found| *found != CONSTANT).map(|found| {
        format!(
            "`{FIELD}`: {} has {found:e} in the norms of linear attention, too, and the class {CONSTANT:e} there, which is nearly the same",
            model.owner()
        )
    }))
}

/// List of which layers see the whole text (1).
const LIST: &str = "attn_type_list";
/// llama.cpp has such a layer every so many unless a file says more.
const EVERY: u32 = 8;

const fn kind(is_full: bool) -> &'static str {
    match is_full {
        true => FULL_ATTENTION,
        false => LINEAR,
    }
}

fn usual(layers: u32) -> Value {
    let layers = 1..=layers.min(MOST_LAYERS);
    layers
        .map(|layer| kind(layer.is_multiple_of(EVERY)))
        .collect()
}

fn kinds(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?;
    let kinds = match fields.0.get(LIST) {
        Some(Value::Array(list)) if list.iter().all(|n| *n == 0 || *n == 1) => {
            list.iter().map(|n| kind(*n == 1)).collect()
        }
        Some(_) => return Err(wrong(LIST, "it is no list of 0 and 1")),
        None => usual(layers),
    };
    fields.0.entry(LAYER_KINDS).or_insert(kinds);
    Ok(())
}

fn list(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    let layers = u32::try_from(dims.layers).unwrap_or(MOST_LAYERS);
    let kinds = config.remove(LAYER_KINDS).unwrap_or_else(|| usual(layers));
    let kinds = kinds.as_array().into_iter().flatten();
    let list = kinds
        .map(|kind| i32::from(*kind == FULL_ATTENTION))
        .collect();
    config.insert(LIST.to_owned(), list);
    Ok(())
}

/// BOOL\[\], which the converter does not write: layers of linear attention, unless they are those
/// that llama.cpp takes for granted.
const PATTERN: OwnSetting = own(
    |setting, model| {
        let stated = model.fields.0.get(setting.fields[0]);
        let layers = u32::try_from(model.dims.layers).unwrap_or(MOST_LAYERS);
        if stated == Some(&usual(layers)) {
            return Ok(None);
        }
        let linear = model.dims.layers_of(LINEAR);
        Ok(linear.map(|linear| array(GgufMetadataArray::Bool(linear.collect()))))
    },
    |stated, _| match stated.value.as_array() {
        Some(GgufMetadataArray::Bool(all)) => Ok(Some(all.iter().map(|x| kind(!x)).collect())),
        _ => Err(stated.other_type()),
    },
);
