//! Which projections have biases.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::fields::{Fields, wrong};
use super::mapping::{Mapped, Mapping, refused};
use crate::error::InTensor;
use crate::{AnamnesisError, Result};

impl Mapping<'_> {
    /// Fields that say which projections have biases.
    ///
    /// # Errors
    /// `Unsupported` if a projection has one, and none has it in transformers; `Parse` if it has
    /// one in some layers alone.
    pub(crate) fn biases(&self, tensors: &[Mapped<'_>]) -> Result<Map<String, Value>> {
        let (class, mut fields) = (self.class, Map::new());
        let biases = || tensors.iter().filter(|tensor| tensor.suffix == ".bias");
        let refuse = |what: String| Err(AnamnesisError::unsupported("a whole model", what));
        let mut known: Vec<&str> = Vec::new();
        for (field, rules) in class.biases {
            let has_bias = |rule: &&&str| biases().any(|tensor| tensor.rule.gguf == **rule);
            let found = rules.iter().filter(has_bias).count();
            if found != 0 && found != rules.len() {
                let all = rules.join(", ");
                let name = class.classes[0];
                return refuse(format!("of {all}, only some have a bias, which {name} has not"));
            }
            if found > 0 {
                require_biases(tensors, rules, "others of its kind have one")?;
            }
            known.extend(*rules);
            if !field.is_empty() {
                fields.insert((*field).to_owned(), (found > 0).into());
            }
        }
        match biases().find(|tensor| !known.contains(&tensor.rule.gguf)) {
            Some(other) => {
                let name = &other.sources[0].1.name;
                refuse(format!("{}: {} has no such bias", InTensor(&name), class.classes[0]))
            }
            None => Ok(fields),
        }
    }

    /// Fails unless the projections of a directory with the config `fields` have the biases that
    /// transformers has.
    ///
    /// # Errors
    /// As [`biases`](Self::biases), and `Parse` if a bias is missing, or the config denies it.
    pub(crate) fn check_biases(&self, tensors: &[Mapped<'_>], fields: &Fields) -> Result<()> {
        let found = self.biases(tensors)?;
        for (field, rules) in self.class.biases {
            if field.is_empty() {
                let why = format!("{} always has it", self.class.classes[0]);
                require_biases(tensors, rules, &why)?;
                continue;
            }
            let stated = fields.0.get(*field).and_then(Value::as_bool);
            match (stated, found.get(*field).and_then(Value::as_bool)) {
                (Some(true), Some(false)) => {
                    let why = format!("`{field}` in config.json is true");
                    require_biases(tensors, rules, &why)?;
                }
                (Some(false), Some(true)) => {
                    return Err(wrong(field, "it is false, and there are such biases"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Fails if a matrix or norm of `rules` has no bias.
fn require_biases(tensors: &[Mapped<'_>], rules: &[&str], why: &str) -> Result<()> {
    let of_rules = |tensor: &&Mapped<'_>| rules.contains(&tensor.rule.gguf);
    let biases: HashSet<&str> = tensors
        .iter()
        .filter_map(|tensor| tensor.name.strip_suffix(".bias"))
        .collect();
    let lacks = |tensor: &&Mapped<'_>| {
        let name = tensor.name.strip_suffix(".weight");
        name.is_some_and(|name| !biases.contains(name))
    };
    match tensors.iter().filter(of_rules).find(lacks) {
        None => Ok(()),
        Some(tensor) => {
            let name = &tensor.sources[0].1.name;
            let name = name.strip_suffix(".weight").unwrap_or(name);
            let what = format!("there is none, and {why}");
            Err(refused(&format!("{name}.bias"), what))
        }
    }
}
