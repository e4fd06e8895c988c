//! Settings that all architectures have: keys of the metadata, and the fields of `config.json` that
//! they come from.
//!
//! Source: `TextModel.set_gguf_parameters` in `conversion/base.py` of llama.cpp.

mod by_layer;
mod from_gguf;
mod unread;

use serde_json::Value;

pub(crate) use self::by_layer::numbers_of_kind;
pub(crate) use self::from_gguf::{config_of, fields_of_keys};
pub(crate) use self::unread::causal_note;
use super::fields::{
    CONTEXT, EXPERTS, EXPERTS_USED, Fields, HEADS, HIDDEN, INNER, KV_HEADS, KeyValue, LABELS,
    LAYERS, array, wrong,
};
use super::table::{HeadDim, Kind, Model, ModelClass, Setting, count, number};
use crate::Result;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::sort::sort_by;

/// Key of whether a token sees only those in front of it, as all decoders do unless a config says
/// otherwise.
const CAUSAL: &str = "attention.causal";

/// Field of the same. transformers 5 reads it of most decoders, and transformers 4 of none.
const IS_CAUSAL: &str = "is_causal";

/// The sizes of a model.
pub(crate) const SIZES: &[Setting] = &[
    required("block_count", LAYERS),
    count("context_length", CONTEXT),
    required("embedding_length", HIDDEN),
    count("feed_forward_length", INNER),
    required("attention.head_count", HEADS),
    count("attention.head_count_kv", KV_HEADS),
];

