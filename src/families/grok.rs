//! Grok 1 and 2: experts with norms in front and behind, and scales and caps of scores.
//!
//! Source: `conversion/grok.py` of llama.cpp; configs of the published models.

use serde_json::Value;

use super::llama::MIXTRAL_EXPERTS;
use super::{ENDS, MLP, QUERIES, VALUES};
use crate::Result;
use crate::families::engine::fields::{Fields, float, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::table::Model;
use crate::model::gguf::GgufMetadataValue;

const EXPERT_SHAPE: &[Dim] = &[ExpertInner, Hidden];
const EXPERT_DOWN: &[Dim] = &[Hidden, ExpertInner];
const RESIDUAL: Need = Need::If("residual_moe");

const GROK2_TENSORS: &[TensorRule] = &[
    same("blk.{i}.attn_norm", "model.layers.{i}.pre_attn_norm", &[Hidden]),
    same("blk.{i}.attn_output_norm", "model.layers.{i}.post_attn_norm", &[Hidden]),
    same("blk.{i}.ffn_norm", "model.layers.{i}.pre_moe_norm", &[Hidden]),
    same("blk.{i}.post_ffw_norm", "model.layers.{i}.post_moe_norm", &[Hidden]),
    in_layers(RESIDUAL, MLP[0]),
    in_layers(RESIDUAL, MLP[1]),
    in_layers(RESIDUAL, MLP[2]),
    MIXTRAL_EXPERTS[0],
    TensorRule { shape: EXPERT_SHAPE, ..MIXTRAL_EXPERTS[1] },
    TensorRule { shape: EXPERT_DOWN, ..MIXTRAL_EXPERTS[2] },
    TensorRule { shape: EXPERT_SHAPE, ..MIXTRAL_EXPERTS[3] },
];

pub(super) const GROK2: ModelClass = ModelClass {
    gguf: "grok",
    classes: &["Grok1ForCausalLM"],
    model_type: "git",
    defaults: &[
        ("rms_norm_eps", Float(1e-5)),
        ("rope_theta", Float(10_000.0)),
        (CAP, Float(30.0)),
        (ROUTER_CAP, Float(30.0)),
        ("residual_moe", Bool(false)),
    ],
    implied: &[],
    tensors: &[ENDS, QUERIES, VALUES, GROK2_TENSORS],
    settings: &[
        SETTINGS,
        &[
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            setting(Kind::Own(&SCALING_TYPE), "rope.scaling.type", &[SCALING]),
            number("rope.scaling.factor", &["scaling_factor"]),
            count("rope.scaling.original_context_length", &["original_max_position_embeddings"]),
            number("rope.scaling.yarn_ext_factor", &["extrapolation_factor"]),
            number("rope.scaling.yarn_attn_factor", &["attn_factor"]),
            number("rope.scaling.yarn_beta_fast", &["beta_fast"]),
            number("rope.scaling.yarn_beta_slow", &["beta_slow"]),
            count("attention.temperature_length", &["attn_temperature_len"]),
        ],
    ],
    traits: Traits {
        sign: Sign::Tensor("blk.0.post_ffw_norm.weight"),
        completes: &[unscaled],
        laws: &[whole_scaling],
        ..TRAITS
    },
    ..ModelClass::PLAIN
};

const TRAITS: Traits = Traits {
    also_implied: &[("global_attn_every_n", Int(1)), ("sliding_window_size", Int(0))],
    ..Traits::PLAIN
};

const CAP: &str = "attn_logit_softcapping";
const ROUTER_CAP: &str = "router_logit_softcapping";
const SCALE: &str = "attn_output_multiplier";
const SCALING: &str = "rope_type";

const SETTINGS: &[Setting] = &[
    number("attn_logit_softcapping", &[CAP]),
    number("router_logit_softcapping", &[ROUTER_CAP]),
    number("final_logit_softcapping", &["final_logit_softcapping"]),
    setting(Kind::Own(&OUTPUT_SCALE), "attention.output_scale", &[SCALE]),
    number("embedding_scale", &["embedding_multiplier_scale"]),
    number("logit_scale", &["output_multiplier_scale"]),
];

/// FLOAT32: what scores of attention are multiplied by.
const OUTPUT_SCALE: OwnSetting = required(own(
    |setting, model| {
        let usual = || (model.dims.head as f64).sqrt().recip();
        let scale = model.fields.number(setting.fields)?.unwrap_or_else(usual);
        Ok(Some(GgufMetadataValue::F32(scale as f32)))
    },
    |stated, _| {
        float(stated.value)
            .map(Some)
            .ok_or_else(|| stated.other_type())
    },
));

/// What the published config calls YaRN.
const YARN: &str = "original";

/// STRING: `yarn`.
const SCALING_TYPE: OwnSetting = own(
    |setting, model| {
        let stated = model.fields.0.get(setting.fields[0]);
        Ok(stated.map(|_| GgufMetadataValue::String("yarn".to_owned())))
    },
    |stated, _| match stated.value.as_string() {
        Some("yarn") => Ok(Some(Value::from(YARN))),
        _ => Err(stated.other_type()),
    },
);

/// Fields of YaRN, which stand beside the others.
const YARN_FIELDS: &[&str] = &[
    "scaling_factor",
    "original_max_position_embeddings",
    "extrapolation_factor",
    "attn_factor",
    "beta_fast",
    "beta_slow",
];

/// Removes fields of YaRN that nobody reads, and windows that there are none of.
fn unscaled(fields: &mut Fields) -> Result<()> {
    if fields.0.get("sliding_window_size") == Some(&(-1).into()) {
        fields.0.remove("sliding_window_size");
    }
    match fields.0.get(SCALING).and_then(Value::as_str) {
        Some("yarn" | YARN) => return Ok(()),
        None | Some("default") => {}
        Some(other) => return Err(wrong(SCALING, format!("it is {other}"))),
    }
    for field in YARN_FIELDS.iter().chain(&[SCALING]) {
        fields.0.remove(*field);
    }
    Ok(())
}

/// The converter needs all fields of YaRN.
fn whole_scaling(model: &Model<'_>) -> Result<Option<String>> {
    let fields = &model.fields.0;
    let mut missing = YARN_FIELDS
        .iter()
        .filter(|field| !fields.contains_key(**field));
    match missing.next().filter(|_| fields.contains_key(SCALING)) {
        Some(field) => Err(wrong(field, "it is missing")),
        None => Ok(None),
    }
}

const fn renamed(hf: &'static str, rule: TensorRule) -> TensorRule {
    TensorRule { hf, ..rule }
}

/// Names of the first port of the published weights to transformers.
const GROK1_TENSORS: &[TensorRule] = &[
    renamed("transformer.in_out_embed", ENDS[0]),
    renamed("transformer.rms_norm", ENDS[1]),
    ENDS[2],
    renamed("transformer.decoder_layer.{i}.rms_norm", GROK2_TENSORS[0]),
    renamed("transformer.decoder_layer.{i}.rms_norm_1", GROK2_TENSORS[1]),
    renamed("transformer.decoder_layer.{i}.rms_norm_2", GROK2_TENSORS[2]),
    same("blk.{i}.layer_output_norm", "transformer.decoder_layer.{i}.rms_norm_3", &[Hidden]),
    renamed("transformer.decoder_layer.{i}.multi_head_attention.query", QUERIES[0]),
    renamed("transformer.decoder_layer.{i}.multi_head_attention.key", QUERIES[1]),
    renamed("transformer.decoder_layer.{i}.multi_head_attention.value", VALUES[0]),
    renamed("transformer.decoder_layer.{i}.multi_head_attention.linear", VALUES[1]),
    renamed("transformer.decoder_layer.{i}.router", MIXTRAL_EXPERTS[0]),
    renamed("transformer.decoder_layer.{i}.moe.{e}.linear", MIXTRAL_EXPERTS[1]),
    renamed("transformer.decoder_layer.{i}.moe.{e}.linear_1", MIXTRAL_EXPERTS[2]),
    renamed("transformer.decoder_layer.{i}.moe.{e}.linear_v", MIXTRAL_EXPERTS[3]),
];

pub(super) const GROK1: ModelClass = ModelClass {
    classes: &["GrokForCausalLM"],
    model_type: "grok-1",
    tensors: &[GROK1_TENSORS],
    settings: &[SETTINGS],
    traits: TRAITS,
    ..GROK2
};
