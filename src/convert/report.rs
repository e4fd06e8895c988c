//! What a conversion did.

use crate::{SchemeCount, TargetDtype};

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
    /// Tensors that were encoded.
    pub encoded: Vec<Encoded>,
    /// Tensors that could have been, and why they were not.
    pub kept: Vec<Kept>,
    /// How far the encoded tensors are from what they were, once that is known.
    pub distance: Option<Distance>,
    /// Tensors that are in no output: scales of activations, markers.
    pub dropped: Vec<String>,
    /// Remarks that a user should see.
    pub notes: Vec<String>,
    /// Length of the output, in all its files.
    pub output_bytes: u64,
}

/// A tensor that was encoded.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Encoded {
    /// Name in the model.
    pub name: String,
    /// What it was encoded to.
    pub scheme: String,
}

/// A tensor that was not encoded.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Kept {
    /// Name in the model.
    pub name: String,
    /// Why it is as it was.
    pub reason: String,
}

/// How far decoded values are from those that were encoded.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Distance {
    /// Over the values of all tensors.
    pub all: Errors,
    /// The tensors with the largest errors, by [`Errors::relative`].
    pub worst: Vec<TensorErrors>,
}

/// Errors of one tensor.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct TensorErrors {
    /// Its name.
    pub name: String,
    /// Its errors.
    #[serde(flatten)]
    pub errors: Errors,
}

/// Differences of decoded values from those that were encoded.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Errors {
    /// Number of values.
    pub values: u64,
    /// Mean of the magnitudes.
    pub mean_absolute: f64,
    /// Root of the mean square.
    pub rmse: f64,
    /// The largest magnitude.
    pub maximum: f64,
    /// The root mean square as a part of that of the values.
    pub relative: f64,
}

impl Report {
    pub(super) fn new(to: TargetDtype) -> Self {
        Self {
            to,
            schemes: vec![],
            passthrough: 0,
            encoded: vec![],
            kept: vec![],
            distance: None,
            dropped: vec![],
            notes: vec![],
            output_bytes: 0,
        }
    }

    /// Number of decoded tensors.
    #[must_use]
    pub fn recovered(&self) -> usize {
        self.schemes.iter().map(|s| s.tensors).sum()
    }
}

fn display<S: serde::Serializer>(
    value: &impl std::fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}
