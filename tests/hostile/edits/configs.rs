//! Edits of the configs beside a model.

use serde_json::{Value, json};

use super::model::Model;
use super::{Choice, Edit};

/// A value of a config that was changed, removed or put in another order.
pub struct ValueChange {
    pub kind: &'static str,
    /// The JSON pointer of the value.
    pub place: String,
    old: String,
    /// `None` removes the value.
    new: Option<Value>,
}

impl ValueChange {
    /// What stands there now, and what stood there.
    pub fn describe(&self) -> String {
        format!("{}, was {}", self.new.as_ref().unwrap_or(&Value::Null), self.old)
    }

    /// `config` with this change.
    pub fn apply(&self, config: &Value) -> Value {
        let mut value = config.clone();
        match &self.new {
            Some(new) => value.pointer_mut(&self.place).unwrap().clone_from(new),
            None => remove(&mut value, &self.place),
        }
        value
    }
}

/// Single changes of every value of `config`.
pub fn values(config: &Value) -> Vec<ValueChange> {
    let mut all = Vec::new();
    for place in pointers(config, "") {
        let old = config.pointer(&place).unwrap();
        let changes = changes(old).into_iter();
        all.extend(changes.map(|(kind, new)| ValueChange {
            kind,
            place: place.clone(),
            old: old.to_string(),
            new,
        }));
    }
    all
}

/// The edits in `choice` of every value below a quantization config, of the configs that are about
/// quantization alone, and of JSON in the metadata.
pub fn edits(model: &Model, choice: &mut Choice) -> Vec<Edit> {
    let edit = |change: &ValueChange, role: String, model: Model| Edit {
        kind: change.kind,
        place: change.place.clone(),
        new: change.describe(),
        role,
        tensor: None,
        model,
    };
    let mut all = Vec::new();
    for (file, config) in &model.configs {
        for change in values(config) {
            if is_about_quantization(file, &change.place) && choice.takes_next() {
                let mut model = model.clone();
                model.configs.insert(file.clone(), change.apply(config));
                all.push(edit(&change, file.clone(), model));
            }
        }
    }
    for (i, (key, text)) in model.metadata.iter().enumerate() {
        let json = serde_json::from_str(text).ok().filter(Value::is_object);
        if let Some(json) = &json {
            for change in values(json).iter().filter(|_| choice.takes_next()) {
                let mut model = model.clone();
                model.metadata[i].1 = change.apply(json).to_string();
                all.push(edit(change, format!("metadata {key}"), model));
            }
        }
    }
    all
}

fn is_about_quantization(file: &str, pointer: &str) -> bool {
    file.contains("quant") || pointer.contains("quant") || pointer.contains("compression")
}

/// The places of all values that are no objects.
fn pointers(value: &Value, at: &str) -> Vec<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| {
                let key = key.replace('~', "~0").replace('/', "~1");
                pointers(value, &format!("{at}/{key}"))
            })
            .collect(),
        _ => vec![at.to_owned()],
    }
}

fn remove(config: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let key = key.replace("~1", "/").replace("~0", "~");
    config
        .pointer_mut(parent)
        .unwrap()
        .as_object_mut()
        .unwrap()
        .remove(&key);
}

/// Words that quantization configs use.
const WORDS: &[&str] = &[
    "awq",
    "gptq",
    "fp8",
    "int",
    "float",
    "group",
    "channel",
    "tensor",
    "block",
    "token",
    "affine",
    "mxfp4",
    "nvfp4",
    "nf4",
    "fp4",
    "int8",
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
];

/// What may stand in place of a value; `None` removes it.
fn changes(old: &Value) -> Vec<(&'static str, Option<Value>)> {
    let mut all: Vec<(&'static str, Option<Value>)> = vec![("config removed", None)];
    match old {
        Value::Number(n) => {
            let n = n.as_f64().unwrap_or(0.0);
            let numbers = [n + 1.0, n - 1.0, n * 2.0, (n / 2.0).floor(), 0.0, -1.0];
            let numbers = numbers.into_iter().filter(|new| *new != n);
            all.extend(numbers.map(|new| ("config number", Some(json!(new as i64)))));
        }
        Value::Bool(b) => all.push(("config bool", Some(json!(!b)))),
        Value::String(s) => {
            let words = WORDS.iter().filter(|w| **w != s.as_str());
            all.extend(words.map(|w| ("config word", Some(json!(w)))));
        }
        Value::Array(items) => {
            all.push(("config list", Some(json!([]))));
            if items.len() > 1 {
                all.push(("config list", Some(json!(items[1..]))));
                all.push(("config list", Some(items.iter().rev().cloned().collect())));
            }
            if let Some(n) = items.first().and_then(Value::as_u64) {
                let mut new = items.clone();
                new[0] = json!(n * 2);
                all.push(("config list", Some(json!(new))));
            }
        }
        Value::Null | Value::Object(_) => {}
    }
    all
}
