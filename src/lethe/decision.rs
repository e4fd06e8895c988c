//! What is decided of a tensor: whether it is encoded, by which method, or why it stays as it is.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::importance::Importance;
use super::{Forget, Method, WeightInfo};
use crate::config::Selection;
use crate::model::gguf::GgufMetadataValue;
use crate::remember::{EncodedAs, ResolvedItem};
use crate::{Dtype, ParseLimits, Result, TargetDtype};

/// A logical tensor of the model, which may be encoded.
pub(crate) struct Candidate<'a> {
    /// Name in the model, to which the user's patterns apply.
    pub name: &'a str,
    /// The tensor as an encoder takes it. Its name differs from `name` if a parameter is encoded as
    /// its module has it.
    pub weight: WeightInfo<'a>,
    /// Type of the stored codes, or of the values of a tensor that is not quantized.
    pub stored: Dtype,
    /// Whether the model stores it quantized, so that it is decoded first.
    pub is_quantized: bool,
    /// What the model's class says of it; `None`: its name decides.
    pub encoded_as: Option<EncodedAs>,
}

/// Whether a tensor is encoded.
pub(crate) enum Decision {
    /// It is encoded by `method`.
    Encode {
        method: Arc<dyn Method>,
        /// Name of the scheme or of the ggml type, for the report.
        label: String,
        /// What its errors are weighted with, if scales are searched; else they are as the library
        /// has them.
        importance: Option<Importance>,
        /// What the columns are multiplied with before they are encoded.
        columns: Option<Arc<[f32]>>,
    },
    /// It stays as it is, for this reason.
    Keep(String),
}

/// The decisions for all tensors of a model.
pub(crate) struct Decisions {
    /// One decision for each candidate, in their order.
    pub all: Vec<Decision>,
    /// Remarks for the report.
    pub notes: Vec<String>,
    /// What the metadata of a GGUF file says of the encoding, beside its file type.
    pub gguf_keys: Vec<(String, GgufMetadataValue)>,
}

/// Encodes `candidate` by `method`, unless its shape or name does not fit.
pub(crate) fn encode(method: &Arc<dyn Method>, label: &str, candidate: &Candidate<'_>) -> Decision {
    // Empty tensors have no largest magnitude and no block, and only containers without plain
    // tensors need them.
    let is_refused = candidate.weight.shape.contains(&0) && !method.takes_empty();
    let empty = is_refused.then(|| "it is empty".to_owned());
    match empty.or_else(|| method.objection(&candidate.weight)) {
        Some(reason) => Decision::Keep(reason),
        None => {
            let (method, label) = (method.clone(), label.to_owned());
            Decision::Encode { method, label, importance: None, columns: None }
        }
    }
}

/// Whether `names` has the candidate, by its name in the model or by the name that it is encoded
/// under.
fn contains(names: &HashSet<String>, candidate: &Candidate<'_>) -> bool {
    names.contains(candidate.name) || names.contains(candidate.weight.name)
}

/// The user's choice of tensors: patterns of names (`--include`, `--exclude`) and a model to
/// imitate (`--like`).
pub(crate) struct TensorFilter {
    pub(super) selection: Selection,
    /// Whether there is an `--include`. Without one, the selection has every name, which requests
    /// none of them.
    has_include_patterns: bool,
    /// Names of the tensors that are quantized in the model of `--like`.
    like: Option<HashSet<String>>,
}

impl TensorFilter {
    pub(super) fn new(forget: &Forget, limits: &ParseLimits) -> Result<Self> {
        let selection = Selection::new(&forget.include, &forget.exclude)?;
        let like = forget.like.as_deref();
        let like = like.map(|path| quantized_names(path, limits)).transpose()?;
        Ok(Self { selection, has_include_patterns: !forget.include.is_empty(), like })
    }

    /// Whether the user asked for `candidate`, which overrides the defaults for its name.
    pub(crate) fn is_requested(&self, candidate: &Candidate<'_>) -> bool {
        let named = self.has_include_patterns && self.selection.has(candidate.name);
        named
            || self
                .like
                .as_ref()
                .is_some_and(|like| contains(like, candidate))
    }

    /// The reason not to encode `candidate`, if there is one. `by_default` gives the reason for a
    /// name that the user did not ask for.
    pub(crate) fn objection(
        &self,
        candidate: &Candidate<'_>,
        by_default: impl FnOnce(&str) -> Option<String>,
    ) -> Option<String> {
        // Of tensors that are not quantized only floats are rounded; integers are indices, masks or
        // counters.
        let is_float = candidate.is_quantized || TargetDtype::of(candidate.stored).is_some();
        match () {
            // The user's own choice comes first: an exclusion holds even for tensors that `--like`
            // names.
            () if !self.selection.has(candidate.name) => {
                Some("not among the tensors that were asked for".to_owned())
            }
            () if self
                .like
                .as_ref()
                .is_some_and(|like| !contains(like, candidate)) =>
            {
                Some("not quantized in the model that this one is to be like".to_owned())
            }
            // After the user's patterns: an integer tensor that matches one is not encoded all the
            // same.
            () if !is_float => Some(format!("{} is not encoded", candidate.stored)),
            () if self.is_requested(candidate) => None,
            () => by_default(candidate.weight.name),
        }
    }
}

/// Reads the names of the tensors that are quantized in the model at `path`, within the limits of
/// the model to encode.
fn quantized_names(path: &Path, limits: &ParseLimits) -> Result<HashSet<String>> {
    let model = crate::parse_with_limits(path, limits)?;
    let resolution = model.resolve();
    let quantized = |item: &ResolvedItem<'_>| {
        matches!(item, ResolvedItem::Group(_)).then(|| item.name().to_owned())
    };
    let names = resolution.items.iter().filter_map(quantized).collect();
    model.require_unchanged().map(|()| names)
}
