//! Counts of the schemes in a model.

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

/// Adds one tensor of `scheme` to `schemes`, whose order is that of first appearance.
pub(crate) fn count(schemes: &mut Vec<SchemeCount>, scheme: QuantScheme) {
    match schemes.iter_mut().find(|s| s.scheme == scheme) {
        Some(found) => found.tensors += 1,
        None => schemes.push(SchemeCount { scheme, tensors: 1 }),
    }
}
