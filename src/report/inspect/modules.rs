//! Groups the tensors of a model by module class: the `up_proj` of all layers is one row.

use std::collections::{HashMap, HashSet};

use crate::model::Tensor;
use crate::remember::{Group, Resolution, ResolvedItem};
use crate::{QuantScheme, TensorRole};

/// Tensors of one scheme whose names differ only in numbers, such as the index of a layer.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct ModuleClass {
    /// Name of the module with `#` for each number: `model.layers.#.mlp.up_proj`.
    pub class: String,
    /// Scheme of the weights.
    pub scheme: QuantScheme,
    /// Number of tensors after recovery.
    pub tensors: usize,
    /// Number of values in these tensors.
    pub parameters: u64,
    /// Bytes that the tensors take as stored, scales included.
    pub stored: u64,
}

impl ModuleClass {
    /// Mean number of stored bits for each value, scales included.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        self.stored as f64 * 8.0 / (self.parameters as f64).max(1.0)
    }
}

/// `name` without the ending `.weight`, and [without numbers](without_numbers).
pub(crate) fn class_name(name: &str) -> String {
    without_numbers(name.strip_suffix(".weight").unwrap_or(name))
}

/// `name` with `#` for each component that is a number.
pub(crate) fn without_numbers(name: &str) -> String {
    let part = |part| {
        if str::parse::<u64>(part).is_ok() {
            "#"
        } else {
            part
        }
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// The share of a weight in the bytes that several weights take together, by their values; `None`
/// of a weight with parts of its own. All weights of a module of DFloat11 are one stream, with a
/// byte of sign and mantissa for each value.
fn shared(group: &Group<'_>) -> Option<u64> {
    let (QuantScheme::DFloat11, [_, (_, rest), ..]) = (group.scheme, group.parts.as_slice()) else {
        return None;
    };
    let bytes: u128 = group
        .parts
        .iter()
        .map(|(_, t)| u128::from(t.info().len))
        .sum();
    let values: u128 = group.shape.iter().map(|&dim| dim as u128).product();
    u64::try_from(bytes * values / rest.elements().max(1) as u128).ok()
}

/// All module classes in the order of first appearance. A class with several schemes has a row for
/// each scheme.
pub(super) fn classes(resolution: &Resolution<'_>) -> Vec<ModuleClass> {
    let mut rows: Vec<ModuleClass> = Vec::new();
    let mut at: HashMap<(String, QuantScheme), usize> = HashMap::new();
    // Groups can share a part, such as a codebook. Its bytes count once.
    let mut seen = HashSet::new();
    let mut stored = |parts: &[(TensorRole, Tensor<'_>)]| {
        parts
            .iter()
            .filter(|(_, t)| seen.insert(t.index))
            .map(|(_, t)| t.info().len)
            .sum::<u64>()
    };
    for item in &resolution.items {
        let (name, scheme, shape, bytes) = match item {
            ResolvedItem::Group(group) => (
                &*group.name,
                group.scheme,
                &*group.shape,
                shared(group).unwrap_or_else(|| stored(&group.parts)),
            ),
            ResolvedItem::Plain(t) => {
                let (stored, scheme) = (&t.stored, QuantScheme::Unquantized);
                (t.name(), scheme, stored.shape(), stored.info().len)
            }
        };
        let class = class_name(name);
        let row = *at.entry((class.clone(), scheme)).or_insert_with(|| {
            rows.push(ModuleClass { class, scheme, tensors: 0, parameters: 0, stored: 0 });
            rows.len() - 1
        });
        let row = &mut rows[row];
        row.tensors += 1;
        row.parameters += shape.iter().fold(1u64, |n, &d| n.saturating_mul(d as u64));
        row.stored += bytes;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::class_name;

    #[test]
    fn numbers_are_left_out() {
        assert_eq!(
            class_name("model.layers.12.mlp.experts.3.up_proj.weight"),
            "model.layers.#.mlp.experts.#.up_proj"
        );
        assert_eq!(class_name("model.norm.weight"), "model.norm");
        assert_eq!(class_name("h.0.attn.bias"), "h.#.attn.bias");
    }
}
