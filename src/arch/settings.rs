//! Settings that all architectures have: keys of the metadata, and the fields of `config.json` that they come from.
//!
//! Source: `TextModel.set_gguf_parameters` in `conversion/base.py` of llama.cpp.

mod from_gguf;

pub(super) use self::from_gguf::{FULL_ATTENTION, config_of, float};
use super::dims::{Dims, EXPERTS, EXPERTS_USED, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS};
use super::fields::{Fields, wrong};
use super::layer_sizes::{DOUBLE_WIDE, FULL_KV_HEADS};
use super::rope::Rope;
use super::table::{HeadDim, Kind, ModelClass, Setting, count, number};
use crate::containers::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// A key with its value.
pub(super) type KeyValue = (String, GgufMetadataValue);

/// The sizes of a model.
pub(super) const SIZES: &[Setting] = &[
    required("block_count", LAYERS),
    count("context_length", CONTEXT),
    required("embedding_length", HIDDEN),
    count("feed_forward_length", INNER),
    required("attention.head_count", HEADS),
    count("attention.head_count_kv", KV_HEADS),
];

/// Fields of the longest text.
pub(super) const CONTEXT: &[&str] = &[
    "max_position_embeddings",
    "n_ctx",
    "n_positions",
    "max_length",
    "max_sequence_length",
    "model_max_length",
];

/// Norms and experts.
pub(super) const NORMS_AND_EXPERTS: &[Setting] = &[
    number(
        "attention.layer_norm_rms_epsilon",
        &["rms_norm_eps", "norm_eps"],
    ),
    number(
        "attention.layer_norm_epsilon",
        &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"],
    ),
    count("expert_count", EXPERTS),
    count("expert_used_count", EXPERTS_USED),
    count("expert_group_count", &["n_group"]),
    count("expert_group_used_count", &["topk_group"]),
];

/// The sizes of a head.
pub(super) const HEAD_SIZES: &[Setting] = &[
    count("attention.key_length", &["head_dim"]),
    count("attention.value_length", &["head_dim"]),
];

const fn required(key: &'static str, fields: &'static [&'static str]) -> Setting {
    Setting {
        key,
        fields,
        kind: Kind::Required,
    }
}

/// All settings of a model of `class`, with the architecture's name in front of their keys.
///
/// # Errors
/// `Parse` that names the field which is missing or has another type.
pub(super) fn to_gguf(
    class: &ModelClass,
    fields: &Fields,
    (dims, rope): (&Dims, &Rope),
    file_type: KeyValue,
) -> Result<Vec<KeyValue>> {
    let group = |settings: &mut dyn Iterator<Item = &'static Setting>| -> Result<Vec<KeyValue>> {
        let mut keys = Vec::new();
        for setting in settings {
            let value = value(setting, fields, (class, dims, rope))?;
            keys.extend(value.map(|value| (format!("{}.{}", class.gguf, setting.key), value)));
        }
        Ok(keys)
    };
    let usual = |settings: &'static [Setting]| {
        let is_own = |setting: &&Setting| class.settings().any(|own| own.key == setting.key);
        group(&mut settings.iter().filter(|setting| !is_own(setting)))
    };
    let mut all = usual(SIZES)?;
    if !class.traits.has_fixed_rope {
        all.extend(rope.keys(class, fields)?);
    }
    all.extend(usual(NORMS_AND_EXPERTS)?);
    all.extend(gating(class, fields)?);
    if class.traits.head_dim != HeadDim::Derived {
        all.extend(usual(HEAD_SIZES)?);
    }
    all.push(file_type);
    all.extend(group(&mut class.settings())?);
    Ok(all)
}

