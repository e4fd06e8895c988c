//! Weights to which PEFT gives factors by their own names (`target_parameters`): stacks of experts,
//! and other weights of modules that have several.
//!
//! The names of the factors tell the module alone. A module with several such weights has one pair
//! below the other, in the order in which its class declares the weights (`M.lora_A.weight`,
//! `M.base_layer.lora_A.weight`, …), which no file says. The shapes tell which pair belongs to
//! which weight, and whether the product of a stack is transposed: PEFT decides that by an
//! attribute of the class (`is_transposed`), not in the same way in all releases. Where the shapes
//! leave a choice, the adapter is refused.
//!
//! transformers joins experts that are stored apart to one parameter ([`apart`](super::apart)),
//! which an adapter then names.
//!
//! Source: peft
//! [`ParamWrapper`](https://github.com/huggingface/peft/blob/v0.19.0/src/peft/tuners/lora/layer.py).

use std::collections::{BTreeMap, BTreeSet};

use super::apart::{self, ExpertsApart};
use super::factors::FactorForm;
use super::sorted::LoraTensors;
use super::tensor::AdapterTensor;
use crate::remember::seam::wrong;
use crate::{AnamnesisError, Result};

/// The weight that a pair of factors belongs to, and how they are stored.
pub(super) struct Assignment {
    pub weight: String,
    pub form: FactorForm,
    /// The weights that make up the named one, if the model has its experts apart.
    pub apart: Option<ExpertsApart>,
}

/// Pairs of factors that belong to a weight named in the settings, by the module in their names.
#[derive(Default)]
pub(super) struct Parameters {
    assignments: BTreeMap<String, Assignment>,
}

impl Parameters {
    /// The weight of the pair of factors that is named after `module`; `None` if it is the weight
    /// of a module of its own.
    pub(super) fn weight(&self, module: &str) -> Option<&Assignment> {
        self.assignments.get(module)
    }
}

/// A pair of factors whose weight has as many rows as columns.
struct SquarePair<'a> {
    key: &'a str,
    weight: String,
    a: usize,
}

/// Finds out which pair of factors belongs to which weight.
pub(super) struct Assigner<'a> {
    /// The shape of a weight of the model.
    pub shape_of: &'a dyn Fn(&str) -> Option<Vec<usize>>,
    /// A tensor of the adapter.
    pub tensor: &'a dyn Fn(usize) -> AdapterTensor,
}

