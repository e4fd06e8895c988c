//! Metadata as JSON. A plain value gets a type by what it is: text, truth, a number (an integer is `u32`, else
//! `u64` or `i64`; any other `f32`), an array of one type. `{"type": "i8", "value": 3}` and
//! `{"type": "array", "item_type": "i8", "value": [3]}` give the type.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::header::MAX_ARRAY_DEPTH;
use crate::containers::model::gguf::GgufMetadata;
use crate::containers::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// Longest text that is kept of a value.
const MAX_TEXT: usize = 8 << 10;

/// Bytes of text that are kept of a file's metadata in all.
const MAX_TEXTS: usize = 1 << 20;

/// Prefix of GGUF metadata among a model's free-form metadata.
pub(crate) const PREFIX: &str = "gguf.";

/// Reads typed metadata from a JSON object, in its order.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let entries = anamnesis::parse_gguf_metadata_json(r#"{"general.name": "x"}"#)?;
/// assert_eq!((&*entries[0].0, entries[0].1.as_string()), ("general.name", Some("x")));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` that names the key: null, an empty array without a type, mixed types, a value that its type does not
/// hold.
pub fn parse_gguf_metadata_json(text: &str) -> Result<Vec<(String, GgufMetadataValue)>> {
    let entries: Entries = serde_json::from_str(text)
        .map_err(|e| AnamnesisError::parse(format!("metadata as JSON: {e}")))?;
    entries
        .0
        .into_iter()
        .map(|(key, value)| {
            Ok((
                key.clone(),
                from_json(&value, 1).map_err(|e| wrong(&key, &e))?,
            ))
        })
        .collect()
}

/// Reads `KEY=VALUE` as a text value.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// let (key, value) = anamnesis::parse_gguf_kv_arg("general.name=x")?;
/// assert_eq!((&*key, value.as_string()), ("general.name", Some("x")));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if there is no `=`, or no key before it.
pub fn parse_gguf_kv_arg(text: &str) -> Result<(String, GgufMetadataValue)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            Ok((key.to_owned(), GgufMetadataValue::String(value.to_owned())))
        }
        _ => Err(AnamnesisError::parse(format!(
            "`{text}`: metadata is given as KEY=VALUE"
        ))),
    }
}

fn wrong(key: &str, what: &impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("metadata `{key}`: {what}"))
}

/// A JSON object in its order, each key once.
struct Entries(Vec<(String, Value)>);

impl<'de> serde::Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Entries;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of metadata keys")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Entries, A::Error> {
                let mut entries: Vec<(String, Value)> = Vec::new();
                let mut seen = HashMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if seen.insert(key.clone(), ()).is_some() {
                        return Err(serde::de::Error::custom(format!("`{key}` is given twice")));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

type Plain<T> = std::result::Result<T, String>;

fn from_json(value: &Value, depth: usize) -> Plain<GgufMetadataValue> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(format!("arrays in more than {MAX_ARRAY_DEPTH} levels"));
    }
    match value {
        Value::Null => Err("null is no value".to_owned()),
        Value::Object(object) => from_typed(object, depth),
        Value::Array(items) => {
            let first = items.first().ok_or("an empty array needs an `item_type`")?;
            array(kind_of(items, first)?, items, depth)
                .map(|a| GgufMetadataValue::Array(Box::new(a)))
        }
        scalar => self::scalar(kind(scalar).ok_or("not a value")?, scalar),
    }
}

fn from_typed(object: &Map<String, Value>, depth: usize) -> Plain<GgufMetadataValue> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let (Some(kind), Some(value)) = (text("type"), object.get("value")) else {
        return Err("a typed value has a `type` and a `value`".to_owned());
    };
    if kind != "array" {
        return scalar(kind, value);
    }
    let items = value
        .as_array()
        .ok_or("the `value` of an array is an array")?;
    let kind = text("item_type").ok_or("a typed array has an `item_type`")?;
    array(kind, items, depth).map(|a| GgufMetadataValue::Array(Box::new(a)))
}

