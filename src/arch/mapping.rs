//! Which tensor of one side is which of the other.

use std::collections::{HashMap, HashSet};

use super::dims::{Dim, Dims};
use super::names::{Place, fill, find, split_suffix};
use super::table::{ModelClass, Need, TensorRule, Transform};
use crate::scheme::ResolvedItem;
use crate::{AnamnesisError, Result};

/// The tensors of a model, compared with the table of its class.
pub(super) struct Mapping<'a> {
    pub class: &'static ModelClass,
    pub dims: &'a Dims,
}

/// A tensor of the output, and what it is made of.
pub(super) struct Mapped<'m> {
    /// Name in the output.
    pub name: String,
    pub rule: &'static TensorRule,
    /// One tensor of the input, or one for each expert, with its number.
    pub items: Vec<(usize, ResolvedItem<'m>)>,
    /// Shape of each of them.
    pub shape: Vec<usize>,
}

/// All tensors of the output.
pub(super) struct MappedModel<'m> {
    pub tensors: Vec<Mapped<'m>>,
    pub notes: Vec<String>,
}

/// Ends of names of buffers that old checkpoints have, and that can be computed.
const BUFFERS: &[&str] = &[
    ".rotary_emb.inv_freq",
    ".attention.masked_bias",
    ".attention.bias",
];

/// Parts of names of what is not the language model of a multimodal one.
///
/// Source: `TextModel.filter_tensors` in `conversion/base.py` of llama.cpp.
const OTHER_TOWERS: &[&str] = &[
    "visual.",
    "vision.",
    "audio.",
    "vision_",
    "audio_",
    "projector.",
    "patch_embed",
    "patch_merger.",
    "model.connector.",
];

impl<'m> Mapped<'m> {
    /// Adds an expert to the stack.
    fn push(&mut self, expert: usize, item: ResolvedItem<'m>) -> Result<()> {
        if shape_of(&item) != self.shape {
            let what = format!(
                "its shape is not that of the other experts, {:?}",
                self.shape
            );
            return Err(refused(item.name(), what));
        }
        self.items.push((expert, item));
        Ok(())
    }
}

