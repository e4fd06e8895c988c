//! `config.json` as a set of fields: the text model's over the root's, and the defaults of the class under both.

use serde_json::{Map, Value};

use super::dims::Dims;
use super::table::{Default, ModelClass};
use crate::config::TEXT_CONFIGS;
use crate::{AnamnesisError, Result};

/// The fields of a config.
#[derive(Debug, Clone)]
pub(super) struct Fields(pub Map<String, Value>);

impl Fields {
    /// The fields of `config`.
    ///
    /// # Errors
    /// `Parse` if it is no object.
    pub(super) fn new(config: &Value) -> Result<Self> {
        let Value::Object(root) = config else {
            return Err(AnamnesisError::parse("config.json: it is no object"));
        };
        let mut all = root.clone();
        let text = TEXT_CONFIGS
            .iter()
            .find_map(|key| root.get(*key)?.as_object());
        if let Some(text) = text {
            all.extend(text.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        Ok(Self::of(all))
    }

    /// The fields of an object. One that is null says as much as one that is not there.
    pub(super) fn of(mut all: Map<String, Value>) -> Self {
        all.retain(|_, value| !value.is_null());
        Self(all)
    }

    /// Adds what `class` takes for granted.
    pub(super) fn complete(&mut self, class: &ModelClass) {
        for (key, default) in class.defaults {
            self.0
                .entry((*key).to_owned())
                .or_insert_with(|| default.into());
        }
    }

    /// Fails if the config says something else than what llama.cpp takes for granted of `class`.
    pub(super) fn check_implied(&self, class: &ModelClass, dims: &Dims) -> Result<()> {
        let refuse = |field: &str, found: &Value, expected: &Value| {
            let what = format!(
                "it is {found}, and llama.cpp's {} has {expected}",
                class.gguf
            );
            Err(wrong(field, what))
        };
        for (field, value) in class.implied {
            let (found, expected) = (self.0.get(*field), Value::from(value));
            if let Some(found) = found.filter(|found| **found != expected) {
                return refuse(field, found, &expected);
            }
        }
        if let Some(every) = class.traits.full_attention_every {
            let pattern = Value::from(every);
            let field = "sliding_window_pattern";
            if let Some(found) = self.0.get(field).filter(|found| **found != pattern) {
                return refuse(field, found, &pattern);
            }
            let kinds = (1..=dims.layers).map(|layer| match layer.is_multiple_of(every) {
                true => "full_attention",
                false => "sliding_attention",
            });
            let kinds: Value = kinds.collect();
            if let Some(found) = self.0.get("layer_types").filter(|found| **found != kinds) {
                return refuse("layer_types", found, &kinds);
            }
        }
        let field = "query_pre_attn_scalar";
        match (attention_scalar(class, dims), self.0.get(field)) {
            (Some(expected), Some(found)) if found.as_f64() != Some(expected as f64) => {
                refuse(field, found, &expected.into())
            }
            _ => Ok(()),
        }
    }

    /// The first field of `names` that there is, with its name.
    pub(super) fn get<'a>(&self, names: &[&'a str]) -> Option<(&'a str, &Value)> {
        names
            .iter()
            .find_map(|&name| Some((name, self.0.get(name)?)))
    }

    /// Whether the field is there and true.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// A number that counts something.
    ///
    /// # Errors
    /// `Parse` if it is no integer that GGUF's UINT32 holds.
    pub(super) fn count(&self, names: &[&str]) -> Result<Option<u32>> {
        let Some((name, value)) = self.get(names) else {
            return Ok(None);
        };
        let count = value.as_u64().and_then(|n| u32::try_from(n).ok());
        let wrong = || wrong(name, format_args!("{value} is no count"));
        count.map(Some).ok_or_else(wrong)
    }

    /// As [`count`](Self::count), of a field that must be there.
    pub(super) fn need(&self, names: &[&str]) -> Result<u32> {
        let missing = || wrong(names[0], "it is missing");
        self.count(names)?.ok_or_else(missing)
    }

    /// A finite number.
    ///
    /// # Errors
    /// `Parse` if it is something else.
    pub(super) fn number(&self, names: &[&str]) -> Result<Option<f64>> {
        let Some((name, value)) = self.get(names) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|x| (*x as f32).is_finite());
        let wrong = || wrong(name, format_args!("{value} is no number"));
        number.map(Some).ok_or_else(wrong)
    }
}

/// What scores are divided by the root of, if the class has a field for it.
pub(super) fn attention_scalar(class: &ModelClass, dims: &Dims) -> Option<usize> {
    let layers = class.traits.scaled_by_hidden_size?;
    Some(match dims.layers == layers {
        true => dims.hidden / dims.heads,
        false => dims.head,
    })
}

impl From<&Default> for Value {
    fn from(value: &Default) -> Self {
        match *value {
            Default::Int(n) => n.into(),
            Default::Float(x) => x.into(),
            Default::Bool(flag) => flag.into(),
            Default::Text(text) => text.into(),
            Default::Absent => Self::Null,
        }
    }
}

/// The error that field `name` of `config.json` is wrong.
pub(super) fn wrong(name: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("config.json: `{name}`: {what}"))
}
