//! Nemotron 3 Puzzle: each layer with experts has a width and a number of experts for a token of its
//! own.
//!
//! Source: `NemotronHPuzzleModel` in `conversion/nemotron.py` of llama.cpp; defaults of Nemotron H.

use serde_json::{Map, Value, json};

use super::mamba::ENDS;
use super::nemotron_h::{
    EXPERT_SETTINGS, NEMOTRON_H_LATENT, SETTINGS, attention, experts_and_shared, latent, mixer,
};
use crate::Result;
use crate::families::engine::dims::{Dims, OwnSizes};
use crate::families::engine::fields::{
    Fields, LAYER_KINDS, LAYERS, PREDICTION, array, wrong, wrong_key,
};
use crate::families::engine::rows::*;
use crate::families::engine::table::StatedKey;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

/// What the config says of each layer.
const BLOCKS: &str = "block_configs";
/// Fields of a layer with experts, each of which becomes a list of all layers.
const WIDTH: &str = "moe_intermediate_size";
const USED: &str = "num_experts_per_tok";
const WIDTHS: &str = "moe_intermediate_size of layers";
const ALL_USED: &str = "num_experts_per_tok of layers";

const TENSORS: &[TensorRule] = &[
    TensorRule { hf: "model.embeddings", ..ENDS[0] },
    TensorRule { hf: "model.norm_f", ..ENDS[1] },
    ENDS[2],
    TensorRule { hf: "model.layers.{i}.norm", ..ENDS[3] },
];

const ATTENTION: &[TensorRule] = attention!("model.layers.{i}");
const EXPERTS: &[TensorRule] =
    experts_and_shared!("model.layers.{i}", Inner, Field("moe_latent_size"));
const LATENT: &[TensorRule] = latent!("model.layers.{i}");
const MIXER: &[TensorRule] = mixer!("model.layers.{i}.mixer");

pub(super) const NEMOTRON_H_PUZZLE: ModelClass = ModelClass {
    classes: &["NemotronHPuzzleForCausalLM"],
    model_type: "nemotron_h_puzzle",
    tensors: &[TENSORS, ATTENTION, EXPERTS, LATENT, MIXER],
    // The first release has other names.
    other_tensors: &[TensorRule {
        need: EXPERTS[1].need,
        ..parameter(
            "blk.{i}.exp_probs_b.bias",
            "backbone.layers.{i}.mixer.gate.e_score_correction.bias",
            (Transform::None, &[Experts], &[Experts]),
        )
    }],
    settings: &[
        SETTINGS,
        &[
            setting(Kind::Own(&WIDTH_LIST), "feed_forward_length", &[WIDTHS]),
            setting(Kind::Own(&WIDTH_LIST), "expert_feed_forward_length", &[WIDTHS]),
            setting(Kind::Own(&USED_LIST), "expert_used_count", &[ALL_USED]),
            setting(Kind::Required, "moe_latent_size", &["moe_latent_size"]),
            EXPERT_SETTINGS[2],
            EXPERT_SETTINGS[3],
            EXPERT_SETTINGS[4],
            EXPERT_SETTINGS[5],
        ],
    ],
    traits: Traits {
        config_sign: None,
        layer_letters: &[],
        sign: Sign::List("expert_used_count"),
        prediction: Prediction::LeftOut,
        by_layer: Some(&ByLayer { sizes, restore_rope: None }),
        completes: &[lists],
        restores: &[blocks],
        ..NEMOTRON_H_LATENT.traits
    },
    mlx: None,
    ..NEMOTRON_H_LATENT
};

/// The number of each layer in the list `name`.
fn numbers(fields: &Fields, name: &str, layers: usize) -> Result<Vec<usize>> {
    let all = fields.0.get(name).and_then(Value::as_array);
    let number = |n: &Value| Some(u32::try_from(n.as_u64()?).ok()? as usize);
    let numbers: Option<Vec<_>> = all.and_then(|all| all.iter().map(number).collect());
    let numbers = numbers.filter(|all| all.len() == layers);
    numbers.ok_or_else(|| wrong(name, format!("it is no list of {layers} numbers")))
}

fn sizes(fields: &Fields, dims: &Dims) -> Result<Vec<OwnSizes>> {
    let widths = numbers(fields, WIDTHS, dims.layers)?;
    let of = |width| OwnSizes {
        head: dims.head,
        heads: dims.heads,
        kv_heads: dims.kv_heads,
        inner: Some(width),
        keys: None,
        values: None,
    };
    Ok(widths.into_iter().map(of).collect())
}

