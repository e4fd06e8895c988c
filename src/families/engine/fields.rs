//! `config.json` as a set of fields: the text model's over the root's, and the defaults of the
//! class under both.

mod keys;
mod names;

use serde_json::{Map, Value};

pub(crate) use self::keys::{KeyValue, array, float, missing_key, wrong_key};
pub(crate) use self::names::*;
use crate::config::text_config;
use crate::{AnamnesisError, Result};

/// The fields of a config.
#[derive(Debug, Clone)]
pub(crate) struct Fields(pub Map<String, Value>);

/// Whether two values are equal. JSON has the same number with and without a point.
pub(crate) fn is_same(a: &Value, b: &Value) -> bool {
    a == b || a.is_number() && a.as_f64() == b.as_f64()
}

impl Fields {
    /// The fields of `config`.
    ///
    /// # Errors
    /// `Parse` if it is no object.
    pub(crate) fn new(config: &Value) -> Result<Self> {
        let Value::Object(root) = config else {
            return Err(AnamnesisError::parse("config.json: it is no object"));
        };
        let mut all = root.clone();
        if let Some(text) = text_config(config).and_then(Value::as_object) {
            all.extend(text.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        Ok(Self::of(all))
    }

    /// The fields of an object. One that is null says as much as one that is not there.
    pub(crate) fn of(mut all: Map<String, Value>) -> Self {
        all.retain(|_, value| !value.is_null());
        Self(all)
    }

    /// Fails if there is a `field` with another value than `expected`, which `owner` takes for
    /// granted.
    ///
    /// # Errors
    /// `Parse` that names the field.
    pub(crate) fn expect(&self, field: &str, expected: &Value, owner: &str) -> Result<()> {
        match self.0.get(field) {
            Some(found) if found != expected => {
                let what = format!("it is {found}, and {owner} has {expected}");
                Err(wrong(field, what))
            }
            _ => Ok(()),
        }
    }

    /// The first field of `names` that there is, with its name.
    pub(crate) fn get<'a>(&self, names: &[&'a str]) -> Option<(&'a str, &Value)> {
        names
            .iter()
            .find_map(|&name| Some((name, self.0.get(name)?)))
    }

    /// Whether the field is there and true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool) == Some(true)
    }

    /// Whether something is so.
    ///
    /// # Errors
    /// `Parse` if it is neither true nor false.
    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.0.get(name) else {
            return Ok(None);
        };
        let wrong = || wrong(name, format_args!("{value} is neither true nor false"));
        value.as_bool().map(Some).ok_or_else(wrong)
    }

    /// A number that counts something.
    ///
    /// # Errors
    /// `Parse` if it is no integer that GGUF's UINT32 holds.
    pub(crate) fn count(&self, names: &[&str]) -> Result<Option<u32>> {
        let Some((name, value)) = self.get(names) else {
            return Ok(None);
        };
        let count = value.as_u64().and_then(|n| u32::try_from(n).ok());
        let wrong = || wrong(name, format_args!("{value} is no count"));
        count.map(Some).ok_or_else(wrong)
    }

    /// As [`count`](Self::count), of a field that must be there.
    pub(crate) fn need(&self, names: &[&str]) -> Result<u32> {
        let missing = || wrong(names[0], "it is missing");
        self.count(names)?.ok_or_else(missing)
    }

    /// The finite number that all fields of `names` say which there are.
    ///
    /// # Errors
    /// `Parse` if one is something else, or two say different things.
    pub(crate) fn agreed(&self, names: &[&str]) -> Result<Option<f64>> {
        let found = self.number(names)?;
        for name in names {
            if let (Some(other), Some(found)) = (self.number(&[name])?, found)
                && other != found
            {
                let what = format!("it is {other}, and another field says {found}");
                return Err(wrong(name, what));
            }
        }
        Ok(found)
    }

    /// A finite number.
    ///
    /// # Errors
    /// `Parse` if it is something else.
    pub(crate) fn number(&self, names: &[&str]) -> Result<Option<f64>> {
        let Some((name, value)) = self.get(names) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|x| (*x as f32).is_finite());
        let wrong = || wrong(name, format_args!("{value} is no number"));
        number.map(Some).ok_or_else(wrong)
    }
}

/// The kinds of `layers` layers: `kind`, and every so many layers one of full attention.
pub(crate) fn layer_kinds(layers: usize, kind: &str, every: usize) -> Value {
    let name = |layer: usize| match layer.is_multiple_of(every) {
        true => FULL_ATTENTION,
        false => kind,
    };
    (1..=layers).map(name).collect()
}

/// The error that field `name` of `config.json` is wrong.
pub(crate) fn wrong(name: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("config.json: `{name}`: {what}"))
}
