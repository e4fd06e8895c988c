//! [`GgufEdit`]: changes of metadata keys, whose values get the types of their keys.

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use serde_json::Value;

use super::json::{MetadataObject, array, from_json, scalar};
use crate::model::gguf::GgufMetadataValue;
use crate::model::gguf_key_types::known_type;
use crate::{AnamnesisError, Result};

/// A change of one metadata key of a GGUF output.
///
/// A key that the output has already keeps its type, and one that llama.cpp knows gets the type that
/// llama.cpp reads: a value of another type would make a file that it refuses. Any other key has the
/// type that its value suggests.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufEdit {
    key: String,
    change: Change,
}

#[derive(Debug, Clone, PartialEq)]
enum Change {
    /// The value as it is, whatever type the key has.
    Typed(GgufMetadataValue),
    /// A value of JSON, which gets the type of the key.
    Json(Value),
    /// A text as a command line has it, which gets the type of the key.
    Text(String),
    /// The key is removed.
    Remove,
}

impl GgufEdit {
    /// Sets `key` to `value`, whatever type the key has.
    pub fn typed(key: impl Into<String>, value: GgufMetadataValue) -> Self {
        Self::new(key.into(), Change::Typed(value))
    }

    /// Sets `key` to what `text` says, as the type of the key.
    pub fn text(key: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(key.into(), Change::Text(text.into()))
    }

    /// Removes `key`.
    pub fn remove(key: impl Into<String>) -> Self {
        Self::new(key.into(), Change::Remove)
    }

    /// The key that is changed.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The text that the key is set to, if it gets the type of the key.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.change {
            Change::Text(text) => Some(text),
            _ => None,
        }
    }

    fn new(key: String, change: Change) -> Self {
        Self { key, change }
    }
}

/// Parses `KEY=VALUE`; `KEY:TYPE=VALUE`, which gives the key that type (`u32`, `string`, `[f32]`, …);
/// or `KEY=null`, which removes the key.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let edit = anamnesis::parse_gguf_edit("tokenizer.ggml.eos_token_id=7")?;
/// assert_eq!(edit.key(), "tokenizer.ggml.eos_token_id");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Usage` if `text` has no `=`, no key before it, an unknown type, or a value that is none of the
/// type.
pub fn parse_gguf_edit(text: &str) -> Result<GgufEdit> {
    let malformed = || {
        let what = "metadata is given as KEY=VALUE or KEY:TYPE=VALUE";
        AnamnesisError::usage(format!("`{text}`: {what}"))
    };
    let (key, value) = text.split_once('=').ok_or_else(malformed)?;
    // No key of GGUF has a colon.
    let (key, kind) = match key.split_once(':') {
        Some((key, kind)) => (key, Some(kind)),
        None => (key, None),
    };
    if key.is_empty() {
        return Err(malformed());
    }
    let change = match kind {
        None if value == "null" => Change::Remove,
        None => Change::Text(value.to_owned()),
        Some(kind) => {
            let item = kind
                .strip_prefix('[')
                .and_then(|kind| kind.strip_suffix(']'));
            let typed = match (kind, item) {
                ("string", _) => Ok(GgufMetadataValue::String(value.to_owned())),
                (_, Some(item)) => list_of(item, &written(value)),
                (kind, None) => scalar(kind, &written(value)),
            };
            Change::Typed(typed.map_err(|what| wrong(key, &what))?)
        }
    };
    Ok(GgufEdit::new(key.to_owned(), change))
}

/// Parses a JSON object of metadata, in the order of the text. A value is plain JSON, which gets the
/// type of its key; an object such as `{"type": "i8", "value": 3}`, which has that type; or `null`,
/// which removes the key.
///
/// # Errors
/// `Usage` if it is no JSON object, gives a key twice, or a value is none of its type.
pub fn parse_gguf_edits_json(text: &str) -> Result<Vec<GgufEdit>> {
    let entries: MetadataObject = serde_json::from_str(text)
        .map_err(|e| AnamnesisError::usage(format!("metadata as JSON: {e}")))?;
    let edit = |(key, value): (String, Value)| {
        let change = match &value {
            Value::Null => Change::Remove,
            Value::Object(_) => {
                Change::Typed(from_json(&value, 1).map_err(|what| wrong(&key, &what))?)
            }
            _ => Change::Json(value),
        };
        Ok(GgufEdit::new(key, change))
    };
    entries.0.into_iter().map(edit).collect()
}

