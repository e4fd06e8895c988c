//! The report of a conversion.

use std::path::{Path, PathBuf};

use crate::remember::is_plain_float;
use crate::{Dtype, SchemeCount, TargetDtype};

/// What a conversion does with each tensor. Before the conversion, what it would do.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Element type of decoded weights.
    pub to: TargetDtype,
    /// Number of decoded tensors of each scheme, in the order in which the schemes appear in the
    /// model.
    pub schemes: Vec<SchemeCount>,
    /// Number of tensors that are copied unchanged; if tensors are encoded, the number of those
    /// that are not.
    pub passthrough: usize,
    /// Number of tensors of plain floats that are converted to another type
    /// ([`RememberOptions::cast`](crate::RememberOptions)).
    pub cast: usize,
    /// Number of tensors whose values adapters change
    /// ([`ConvertOptions::adapters`](crate::ConvertOptions)).
    #[serde(skip)]
    pub merged: usize,
    /// Tensors that are encoded, with their schemes.
    pub encoded: Vec<Encoded>,
    /// Tensors that are not encoded although the conversion encodes, with the reasons.
    pub kept: Vec<Kept>,
    /// Error of the encoded values. `None` before the conversion, and if no value was encoded.
    pub distance: Option<Distance>,
    /// Names of input tensors that the output does not have: scales of activations, markers.
    pub dropped: Vec<String>,
    /// Remarks on the model and the output for the user.
    pub notes: Vec<String>,
    /// Length of all output files together, in bytes.
    pub output_bytes: u64,
    /// SHA-256 of each output file, those beside the weights of a directory included. Empty unless
    /// the options ask for it.
    pub sha256: Vec<FileSum>,
    /// Number of copied tensors of each type of float but `to`, in the order of the model.
    #[serde(skip)]
    pub(super) kept_floats: Vec<(Dtype, usize)>,
}

/// The SHA-256 of a file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct FileSum {
    /// Path of the file.
    #[serde(serialize_with = "path_as_text")]
    pub file: PathBuf,
    /// The sum in lower-case hexadecimal digits.
    pub sha256: String,
}

/// Paths need not be UTF-8, and JSON is: what is not becomes `U+FFFD`.
fn path_as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// A tensor that was encoded.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Encoded {
    /// Name in the model.
    pub name: String,
    /// Name of the scheme that it is encoded to.
    pub scheme: String,
}

/// A tensor that was not encoded.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Kept {
    /// Name in the model.
    pub name: String,
    /// Why it is not encoded.
    pub reason: String,
}

#[cfg(feature = "lethe")]
impl Kept {
    /// Whether the tensor has the type already that it was to be encoded to.
    #[must_use]
    pub fn has_type_already(&self) -> bool {
        self.reason.ends_with(crate::lethe::ALREADY)
    }
}

/// The error that encoding introduced: the difference between the values before encoding and after
/// decoding again.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Distance {
    /// Error over the values of all encoded tensors.
    pub all: Errors,
    /// The tensors with the largest [`Errors::relative`], largest first.
    pub worst: Vec<TensorErrors>,
    /// All encoded tensors, in the order of the output.
    pub tensors: Vec<TensorErrors>,
}

/// The encoding error of one tensor.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct TensorErrors {
    /// Name of the tensor in the model.
    pub name: String,
    /// Error over the values of the tensor.
    #[serde(flatten)]
    pub errors: Errors,
}

/// Statistics of the differences between original values and the values that their codes decode to.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Errors {
    /// Number of values.
    pub values: u64,
    /// Mean absolute difference.
    pub mean_absolute: f64,
    /// Root of the mean squared difference.
    pub rmse: f64,
    /// Largest absolute difference.
    pub maximum: f64,
    /// `rmse` divided by the root mean square of the original values; 0 if these are all 0.
    pub relative: f64,
    /// The cosine of the angle between original and decoded values; 1 if all are 0.
    pub cosine: f64,
    /// `relative` of the outputs of layers, as an importance matrix lets expect it: inputs vary
    /// independently of each other. `None` without a matrix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outputs: Option<f64>,
}

impl Report {
    /// Returns an empty report.
    pub(super) fn new(to: TargetDtype) -> Self {
        Self {
            to,
            schemes: vec![],
            passthrough: 0,
            cast: 0,
            merged: 0,
            encoded: vec![],
            kept: vec![],
            distance: None,
            dropped: vec![],
            notes: vec![],
            output_bytes: 0,
            sha256: vec![],
            kept_floats: vec![],
        }
    }

    /// Counts a copied tensor, if it has another type of float than `to`.
    pub(super) fn count_kept(&mut self, dtype: Dtype) {
        if !is_plain_float(dtype) || dtype == self.to.dtype() {
            return;
        }
        match self.kept_floats.iter_mut().find(|(d, _)| *d == dtype) {
            Some((_, n)) => *n += 1,
            None => self.kept_floats.push((dtype, 1)),
        }
    }

    /// Number of copied tensors of each type of float (F64, F32, F16, BF16) but `to`.
    #[must_use]
    pub fn kept_floats(&self) -> &[(Dtype, usize)] {
        &self.kept_floats
    }

    /// Number of decoded tensors.
    #[must_use]
    pub fn recovered(&self) -> usize {
        self.schemes.iter().map(|s| s.tensors).sum()
    }
}
