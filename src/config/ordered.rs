//! `module_quant_configs`: config entries for modules under regular expressions whose order counts.
//!
//! transformers joins the expressions with `|` and searches a module's name for the result
//! (`replace_with_quant_layers`). So the leftmost match wins, and among several at one position the
//! first expression in the file.

use std::sync::OnceLock;

use serde_json::Value;

use super::QuantConfig;
use super::pattern::{Pattern, PatternList, exceeded};
use super::place::ConfigPlace;
use crate::{AnamnesisError, Result};

const KEY: &str = "module_quant_configs";

/// The entries of `module_quant_configs`.
#[derive(Debug, Clone, Default)]
pub(super) struct OrderedPatterns {
    /// Expressions with their entries, in the order of the file.
    written: Vec<(String, Value)>,
    /// `written` with the expressions compiled, at the first look-up.
    compiled: OnceLock<PatternList<Value>>,
}

impl OrderedPatterns {
    /// Takes the entries of the first place that has some.
    ///
    /// # Errors
    /// `Parse` if `module_quant_configs` is no object there.
    pub(super) fn new(places: &[ConfigPlace]) -> Result<Self> {
        let Some(place) = places
            .iter()
            .find(|place| place.get(KEY).is_some_and(|value| !value.is_null()))
        else {
            return Ok(Self::default());
        };
        // A list or a string there would leave every module at the default width, and decode it
        // wrongly.
        if place.get(KEY).is_none_or(|value| !value.is_object()) {
            return Err(AnamnesisError::parse(format!("{}: {KEY} is no object", place.name)));
        }
        let written = place
            .entries(KEY)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        Ok(Self { written, compiled: OnceLock::new() })
    }

    /// The entry of the expression that wins for `module`.
    ///
    /// # Errors
    /// `Unsupported` if an expression does not compile, `LimitExceeded` if a match is given up:
    /// which one wins is unknown then.
    fn of(&self, module: &str) -> Result<Option<&Value>> {
        let compiled = match self.compiled.get() {
            // `get_or_init` takes no fallible closure. Two threads may compile at once; the first
            // result stays, and both are alike.
            Some(compiled) => compiled,
            None => {
                let compiled = compile(&self.written)?;
                self.compiled.get_or_init(|| compiled)
            }
        };
        let found = compiled.leftmost(module);
        found.map_err(|e| exceeded(format!("a pattern of {KEY}: {e}")))
    }
}

fn compile(written: &[(String, Value)]) -> Result<PatternList<Value>> {
    let mut compiled = PatternList::default();
    for (pattern, value) in written {
        let wrong =
            |e: String| AnamnesisError::unsupported(format!("the pattern {pattern} of {KEY}"), e);
        let expression = Pattern::anywhere(pattern).map_err(wrong)?;
        if !compiled.push(expression, value.clone()) {
            return Err(wrong("there are too many".to_owned()));
        }
    }
    Ok(compiled)
}

impl QuantConfig {
    /// The integer under `key` in the winning entry for `module`; if there is none, in the whole
    /// config.
    ///
    /// # Errors
    /// `Unsupported` if an expression of the config does not compile; `Parse` if the winning entry
    /// has no integer there.
    pub(crate) fn int_by_pattern(&self, module: &str, key: &str) -> Result<Option<i64>> {
        match self.patterns.of(module)?.and_then(|value| value.get(key)) {
            // Neither a default nor the value of the whole config: the entry speaks for this
            // module.
            Some(value) => value.as_i64().map(Some).ok_or_else(|| {
                AnamnesisError::parse(format!(
                    "{KEY}: {key} of module `{module}` is {value}, and no integer"
                ))
            }),
            None => Ok(self
                .first(|place| place.int(&[key]))
                .map(|(value, _)| value)),
        }
    }
}