/// What edits make of the metadata.
#[derive(Debug, Default)]
pub(crate) struct ResolvedEdits {
    /// The new values, in the order of the edits; of several for one key the last one alone.
    pub set: Vec<(String, GgufMetadataValue)>,
    /// Keys that are removed.
    pub removed: HashSet<String>,
}

/// Gives the values of `edits` their types. `existing` returns the value that the output would have
/// without them.
///
/// # Errors
/// `Usage` if a value is none of the key's type, or a key that is to be removed is not there.
pub(crate) fn resolve_edits(
    edits: &[GgufEdit],
    existing: &dyn Fn(&str) -> Option<GgufMetadataValue>,
) -> Result<ResolvedEdits> {
    let mut out = ResolvedEdits::default();
    for GgufEdit { key, change } in edits {
        let value = match change {
            Change::Typed(value) => Some(value.clone()),
            Change::Json(value) => Some(typed(key, value, existing(key).as_ref())?),
            Change::Text(text) => Some(typed_text(key, text, existing(key).as_ref())?),
            Change::Remove => None,
        };
        let was_set = out.set.iter().any(|(other, _)| other == key);
        out.set.retain(|(other, _)| other != key);
        match value {
            Some(value) => {
                out.removed.remove(key);
                out.set.push((key.clone(), value));
            }
            None if was_set || existing(key).is_some() => drop(out.removed.insert(key.clone())),
            None => {
                return Err(wrong(key, "it cannot be removed: the output has no such key"));
            }
        }
    }
    Ok(out)
}

fn wrong(key: &str, what: &str) -> AnamnesisError {
    AnamnesisError::usage(format!("GGUF metadata `{key}`: {what}"))
}

/// A text as JSON; a text that is none is a string.
fn written(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

fn list_of(item: &str, value: &Value) -> std::result::Result<GgufMetadataValue, String> {
    let items = value
        .as_array()
        .ok_or_else(|| format!("`{value}` is no list such as [1, 2]"))?;
    array(item, items, 1).map(|array| GgufMetadataValue::Array(Box::new(array)))
}

/// `text` as the type of `key`. A text stays what it is, quotes and all.
fn typed_text(
    key: &str,
    text: &str,
    existing: Option<&GgufMetadataValue>,
) -> Result<GgufMetadataValue> {
    let is_text = match existing {
        Some(value) => matches!(value, GgufMetadataValue::String(_)),
        None => known_type(key).is_some_and(|kind| kind.scalar == Some("string")),
    };
    match is_text {
        true => Ok(GgufMetadataValue::String(text.to_owned())),
        false => typed(key, &written(text), existing),
    }
}

/// `value` as the type of `key`: that of the value `existing`, or the known one, or the one that
/// the value suggests.
fn typed(
    key: &str,
    value: &Value,
    existing: Option<&GgufMetadataValue>,
) -> Result<GgufMetadataValue> {
    let known = known_type(key);
    let is_list = value.is_array();
    let by_known = || match known {
        Some(kind) if is_list => kind.items.map(|item| list_of(item, value)),
        Some(kind) => kind.scalar.map(|kind| scalar(kind, value)),
        None => None,
    };
    let found = match existing {
        Some(GgufMetadataValue::Array(old)) if is_list => match old.item_name() {
            // Of lists of lists the text says all.
            "array" => from_json(value, 1),
            item => list_of(item, value),
        },
        Some(GgufMetadataValue::Array(old)) => by_known()
            .unwrap_or_else(|| Err(format!("`{value}` is no list of {}", old.item_name()))),
        Some(old) if !is_list => scalar(old.type_name(), value),
        Some(old) => by_known().unwrap_or_else(|| Err(format!("a list is no {}", old.type_name()))),
        None => match (known, by_known()) {
            (None, _) => from_json(value, 1),
            (Some(_), Some(found)) => found,
            (Some(kind), None) => Err(match kind.items {
                Some(item) => format!("`{value}` is no list of {item}"),
                None => format!("a list is no {}", kind.scalar.unwrap_or_default()),
            }),
        },
    };
    found.map_err(|what| {
        let whose = match existing {
            Some(_) => "the type that the key has",
            None => "the type that llama.cpp reads",
        };
        wrong(key, &format!("{what}, {whose}; KEY:TYPE=VALUE gives it another"))
    })
}
