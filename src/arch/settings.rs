//! Settings that all architectures have: keys of the metadata, and the fields of `config.json` that they come from.
//!
//! Source: `TextModel.set_gguf_parameters` in `conversion/base.py` of llama.cpp.

use serde_json::{Map, Value, json};

use super::dims::{Dims, EXPERTS, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS};
use super::fields::{Fields, wrong};
use super::rope::Rope;
use super::table::{Default, Kind, ModelClass, Setting, count, number};
use crate::containers::model::gguf::{GgufMetadata, GgufMetadataValue};
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
    count(
        "expert_used_count",
        &[
            "num_experts_per_tok",
            "num_experts_per_token",
            "top_k_experts",
        ],
    ),
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
    let group = |settings: &[Setting]| -> Result<Vec<KeyValue>> {
        let mut keys = Vec::new();
        for setting in settings {
            let value = value(setting, fields, (class, dims, rope))?;
            keys.extend(value.map(|value| (format!("{}.{}", class.gguf, setting.key), value)));
        }
        Ok(keys)
    };
    let usual = |settings: &[Setting]| {
        let own = |setting: &&Setting| class.settings.iter().any(|own| own.key == setting.key);
        let usual = settings.iter().filter(|setting| !own(setting)).copied();
        group(&usual.collect::<Vec<_>>())
    };
    let mut all = usual(SIZES)?;
    if !class.traits.has_fixed_rope {
        all.extend(rope.keys(class)?);
    }
    all.extend(usual(NORMS_AND_EXPERTS)?);
    all.extend(gating(class, fields)?);
    all.extend(usual(HEAD_SIZES)?);
    all.push(file_type);
    all.extend(group(class.settings)?);
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
    };
    Ok(value)
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

