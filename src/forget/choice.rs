//! Which tensors are encoded, to what, and why the others are not.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::seam::names;
use super::{Forget, Method, WeightInfo};
#[cfg(not(feature = "gguf"))]
use crate::AnamnesisError;
use crate::config::Selection;
use crate::scheme::Item;
use crate::{Dtype, ParsedModel, Result, TargetDtype};

/// A tensor that could be encoded.
pub(crate) struct Candidate<'a> {
    /// Name that the model has for it.
    pub name: &'a str,
    pub weight: WeightInfo<'a>,
    /// Type of its codes, or of itself if it is not quantized.
    pub stored: Dtype,
    /// Whether it is quantized.
    pub is_quantized: bool,
}

/// What becomes of a tensor.
pub(crate) enum Decision {
    Encode {
        method: Arc<dyn Method>,
        /// What it becomes, as people read it.
        label: String,
    },
    /// It stays as it is, for this reason.
    Keep(String),
}

/// What becomes of every tensor, and what there is to say of it.
pub(crate) struct Decisions {
    /// One for each candidate.
    pub all: Vec<Decision>,
    pub notes: Vec<String>,
}

/// Settles what becomes of each of a model's tensors. `to` is what quantized values are decoded to.
pub(crate) fn choose(
    model: &ParsedModel,
    candidates: &[Candidate<'_>],
    forget: &Forget,
    to: TargetDtype,
) -> Result<Decisions> {
    let filter = TensorFilter::new(forget)?;
    match forget.scheme.method(to) {
        Some((method, scope)) => {
            let label = forget.scheme.to_string();
            let choice = |candidate: &Candidate<'_>| match filter
                .objection(candidate, |name| names::objection(name, scope))
            {
                Some(reason) => Decision::Keep(reason),
                None => encode(&method, &label, candidate),
            };
            Ok(Decisions {
                all: candidates.iter().map(choice).collect(),
                notes: vec![],
            })
        }
        #[cfg(feature = "gguf")]
        None => super::gguf::choose(model, candidates, forget, &filter),
        #[cfg(not(feature = "gguf"))]
        None => Err(AnamnesisError::unsupported(
            "encoding",
            format!("{} tensors of no scheme", model.tensors.len()),
        )),
    }
}

/// Encoding `candidate`, unless the method cannot.
pub(crate) fn encode(method: &Arc<dyn Method>, label: &str, candidate: &Candidate<'_>) -> Decision {
    let nothing = candidate.weight.shape.contains(&0) && !method.takes_empty();
    let nothing = nothing.then(|| "it is empty".to_owned());
    match nothing.or_else(|| method.objection(&candidate.weight)) {
        Some(reason) => Decision::Keep(reason),
        None => Decision::Encode {
            method: method.clone(),
            label: label.to_owned(),
        },
    }
}

/// Whether a model has quantized `candidate`, by any of its names.
fn has(like: &HashSet<String>, candidate: &Candidate<'_>) -> bool {
    like.contains(candidate.name) || like.contains(candidate.weight.name)
}

/// Which tensors a user wants to be encoded.
pub(crate) struct TensorFilter {
    selection: Selection,
    /// Whether tensors were asked for by name.
    has_include_patterns: bool,
    /// Names of the tensors that are quantized in a model that this one is to be like.
    like: Option<HashSet<String>>,
}

impl TensorFilter {
    fn new(forget: &Forget) -> Result<Self> {
        let selection = Selection::new(&forget.include, &forget.exclude)?;
        let like = forget.like.as_deref().map(quantized_names).transpose()?;
        Ok(Self {
            selection,
            has_include_patterns: !forget.include.is_empty(),
            like,
        })
    }

    /// Whether `candidate` was asked for, so that what is done as a rule does not count.
    pub(crate) fn is_requested(&self, candidate: &Candidate<'_>) -> bool {
        let named = self.has_include_patterns && self.selection.has(candidate.name);
        named || self.like.as_ref().is_some_and(|like| has(like, candidate))
    }

    /// Why `candidate` stays as it is; `by_rule` says why one of its name does where nobody says otherwise.
    pub(crate) fn objection(
        &self,
        candidate: &Candidate<'_>,
        by_rule: impl FnOnce(&str) -> Option<String>,
    ) -> Option<String> {
        let is_float = candidate.is_quantized || TargetDtype::of(candidate.stored).is_some();
        match () {
            () if !self.selection.has(candidate.name) => {
                Some("not among the tensors that were asked for".to_owned())
            }
            () if self.like.as_ref().is_some_and(|like| !has(like, candidate)) => {
                Some("not quantized in the model that this one is to be like".to_owned())
            }
            () if !is_float => Some(format!("{} is not encoded", candidate.stored)),
            () if self.is_requested(candidate) => None,
            () => by_rule(candidate.weight.name),
        }
    }
}

/// Names of the tensors that are quantized in the model at `path`.
fn quantized_names(path: &Path) -> Result<HashSet<String>> {
    let model = crate::parse(path)?;
    let resolution = model.resolve();
    let quantized =
        |item: &Item<'_>| matches!(item, Item::Group(_)).then(|| item.name().to_owned());
    Ok(resolution.items.iter().filter_map(quantized).collect())
}
