//! Keys of the metadata of GGUF, and their values.

use serde_json::{Value, json};

use crate::AnamnesisError;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};

/// A key with its value.
pub(crate) type KeyValue = (String, GgufMetadataValue);

pub(crate) fn array(values: GgufMetadataArray) -> GgufMetadataValue {
    GgufMetadataValue::Array(Box::new(values))
}

/// The error that the key `key` of the metadata is wrong.
pub(crate) fn wrong_key(key: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("GGUF metadata: `{key}`: {what}"))
}

/// A `Parse` error: the key is missing that the output needs.
pub(crate) fn missing_key(key: &str) -> AnamnesisError {
    let way_out =
        format!("`amn convert FILE --to gguf --gguf-kv {key}=VALUE` makes a copy that has it");
    wrong_key(key, format_args!("it is missing; {way_out}"))
}

/// A FLOAT32 as the shortest decimal number that is rounded to it.
pub(crate) fn float(value: &GgufMetadataValue) -> Option<Value> {
    match *value {
        GgufMetadataValue::F32(x) if x.is_finite() => {
            Some(json!(x.to_string().parse::<f64>().ok()?))
        }
        GgufMetadataValue::F64(x) if x.is_finite() => Some(json!(x)),
        _ => None,
    }
}
