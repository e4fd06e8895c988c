//! The scaling of a config from the metadata of a GGUF file.

use serde_json::{Map, Value, json};

use super::{YARN, alpha};
use crate::config::object;
use crate::error::InTensor;
use crate::families::engine::dims::Dims;
use crate::families::engine::fields::{Fields, float, wrong_key};
use crate::families::engine::rope::{
    LONG_FACTORS, Llama3, PARAMETERS, ROPE_FACTORS, SCALE, SCALING, long_attention_factor,
};
use crate::families::engine::table::{Kind, ModelClass, OwnScaling};
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// Fails if llama.cpp multiplies rotated heads by another factor than transformers, which computes
/// it from `fields`.
///
/// # Errors
/// `Parse` that names the key.
pub(crate) fn check_attention_factor(
    class: &ModelClass,
    metadata: &GgufMetadata,
    fields: &Fields,
    has_long_factors: bool,
) -> Result<()> {
    let key = format!("{}.rope.scaling.attn_factor", class.gguf);
    let Some(value) = metadata.get(&key) else {
        return Ok(());
    };
    let expected = match has_long_factors {
        true => long_attention_factor(fields)?,
        false => 1.0,
    };
    match value {
        GgufMetadataValue::F32(found) if (f64::from(found) - expected).abs() <= 1e-5 * expected => {
            Ok(())
        }
        _ => Err(wrong_key(&key, format_args!("transformers has {expected} there"))),
    }
}

/// The field `rope_scaling` of a config, from the metadata of a GGUF file and its tensors of
/// `factors`.
///
/// # Errors
/// `Parse` if a key is missing; `Unsupported` if transformers has no such scaling.
pub(crate) fn scaling_of(
    class: &ModelClass,
    metadata: &GgufMetadata,
    factors: &[(String, Vec<f32>)],
    dims: &Dims,
) -> Result<Option<Value>> {
    let key = |key: &str| format!("{}.rope.{key}", class.gguf);
    let get = |name: &str| metadata.get(&key(name));
    // Fields of its own say it.
    if class
        .settings()
        .any(|setting| setting.key == "rope.scaling.yarn_ext_factor")
    {
        return Ok(None);
    }
    let base = get("freq_base")
        .as_ref()
        .and_then(float)
        .and_then(|base| base.as_f64());
    let find = |tensor: &str| factors.iter().find(|(name, _)| *name == tensor);
    let long = LONG_FACTORS.map(|(tensor, field)| Some((field, &find(tensor)?.1)));
    if let [Some(long), Some(short)] = long {
        let list = |(field, factors): (&str, &Vec<f32>)| {
            let factors = factors.iter().map(|x| float(&GgufMetadataValue::F32(*x)));
            (field.to_owned(), factors.collect::<Value>())
        };
        let kind = ("type".to_owned(), "longrope".into());
        return Ok(Some(Value::Object(object([kind, list(long), list(short)]))));
    }
    if let Some((_, factors)) = find(ROPE_FACTORS) {
        let part = class.traits.rope.partial.unwrap_or(1.0);
        let rotating = (dims.head as f64 * part) as usize;
        let own = factors.get(..rotating / 2).unwrap_or(factors);
        let found = Llama3::of(own, base.unwrap_or(10_000.0), rotating);
        let Some(found) = found else {
            let name = InTensor("rope_freqs.weight");
            let what = format!("{name}: its values are none of Llama 3's scaling");
            return Err(AnamnesisError::unsupported("a whole model", what));
        };
        return Ok(Some(json!({
            "rope_type": "llama3",
            "factor": found.factor,
            "low_freq_factor": found.low,
            "high_freq_factor": found.high,
            "original_max_position_embeddings": found.original as u64,
        })));
    }
    let is_none = get("scaling.type").is_some_and(|kind| kind.as_string() == Some("none"));
    let has_length = get("scaling.original_context_length").is_some();
    if class.traits.rope.has(OwnScaling::Alpha) && is_none && has_length {
        let found = base.and_then(|base| alpha::scaling_of(base, dims.head));
        return found.map(Some).ok_or_else(|| {
            let what = format!("`{}`: no alpha makes it of 10000", key("freq_base"));
            AnamnesisError::unsupported("a whole model", what)
        });
    }
    let factor = get("scaling.factor").as_ref().and_then(float);
    let is_scaled = factor
        .as_ref()
        .and_then(Value::as_f64)
        .is_some_and(|f| f != 0.0 && f != 1.0);
    let stated = get("scaling.type");
    let kind = stated.as_ref().and_then(|kind| kind.as_string());
    if kind != Some("yarn") && class.has_setting(Kind::Scaling) {
        let what = format!("{} always has yarn", class.classes[0]);
        return Err(wrong_key(&key("scaling.type"), what));
    }
    let kind = match kind {
        // llama.cpp scales linearly then.
        None if is_scaled => "linear",
        // transformers takes YaRN if a config of the class does not say that there is none.
        None | Some("none") => {
            let is_said = class.traits.rope.has(OwnScaling::ExactYarn);
            return Ok(is_said.then(|| json!({"rope_type": "default"})));
        }
        Some(kind @ ("linear" | "yarn")) => kind,
        Some(other) => {
            let what = format!("`{}` is `{other}`", key("scaling.type"));
            return Err(AnamnesisError::unsupported("a whole model", what));
        }
    };
    let mut scaling = Map::new();
    scaling.insert("rope_type".to_owned(), kind.into());
    let factor = factor.ok_or_else(|| wrong_key(&key("scaling.factor"), "it is no number"))?;
    scaling.insert("factor".to_owned(), factor);
    if kind == "yarn" {
        let name = "scaling.original_context_length";
        let length = get(name).and_then(|length| length.as_unsigned());
        let length = length.ok_or_else(|| wrong_key(&key(name), "it is no count"))?;
        scaling.insert("original_max_position_embeddings".to_owned(), length.into());
        for (name, fields) in YARN {
            let value = get(name).as_ref().and_then(float);
            scaling.extend(value.map(|value| (fields[0].to_owned(), value)));
        }
        if class.traits.rope.has(OwnScaling::ExactYarn) {
            scaling.insert("truncate".to_owned(), false.into());
        }
        add_own(class, metadata, &mut scaling)?;
    }
    Ok(Some(Value::Object(scaling)))
}

