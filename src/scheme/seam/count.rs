//! Schemes of a model, counted.

use super::QuantScheme;

/// How many tensors of a scheme there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SchemeCount {
    /// The scheme.
    pub scheme: QuantScheme,
    /// Logical tensors.
    pub tensors: usize,
}

/// Counts `scheme` in a list that keeps the order of first appearance.
pub(crate) fn count(schemes: &mut Vec<SchemeCount>, scheme: QuantScheme) {
    match schemes.iter_mut().find(|s| s.scheme == scheme) {
        Some(found) => found.tensors += 1,
        None => schemes.push(SchemeCount { scheme, tensors: 1 }),
    }
}