/// The fields of the config of a model of `class`, as the metadata of its GGUF file has them.
///
/// # Errors
/// `Parse` that names a key which is missing or has another type.
pub(super) fn config_of(class: &ModelClass, metadata: &GgufMetadata) -> Result<Map<String, Value>> {
    let mut config = Map::new();
    config.insert("architectures".to_owned(), json!([class.classes[0]]));
    config.insert("model_type".to_owned(), class.model_type.into());
    let own_name = |field: &'static str| {
        let own = class.own_fields.iter().find(|(usual, _)| *usual == field);
        own.map_or(field, |(_, own)| own)
    };
    let own_key = |setting: &&Setting| class.settings.iter().any(|own| own.key == setting.key);
    let usual = [SIZES, NORMS_AND_EXPERTS, HEAD_SIZES].into_iter().flatten();
    let all = usual
        .filter(|setting| !own_key(setting))
        .chain(class.settings);
    // What is computed from other fields comes after them.
    let is_computed =
        |setting: &&Setting| matches!(setting.kind, Kind::Sum | Kind::Product | Kind::Rotating);
    let (computed, stated): (Vec<&Setting>, Vec<&Setting>) = all.partition(is_computed);
    for setting in stated.into_iter().chain(computed) {
        let key = format!("{}.{}", class.gguf, setting.key);
        let Some(value) = metadata.get(&key) else {
            match setting.kind {
                Kind::Required | Kind::Sum | Kind::Product => {
                    return Err(wrong_key(&key, "it is missing"));
                }
                Kind::FlagIfTrue => {
                    config.insert(setting.fields[0].to_owned(), false.into());
                    continue;
                }
                Kind::Nullable => {
                    config.insert(setting.fields[0].to_owned(), Value::Null);
                    continue;
                }
                _ => continue,
            }
        };
        let other_type = || {
            wrong_key(
                &key,
                format_args!("{} is not what the architecture has", value.type_name()),
            )
        };
        let value = field_of(setting.kind, &value).ok_or_else(other_type)?;
        let (field, value) = match (setting.kind, setting.fields) {
            (Kind::YarnLog, _) => continue,
            (Kind::Fixed(n), _) if value == n => continue,
            (Kind::Fixed(n), _) => {
                let what = format_args!("it is {value}, and {} has {n}", class.classes[0]);
                return Err(wrong_key(&key, what));
            }
            (Kind::Rotating, _) => {
                let part = rotating_part(&config, &value).ok_or_else(other_type)?;
                ("partial_rotary_factor", part)
            }
            (kind @ (Kind::Sum | Kind::Product), [first, rest @ ..]) => {
                let missing = || {
                    let what = format_args!("{value} does not agree with {}", rest.join(", "));
                    wrong_key(&key, what)
                };
                let rest = rest.iter().filter_map(|field| config.get(*field)?.as_u64());
                let whole = value.as_u64().unwrap_or(0);
                let first_value = match kind {
                    Kind::Sum => whole.checked_sub(rest.sum()),
                    _ => whole.checked_div(rest.product()),
                };
                (*first, first_value.ok_or_else(missing)?.into())
            }
            (_, fields) => (fields[0], value),
        };
        let field = own_name(field).to_owned();
        match config.get(&field) {
            Some(other) if *other != value => {
                let what = format_args!("it gives {field} {value}, and another key says {other}");
                return Err(wrong_key(&key, what));
            }
            _ => config.insert(field, value),
        };
    }
    for (key, field) in [
        ("freq_base", "rope_theta"),
        ("freq_base_swa", "rope_local_base_freq"),
    ] {
        let base = metadata.get(&format!("{}.rope.{key}", class.gguf));
        let base = base.as_ref().and_then(float);
        config.extend(base.map(|base| (field.to_owned(), base)));
    }
    let implied = class.implied.iter();
    let implied = implied.filter(|(_, value)| *value != Default::Absent);
    config.extend(implied.map(|(field, value)| ((*field).to_owned(), value.into())));
    for (field, other) in class.equal_fields {
        let value = config.get(*other).cloned();
        config.extend(value.map(|value| ((*field).to_owned(), value)));
    }
    let has_groups = config.get("n_group").and_then(Value::as_u64) > Some(1);
    let method = class.traits.group_method.filter(|_| has_groups);
    config.extend(method.map(|method| ("topk_method".to_owned(), method.into())));
    Ok(config)
}

/// The part of a head that rotates, if it is `count` dimensions.
fn rotating_part(config: &Map<String, Value>, count: &Value) -> Option<Value> {
    let size = |field: &str| config.get(field).and_then(Value::as_f64);
    let head = size("head_dim").or_else(|| Some(size(HIDDEN[0])? / size(HEADS[0])?))?;
    let part = count.as_f64()? / head;
    (part > 0.0 && part <= 1.0).then(|| part.into())
}

/// A value of the metadata as a config has it; `None` if it has another type.
fn field_of(kind: Kind, value: &GgufMetadataValue) -> Option<Value> {
    match kind {
        Kind::Number | Kind::YarnLog => float(value),
        Kind::Flag | Kind::FlagIfTrue => Some(value.as_bool()?.into()),
        Kind::Required
        | Kind::Count
        | Kind::Nullable
        | Kind::HeadSize
        | Kind::Rotating
        | Kind::Sum
        | Kind::Product
        | Kind::Fixed(_) => Some(value.as_unsigned()?.into()),
    }
}

/// A FLOAT32 as the shortest decimal number that is rounded to it.
pub(super) fn float(value: &GgufMetadataValue) -> Option<Value> {
    match *value {
        GgufMetadataValue::F32(x) if x.is_finite() => {
            Some(json!(x.to_string().parse::<f64>().ok()?))
        }
        GgufMetadataValue::F64(x) if x.is_finite() => Some(json!(x)),
        _ => None,
    }
}

/// The error that the key `key` of the metadata is wrong.
pub(super) fn wrong_key(key: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("GGUF metadata: `{key}`: {what}"))
}
