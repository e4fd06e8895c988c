//! Which tensor of one side is which of the other.

use std::collections::{HashMap, HashSet};

use super::dims::{Dim, Dims};
use super::names::{Place, fill, find, is_of_tower, of_language_model, split_suffix};
use super::prediction::is_predicting;
use super::source::SourceTensor;
use super::table::{ModelClass, Prediction, TensorRule, Transform};
use crate::error::{InTensor, counted};
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Result};

/// The tensors of a model, compared with the table of its class.
pub(crate) struct Mapping<'a> {
    pub class: &'a ModelClass,
    pub dims: &'a Dims,
}

/// A tensor of the output, and what it is made of.
pub(crate) struct Mapped<'m> {
    /// Name in the output.
    pub name: String,
    pub rule: &'static TensorRule,
    /// The numbers in the names.
    pub place: Place,
    /// What follows the names: `.weight`, `.bias` or nothing.
    pub suffix: &'static str,
    /// One tensor of the input, or one for each expert, with its number.
    pub sources: Vec<(usize, SourceTensor<'m>)>,
}

/// All tensors of the output.
pub(crate) struct MappedModel<'m> {
    pub tensors: Vec<Mapped<'m>>,
    pub notes: Vec<String>,
}

impl<'m> Mapped<'m> {
    /// Shape of the source, or of each of them.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.sources[0].1.shape
    }

    /// Adds an expert to the stack.
    pub(super) fn push(&mut self, expert: usize, source: SourceTensor<'m>) -> Result<()> {
        if source.shape != self.shape() {
            let what = format!("its shape is not that of the other experts, {:?}", self.shape());
            return Err(refused(&source.name, what));
        }
        self.sources.push((expert, source));
        Ok(())
    }
}