impl Assigner<'_> {
    /// Assigns the pairs in `lora` to those of `names` that end like one of `targets`.
    ///
    /// # Errors
    /// `Parse` if a module has fewer or more pairs than such weights, or the shapes do not tell
    /// what belongs together.
    pub(super) fn assign<'n>(
        &self,
        targets: &BTreeSet<String>,
        names: impl Iterator<Item = &'n str>,
        lora: &BTreeMap<String, LoraTensors>,
    ) -> Result<Parameters> {
        let mut assignments = BTreeMap::new();
        if targets.is_empty() {
            return Ok(Parameters { assignments });
        }
        let mut weights = weights_by_module(targets, names);
        let mut pairs: BTreeMap<&str, Vec<(&str, LoraTensors)>> = BTreeMap::new();
        for (key, &tensors) in lora {
            let of_module = pairs.entry(module_of(key)).or_default();
            of_module.push((key, tensors));
        }
        let mut joined: BTreeMap<String, ExpertsApart> = BTreeMap::new();
        for &module in pairs.keys() {
            for experts in apart::find(module, self.shape_of) {
                if is_target(targets, &experts.name) {
                    let of_module = weights.entry(module.to_owned()).or_default();
                    of_module.push(experts.name.clone());
                    joined.insert(experts.name.clone(), experts);
                }
            }
        }
        let shape_of = |weight: &str| match joined.get(weight) {
            Some(experts) => Some(experts.shape().to_vec()),
            None => (self.shape_of)(weight),
        };
        let mut squares = vec![];
        // Whether the products of modules of this last name are transposed.
        let mut orders: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
        for (module, pairs) in &pairs {
            let Some(weights) = weights.get(*module) else {
                continue;
            };
            self.require_as_many(module, pairs, weights)?;
            let mut left = weights.clone();
            for &(key, LoraTensors { a, b, .. }) in pairs {
                let (Some(a), Some(b)) = (a, b) else {
                    continue;
                };
                let (weight, mut forms) = self.fit([a, b], &left, &shape_of)?;
                left.retain(|other| *other != weight);
                let apart = joined.get(&weight).cloned();
                if apart.is_some() {
                    forms = vec![FactorForm::Stack { is_transposed: false }];
                }
                let &[form] = &*forms else {
                    squares.push(SquarePair { key, weight, a });
                    continue;
                };
                if let FactorForm::Stack { is_transposed } = form {
                    orders
                        .entry(last(module))
                        .or_default()
                        .insert(is_transposed);
                }
                let assignment = Assignment { weight, form, apart };
                assignments.insert(key.to_owned(), assignment);
            }
        }
        for SquarePair { key, weight, a } in squares {
            let order = orders.get(last(module_of(key)));
            let order = order.filter(|order| order.len() == 1);
            let Some(&is_transposed) = order.and_then(BTreeSet::first) else {
                let what = format!(
                    "`{weight}` has as many rows as columns, so that nothing tells whether its product is transposed"
                );
                return Err(wrong(&(self.tensor)(a).get(), what));
            };
            let form = FactorForm::Stack { is_transposed };
            let assignment = Assignment { weight, form, apart: None };
            assignments.insert(key.to_owned(), assignment);
        }
        Ok(Parameters { assignments })
    }

    /// Fails if a module has fewer or more pairs of factors than weights that the settings name.
    fn require_as_many(
        &self,
        module: &str,
        pairs: &[(&str, LoraTensors)],
        weights: &[String],
    ) -> Result<()> {
        if pairs.len() == weights.len() {
            return Ok(());
        }
        let what = format!(
            "the adapter has {} pairs of factors for parameters of `{module}`, and its settings name {} of them, e.g. {:?}",
            pairs.len(),
            weights.len(),
            weights.first().map_or("", String::as_str)
        );
        let first = pairs
            .iter()
            .find_map(|(_, tensors)| tensors.a.or(tensors.b));
        Err(match first {
            Some(first) => wrong(&(self.tensor)(first).get(), what),
            None => AnamnesisError::parse(what),
        })
    }

    /// The only one of `weights` that the factors A and B fit, and the forms in which they do.
    fn fit(
        &self,
        [a, b]: [usize; 2],
        weights: &[String],
        shape_of: &dyn Fn(&str) -> Option<Vec<usize>>,
    ) -> Result<(String, Vec<FactorForm>)> {
        let (a, b) = ((self.tensor)(a), (self.tensor)(b));
        let (a, b) = (a.get(), b.get());
        let (&[_, cols], &[rows, _]) = (a.shape(), b.shape()) else {
            return Err(wrong(&a, "factors of a parameter are matrices"));
        };
        let fitting = weights.iter().filter_map(|weight| {
            let forms = forms(&shape_of(weight)?, [rows, cols]);
            (!forms.is_empty()).then(|| (weight.clone(), forms))
        });
        let mut fitting: Vec<_> = fitting.collect();
        match (fitting.pop(), fitting.is_empty()) {
            (Some(only), true) => Ok(only),
            _ => {
                let what = format!(
                    "with `{}` {:?} it fits none or several of the module's parameters that the settings name: {weights:?}",
                    b.name(),
                    b.shape(),
                );
                Err(wrong(&a, what))
            }
        }
    }
}

/// The forms of the factors of a weight of this shape, where B has `rows` rows and A `cols`
/// columns.
fn forms(shape: &[usize], [rows, cols]: [usize; 2]) -> Vec<FactorForm> {
    match *shape {
        [height, width] if [height, width] == [rows, cols] => vec![FactorForm::OutIn],
        [matrices, height, width] => {
            let straight = [height, width] == [rows, cols];
            // A single matrix is that of a module of its own.
            let transposed = matrices != 1 && [width, height] == [rows, cols];
            let both = [(straight, false), (transposed, true)].into_iter();
            both.filter(|(fits, _)| *fits)
                .map(|(_, is_transposed)| FactorForm::Stack { is_transposed })
                .collect()
        }
        _ => vec![],
    }
}

/// The names that end like one of `targets`, by the module that has them.
fn weights_by_module<'n>(
    targets: &BTreeSet<String>,
    names: impl Iterator<Item = &'n str>,
) -> BTreeMap<String, Vec<String>> {
    let mut weights: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in names.filter(|name| is_target(targets, name)) {
        let module = name.rsplit_once('.').map_or("", |(module, _)| module);
        let of_module = weights.entry(module.to_owned()).or_default();
        of_module.push(name.to_owned());
    }
    weights
        .values_mut()
        .for_each(|weights| weights.sort_unstable());
    weights
}

/// Whether `name` is one of `targets`, or ends with one after a dot.
fn is_target(targets: &BTreeSet<String>, name: &str) -> bool {
    let mut ends = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
    targets.contains(name) || ends.any(|end| targets.contains(end))
}

/// The module in the name of a pair, which may lie below others of the same module.
fn module_of(key: &str) -> &str {
    key.trim_end_matches(".base_layer")
}

fn last(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}
