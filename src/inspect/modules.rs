//! A model by its module classes: all layers' `up_proj` in one row.

use std::collections::{HashMap, HashSet};

use crate::containers::model::Tensor;
use crate::scheme::{Resolution, ResolvedItem};
use crate::{QuantScheme, TensorRole};

/// Tensors whose names differ in numbers alone, and how they are quantized.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct ModuleClass {
    /// Name of the module, `#` for each number: `model.layers.#.mlp.up_proj`.
    pub class: String,
    /// How its weights are quantized.
    pub scheme: QuantScheme,
    /// Number of tensors in the output.
    pub tensors: usize,
    /// Number of their values.
    pub parameters: u64,
    /// Bytes that they take as they are stored, scales included.
    pub stored: u64,
}

impl ModuleClass {
    /// Stored bits of a value, scales included.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        self.stored as f64 * 8.0 / (self.parameters as f64).max(1.0)
    }
}

/// `name` with `#` for its numbers, and without its last part if that is `weight`.
fn class(name: &str) -> String {
    let name = name.strip_suffix(".weight").unwrap_or(name);
    let part = |part: &str| {
        if part.parse::<u64>().is_ok() {
            "#".to_owned()
        } else {
            part.to_owned()
        }
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// Every class, in the order of first appearance. A class with several schemes has a row for each.
pub(super) fn classes(resolution: &Resolution<'_>) -> Vec<ModuleClass> {
    let mut rows: Vec<ModuleClass> = Vec::new();
    let mut at: HashMap<(String, QuantScheme), usize> = HashMap::new();
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
                group.name.as_str(),
                group.scheme,
                group.shape.as_slice(),
                stored(&group.parts),
            ),
            ResolvedItem::Plain(t) => (t.name(), QuantScheme::Unquantized, t.shape(), t.info().len),
        };
        let class = class(name);
        let row = *at.entry((class.clone(), scheme)).or_insert_with(|| {
            rows.push(ModuleClass {
                class,
                scheme,
                tensors: 0,
                parameters: 0,
                stored: 0,
            });
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
    use super::class;

    #[test]
    fn numbers_are_left_out() {
        assert_eq!(
            class("model.layers.12.mlp.experts.3.up_proj.weight"),
            "model.layers.#.mlp.experts.#.up_proj"
        );
        assert_eq!(class("model.norm.weight"), "model.norm");
        assert_eq!(class("h.0.attn.bias"), "h.#.attn.bias");
    }
}
