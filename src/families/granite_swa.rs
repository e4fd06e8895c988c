//! Granite with windows and sinks of attention, dense and with experts, whose projections stay fused.
//!
//! Source: `GraniteSWAModel` and `GraniteMoeSWAModel` in `conversion/granite.py` of llama.cpp;
//! defaults of transformers 5.24.

use serde_json::{Map, Value};

use super::gpt_oss::SINKS;
use super::granite::{GRANITE, SETTINGS, SHARED_WIDTH, some_shared};
use super::llama::ROTATED;
use super::{ATTENTION_BIASES, ENDS, MLP, NORMS, VALUES};
use crate::Result;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{FULL_ATTENTION, Fields, LAYER_KINDS, LAYERS, array, wrong};
use crate::families::engine::rows::*;
use crate::model::gguf::GgufMetadataArray;

const WINDOWS: &[Setting] = &[
    setting(Kind::Required, "attention.sliding_window", &["sliding_window"]),
    setting(Kind::Layers("sliding_attention"), "attention.sliding_window_pattern", &[]),
    setting(Kind::Own(&ROTATING), "attention.rope_pattern", &[NO_ROPE]),
];

pub(super) const GRANITE_SWA: ModelClass = ModelClass {
    gguf: "granite_swa",
    classes: &["GraniteSWAForCausalLM"],
    model_type: "granite_swa",
    defaults: &[
        ("max_position_embeddings", Int(8192)),
        ("num_key_value_heads", Int(4)),
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        ("sliding_window", Int(128)),
        ("tie_word_embeddings", Bool(true)),
        SCALES[0],
        SCALES[1],
        SCALES[2],
        SCALES[3],
    ],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, SINKS, MLP],
    settings: &[SETTINGS, WINDOWS],
    traits: Traits { completes: &[kinds, no_rope], restores: &[bases], ..GRANITE.traits },
    mlx: None,
    ..GRANITE
};

const SCALES: &[(&str, Default)] = &[
    ("attention_multiplier", Float(1.0)),
    ("embedding_multiplier", Float(1.0)),
    ("residual_multiplier", Float(1.0)),
    ("logits_scaling", Float(1.0)),
];

const SHARED: Dim = Field(SHARED_WIDTH);
const HAS_SHARED: Need = Need::Above0(SHARED_WIDTH);

const EXPERTS: &[TensorRule] = &[
    same("blk.{i}.ffn_gate_inp", "model.layers.{i}.block_sparse_moe.router", &[Experts, Hidden]),
    parameter(
        "blk.{i}.ffn_gate_up_exps.weight",
        "model.layers.{i}.block_sparse_moe.experts.gate_up_proj",
        (Transform::None, &[Experts, TwoInner, Hidden], &[Experts, TwoInner, Hidden]),
    ),
    parameter(
        "blk.{i}.ffn_down_exps.weight",
        "model.layers.{i}.block_sparse_moe.experts.down_proj",
        (Transform::None, &[Experts, Hidden, Inner], &[Experts, Hidden, Inner]),
    ),
    only(
        HAS_SHARED,
        "blk.{i}.ffn_up_shexp",
        "model.layers.{i}.shared_mlp.input_linear",
        &[Sum(&[SHARED, SHARED]), Hidden],
    ),
    only(
        HAS_SHARED,
        "blk.{i}.ffn_down_shexp",
        "model.layers.{i}.shared_mlp.output_linear",
        &[Hidden, SHARED],
    ),
];