impl Mapping<'_> {
    /// The tensors `sources` of a model of the class `class_name`, under their names in GGUF.
    /// `table_name` makes of a stored name the one that the table has.
    ///
    /// # Errors
    /// `Parse` that names a tensor which is none of the class or has another shape than the config
    /// says, or one that is missing.
    pub(crate) fn to_gguf<'m>(
        &self,
        sources: Vec<SourceTensor<'m>>,
        class_name: &str,
        table_name: &dyn Fn(&str) -> String,
    ) -> Result<MappedModel<'m>> {
        let prefix = self.prefix();
        let (mut left_out, mut predicting, mut without_place) = (0, 0, 0);
        // Where stacks of experts are, by name.
        let mut stacks: HashMap<String, usize> = HashMap::new();
        let mut tensors: Vec<Mapped<'m>> = Vec::with_capacity(sources.len());
        for source in sources {
            let mut name = table_name(&source.name);
            let has_rule = || !self.rules(&name, &[], |rule| rule.hf).is_empty();
            let is_of_tower = is_of_tower(&name) && (self.class.traits.is_tower || !has_rule());
            if is_of_tower != self.class.traits.is_tower {
                left_out += 1;
                continue;
            }
            if !prefix.is_empty() {
                name = self.with_own_prefix(name, &prefix);
            }
            let starts = self.class.traits.left_out.iter();
            if starts.into_iter().any(|start| {
                [&name, &source.name]
                    .iter()
                    .any(|name| name.starts_with(start))
            }) {
                without_place += 1;
                continue;
            }
            match self.class.traits.prediction {
                Prediction::LeftOut
                    if is_predicting(Prediction::LeftOut, &name, self.dims.layers) =>
                {
                    predicting += 1;
                    continue;
                }
                Prediction::Apart(names) => {
                    name = names.as_layer(&name, self.dims.layers).unwrap_or(name);
                }
                _ => {}
            }
            let found = self.rules(&name, self.class.other_tensors, |rule| rule.hf);
            let found = self.of_layer(found);
            if found.is_empty() {
                let what = format!("no tensor of {class_name} is called so");
                return Err(refused(&source.name, what));
            }
            // Only projections that are fused here are made into several tensors: this clones all
            // but the last.
            let sources = std::iter::repeat_n(source, found.len());
            for ((rule, place, suffix), source) in found.into_iter().zip(sources) {
                if rule.gguf == "output" && self.class.traits.ties_output {
                    continue;
                }
                // A bias has a value for each row that the matrix has in GGUF, unless that is a part of
                // the other side's.
                let is_part = rule.transform.some_parts().is_some();
                let is_joined = matches!(rule.transform, Transform::Joined(_));
                let shape = match (suffix, rule.gguf_shape) {
                    (".bias", Some(shape)) if !is_part && !is_joined => shape,
                    _ => rule.shape,
                };
                self.check_shape(&source.name, (shape, place.layer), suffix, &source.shape)?;
                let name = format!("{}{suffix}", fill(rule.gguf, place));
                let expert = place.expert.unwrap_or(0);
                if let Some(&at) = stacks.get(&name) {
                    tensors[at].push(expert, source)?;
                    continue;
                }
                if rule.transform.is_stack() {
                    stacks.insert(name.clone(), tensors.len());
                }
                tensors.push(Mapped { name, rule, place, suffix, sources: vec![(expert, source)] });
            }
        }
        for tensor in &mut tensors {
            sort_by_key(&mut tensor.sources, |(expert, _)| *expert);
        }
        self.require_layers(&tensors)?;
        require_once(&tensors)?;
        let is_stack = |tensor: &&Mapped<'_>| tensor.rule.transform.is_stack();
        let mut stacks = tensors.iter().filter(is_stack);
        stacks.try_for_each(|stack| self.check_experts(stack))?;
        let others = match self.class.traits.is_tower {
            true => "of the language model",
            false => "of other parts than the language model",
        };
        let reasons = [
            (left_out, others),
            (predicting, "of layers that predict several tokens at once"),
            (without_place, "without a place in GGUF"),
        ];
        let reasons = reasons.into_iter().filter(|(count, _)| *count > 0);
        let notes =
            reasons.map(|(count, which)| format!("{} left out, {which}", counted(count, "tensor")));
        Ok(MappedModel { notes: notes.collect(), tensors })
    }

    /// The rules of the weight that transformers calls `name`, with the numbers in it and what
    /// follows; none if the class has no such weight.
    pub(crate) fn rules_of(&self, name: &str) -> Vec<(&'static TensorRule, Place, &'static str)> {
        let name = self.with_own_prefix(of_language_model(name), &self.prefix());
        self.of_layer(self.rules(&name, self.class.other_tensors, |rule| rule.hf))
    }

    /// The rules of the weight that GGUF calls `name`, likewise.
    pub(crate) fn rules_in_gguf(
        &self,
        name: &str,
    ) -> Vec<(&'static TensorRule, Place, &'static str)> {
        self.of_layer(self.rules(name, &[], |rule| rule.gguf))
    }

    /// What names of the model's tensors may begin with.
    fn prefix(&self) -> String {
        let own = self.class.traits.prefix.map(str::to_owned);
        own.unwrap_or_else(|| self.class.base_prefix())
    }

    /// The tensors `sources` of a GGUF model, as they are called there.
    ///
    /// # Errors
    /// As [`to_gguf`](Self::to_gguf).
    pub(crate) fn to_hf<'m>(&self, sources: Vec<SourceTensor<'m>>) -> Result<Vec<Mapped<'m>>> {
        let mut tensors = Vec::with_capacity(sources.len());
        let mut stacks: HashMap<String, usize> = HashMap::new();
        for source in sources {
            if let Some(tensor) = self.expert_apart(&source) {
                self.check_shape(
                    &source.name,
                    (tensor.rule.shape, tensor.place.layer),
                    tensor.suffix,
                    &source.shape,
                )?;
                let expert = tensor.place.expert.unwrap_or(0);
                match stacks.get(&tensor.name) {
                    Some(&at) => {
                        let stack: &mut Mapped<'m> = &mut tensors[at];
                        stack.push(expert, source)?;
                    }
                    None => {
                        stacks.insert(tensor.name.clone(), tensors.len());
                        let sources = vec![(expert, source)];
                        tensors.push(Mapped { sources, ..tensor });
                    }
                }
                continue;
            }
            let found = self.rules_in_gguf(&source.name);
            let [(rule, place, suffix)] = found[..] else {
                let what = format!("no tensor of {} is called so", self.class.gguf);
                return Err(refused(&source.name, what));
            };
            let matrix = match (rule.transform, source.shape.split_first()) {
                (Transform::Stack(count), Some((&found, rest))) if found == count => rest,
                (Transform::Experts, Some((&experts, rest))) => {
                    self.check_dim(&source.name, &source.shape, (experts, Dim::Experts, None))?;
                    rest
                }
                _ => &source.shape[..],
            };
            let shape = rule.gguf_shape.unwrap_or(rule.shape);
            self.check_shape(&source.name, (shape, place.layer), suffix, matrix)?;
            tensors.push(Mapped {
                name: source.name.clone(),
                rule,
                place,
                suffix,
                sources: vec![(0, source)],
            });
        }
        for tensor in stacks.values().copied().collect::<Vec<_>>() {
            let stack = &mut tensors[tensor];
            sort_by_key(&mut stack.sources, |(expert, _)| *expert);
            self.check_experts(stack)?;
        }
        require_once(&tensors)?;
        self.require_layers(&tensors)?;
        Ok(tensors)
    }

    /// The stack that the tensor `source` of a GGUF model belongs to, as the place of one expert:
    /// early files of llama.cpp have a tensor for each (`blk.0.ffn_up.3.weight`).
    fn expert_apart<'m>(&self, source: &SourceTensor<'m>) -> Option<Mapped<'m>> {
        let (base, suffix) = split_suffix(&source.name);
        let (stem, number) = base.rsplit_once('.')?;
        let expert: usize = number.parse().ok()?;
        if expert.to_string() != number {
            return None;
        }
        let found = self.rules(&format!("{stem}_exps{suffix}"), &[], |rule| rule.gguf);
        match found[..] {
            [(rule, place, suffix)] if rule.transform == Transform::Experts => Some(Mapped {
                name: format!("{stem}_exps{suffix}"),
                rule,
                place: Place { expert: Some(expert), ..place },
                suffix,
                sources: vec![],
            }),
            _ => None,
        }
    }

    /// Whether a tensor of the class is called `base` in GGUF, without `.weight` or `.bias`.
    pub(crate) fn has_rule(&self, base: &str) -> bool {
        let mut rules = self.class.tensors.iter().flat_map(|rules| rules.iter());
        rules.any(|rule| find(rule.gguf, base).is_some())
    }

    /// The rule of the tensor that is called `base` in GGUF, without `.weight` or `.bias`, if its
    /// layer may have one.
    pub(crate) fn rule_in_layer(&self, base: &str, layer: usize) -> Option<&'static TensorRule> {
        let mut rules = self.class.tensors.iter().flat_map(|rules| rules.iter());
        rules.find(|rule| {
            find(rule.gguf, base).is_some() && self.dims.has(rule.need, layer) != Some(false)
        })
    }

    /// `name` with or without `prefix`, as the table of the class has it.
    fn with_own_prefix(&self, name: String, prefix: &str) -> String {
        let is_known = |name: &str| !self.rules(name, &[], |rule| rule.hf).is_empty();
        let long = format!("{prefix}{name}");
        // What is left out has no place in the table.
        let may_be_unknown = self.class.traits.prefix.is_some();
        match name.strip_prefix(prefix) {
            _ if is_known(&name) => name,
            Some(short) if may_be_unknown || is_known(short) => short.to_owned(),
            None if is_known(&long) => long,
            // First releases of some models have the names of the classes before.
            _ => match name
                .strip_prefix("backbone.")
                .map(|rest| format!("{prefix}{rest}"))
            {
                Some(other) if is_known(&other) => other,
                _ => name,
            },
        }
    }

    /// The rules whose name on one side, `side`, is `name`, with the numbers in it and what
    /// follows. Projections that are fused on one side have a rule each.
    fn rules(
        &self,
        name: &str,
        others: &'static [TensorRule],
        side: impl Fn(&TensorRule) -> &'static str,
    ) -> Vec<(&'static TensorRule, Place, &'static str)> {
        let (base, suffix) = split_suffix(name);
        let rules = self.class.tensors.iter().flat_map(|rules| rules.iter());
        let found = rules
            .chain(others)
            .filter_map(|rule| match rule.is_whole_name {
                true => Some((rule, rule.find(side(rule), name)?, "")),
                false => Some((rule, rule.find(side(rule), base)?, suffix)),
            });
        found.collect()
    }

    /// Of several rules for a name, those that the layer has by the config, if there are any.
    fn of_layer(
        &self,
        found: Vec<(&'static TensorRule, Place, &'static str)>,
    ) -> Vec<(&'static TensorRule, Place, &'static str)> {
        if found.len() < 2 {
            return found;
        }
        let is_there = |(rule, place, _): &(&TensorRule, Place, _)| {
            self.dims.has(rule.need, place.layer.unwrap_or(0)) != Some(false)
        };
        let (there, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_there);
        if there.is_empty() { others } else { there }
    }

    /// Checks the shape of tensor `name` against what the config says.
    pub(super) fn check_shape(
        &self,
        name: &str,
        (dims, layer): (&[Dim], Option<usize>),
        suffix: &str,
        shape: &[usize],
    ) -> Result<()> {
        let dims = match suffix {
            // A bias has a value for each row.
            ".bias" => &dims[..1],
            _ => dims,
        };
        if shape.len() != dims.len() {
            let what = format!("its shape is {shape:?}, and it has {} dimensions", dims.len());
            return Err(refused(name, what));
        }
        let found = shape.iter().copied().zip(dims.iter().copied());
        found
            .into_iter()
            .try_for_each(|(found, dim)| self.check_dim(name, shape, (found, dim, layer)))
    }

    /// Checks one dimension of tensor `name`.
    fn check_dim(
        &self,
        name: &str,
        shape: &[usize],
        (found, dim, layer): (usize, Dim, Option<usize>),
    ) -> Result<()> {
        let size = self.dims.size(dim, layer);
        if size.is_none() && dim == Dim::Experts {
            return Err(refused(name, "the config says that there are no experts"));
        }
        let fields = || self.dims.fields_of(dim);
        match size {
            Some(size) if size == found => Ok(()),
            Some(size) => {
                let what = format!("its shape is {shape:?}, and {} is {size}", fields());
                Err(refused(name, what))
            }
            // Neither program loads a model without the width: transformers has a default, and GGUF
            // none.
            None if matches!(dim, Dim::Inner | Dim::TwoInner) => {
                let what = format!("its shape is {shape:?}, and {} is not stated", fields());
                Err(refused(name, what))
            }
            None => Ok(()),
        }
    }

    /// Fails unless every layer has the tensors that it needs and no others, and there is no layer
    /// more.
    fn require_layers(&self, tensors: &[Mapped<'_>]) -> Result<()> {
        let layers = self.dims.layers + self.dims.prediction;
        let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let rules = self.class.tensors.iter().flat_map(|rules| rules.iter());
        for rule in rules {
            let numbers = if rule.gguf.contains("{i}") { layers } else { 1 };
            for layer in (0..numbers).filter(|layer| self.dims.has(rule.need, *layer) == Some(true))
            {
                let place = Place { layer: Some(layer), expert: Some(0) };
                let suffix = if rule.is_whole_name { "" } else { ".weight" };
                if !names.contains(format!("{}{suffix}", fill(rule.gguf, place)).as_str()) {
                    let names = [rule.hf_name(place), fill(rule.gguf, place)];
                    let missing = names.join("` or `");
                    let what = format!("there is none; the model has {layers} layers");
                    return Err(refused(&missing, what));
                }
            }
        }
        for tensor in tensors {
            let (layer, name) = (tensor.place.layer, &tensor.sources[0].1.name);
            if layer.is_some_and(|layer| layer >= layers) {
                return Err(refused(name, format!("the model has {layers} layers")));
            }
            if self.dims.has(tensor.rule.need, layer.unwrap_or(0)) == Some(false) {
                return Err(refused(name, "the config says that there is none"));
            }
        }
        Ok(())
    }

    /// Fails unless a stack has each expert once.
    pub(super) fn check_experts(&self, stack: &Mapped<'_>) -> Result<()> {
        let experts = match stack.rule.transform {
            Transform::Stack(count) => count,
            Transform::Joined(names) | Transform::Beside(names) => names.len(),
            _ => self.dims.experts_of(stack.place.layer).unwrap_or(0),
        };
        let found = stack.sources.iter().map(|(expert, _)| *expert);
        if found.eq(0..experts) {
            return Ok(());
        }
        let (last, count) =
            (stack.sources[stack.sources.len() - 1].1.name.as_str(), stack.sources.len());
        let what = format!("there are {count} such experts, and config.json says {experts}");
        Err(refused(last, what))
    }
}

/// Fails if two tensors become one of the same name, as one for all experts beside one for each.
fn require_once(tensors: &[Mapped<'_>]) -> Result<()> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
        None => Ok(()),
        Some(second) => {
            let what = format!("another tensor is `{}` of GGUF as well", second.name);
            Err(refused(&second.sources[0].1.name, what))
        }
    }
}

pub(crate) fn refused(name: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("{}: {what}", InTensor(&name)))
}
