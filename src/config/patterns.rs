//! Overrides for modules under regular expressions whose order counts: `module_quant_configs`.
//!
//! transformers joins the expressions with `|` and searches a module's name for the whole: the leftmost match wins, and
//! of several at the same place the first in the file (`replace_with_quant_layers`).

use std::sync::OnceLock;

use serde_json::Value;

use super::skips;
use super::{ConfigPlace, QuantConfig};
use crate::{AnamnesisError, Result};

/// The key under which they are.
const KEY: &str = "module_quant_configs";

/// What `module_quant_configs` says.
#[derive(Debug, Clone, Default)]
pub(super) struct OrderedPatterns {
    /// Expressions with what they say, in order.
    written: Vec<(String, Value)>,
    /// The same, when first asked for.
    compiled: OnceLock<Vec<(regex_lite::Regex, Value)>>,
}

impl OrderedPatterns {
    /// Those of the first place that has some.
    pub(super) fn new(places: &[ConfigPlace]) -> Result<Self> {
        let Some(place) = places
            .iter()
            .find(|place| place.get(KEY).is_some_and(|value| !value.is_null()))
        else {
            return Ok(Self::default());
        };
        if place.get(KEY).is_none_or(|value| !value.is_object()) {
            return Err(AnamnesisError::parse(format!(
                "{}: {KEY} is no object",
                place.name
            )));
        }
        let written = place
            .entries(KEY)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        Ok(Self {
            written,
            compiled: OnceLock::new(),
        })
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
        let matches = compiled
            .iter()
            .filter_map(|(pattern, value)| Some((pattern.find(module)?.start(), value)));
        // Of equals the minimum is the first.
        Ok(matches
            .min_by_key(|(start, _)| *start)
            .map(|(_, value)| value))
    }
}

fn compile((pattern, value): &(String, Value)) -> Result<(regex_lite::Regex, Value)> {
    let wrong = |e: regex_lite::Error| {
        AnamnesisError::unsupported(format!("the pattern {pattern} of {KEY}"), e.to_string())
    };
    skips::compile(pattern)
        .map(|compiled| (compiled, value.clone()))
        .map_err(wrong)
}

impl QuantConfig {
    /// An integer under `key` for `module`: of the pattern that wins, else of the whole.
    pub(crate) fn int_by_pattern(&self, module: &str, key: &str) -> Result<Option<i64>> {
        match self.patterns.of(module)?.and_then(|value| value.get(key)) {
            Some(value) => Ok(value.as_i64()),
            None => Ok(self
                .first(|place| place.int(&[key]))
                .map(|(value, _)| value)),
        }
    }
}