/// The type of a plain value.
fn kind(value: &Value) -> Option<&'static str> {
    Some(match value {
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.as_u64().is_some_and(|n| u32::try_from(n).is_ok()) => "u32",
        Value::Number(n) if n.is_u64() => "u64",
        Value::Number(n) if n.is_i64() => "i64",
        Value::Number(_) => "f32",
        Value::Array(_) => "array",
        _ => return None,
    })
}

/// The type of a plain array: the first element's, or the widest integer that some element needs.
fn kind_of(items: &[Value], first: &Value) -> Plain<&'static str> {
    let first = kind(first).ok_or("not a value")?;
    if !["u32", "u64", "i64"].contains(&first) {
        return Ok(first);
    }
    let has = |wanted: &str| items.iter().any(|item| kind(item) == Some(wanted));
    Ok(["f32", "i64", "u64"]
        .into_iter()
        .find(|k| has(k))
        .unwrap_or("u32"))
}

/// A number that `T` holds exactly.
fn integer<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    let wide = value
        .as_u64()
        .map(i128::from)
        .or_else(|| value.as_i64().map(i128::from))?;
    T::try_from(wide).ok()
}

/// A float; JSON has no other way to write those that are not finite.
fn float(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

/// A float that f32 has room for.
fn single(value: &Value) -> Option<f32> {
    let wide = float(value)?;
    let narrow = wide as f32;
    (narrow.is_finite() || !wide.is_finite()).then_some(narrow)
}

macro_rules! kinds {
    ($($name:literal $variant:ident $read:expr, $show:expr;)*) => {
        fn scalar(kind: &str, value: &Value) -> Plain<GgufMetadataValue> {
            let found = match kind {
                $($name => $read(value).map(GgufMetadataValue::$variant),)*
                _ => return Err(format!("there is no type `{kind}`")),
            };
            found.ok_or_else(|| format!("`{value}` is no {kind}"))
        }

        fn array(kind: &str, items: &[Value], depth: usize) -> Plain<GgufMetadataArray> {
            match kind {
                $($name => {
                    let item = |v: &Value| $read(v).ok_or_else(|| format!("`{v}` is no {kind}"));
                    items.iter().map(item).collect::<Plain<_>>().map(GgufMetadataArray::$variant)
                })*
                "array" => {
                    let item = |v: &Value| match from_json(v, depth + 1)? {
                        GgufMetadataValue::Array(array) => Ok(*array),
                        _ => Err(format!("`{v}` is no array")),
                    };
                    items.iter().map(item).collect::<Plain<_>>().map(GgufMetadataArray::Array)
                }
                _ => Err(format!("there is no type `{kind}`")),
            }
        }

        fn show(value: &GgufMetadataValue) -> Value {
            match value {
                $(GgufMetadataValue::$variant(v) => json!($show(v)),)*
                GgufMetadataValue::Array(array) => show_array(array),
            }
        }

        fn show_array(array: &GgufMetadataArray) -> Value {
            match array {
                $(GgufMetadataArray::$variant(items) => items.iter().map(|v| json!($show(v))).collect(),)*
                GgufMetadataArray::Array(items) => items.iter().map(typed_array).collect(),
            }
        }
    };
}

kinds! {
    "u8" U8 integer, <u8 as Clone>::clone;
    "i8" I8 integer, <i8 as Clone>::clone;
    "u16" U16 integer, <u16 as Clone>::clone;
    "i16" I16 integer, <i16 as Clone>::clone;
    "u32" U32 integer, <u32 as Clone>::clone;
    "i32" I32 integer, <i32 as Clone>::clone;
    "u64" U64 integer, <u64 as Clone>::clone;
    "i64" I64 integer, <i64 as Clone>::clone;
    "f32" F32 single, show_single;
    "f64" F64 float, show_float;
    "bool" Bool Value::as_bool, <bool as Clone>::clone;
    "string" String |v: &Value| v.as_str().map(str::to_owned), <String as Clone>::clone;
}

fn show_float(x: &f64) -> Value {
    match x {
        x if x.is_nan() => json!("NaN"),
        x if x.is_infinite() => json!(if *x > 0.0 { "Infinity" } else { "-Infinity" }),
        x => json!(x),
    }
}

/// The shortest decimal that gives the same f32.
fn show_single(x: &f32) -> Value {
    if x.is_finite() {
        x.to_string().parse().map_or(Value::Null, |x: f64| json!(x))
    } else {
        show_float(&f64::from(*x))
    }
}

fn typed_array(array: &GgufMetadataArray) -> Value {
    json!({ "type": "array", "item_type": array.item_name(), "value": show_array(array) })
}

/// A value as text: plain where that reads back as the same value, else with its type.
fn text(value: &GgufMetadataValue) -> String {
    if let GgufMetadataValue::String(text) = value
        && serde_json::from_str::<Value>(text).is_err()
    {
        return text.clone();
    }
    let plain = show(value);
    if !matches!(value, GgufMetadataValue::String(_)) && from_json(&plain, 1).as_ref() == Ok(value)
    {
        return plain.to_string();
    }
    match value {
        GgufMetadataValue::Array(array) => typed_array(array).to_string(),
        _ => json!({ "type": value.type_name(), "value": plain }).to_string(),
    }
}

/// The value of a [`text`].
pub(crate) fn from_text(text: &str) -> GgufMetadataValue {
    let parsed = serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|value| from_json(&value, 1).ok());
    parsed.unwrap_or_else(|| GgufMetadataValue::String(text.to_owned()))
}

