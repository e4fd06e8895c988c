//! Stored matrices of transforms, which modules share.

use std::collections::HashMap;

use crate::config::{TransformKind, TransformLocation, TransformScheme, TransformUse};
use crate::model::Tensor;

/// Stored matrices of a scheme.
#[derive(Default)]
pub(super) struct StoredMatrices<'m> {
    /// By location and module.
    by_module: HashMap<(TransformLocation, &'m str), Tensor<'m>>,
    /// The only one of a number of rows, at a location or at all of them (`None`); or `None` if
    /// there are several.
    by_size: HashMap<(Option<TransformLocation>, usize), Option<Tensor<'m>>>,
}

impl<'m> StoredMatrices<'m> {
    /// The matrix of `size` rows of a module: its own, or the only one of that size, which modules
    /// share.
    pub(super) fn find(
        &self,
        scheme: &TransformScheme,
        u: &TransformUse,
        (module, size): (&str, usize),
    ) -> Option<Tensor<'m>> {
        if let Some(own) = self.by_module.get(&(u.location, module)) {
            return Some(*own);
        }
        // A matrix and its inverse are told apart by their locations alone.
        let is_of_one = scheme.kind == TransformKind::RandomMatrix;
        let has_other =
            |other: &TransformUse| other.location == u.location && other.is_inverse != u.is_inverse;
        if is_of_one && scheme.uses.iter().any(has_other) {
            return None;
        }
        let location = is_of_one.then_some(u.location);
        self.by_size.get(&(location, size)).copied().flatten()
    }

    /// Adds the matrix of a module.
    pub(super) fn insert(
        &mut self,
        (location, module): (TransformLocation, &'m str),
        t: Tensor<'m>,
    ) {
        self.by_module.insert((location, module), t);
        if let &[rows, cols] = t.shape()
            && rows == cols
        {
            for place in [Some(location), None] {
                let of_size = self.by_size.entry((place, rows));
                of_size.and_modify(|only| *only = None).or_insert(Some(t));
            }
        }
    }
}
