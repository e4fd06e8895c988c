//! Which tensors are encoded, to what, and why the others are not.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::seam::names;
use super::{Forget, Method, Weight};
#[cfg(not(feature = "gguf"))]
use crate::AnamnesisError;
use crate::config::Selection;
use crate::scheme::Item;
use crate::{Dtype, ParsedModel, Result, TargetDtype};

/// A tensor that could be encoded.
pub(crate) struct Subject<'a> {
    /// Name that the model has for it.
    pub name: &'a str,
    pub weight: Weight<'a>,
    /// Type of its codes, or of itself if it is not quantized.
    pub stored: Dtype,
    /// Whether it is quantized.
    pub is_group: bool,
}

/// What becomes of a tensor.
pub(crate) enum Choice {
    Encode {
        method: Arc<dyn Method>,
        /// What it becomes, as people read it.
        label: String,
    },
    /// It stays as it is, for this reason.
    Keep(String),
}

/// What becomes of every tensor, and what there is to say of it.
pub(crate) struct Choices {
    /// One for each subject.
    pub all: Vec<Choice>,
    pub notes: Vec<String>,
}

/// Settles what becomes of each of a model's tensors. `to` is what quantized values are decoded to.
pub(crate) fn choose(
    model: &ParsedModel,
    subjects: &[Subject<'_>],
    forget: &Forget,
    to: TargetDtype,
) -> Result<Choices> {
    let wishes = Wishes::new(forget)?;
    match forget.scheme.method(to) {
        Some((method, scope)) => {
            let label = forget.scheme.to_string();
            let choice = |subject: &Subject<'_>| match wishes
                .objection(subject, |name| names::objection(name, scope))
            {
                Some(reason) => Choice::Keep(reason),
                None => encode(&method, &label, subject),
            };
            Ok(Choices {
                all: subjects.iter().map(choice).collect(),
                notes: vec![],
            })
        }
        #[cfg(feature = "gguf")]
        None => super::gguf::choose(model, subjects, forget, &wishes),
        #[cfg(not(feature = "gguf"))]
        None => Err(AnamnesisError::unsupported(
            "encoding",
            format!("{} tensors of no scheme", model.tensors.len()),
        )),
    }
}

/// Encoding `subject`, unless the method cannot.
pub(crate) fn encode(method: &Arc<dyn Method>, label: &str, subject: &Subject<'_>) -> Choice {
    let nothing = subject.weight.shape.contains(&0) && !method.takes_empty();
    let nothing = nothing.then(|| "it is empty".to_owned());
    match nothing.or_else(|| method.objection(&subject.weight)) {
        Some(reason) => Choice::Keep(reason),
        None => Choice::Encode {
            method: method.clone(),
            label: label.to_owned(),
        },
    }
}

/// Whether a model has quantized `subject`, by any of its names.
fn has(like: &HashSet<String>, subject: &Subject<'_>) -> bool {
    like.contains(subject.name) || like.contains(subject.weight.name)
}

/// Which tensors a user wants to be encoded.
pub(crate) struct Wishes {
    selection: Selection,
    /// Whether tensors were asked for by name.
    by_name: bool,
    /// Names of the tensors that are quantized in a model that this one is to be like.
    like: Option<HashSet<String>>,
}

impl Wishes {
    fn new(forget: &Forget) -> Result<Self> {
        let selection = Selection::new(&forget.include, &forget.exclude)?;
        let like = forget.like.as_deref().map(names_of_quantized).transpose()?;
        Ok(Self {
            selection,
            by_name: !forget.include.is_empty(),
            like,
        })
    }

    /// Whether `subject` was asked for, so that what is done as a rule does not count.
    pub(crate) fn are_for(&self, subject: &Subject<'_>) -> bool {
        let named = self.by_name && self.selection.has(subject.name);
        named || self.like.as_ref().is_some_and(|like| has(like, subject))
    }

    /// Why `subject` stays as it is; `by_rule` says why one of its name does where nobody says otherwise.
    pub(crate) fn objection(
        &self,
        subject: &Subject<'_>,
        by_rule: impl FnOnce(&str) -> Option<String>,
    ) -> Option<String> {
        let is_float = subject.is_group || TargetDtype::of(subject.stored).is_some();
        match () {
            () if !self.selection.has(subject.name) => {
                Some("not among the tensors that were asked for".to_owned())
            }
            () if self.like.as_ref().is_some_and(|like| !has(like, subject)) => {
                Some("not quantized in the model that this one is to be like".to_owned())
            }
            () if !is_float => Some(format!("{} is not encoded", subject.stored)),
            () if self.are_for(subject) => None,
            () => by_rule(subject.weight.name),
        }
    }
}

/// Names of the tensors that are quantized in the model at `path`.
fn names_of_quantized(path: &Path) -> Result<HashSet<String>> {
    let model = crate::parse(path)?;
    let resolution = model.resolve();
    let quantized =
        |item: &Item<'_>| matches!(item, Item::Group(_)).then(|| item.name().to_owned());
    Ok(resolution.items.iter().filter_map(quantized).collect())
}