/// Makes lists of what the config says of each layer.
fn lists(fields: &mut Fields) -> Result<()> {
    let Some(Value::Array(blocks)) = fields.0.remove(BLOCKS) else {
        return Err(wrong(BLOCKS, "it is missing"));
    };
    for (place, block) in blocks.iter().enumerate() {
        let is_moe = block["block_type"] == "moe";
        for (field, value) in block.as_object().into_iter().flatten() {
            let is_own = field == "block_type" || is_moe && [WIDTH, USED].contains(&field.as_str());
            if !is_own && !value.is_null() && fields.0.get(field) != Some(value) {
                let what = format!("llama.cpp has no `{field}` of layer {place} alone");
                return Err(wrong(BLOCKS, what));
            }
        }
        let is_count = |name: &str| block[name].as_u64().is_some_and(|n| n > 0);
        if is_moe && !(is_count(WIDTH) && is_count(USED)) {
            let what = format!("layer {place} has no `{WIDTH}` or `{USED}`, or it is 0");
            return Err(wrong(BLOCKS, what));
        }
        let experts = fields.0.get("n_routed_experts").and_then(Value::as_u64);
        if is_moe && block[USED].as_u64() > experts {
            let what = format!("`{USED}` of layer {place} is above n_routed_experts");
            return Err(wrong(BLOCKS, what));
        }
    }
    let of = |name: &str| {
        blocks
            .iter()
            .map(|block| block[name].clone())
            .collect::<Value>()
    };
    let counts = |name: &str| {
        let count = |block: &Value| {
            block[name]
                .as_u64()
                .filter(|_| block["block_type"] == "moe")
        };
        blocks
            .iter()
            .map(|block| count(block).unwrap_or(0))
            .collect::<Value>()
    };
    let (widths, used) = (counts(WIDTH), counts(USED));
    fields.0.insert(LAYERS[0].to_owned(), blocks.len().into());
    fields.0.insert(LAYER_KINDS.to_owned(), of("block_type"));
    fields.0.insert(WIDTHS.to_owned(), widths);
    fields.0.insert(ALL_USED.to_owned(), used);
    // What a further token is predicted by is left out.
    for field in [WIDTH, USED, PREDICTION] {
        fields.0.remove(field);
    }
    Ok(())
}

/// States each layer as configs of the class do.
fn blocks(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    let [kinds, widths, used] = [LAYER_KINDS, WIDTHS, ALL_USED].map(|name| config.remove(name));
    let list = |list: Option<Value>| match list {
        Some(Value::Array(all)) => all,
        _ => vec![],
    };
    let layers = list(kinds).into_iter().zip(list(widths)).zip(list(used));
    let block = |((kind, width), used): ((Value, Value), Value)| match width.as_u64() {
        Some(0) | None => json!({"block_type": kind}),
        _ => json!({"block_type": "moe", WIDTH: width, USED: used}),
    };
    let blocks: Vec<Value> = layers.map(block).collect();
    config.insert(BLOCKS.to_owned(), blocks.into());
    Ok(())
}

fn list_of(setting: &Setting, model: &Model<'_>) -> Result<Option<GgufMetadataValue>> {
    let all = numbers(&model.fields, setting.fields[0], model.dims.layers)?;
    let all = all
        .into_iter()
        .map(|n| i32::try_from(n).unwrap_or(i32::MAX));
    Ok(Some(array(GgufMetadataArray::I32(all.collect()))))
}

/// INT32\[\]: the width of experts of each layer, 0 of those without. Layers that have one get a
/// kind of their own.
const WIDTH_LIST: OwnSetting = required(own(list_of, |stated, config| {
    let widths = stated.numbers()?;
    let kinds = config
        .fields
        .get_mut(LAYER_KINDS)
        .and_then(Value::as_array_mut);
    let other_len = || wrong_key(stated.key, "it has another number of layers");
    let kinds = kinds
        .filter(|kinds| kinds.len() == widths.len())
        .ok_or_else(other_len)?;
    for (kind, width) in kinds.iter_mut().zip(widths) {
        match *width {
            0 => {}
            width if width > 0 && *kind != "attention" => *kind = "moe".into(),
            _ => {
                return Err(wrong_key(stated.key, "a layer has several parts, or a width below 0"));
            }
        }
    }
    Ok(Some(widths.to_vec().into()))
}));

/// INT32\[\]: how many experts a token gets in each layer, 0 in those without.
const USED_LIST: OwnSetting =
    required(own(list_of, |stated: &StatedKey<'_>, _| Ok(Some(stated.numbers()?.to_vec().into()))));
