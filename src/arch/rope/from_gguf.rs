//! The scaling of a config from the metadata of a GGUF file.

use serde_json::{Map, Value, json};

use super::{LONG_FACTORS, Llama3, ROPE_FACTORS, YARN};
use crate::arch::dims::Dims;
use crate::arch::settings::{float, wrong_key};
use crate::arch::table::ModelClass;
use crate::containers::model::gguf::{GgufMetadata, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// The field `rope_scaling` of a config, from the metadata of a GGUF file and its tensors of `factors`.
///
/// # Errors
/// `Parse` if a key is missing; `Unsupported` if transformers has no such scaling.
pub(in crate::arch) fn scaling_of(
    class: &ModelClass,
    metadata: &GgufMetadata,
    factors: &[(&str, Vec<f32>)],
    dims: &Dims,
) -> Result<Option<Value>> {
    let key = |key: &str| format!("{}.rope.{key}", class.gguf);
    let get = |name: &str| metadata.get(&key(name));
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
        return Ok(Some(Value::Object(
            [kind, list(long), list(short)].into_iter().collect(),
        )));
    }
    if let Some((_, factors)) = find(ROPE_FACTORS) {
        let found = Llama3::of(factors, base.unwrap_or(10_000.0), dims.head);
        let Some(found) = found else {
            let what = "tensor `rope_freqs.weight`: its values are none of Llama 3's scaling";
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
    let kind = get("scaling.type");
    let kind = match kind.as_ref().and_then(|kind| kind.as_string()) {
        None | Some("none") => return Ok(None),
        Some(kind @ ("linear" | "yarn")) => kind,
        Some(other) => {
            let what = format!("`{}` is `{other}`", key("scaling.type"));
            return Err(AnamnesisError::unsupported("a whole model", what));
        }
    };
    let mut scaling = Map::new();
    scaling.insert("rope_type".to_owned(), kind.into());
    let factor = get("scaling.factor").as_ref().and_then(float);
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
        if class.traits.has_exact_yarn {
            scaling.insert("truncate".to_owned(), false.into());
        }
        if let Some(GgufMetadataValue::F32(log)) = get("scaling.yarn_log_multiplier") {
            let all = float(&GgufMetadataValue::F32(log * 10.0));
            scaling.extend(all.clone().map(|all| ("mscale".to_owned(), all)));
            scaling.extend(all.map(|all| ("mscale_all_dim".to_owned(), all)));
        }
    }
    Ok(Some(Value::Object(scaling)))
}
