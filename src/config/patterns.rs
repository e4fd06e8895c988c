//! Overrides for modules under regular expressions whose order counts: `module_quant_configs`.
//!
//! transformers joins the expressions with `|` and searches a module's name for the whole: the leftmost match wins, and
//! of several at the same place the first in the file (`replace_with_quant_layers`).

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::{Place, QuantConfig, read_small, without_python_floats};
use crate::{AnamnesisError, Result};

/// The members of an object in their order; of anything else none.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_unit<E>(self) -> std::result::Result<Members, E> {
                Ok(Members(Vec::new()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Members, A::Error> {
                let (mut members, mut places) = (Vec::<(String, Value)>::new(), HashMap::<String, usize>::new());
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    // A name that comes again has its first place and its last value, as in Python.
                    match places.get(&name) {
                        Some(&place) => members[place].1 = value,
                        None => {
                            places.insert(name.clone(), members.len());
                            members.push((name, value));
                        }
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_any(Entries)
    }
}

/// The part of a config that is read again.
#[derive(serde::Deserialize)]
struct Root {
    quantization_config: Option<Quantization>,
    text_config: Option<Text>,
}

#[derive(serde::Deserialize)]
struct Text {
    quantization_config: Option<Quantization>,
}

#[derive(serde::Deserialize)]
struct Quantization {
    module_quant_configs: Option<Members>,
}

/// What `module_quant_configs` says.
#[derive(Debug, Clone, Default)]
pub(super) struct Patterns {
    /// Expressions with what they say, in order.
    written: Vec<(String, Value)>,
    /// The same, when first asked for.
    compiled: OnceLock<Vec<(regex_lite::Regex, Value)>>,
}

impl Patterns {
    /// Reads a config again, whose members have lost their order, if one of `places` in it has such overrides.
    pub(super) fn read(places: &[Place], config: &Path) -> Result<Self> {
        if places.iter().all(|place| place.get("module_quant_configs").is_none()) {
            return Ok(Self::default());
        }
        let json = read_small(config)?.unwrap_or_default();
        let root: serde_json::Result<Root> =
            serde_json::from_slice(&json).or_else(|_| serde_json::from_slice(&without_python_floats(&json)));
        let root = root.map_err(|e| AnamnesisError::parse(format!("{}: {e}", config.display())))?;
        let found = root.quantization_config.or_else(|| root.text_config?.quantization_config);
        let written = found.and_then(|found| found.module_quant_configs).map_or(Vec::new(), |members| members.0);
        Ok(Self { written, compiled: OnceLock::new() })
    }

    /// What the pattern that wins says of `module`.
    fn of(&self, module: &str) -> Result<Option<&Value>> {
        let compiled = match self.compiled.get() {
            Some(compiled) => compiled,
            None => {
                let compiled = self.written.iter().map(compile).collect::<Result<_>>()?;
                self.compiled.get_or_init(|| compiled)
            }
        };
        let matches = compiled.iter().filter_map(|(pattern, value)| Some((pattern.find(module)?.start(), value)));
        // Of equals the minimum is the first.
        Ok(matches.min_by_key(|(start, _)| *start).map(|(_, value)| value))
    }
}

fn compile((pattern, value): &(String, Value)) -> Result<(regex_lite::Regex, Value)> {
    let wrong = |e: regex_lite::Error| {
        AnamnesisError::unsupported(format!("the pattern {pattern} of module_quant_configs"), e.to_string())
    };
    regex_lite::Regex::new(pattern).map(|compiled| (compiled, value.clone())).map_err(wrong)
}

impl QuantConfig {
    /// An integer under `key` for `module`: of the pattern that wins, else of the whole.
    pub(crate) fn int_by_pattern(&self, module: &str, key: &str) -> Result<Option<i64>> {
        match self.patterns.of(module)?.and_then(|value| value.get(key)) {
            Some(value) => Ok(value.as_i64()),
            None => Ok(self.first(|place| place.int(&[key])).map(|(value, _)| value)),
        }
    }
}