/// Norms and experts.
pub(crate) const NORMS_AND_EXPERTS: &[Setting] = &[
    number("attention.layer_norm_rms_epsilon", &["rms_norm_eps", "norm_eps"]),
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
pub(crate) const HEAD_SIZES: &[Setting] =
    &[count("attention.key_length", &["head_dim"]), count("attention.value_length", &["head_dim"])];

const fn required(key: &'static str, fields: &'static [&'static str]) -> Setting {
    Setting { key, fields, kind: Kind::Required }
}

/// All settings of `model`, with the architecture's name in front of their keys.
///
/// # Errors
/// `Parse` that names the field which is missing or has another type.
pub(crate) fn to_gguf(model: &Model<'_>, file_type: KeyValue) -> Result<Vec<KeyValue>> {
    let Model { class, fields, rope, .. } = model;
    let usual = |settings: &'static [Setting]| {
        let is_own = |setting: &&Setting| class.settings().any(|own| own.key == setting.key);
        let settings = settings.iter().filter(|setting| !is_own(setting));
        keys_of(settings, model)
    };
    let mut all = usual(SIZES)?;
    let has_own = class.settings().any(|own| own.key == CAUSAL);
    if !has_own && fields.boolean(IS_CAUSAL)? == Some(false) {
        let key = format!("{}.{CAUSAL}", class.gguf);
        all.push((key, GgufMetadataValue::Bool(false)));
    }
    if !class.traits.rope.is_fixed {
        let keys = rope.keys(class, fields)?;
        all.retain(|(key, _)| keys.iter().all(|(own, _)| own != key));
        all.extend(keys);
    }
    all.extend(usual(NORMS_AND_EXPERTS)?);
    all.extend(gating(class, fields)?);
    if class.traits.head_dim != HeadDim::Derived {
        all.extend(usual(HEAD_SIZES)?);
    }
    all.push(file_type);
    all.extend(keys_of(class.settings(), model)?);
    Ok(all)
}

/// The keys of `settings`, as far as the config says something.
///
/// # Errors
/// As [`to_gguf`].
pub(crate) fn keys_of(
    settings: impl Iterator<Item = &'static Setting>,
    model: &Model<'_>,
) -> Result<Vec<KeyValue>> {
    let mut keys = Vec::new();
    for setting in settings {
        let value = value(setting, model)?;
        keys.extend(value.map(|value| (setting.whole_key(model.class), value)));
    }
    Ok(keys)
}

/// The value of `setting`; `None` if the config has none.
fn value(setting: &Setting, model: &Model<'_>) -> Result<Option<GgufMetadataValue>> {
    let Model { class, fields, dims, rope, .. } = model;
    let number = |x: f64| GgufMetadataValue::F32(x as f32);
    let all = |least| -> Result<Vec<usize>> {
        let size = |field: &&'static str| Ok(fields.count(&[field])?.map_or(least, |n| n as usize));
        setting.fields.iter().map(size).collect()
    };
    let value = match setting.kind {
        Kind::Required => Some(GgufMetadataValue::U32(fields.need(setting.fields)?)),
        Kind::Count | Kind::Nullable => fields.count(setting.fields)?.map(GgufMetadataValue::U32),
        Kind::HeadSize => Some(setting.count(dims.head)?),
        Kind::Rotating => Some(setting.count(rope.rotating(class, dims))?),
        Kind::Sum => Some(setting.count(all(0)?.into_iter().fold(0, usize::saturating_add))?),
        Kind::Product => Some(setting.count(all(1)?.into_iter().fold(1, usize::saturating_mul))?),
        Kind::Fixed(n) => Some(GgufMetadataValue::U32(n)),
        // A class reads one of the names, and ignores the others.
        Kind::Number => fields.agreed(setting.fields)?.map(number),
        Kind::Flag => fields
            .boolean(setting.fields[0])?
            .map(GgufMetadataValue::Bool),
        Kind::FlagIfTrue => {
            let flag = fields.boolean(setting.fields[0])?;
            flag.filter(|flag| *flag).map(GgufMetadataValue::Bool)
        }
        Kind::YarnLog => rope.yarn_log()?.map(number),
        Kind::Scaling => Some(number(rope.need(setting.fields[0])?)),
        Kind::Omitted | Kind::ProductToo => None,
        Kind::TextSections => {
            Some(array(GgufMetadataArray::I32(rope.sections(None, rope.rotating(class, dims))?)))
        }
        // The scaling has the key if there is one.
        Kind::LinearOrNone => {
            let is_none = rope.kind != "linear";
            is_none.then(|| GgufMetadataValue::String("none".to_owned()))
        }
        Kind::Text(text) => Some(GgufMetadataValue::String(text.to_owned())),
        Kind::TimesHidden(n) => {
            let size = (n as usize).saturating_mul(dims.hidden);
            if let Some(found) = fields.count(setting.fields)?
                && found as usize != size
            {
                let what = format!("it is {found}, and {} has {size}", class.gguf);
                return Err(wrong(setting.fields[0], what));
            }
            Some(setting.count(size)?)
        }
        Kind::FixedFlag(flag) => Some(GgufMetadataValue::Bool(flag)),
        Kind::Labels(is_needed) => match labels(fields)? {
            None if is_needed => {
                let what = "llama.cpp takes it for one class if there are no names of classes but the two that transformers makes up; name the classes there";
                return Err(wrong(LABELS, what));
            }
            labels => labels.map(|all| array(GgufMetadataArray::String(all))),
        },
        Kind::Layers(kind) => by_layer::layers_of_kind(setting, model, kind),
        Kind::KvHeadsBut(_, kind) => {
            numbers_of_kind(dims, kind, i32::try_from(dims.kv_heads).unwrap_or(i32::MAX))
        }
        Kind::Own(own) => (own.to_gguf)(setting, model)?,
    };
    Ok(value)
}

/// The names of classes in the order of their numbers; `None` if there are none, or the two that
/// transformers makes up.
///
/// Source: `BertModel.__init__` in `conversion/bert.py` of llama.cpp.
fn labels(fields: &Fields) -> Result<Option<Vec<String>>> {
    let Some(value) = fields.0.get(LABELS) else {
        return Ok(None);
    };
    let label = |(number, label): (&String, &Value)| {
        Some((number.parse::<u32>().ok()?, label.as_str()?.to_owned()))
    };
    let all = value
        .as_object()
        .and_then(|all| all.iter().map(label).collect::<Option<Vec<_>>>());
    let mut all = all.ok_or_else(|| wrong(LABELS, "it is no list of names by number"))?;
    sort_by(&mut all, Ord::cmp);
    if !all
        .iter()
        .map(|(number, _)| *number)
        .eq(0..all.len() as u32)
    {
        return Err(wrong(LABELS, "a number is missing"));
    }
    let labels: Vec<_> = all.into_iter().map(|(_, label)| label).collect();
    let is_made_up = labels.len() == 2 && labels[0] == "LABEL_0";
    Ok(Some(labels).filter(|labels| !is_made_up && !labels.is_empty()))
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
pub(crate) const GATING_FUNCTIONS: &[(&str, u32)] =
    &[("softmax", 1), ("sigmoid", 2), ("sqrtsoftplus", 4)];

/// The key of the function that turns scores of experts into weights.
fn gating(class: &ModelClass, fields: &Fields) -> Result<Option<KeyValue>> {
    let Some((field, value)) = fields.get(GATING) else {
        return Ok(None);
    };
    let known = GATING_FUNCTIONS.iter().find(|(name, _)| value == name);
    let Some((_, number)) = known else {
        return Err(wrong(field, format_args!("{value} is no function that GGUF has")));
    };
    let is_own = class.settings().any(|own| own.key == "expert_gating_func");
    if !is_own && unread::gating_of(class) != *number {
        let what = format!("{value} is not the function that {} has", class.classes[0]);
        return Err(wrong(field, what));
    }
    let key = format!("{}.expert_gating_func", class.gguf);
    Ok(Some((key, GgufMetadataValue::U32(*number))))
}