/// The small values as texts, for a container whose metadata is text.
pub(super) fn texts(metadata: &GgufMetadata) -> HashMap<String, String> {
    let mut left = MAX_TEXTS;
    let mut out = HashMap::new();
    for (key, value) in metadata.small(MAX_TEXT) {
        let text = text(&value);
        if text.len() <= MAX_TEXT && key.len() + text.len() <= left {
            left -= key.len() + text.len();
            out.insert(format!("{PREFIX}{key}"), text);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_read_back() {
        use GgufMetadataValue as V;
        let values = [
            V::String("llama".into()),
            V::String("3".into()),
            V::String("{\"a\": 1}".into()),
            V::String(String::new()),
            V::U32(7),
            V::I32(-7),
            V::U8(7),
            V::U64(1 << 40),
            V::I64(-1),
            V::F32(1e-5),
            V::F32(10000.0),
            V::F32(f32::INFINITY),
            V::F64(0.1),
            V::Bool(true),
            V::Array(Box::new(GgufMetadataArray::I8(vec![]))),
            V::Array(Box::new(GgufMetadataArray::U32(vec![1, 2]))),
            V::Array(Box::new(GgufMetadataArray::F32(vec![1.5, -0.0, f32::MAX]))),
            V::Array(Box::new(GgufMetadataArray::Array(vec![
                GgufMetadataArray::String(vec!["x".into()]),
            ]))),
        ];
        for value in values {
            assert_eq!(from_text(&text(&value)), value, "{}", text(&value));
        }
        assert_eq!(text(&V::F32(1e-5)), "0.00001");
        assert_eq!(text(&V::String("llama".into())), "llama");
    }

    #[test]
    fn json_is_typed() {
        let read = |text: &str| parse_gguf_metadata_json(text).map(|entries| entries[0].1.clone());
        assert_eq!(
            read(r#"{"a": [1, 5000000000]}"#).unwrap(),
            V::Array(Box::new(GgufMetadataArray::U64(vec![1, 5_000_000_000])))
        );
        assert_eq!(
            read(r#"{"a": {"type": "i8", "value": -3}}"#).unwrap(),
            V::I8(-3)
        );
        for bad in [
            r#"{"a": null}"#,
            r#"{"a": []}"#,
            r#"{"a": [1, "x"]}"#,
            r#"{"a": {"type": "u8", "value": 256}}"#,
            r#"{"a": 1, "a": 2}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        use GgufMetadataValue as V;
    }
}
