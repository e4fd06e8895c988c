//! Metadata as JSON, to be edited by users and to be kept in containers whose metadata is text.
//!
//! A plain JSON value has the type that it suggests: `string`, `bool`, an array of one type, or a
//! number, which is the first of `u32`, `u64` and `i64` that holds it, or else `f32`. `{"type":
//! "i8", "value": 3}` and `{"type": "array", "item_type": "i8", "value": [3]}` name the type.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::header::MAX_ARRAY_DEPTH;
use crate::model::gguf::GgufMetadata;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::model::gguf_keys::PREFIX;
use crate::{AnamnesisError, Result};

/// Longest text of a value that is kept, in bytes.
const MAX_TEXT: usize = 8 << 10;

/// Most bytes of keys and texts that are kept of a file's metadata.
const MAX_TEXTS: usize = 1 << 20;

/// Parses a JSON object of metadata into typed values, in the order of the text.
///
/// A value is plain JSON, which then has the type that it suggests, or an object such as `{"type":
/// "i8", "value": 3}`.
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
/// `Parse` that names the key: for `null`, an empty array without a type, mixed types, a value that
/// does not fit its type, or a key that is given twice.
pub fn parse_gguf_metadata_json(text: &str) -> Result<Vec<(String, GgufMetadataValue)>> {
    let entries: MetadataObject = serde_json::from_str(text)
        .map_err(|e| AnamnesisError::parse(format!("metadata as JSON: {e}")))?;
    entries
        .0
        .into_iter()
        .map(|(key, value)| Ok((key.clone(), from_json(&value, 1).map_err(|e| wrong(&key, &e))?)))
        .collect()
}

/// Splits `KEY=VALUE` into a key and a value of type `string`.
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
/// `Parse` if `text` has no `=`, or no key before it.
pub fn parse_gguf_kv_arg(text: &str) -> Result<(String, GgufMetadataValue)> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            Ok((key.to_owned(), GgufMetadataValue::String(value.to_owned())))
        }
        _ => Err(AnamnesisError::parse(format!("`{text}`: metadata is given as KEY=VALUE"))),
    }
}

fn wrong(key: &str, what: &impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("metadata `{key}`: {what}"))
}

/// A JSON object in the order of the text. A repeated key is an error; `serde_json::Map` would sort
/// and overwrite keys.
pub(super) struct MetadataObject(pub(super) Vec<(String, Value)>);

impl<'de> serde::Deserialize<'de> for MetadataObject {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        struct MetadataObjectVisitor;
        impl<'de> serde::de::Visitor<'de> for MetadataObjectVisitor {
            type Value = MetadataObject;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of metadata keys")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<MetadataObject, A::Error> {
                let mut entries: Vec<(String, Value)> = Vec::new();
                let mut seen = HashMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if seen.insert(key.clone(), ()).is_some() {
                        return Err(serde::de::Error::custom(format!("`{key}` is given twice")));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(MetadataObject(entries))
            }
        }
        deserializer.deserialize_map(MetadataObjectVisitor)
    }
}

type JsonResult<T> = std::result::Result<T, String>;

pub(super) fn from_json(value: &Value, depth: usize) -> JsonResult<GgufMetadataValue> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(format!("arrays in more than {MAX_ARRAY_DEPTH} levels"));
    }
    match value {
        Value::Null => Err("null is no value".to_owned()),
        Value::Object(object) => from_typed(object, depth),
        Value::Array(items) => {
            let first = items.first().ok_or("an empty array needs an `item_type`")?;
            array(item_kind(items, first)?, items, depth)
                .map(|a| GgufMetadataValue::Array(Box::new(a)))
        }
        scalar => self::scalar(kind(scalar).ok_or("not a value")?, scalar),
    }
}

fn from_typed(object: &Map<String, Value>, depth: usize) -> JsonResult<GgufMetadataValue> {
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

/// Name of the type that a plain value has.
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

/// Name of the type of a plain array's elements: that of the first element; among numbers the first
/// of `f32`, `i64`, `u64` that some element has, or else `u32`.
fn item_kind(items: &[Value], first: &Value) -> JsonResult<&'static str> {
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

/// The integer, if it is within the range of `T`.
fn integer<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    // i128 has room for both ranges that JSON numbers come in.
    let number = value
        .as_u64()
        .map(i128::from)
        .or_else(|| value.as_i64().map(i128::from))?;
    T::try_from(number).ok()
}