/// Adds the scaling `scaling` to a config. transformers 5 drops an object `rope_parameters` beside
/// `rope_scaling`, so where there is one it gets the scaling.
pub(crate) fn add_scaling(config: &mut Map<String, Value>, scaling: Value) {
    match (config.get_mut(PARAMETERS), scaling) {
        (Some(Value::Object(parameters)), Value::Object(scaling)) => parameters.extend(scaling),
        (_, scaling) => drop(config.insert(SCALING.to_owned(), scaling)),
    }
}

/// Adds to YaRN what only some classes say of it.
///
/// # Errors
/// `Parse` if a key is missing that the class always has.
fn add_own(
    class: &ModelClass,
    metadata: &GgufMetadata,
    scaling: &mut Map<String, Value>,
) -> Result<()> {
    for setting in class.settings() {
        let times = match setting.kind {
            Kind::YarnLog => 10.0,
            Kind::Scaling => 1.0,
            _ => continue,
        };
        let (key, field) = (format!("{}.{}", class.gguf, setting.key), setting.fields[0]);
        let number = match metadata.get(&key) {
            Some(GgufMetadataValue::F32(x)) => float(&GgufMetadataValue::F32(x * times)),
            _ => None,
        };
        let Some(number) = number else {
            match setting.kind {
                Kind::Scaling => return Err(wrong_key(&key, "it is missing, or no number")),
                _ => continue,
            }
        };
        if field == SCALE {
            scaling.insert("mscale".to_owned(), number.clone());
        }
        scaling.insert(field.to_owned(), number);
    }
    Ok(())
}
