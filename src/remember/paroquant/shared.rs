//! Which rotation a layer has: one of its own, or that of the experts of its kind.

use std::collections::HashMap;

use crate::Result;
use crate::model::Tensor;
use crate::remember::seam::{Index, base_of};

/// Last parts of the names of the tensors of a rotation.
const PARTS: [&str; 3] = ["theta", "pairs", "channel_scales"];

/// The name of a rotation, to which those of its tensors are appended.
#[derive(Debug, PartialEq)]
pub(super) struct Rotation {
    prefix: String,
    is_shared: bool,
}

impl Rotation {
    /// The rotation of the layer whose tensors begin with `base`; `None` if it has none.
    pub(super) fn find(base: &str, all: &Index<'_>) -> Option<Self> {
        let is_there = |rotation: &Self| {
            let name = |part| format!("{}{part}", rotation.prefix);
            PARTS.iter().any(|part| all.get(&name(part)).is_some())
        };
        let own = Self::own(base);
        match is_there(&own) {
            true => Some(own),
            false => Self::of_experts(base).filter(is_there),
        }
    }

    pub(super) fn own(base: &str) -> Self {
        Self { prefix: base.to_owned(), is_shared: false }
    }

    /// The rotation of all experts beside the layer `base`, `E.0.gate_proj.`; `None` if the layer
    /// has no such name.
    fn of_experts(base: &str) -> Option<Self> {
        let (expert, layer) = base.strip_suffix('.')?.rsplit_once('.')?;
        let (experts, number) = expert.rsplit_once('.')?;
        let kind = match layer {
            "gate_proj" | "up_proj" => "gate_up_weight_",
            "down_proj" => "down_weight_",
            _ => return None,
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| Self { prefix: format!("{experts}.{kind}"), is_shared: true })
    }

    /// Angles, pairs and factors of the layer whose codes are `t`.
    ///
    /// # Errors
    /// One of them is missing.
    pub(super) fn tensors<'m>(&self, t: &Tensor<'_>, all: &Index<'m>) -> Result<[Tensor<'m>; 3]> {
        let [theta, pairs, factors] = PARTS;
        let need = |part| all.need(t, &self.prefix, part);
        Ok([need(theta)?, need(pairs)?, need(factors)?])
    }

    /// Whether the tensors of the rotation are listed with the layer whose codes are `t`: a tensor
    /// belongs to one weight, and those of experts to the first of them.
    pub(super) fn is_owned_by(&self, t: &Tensor<'_>, all: &Index<'_>) -> bool {
        let shared = all.prepared::<SharedRotations>();
        let first = shared.and_then(|shared| shared.first.get(&self.prefix));
        !self.is_shared || first == Some(&t.index)
    }
}

/// For each rotation that experts share, the number of the codes of the first of them.
pub(super) struct SharedRotations {
    first: HashMap<String, usize>,
}

impl SharedRotations {
    /// `None` if the model has no such rotations.
    pub(super) fn of(all: &Index<'_>) -> Option<Self> {
        let is_shared = |t: &Tensor<'_>| t.name().ends_with("_weight_theta");
        if !all.model.tensors().any(|t| is_shared(&t)) {
            return None;
        }
        let mut first = HashMap::new();
        for t in all.model.tensors() {
            let base = base_of(t.name(), "qweight");
            if let Some(rotation) = base.and_then(Rotation::of_experts)
                && Rotation::find(base.unwrap_or_default(), all).as_ref() == Some(&rotation)
            {
                first.entry(rotation.prefix).or_insert(t.index);
            }
        }
        Some(Self { first })
    }
}
