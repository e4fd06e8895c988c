//! [`CoreMlWeights`]: the weights of a model, and their names.

use std::collections::{HashMap, HashSet};

use super::spec::Spec;
use super::weight::{self, Weight};
use super::wrong;
use crate::limits::cap;
use crate::model::GraphRole;
use crate::{ParsedModel, Result};

/// Longest name of a weight, in bytes.
const MAX_NAME: u64 = 4096;

/// What coremltools adds to the name of a constant that it converts or compresses.
const ADDED: &[&str] =
    &["_palettized_pcs", "_palettized", "_quantized", "_sparsified", "_to_fp16", "_to_fp32"];

/// A model that is read, and the weights that have been found, with the name of each.
pub(super) struct CoreMlWeights<'a> {
    pub spec: Spec<'a>,
    weights: Vec<(String, Weight)>,
}

impl<'a> CoreMlWeights<'a> {
    pub(super) fn new(spec: Spec<'a>) -> Self {
        Self { spec, weights: Vec::new() }
    }

    /// Adds a weight.
    pub(super) fn add(&mut self, name: String, weight: Weight) -> Result<()> {
        cap("COREML_MAX_NAME_BYTES", name.len() as u64, MAX_NAME, "bytes of a name")?;
        self.spec.budget.items(1, "tensors")?;
        self.spec.budget.tables(1, 0, 0)?;
        self.spec
            .budget
            .grow(name.len() as u64, "names of tensors")?;
        self.weights.push((name, weight));
        Ok(())
    }

    /// The model, with a tensor for each weight and for what decodes it.
    pub(super) fn finish(self) -> Result<ParsedModel> {
        let Self { mut spec, weights } = self;
        let names = names(&weights);
        let mut known = HashSet::new();
        for (name, (_, weight)) in names.iter().zip(&weights) {
            if name.is_empty() {
                return Err(wrong("a constant has no name"));
            }
            if !known.insert(name) {
                return Err(wrong(format!("two constants are called `{name}`")));
            }
            weight::add(&mut spec, name, weight).map_err(|error| error.in_tensor(name))?;
        }
        let contents = &mut spec.contents;
        if contents.graph.iter().all(|role| *role == GraphRole::Plain) {
            contents.graph.clear();
        }
        spec.external.check_ranges(contents)?;
        let stored = contents.tensors.iter().filter(|t| t.source == 0);
        let stored: u64 = stored.map(|t| t.len).sum();
        contents.header_size = spec.file.len.saturating_sub(stored) as usize;
        Ok(spec.contents)
    }
}

/// The names of weights before coremltools has converted and compressed them. Those that two would have
/// are left as they are.
fn names(weights: &[(String, Weight)]) -> Vec<String> {
    let before: Vec<&str> = weights
        .iter()
        .map(|(name, _)| without_added(name))
        .collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let stored = weights.iter().map(|(name, _)| &**name);
    for name in before
        .iter()
        .copied()
        .chain(stored.filter(|name| without_added(name) != *name))
    {
        *counts.entry(name).or_default() += 1;
    }
    let names = weights.iter().zip(before);
    let names = names.map(|((name, _), before)| match counts.get(before) {
        Some(1) => before,
        _ => name,
    });
    names.map(str::to_owned).collect()
}

/// `name` without what coremltools adds.
fn without_added(name: &str) -> &str {
    let mut rest = name;
    while let Some(before) = ADDED.iter().find_map(|end| rest.strip_suffix(end))
        && !before.is_empty()
    {
        rest = before;
    }
    rest
}