impl Mapping<'_> {
    /// The tensors `items` of a model of the class `name`, under their names in GGUF.
    ///
    /// # Errors
    /// `Parse` that names a tensor which is none of the class or has another shape than the config says, or one that is missing.
    pub(super) fn to_gguf<'m>(
        &self,
        items: Vec<ResolvedItem<'m>>,
        class_name: &str,
    ) -> Result<MappedModel<'m>> {
        let has_no_prefix = class_name.ends_with("Model");
        let mut left_out = 0;
        // Where stacks of experts are, by name.
        let mut stacks: HashMap<String, usize> = HashMap::new();
        let mut tensors: Vec<Mapped<'m>> = Vec::with_capacity(items.len());
        for item in items {
            let mut name = item.name().replace("language_model.", "");
            if BUFFERS.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            if OTHER_TOWERS.iter().any(|part| name.contains(part)) {
                left_out += 1;
                continue;
            }
            if has_no_prefix && !name.starts_with("model.") {
                name.insert_str(0, "model.");
            }
            let (base, suffix) = split_suffix(&name);
            let Some((rule, place)) = self.rule(base, |rule| rule.hf) else {
                return Err(refused(
                    item.name(),
                    format!("no tensor of {class_name} is called so"),
                ));
            };
            if rule.gguf == "output" && self.class.traits.ties_output {
                continue;
            }
            let shape = shape_of(&item).to_vec();
            self.check_shape(item.name(), rule, suffix, &shape)?;
            let name = format!("{}{suffix}", fill(rule.gguf, place));
            let expert = place.expert.unwrap_or(0);
            if let Some(&at) = stacks.get(&name) {
                tensors[at].push(expert, item)?;
                continue;
            }
            if rule.transform == Transform::Experts {
                stacks.insert(name.clone(), tensors.len());
            }
            tensors.push(Mapped {
                name,
                rule,
                items: vec![(expert, item)],
                shape,
            });
        }
        for tensor in &mut tensors {
            tensor.items.sort_by_key(|(expert, _)| *expert);
        }
        self.require_layers(&tensors)?;
        let mut stacks = tensors
            .iter()
            .filter(|t| t.rule.transform == Transform::Experts);
        stacks.try_for_each(|stack| self.check_experts(stack))?;
        let note = format!("{left_out} tensors left out that are not of the language model");
        let notes = if left_out > 0 { vec![note] } else { vec![] };
        Ok(MappedModel { tensors, notes })
    }

    /// The tensors `items` of a GGUF model, as they are called there.
    ///
    /// # Errors
    /// As [`to_gguf`](Self::to_gguf).
    pub(super) fn to_hf<'m>(&self, items: Vec<ResolvedItem<'m>>) -> Result<Vec<Mapped<'m>>> {
        let mut tensors = Vec::with_capacity(items.len());
        for item in items {
            let (name, shape) = (item.name().to_owned(), shape_of(&item).to_vec());
            let (base, suffix) = split_suffix(&name);
            let Some((rule, _)) = self.rule(base, |rule| rule.gguf) else {
                let what = format!("no tensor of {} is called so", self.class.gguf);
                return Err(refused(&name, what));
            };
            let matrix = match (rule.transform, shape.split_first()) {
                (Transform::Experts, Some((&experts, rest))) => {
                    self.check_dim(&name, &shape, (experts, Dim::Experts))?;
                    rest
                }
                _ => &shape[..],
            };
            self.check_shape(&name, rule, suffix, matrix)?;
            tensors.push(Mapped {
                name,
                rule,
                items: vec![(0, item)],
                shape,
            });
        }
        self.require_layers(&tensors)?;
        Ok(tensors)
    }

    /// The rule whose name on one side, `side`, is `base`, and the numbers in it.
    fn rule(
        &self,
        base: &str,
        side: impl Fn(&TensorRule) -> &'static str,
    ) -> Option<(&'static TensorRule, Place)> {
        let mut rules = self.class.tensors.iter().flat_map(|rules| rules.iter());
        rules.find_map(|rule| Some((rule, find(side(rule), base)?)))
    }

    /// Checks the shape of tensor `name` against what the config says.
    fn check_shape(
        &self,
        name: &str,
        rule: &TensorRule,
        suffix: &str,
        shape: &[usize],
    ) -> Result<()> {
        let dims = match suffix {
            // A bias has a value for each row.
            ".bias" => &rule.shape[..1],
            _ => rule.shape,
        };
        if shape.len() != dims.len() {
            let what = format!(
                "its shape is {shape:?}, and it has {} dimensions",
                dims.len()
            );
            return Err(refused(name, what));
        }
        let found = shape.iter().copied().zip(dims.iter().copied());
        found
            .into_iter()
            .try_for_each(|found| self.check_dim(name, shape, found))
    }

    /// Checks one dimension of tensor `name`.
    fn check_dim(&self, name: &str, shape: &[usize], (found, dim): (usize, Dim)) -> Result<()> {
        match self.dims.size(dim).filter(|(size, _)| *size != found) {
            Some((size, field)) => {
                let what = format!("its shape is {shape:?}, and {field} is {size}");
                Err(refused(name, what))
            }
            None => Ok(()),
        }
    }

    /// Fails unless every layer has every tensor that it needs, and there is no layer more.
    fn require_layers(&self, tensors: &[Mapped<'_>]) -> Result<()> {
        let layers = self.dims.layers;
        let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let rules = self.class.tensors.iter().flat_map(|rules| rules.iter());
        for rule in rules.filter(|rule| rule.need == Need::Weight) {
            let numbers = if rule.gguf.contains("{i}") { layers } else { 1 };
            for layer in 0..numbers {
                let place = Place {
                    layer: Some(layer),
                    expert: Some(0),
                };
                if !names.contains(format!("{}.weight", fill(rule.gguf, place)).as_str()) {
                    let missing = [rule.hf, rule.gguf]
                        .map(|name| fill(name, place))
                        .join("` or `");
                    let what = format!("there is none; the model has {layers} layers");
                    return Err(refused(&missing, what));
                }
            }
        }
        for tensor in tensors {
            let (base, _) = split_suffix(&tensor.name);
            let place = find(tensor.rule.gguf, base).unwrap_or_default();
            if place.layer.is_some_and(|layer| layer >= layers) {
                let what = format!("the model has {layers} layers");
                return Err(refused(tensor.items[0].1.name(), what));
            }
        }
        Ok(())
    }

    /// Fails unless a stack has each expert once.
    fn check_experts(&self, stack: &Mapped<'_>) -> Result<()> {
        let experts = self.dims.experts.unwrap_or(0);
        let found = stack.items.iter().map(|(expert, _)| *expert);
        if found.eq(0..experts) {
            return Ok(());
        }
        let (last, count) = (
            stack.items[stack.items.len() - 1].1.name(),
            stack.items.len(),
        );
        let what = format!("there are {count} such experts, and config.json says {experts}");
        Err(refused(last, what))
    }
}

pub(super) fn shape_of<'a>(item: &'a ResolvedItem<'_>) -> &'a [usize] {
    match item {
        ResolvedItem::Group(group) => &group.shape,
        ResolvedItem::Plain(t) => t.shape(),
    }
}

fn refused(name: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("tensor `{name}`: {what}"))
}