/// The float. Values that are not finite are strings, for JSON has no number for them.
fn float(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

/// The float rounded to F32; `None` if it is finite and F32 does not reach it.
fn single(value: &Value) -> Option<f32> {
    let double = float(value)?;
    let single = double as f32;
    (single.is_finite() || !double.is_finite()).then_some(single)
}

/// What is said of a type that there is not.
fn no_type(kind: &str, known: &[&str]) -> String {
    format!("there is no type `{kind}`; types are {}, and [TYPE] is a list", known.join(", "))
}

macro_rules! kinds {
    ($($name:literal $variant:ident $read:expr, $show:expr;)*) => {
        pub(super) fn scalar(kind: &str, value: &Value) -> JsonResult<GgufMetadataValue> {
            let found = match kind {
                $($name => $read(value).map(GgufMetadataValue::$variant),)*
                _ => return Err(no_type(kind, &[$($name),*])),
            };
            found.ok_or_else(|| format!("`{value}` is no {kind}"))
        }

        pub(super) fn array(kind: &str, items: &[Value], depth: usize) -> JsonResult<GgufMetadataArray> {
            match kind {
                $($name => {
                    let item = |v: &Value| $read(v).ok_or_else(|| format!("`{v}` is no {kind}"));
                    items.iter().map(item).collect::<JsonResult<_>>().map(GgufMetadataArray::$variant)
                })*
                "array" => {
                    let item = |v: &Value| match from_json(v, depth + 1)? {
                        GgufMetadataValue::Array(array) => Ok(*array),
                        _ => Err(format!("`{v}` is no array")),
                    };
                    items.iter().map(item).collect::<JsonResult<_>>().map(GgufMetadataArray::Array)
                }
                _ => Err(no_type(kind, &[$($name),*])),
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
    "u8" U8 integer::<u8>, <u8 as Clone>::clone;
    "i8" I8 integer::<i8>, <i8 as Clone>::clone;
    "u16" U16 integer::<u16>, <u16 as Clone>::clone;
    "i16" I16 integer::<i16>, <i16 as Clone>::clone;
    "u32" U32 integer::<u32>, <u32 as Clone>::clone;
    "i32" I32 integer::<i32>, <i32 as Clone>::clone;
    "u64" U64 integer::<u64>, <u64 as Clone>::clone;
    "i64" I64 integer::<i64>, <i64 as Clone>::clone;
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

/// The shortest decimal that rounds to the same F32. A cast to F64 would show `0.1` as
/// `0.10000000149011612`.
fn show_single(x: &f32) -> Value {
    if x.is_finite() {
        x.to_string().parse().map_or(Value::Null, |x: f64| json!(x))
    } else {
        show_float(&f64::from(*x))
    }
}

/// An array with the type of its elements.
fn typed_array(array: &GgufMetadataArray) -> Value {
    json!({ "type": "array", "item_type": array.item_name(), "value": show_array(array) })
}

/// A value as text from which [`from_text`] makes the same value: a string as it is, other values
/// as plain JSON. Where that would give another value, it is JSON with the type.
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

/// The value in a text: of JSON, the typed value; any other text is a string.
pub(crate) fn from_text(text: &str) -> GgufMetadataValue {
    let parsed = serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|value| from_json(&value, 1).ok());
    parsed.unwrap_or_else(|| GgufMetadataValue::String(text.to_owned()))
}

/// The value as plain JSON. Floats that JSON has no number for are the texts `NaN`, `Infinity` and
/// `-Infinity`.
pub(crate) fn plain_json(value: &GgufMetadataValue) -> Value {
    show(value)
}

/// The metadata as texts, with the prefix [`PREFIX`] before each key. Long values, such as
/// tokenizers, are left out.
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
            V::Array(Box::new(GgufMetadataArray::Array(vec![GgufMetadataArray::String(vec![
                "x".into(),
            ])]))),
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
        assert_eq!(read(r#"{"a": {"type": "i8", "value": -3}}"#).unwrap(), V::I8(-3));
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
