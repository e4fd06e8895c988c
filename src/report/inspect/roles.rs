//! The roles of stored tensors.

use crate::model::Tensor;
use crate::remember::Resolution;
use crate::{ParsedModel, TensorRole};

impl Tensor<'_> {
    /// What the tensor is for: codes, scales, a tensor that is not quantized. A tensor that cannot
    /// be decoded has the role that its name and dtype suggest.
    ///
    /// The first call for a model looks at all of its tensors, and may read the small ones in which
    /// some schemes describe themselves.
    #[must_use]
    pub fn role(&self) -> TensorRole {
        let model = self.model;
        let roles = model.roles.get_or_init(|| of(model, &model.resolve()));
        roles[self.index]
    }
}

/// The role of each stored tensor of `model`, in the order of the tensors.
pub(super) fn of(model: &ParsedModel, resolution: &Resolution<'_>) -> Vec<TensorRole> {
    let mut roles = vec![TensorRole::Passthrough; model.tensors.len()];
    for group in resolution.groups() {
        group
            .parts
            .iter()
            .for_each(|&(role, t)| roles[t.index] = role);
    }
    resolution
        .dropped
        .iter()
        .for_each(|t| roles[t.index] = crate::remember::role_of_dropped(t.name()));
    resolution
        .problems
        .iter()
        .for_each(|p| roles[p.tensor.index] = p.role);
    roles
}
