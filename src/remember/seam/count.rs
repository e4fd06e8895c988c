//! Number of tensors by scheme.

use super::QuantScheme;

/// Number of tensors of one scheme in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SchemeCount {
    /// Scheme of the tensors.
    pub scheme: QuantScheme,
    /// Number of logical tensors.
    pub tensors: usize,
}

/// Counts one tensor of `scheme`. A scheme that `schemes` does not have yet is appended.
pub(crate) fn count(schemes: &mut Vec<SchemeCount>, scheme: QuantScheme) {
    match schemes.iter_mut().find(|s| s.scheme == scheme) {
        Some(found) => found.tensors += 1,
        None => schemes.push(SchemeCount { scheme, tensors: 1 }),
    }
}
