//! What a conversion did.

use crate::{QuantScheme, TargetDtype};

/// How many tensors of a scheme there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SchemeCount {
    /// The scheme.
    pub scheme: QuantScheme,
    /// Logical tensors.
    pub tensors: usize,
}

/// What a conversion did, or would do.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Element type of decoded weights.
    #[serde(serialize_with = "display")]
    pub to: TargetDtype,
    /// Decoded tensors by scheme, in the order of the file.
    pub schemes: Vec<SchemeCount>,
    /// Tensors that were copied as they are.
    pub passthrough: usize,
    /// Tensors that are in no output: scales of activations, markers.
    pub dropped: Vec<String>,
    /// Remarks that a user should see.
    pub notes: Vec<String>,
    /// Length of the output, in all its files.
    pub output_bytes: u64,
}

impl Report {
    pub(super) fn new(to: TargetDtype) -> Self {
        Self { to, schemes: vec![], passthrough: 0, dropped: vec![], notes: vec![], output_bytes: 0 }
    }

    /// Number of decoded tensors.
    #[must_use]
    pub fn recovered(&self) -> usize {
        self.schemes.iter().map(|s| s.tensors).sum()
    }
}

fn display<S: serde::Serializer>(value: &impl std::fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Counts `scheme` in a list that keeps the order of first appearance.
pub(crate) fn count(schemes: &mut Vec<SchemeCount>, scheme: QuantScheme) {
    match schemes.iter_mut().find(|s| s.scheme == scheme) {
        Some(found) => found.tensors += 1,
        None => schemes.push(SchemeCount { scheme, tensors: 1 }),
    }
}