pub(super) const GRANITE_MOE_SWA: ModelClass = ModelClass {
    classes: &["GraniteMoeSWAForCausalLM"],
    model_type: "granitemoe_swa",
    defaults: &[
        ("max_position_embeddings", Int(2048)),
        ("rms_norm_eps", Float(1e-6)),
        ("rope_theta", Float(10_000.0)),
        ("sliding_window", Int(128)),
        ("num_local_experts", Int(8)),
        ("num_experts_per_tok", Int(2)),
        SCALES[0],
        SCALES[1],
        SCALES[2],
        SCALES[3],
    ],
    biases: &[("attention_bias", ATTENTION_BIASES)],
    tensors: &[ENDS, NORMS, ROTATED, VALUES, SINKS, EXPERTS],
    settings: &[SETTINGS, WINDOWS, &[count("expert_shared_feed_forward_length", &[SHARED_WIDTH])]],
    traits: Traits {
        completes: &[kinds, no_rope, some_shared],
        sign: Sign::Experts,
        ..GRANITE_SWA.traits
    },
    ..GRANITE_SWA
};

/// The first of four layers sees the whole text.
fn kinds(fields: &mut Fields) -> Result<()> {
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS);
    let kind = |layer: u32| {
        if layer.is_multiple_of(4) {
            FULL_ATTENTION
        } else {
            "sliding_attention"
        }
    };
    fields
        .0
        .entry(LAYER_KINDS)
        .or_insert_with(|| (0..layers).map(kind).collect());
    Ok(())
}

/// Lists of llama.cpp's converter (0: the layer has no positions), and of transformers (0, or the base).
const NO_ROPE: &str = "no_rope_layers";
const BASES: &str = "layer_rope_theta";

/// Makes one list of the other, which must say the same.
fn no_rope(fields: &mut Fields) -> Result<()> {
    let Some(bases) = fields.0.get(BASES).and_then(Value::as_array) else {
        return Ok(());
    };
    let rope = fields
        .0
        .get("rope_parameters")
        .and_then(|rope| rope.get("rope_theta"));
    let base = rope
        .or_else(|| fields.0.get("rope_theta"))
        .and_then(Value::as_f64);
    let known = |x: &Value| x.as_f64() == Some(0.0) || x.as_f64() == base;
    if !bases.iter().all(known) {
        return Err(wrong(BASES, "it is neither 0 nor `rope_theta` in each layer"));
    }
    let turns: Vec<_> = bases
        .iter()
        .map(|x| i32::from(x.as_f64() != Some(0.0)))
        .collect();
    match fields.0.get(NO_ROPE) {
        Some(found) if *found != Value::from(turns.clone()) => {
            Err(wrong(NO_ROPE, format!("`{BASES}` says something else")))
        }
        None if turns.contains(&0) => {
            fields.0.insert(NO_ROPE.to_owned(), turns.into());
            Ok(())
        }
        _ => Ok(()),
    }
}

/// BOOL\[\]: which layers have positions.
const ROTATING: OwnSetting = own(
    |setting, model| {
        let Some((name, list)) = model.fields.get(setting.fields) else {
            return Ok(None);
        };
        let list = list
            .as_array()
            .filter(|list| list.len() == model.dims.layers);
        let turns = |n: &Value| n.as_u64().map(|n| n > 0);
        let all = list.and_then(|list| list.iter().map(turns).collect::<Option<Vec<_>>>());
        let all = all.ok_or_else(|| wrong(name, "it is no list of 0 and 1 for each layer"))?;
        Ok(Some(array(GgufMetadataArray::Bool(all))))
    },
    |stated, _| match stated.value.as_array() {
        Some(GgufMetadataArray::Bool(all)) => Ok(Some(all.iter().map(|x| i32::from(*x)).collect())),
        _ => Err(stated.other_type()),
    },
);

/// Adds what transformers reads of layers without positions.
fn bases(config: &mut Map<String, Value>, _: &Dims) -> Result<()> {
    let base = config
        .get("rope_theta")
        .cloned()
        .unwrap_or_else(|| 10_000.0.into());
    if let Some(all) = config.get(NO_ROPE).and_then(Value::as_array) {
        let bases = all
            .iter()
            .map(|n| if *n == 0 { 0.into() } else { base.clone() })
            .collect();
        config.insert(BASES.to_owned(), bases);
    }
    Ok(())
}