/// The value of `setting`; `None` if the config has none.
fn value(
    setting: &Setting,
    fields: &Fields,
    (class, dims, rope): (&ModelClass, &Dims, &Rope),
) -> Result<Option<GgufMetadataValue>> {
    let number = |x: f64| GgufMetadataValue::F32(x as f32);
    let count = |n: usize| {
        let n = u32::try_from(n);
        let wrong = |_| wrong(setting.fields[0], "it is too large");
        n.map(GgufMetadataValue::U32).map_err(wrong)
    };
    let all = |least| -> Result<Vec<usize>> {
        let size = |field: &&'static str| Ok(fields.count(&[field])?.map_or(least, |n| n as usize));
        setting.fields.iter().map(size).collect()
    };
    let value = match setting.kind {
        Kind::Required => Some(GgufMetadataValue::U32(fields.need(setting.fields)?)),
        Kind::Count | Kind::Nullable => fields.count(setting.fields)?.map(GgufMetadataValue::U32),
        Kind::HeadSize => Some(count(dims.head)?),
        Kind::Rotating => Some(count(rope.rotating(class, dims))?),
        Kind::Sum => Some(count(all(0)?.into_iter().fold(0, usize::saturating_add))?),
        Kind::Product => Some(count(all(1)?.into_iter().fold(1, usize::saturating_mul))?),
        Kind::Fixed(n) => Some(GgufMetadataValue::U32(n)),
        Kind::Number => fields.number(setting.fields)?.map(number),
        Kind::Flag => fields
            .boolean(setting.fields[0])?
            .map(GgufMetadataValue::Bool),
        Kind::FlagIfTrue => {
            let flag = fields.boolean(setting.fields[0])?;
            flag.filter(|flag| *flag).map(GgufMetadataValue::Bool)
        }
        Kind::YarnLog => rope.yarn_log()?.map(number),
        Kind::Omitted | Kind::ProductToo => None,
        Kind::FixedFlag(flag) => Some(GgufMetadataValue::Bool(flag)),
        Kind::OrZero => {
            let count = fields.count(setting.fields)?.unwrap_or(0);
            Some(GgufMetadataValue::U32(count))
        }
        Kind::Sections(default) => Some(array(GgufMetadataArray::I32(
            rope.sections(default, rope.rotating(class, dims))?,
        ))),
        Kind::Text(text) => Some(GgufMetadataValue::String(text.to_owned())),
        Kind::Layers(kind) => {
            let has_all = setting
                .fields
                .iter()
                .all(|field| fields.get(&[field]).is_some());
            let kinds = dims.kinds().filter(|_| has_all);
            kinds.map(|kinds| array(GgufMetadataArray::Bool(kinds.map(|k| k == kind).collect())))
        }
        Kind::Inner if fields.flag(DOUBLE_WIDE) => {
            let widths = |layer| i32::try_from(dims.inner_of(Some(layer))?).ok();
            let widths = (0..dims.layers).map(widths).collect::<Option<_>>();
            let wrong = || wrong(setting.fields[0], "it is too large");
            Some(array(GgufMetadataArray::I32(widths.ok_or_else(wrong)?)))
        }
        Kind::KvHeads if fields.get(&[FULL_KV_HEADS]).is_some() => {
            let heads = |layer| i32::try_from(dims.kv_heads_of(Some(layer))).unwrap_or(i32::MAX);
            let heads = (0..dims.layers).map(heads).collect();
            Some(array(GgufMetadataArray::I32(heads)))
        }
        Kind::Inner | Kind::KvHeads => fields.count(setting.fields)?.map(GgufMetadataValue::U32),
        Kind::PlainHead => Some(count(dims.hidden / dims.heads)?),
        Kind::InnerOf(kind) => {
            let inner = dims.inner_of(None).and_then(|n| i32::try_from(n).ok());
            let inner =
                inner.ok_or_else(|| wrong(setting.fields[0], "it is missing or too large"))?;
            let of_layer = |k: &str| if k == kind { inner } else { 0 };
            let kinds = dims.kinds();
            kinds.map(|kinds| array(GgufMetadataArray::I32(kinds.map(of_layer).collect())))
        }
        Kind::KvHeadsBut(_, other) => {
            let heads = i32::try_from(dims.kv_heads).unwrap_or(i32::MAX);
            let of_layer = |k: &str| if k == other { heads } else { 0 };
            let kinds = dims.kinds();
            kinds.map(|kinds| array(GgufMetadataArray::I32(kinds.map(of_layer).collect())))
        }
    };
    Ok(value)
}

fn array(values: GgufMetadataArray) -> GgufMetadataValue {
    GgufMetadataValue::Array(Box::new(values))
}

/// Fields of the function that turns scores of experts into weights.
const GATING: &[&str] = &[
    "score_function",
    "scoring_func",
    "score_func",
    "moe_router_activation",
    "moe_router_activation_func",
    "expert_selection_fn",
];

/// Names of these functions with their numbers in GGUF (`LLAMA_EXPERT_GATING_FUNC_TYPE_*`).
pub(super) const GATING_FUNCTIONS: &[(&str, u32)] =
    &[("softmax", 1), ("sigmoid", 2), ("sqrtsoftplus", 4)];

/// The key of the function that turns scores of experts into weights.
fn gating(class: &ModelClass, fields: &Fields) -> Result<Option<KeyValue>> {
    let Some((field, value)) = fields.get(GATING) else {
        return Ok(None);
    };
    let known = GATING_FUNCTIONS.iter().find(|(name, _)| value == name);
    let Some((_, number)) = known else {
        return Err(wrong(
            field,
            format_args!("{value} is no function that GGUF has"),
        ));
    };
    let key = format!("{}.expert_gating_func", class.gguf);
    Ok(Some((key, GgufMetadataValue::U32(*number))))
}

/// The error that the key `key` of the metadata is wrong.
pub(super) fn wrong_key(key: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("GGUF metadata: `{key}`: {what}"))
}
