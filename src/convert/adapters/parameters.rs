//! Weights to which PEFT gives factors by their own names (`target_parameters`): stacks of experts, and other weights of modules that
//! have several.
//!
//! The names of the factors tell the module alone. A module with several such weights has one pair below the other, in the order in
//! which its class declares the weights (`M.lora_A.weight`, `M.base_layer.lora_A.weight`, …), which no file says. The shapes tell
//! which pair belongs to which weight, and whether the product of a stack is transposed: PEFT decides that by an attribute of the
//! class (`is_transposed`), not in the same way in all releases. Where the shapes leave a choice, the adapter is refused.
//!
//! Source: peft [`ParamWrapper`](https://github.com/huggingface/peft/blob/v0.19.0/src/peft/tuners/lora/layer.py).

use std::collections::{BTreeMap, BTreeSet};

use super::factors::FactorForm;
use super::matrices::AdapterTensor;
use super::peft_tensors::LoraTensors;
use crate::scheme::seam::wrong;
use crate::{AnamnesisError, Result};

/// The weight that a pair of factors belongs to, and how they are stored.
pub(super) struct Assignment {
    pub weight: String,
    pub form: FactorForm,
}

/// Pairs of factors that belong to a weight named in the settings, by the module in their names.
#[derive(Default)]
pub(super) struct Parameters {
    assignments: BTreeMap<String, Assignment>,
}

/// A pair of factors whose weight has as many rows as columns.
struct SquarePair<'a> {
    key: &'a str,
    weight: &'a str,
    factor: usize,
}

impl Parameters {
    /// Assigns the pairs in `lora` to those of `names` that end like one of `targets`. `shape_of` is that of a weight, `tensor` one
    /// of the adapter.
    ///
    /// # Errors
    /// `Parse` if a module has fewer or more pairs than such weights, or the shapes do not tell what belongs together.
    pub(super) fn assign<'n, 's>(
        targets: &BTreeSet<String>,
        (names, shape_of): (
            impl Iterator<Item = &'n str>,
            &dyn Fn(&str) -> Option<&'s [usize]>,
        ),
        lora: &BTreeMap<&str, LoraTensors>,
        tensor: impl Fn(usize) -> AdapterTensor,
    ) -> Result<Self> {
        let mut parameters = Self::default();
        if targets.is_empty() {
            return Ok(parameters);
        }
        let weights = weights_by_module(targets, names);
        let mut pairs: BTreeMap<&str, Vec<(&str, LoraTensors)>> = BTreeMap::new();
        for (&key, &tensors) in lora {
            pairs
                .entry(module_of(key))
                .or_default()
                .push((key, tensors));
        }
        let mut squares = vec![];
        // Whether the products of modules of this last name are transposed.
        let mut orders: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
        for (module, pairs) in &pairs {
            let Some(weights) = weights.get(module) else {
                continue;
            };
            if let (Some(&(_, tensors)), false) = (pairs.first(), pairs.len() == weights.len()) {
                let what = format!(
                    "the adapter has {} pairs of factors for parameters of `{module}`, and its settings name {weights:?}",
                    pairs.len()
                );
                return Err(match tensors.a.or(tensors.b) {
                    Some(factor) => wrong(&tensor(factor).get(), what),
                    None => AnamnesisError::parse(what),
                });
            }
            let mut left = weights.clone();
            for &(key, tensors) in pairs {
                let (Some(a), Some(b)) = (tensors.a, tensors.b) else {
                    continue;
                };
                let (a_tensor, b_tensor) = (tensor(a), tensor(b));
                let ends = match (a_tensor.get().shape(), b_tensor.get().shape()) {
                    (&[_, a_cols], &[b_rows, _]) => [b_rows, a_cols],
                    _ => {
                        return Err(wrong(
                            &a_tensor.get(),
                            "factors of a parameter are matrices",
                        ));
                    }
                };
                let fitting = |weight: &&&str| {
                    shape_of(weight).is_some_and(|shape| !forms(shape, ends).is_empty())
                };
                let mut fitting = left.iter().filter(fitting);
                let (Some(&weight), None) = (fitting.next(), fitting.next()) else {
                    let what = format!(
                        "with `{}` {:?} it fits none or several of the module's parameters that the settings name: {weights:?}",
                        b_tensor.get().name(),
                        b_tensor.get().shape(),
                    );
                    return Err(wrong(&a_tensor.get(), what));
                };
                left.retain(|other| *other != weight);
                match *forms(shape_of(weight).unwrap_or_default(), ends) {
                    [form] => {
                        if let FactorForm::Stack { is_transposed } = form {
                            orders
                                .entry(last(module))
                                .or_default()
                                .insert(is_transposed);
                        }
                        parameters.insert(key, weight, form);
                    }
                    _ => squares.push(SquarePair {
                        key,
                        weight,
                        factor: a,
                    }),
                }
            }
        }
        for SquarePair {
            key,
            weight,
            factor,
        } in squares
        {
            let order = orders.get(last(module_of(key)));
            let order = order
                .filter(|order| order.len() == 1)
                .and_then(BTreeSet::first);
            let Some(&is_transposed) = order else {
                let what = format!(
                    "`{weight}` has as many rows as columns, so that nothing tells whether its product is transposed"
                );
                return Err(wrong(&tensor(factor).get(), what));
            };
            parameters.insert(key, weight, FactorForm::Stack { is_transposed });
        }
        Ok(parameters)
    }

    fn insert(&mut self, key: &str, weight: &str, form: FactorForm) {
        let weight = weight.to_owned();
        self.assignments
            .insert(key.to_owned(), Assignment { weight, form });
    }

    /// The weight of the pair of factors that is named after `module`; `None` if it is the weight of a module of its own.
    pub(super) fn weight(&self, module: &str) -> Option<&Assignment> {
        self.assignments.get(module)
    }
}

/// The forms of the factors of a weight of this shape, where B has `rows` rows and A `cols` columns.
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
) -> BTreeMap<&'n str, Vec<&'n str>> {
    let mut weights: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        let mut ends = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
        if targets.contains(name) || ends.any(|end| targets.contains(end)) {
            let module = name.rsplit_once('.').map_or("", |(module, _)| module);
            weights.entry(module).or_default().push(name);
        }
    }
    weights
        .values_mut()
        .for_each(|weights| weights.sort_unstable());
    weights
}

/// The module in the name of a pair, which may lie below others of the same module.
fn module_of(key: &str) -> &str {
    key.trim_end_matches(".base_layer")
}

fn last(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}
