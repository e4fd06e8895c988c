//! Differences of metadata and of configs, as JSON values by their paths.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;

use super::report::FieldDiff;
#[cfg(feature = "gguf")]
use crate::parse::gguf::plain_json;
use crate::{ParsedModel, Result};

/// Elements of an array that are compared one by one. Vocabularies have far more.
const MAX_ELEMENTS: usize = 256;

/// The differences of metadata: texts by their keys, and the typed values of GGUF.
pub(super) fn metadata(a: &ParsedModel, b: &ParsedModel) -> Vec<FieldDiff> {
    let mut out = Vec::new();
    let none = HashMap::new();
    // The text metadata of a GGUF file is a copy of its typed metadata, which `compare_gguf`
    // compares.
    let texts = [a, b].map(|model| {
        if model.is_gguf() {
            &none
        } else {
            &model.metadata
        }
    });
    let keys: BTreeSet<&String> = texts.iter().flat_map(|texts| texts.keys()).collect();
    for key in keys {
        let [a, b] = texts.map(|texts| texts.get(key).cloned().map(Value::String));
        compare(key, a, b, &mut out);
    }
    #[cfg(feature = "gguf")]
    compare_gguf(a, b, &mut out);
    out
}

/// Compares the keys of GGUF files. Their values are decoded one key at a time.
#[cfg(feature = "gguf")]
fn compare_gguf(a: &ParsedModel, b: &ParsedModel, out: &mut Vec<FieldDiff>) {
    let metadata = [a, b].map(|model| model.gguf.as_ref().map(|gguf| gguf.metadata()));
    let keys = metadata
        .iter()
        .flatten()
        .flat_map(|metadata| metadata.keys());
    for key in keys.collect::<BTreeSet<&str>>() {
        let [a, b] = metadata.map(|metadata| metadata?.get(key));
        if a != b {
            let json = |value: Option<_>| value.map(|value| plain_json(&value));
            compare(key, json(a), json(b), out);
        }
    }
}

/// The differences of the JSON files beside two models.
///
/// # Errors
/// `Io` if a file cannot be read; `Parse` if it is no JSON; `LimitExceeded`.
pub(super) fn configs(a: &ParsedModel, b: &ParsedModel) -> Result<Vec<FieldDiff>> {
    let (mut files_a, mut files_b) = (a.config.json_files()?, b.config.json_files()?);
    let names: BTreeSet<String> = files_a.keys().chain(files_b.keys()).cloned().collect();
    let mut out = Vec::new();
    for name in names {
        let (a, b) = (files_a.remove(&name), files_b.remove(&name));
        // A model in one file often has no configs beside it. A config that only one model has is
        // one difference, not one for each of its keys.
        match (a, b) {
            (Some(a), Some(b)) => compare_json(&format!("{name}:"), " ", a, b, &mut out),
            (a, b) => compare(&name, a, b, &mut out),
        }
    }
    Ok(out)
}

/// Adds the differences of two values under `path`.
fn compare(path: &str, a: Option<Value>, b: Option<Value>, out: &mut Vec<FieldDiff>) {
    match (a, b) {
        (Some(a), Some(b)) => compare_json(path, ".", a, b, out),
        (a, b) if a != b => {
            out.push(FieldDiff { path: path.to_owned(), a: a.map(brief), b: b.map(brief) });
        }
        _ => {}
    }
}

/// Adds the differences of two values: of objects by their keys, which `separator` joins to `path`,
/// and of arrays of the same length by the index of the element.
fn compare_json(path: &str, separator: &str, a: Value, b: Value, out: &mut Vec<FieldDiff>) {
    if a == b {
        return;
    }
    match (a, b) {
        (Value::Object(mut a), Value::Object(mut b)) => {
            let keys: BTreeSet<String> = a.keys().chain(b.keys()).cloned().collect();
            for key in keys {
                let path = format!("{path}{separator}{key}");
                compare(&path, a.remove(&key), b.remove(&key), out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() && a.len() <= MAX_ELEMENTS => {
            for (i, (a, b)) in a.into_iter().zip(b).enumerate() {
                compare_json(&format!("{path}[{i}]"), ".", a, b, out);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            // Long arrays are vocabularies. The first element that differs says where to look.
            let first = a.iter().zip(&b).position(|(a, b)| a != b);
            let at = first.unwrap_or(a.len().min(b.len()));
            out.push(FieldDiff {
                path: format!("{path}[{at}]"),
                a: Some(a.get(at).map_or_else(|| length(&a), Value::clone)),
                b: Some(b.get(at).map_or_else(|| length(&b), Value::clone)),
            });
        }
        (a, b) => {
            out.push(FieldDiff { path: path.to_owned(), a: Some(brief(a)), b: Some(brief(b)) });
        }
    }
}

/// What stands for an array where it has no element.
fn length(array: &[Value]) -> Value {
    Value::String(format!("end of {} elements", array.len()))
}

/// A value as a report has it: in place of a long array or a large object, its size.
fn brief(value: Value) -> Value {
    match value {
        Value::Array(items) if items.len() > MAX_ELEMENTS => {
            Value::String(format!("array of {} elements", items.len()))
        }
        Value::Object(map) if map.len() > MAX_ELEMENTS => {
            Value::String(format!("object of {} keys", map.len()))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths() {
        let mut out = Vec::new();
        let a = json!({"a": {"b": [1, 2], "c": 3}, "same": 1, "gone": null});
        let b = json!({"a": {"b": [1, 4], "c": "3"}, "same": 1, "new": [0]});
        compare_json("config.json:", " ", a, b, &mut out);
        let found: Vec<_> = out.into_iter().map(|d| (d.path, d.a, d.b)).collect();
        let row = |path: &str, a: Option<Value>, b: Option<Value>| (path.to_owned(), a, b);
        assert_eq!(
            found,
            [
                row("config.json: a.b[1]", Some(json!(2)), Some(json!(4))),
                row("config.json: a.c", Some(json!(3)), Some(json!("3"))),
                row("config.json: gone", Some(Value::Null), None),
                row("config.json: new", None, Some(json!([0]))),
            ]
        );
    }

    #[test]
    fn long_arrays() {
        let mut out = Vec::new();
        let (a, mut b) = (vec![json!(7); 1000], vec![json!(7); 1001]);
        compare_json("t", ".", json!(a), json!(b), &mut out);
        b[3] = json!(8);
        compare_json("t", ".", json!(a), json!(b), &mut out);
        compare("t", None, Some(json!(b)), &mut out);
        let found: Vec<_> = out.into_iter().map(|d| (d.path, d.a, d.b)).collect();
        assert_eq!(
            found,
            [
                ("t[1000]".to_owned(), Some(json!("end of 1000 elements")), Some(json!(7))),
                ("t[3]".to_owned(), Some(json!(7)), Some(json!(8))),
                ("t".to_owned(), None, Some(json!("array of 1001 elements"))),
            ]
        );
    }
}
