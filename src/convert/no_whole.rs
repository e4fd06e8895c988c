//! Replaces `whole` in a build without the feature `models`: every output has the input's tensors
//! under their own names.

use super::options::{ConvertOptions, ModelScope};
use super::report::Report;
use crate::model::ParsedModel;
#[cfg(feature = "gguf")]
use crate::model::gguf::GgufMetadataValue;
use crate::remember::Resolution;
use crate::source::CompanionFile;
use crate::{AnamnesisError, Result};

/// Stands for what a whole model has beside its tensors; no value exists.
pub(crate) enum WholeModel {}

impl WholeModel {
    pub(super) fn architecture(&self) -> Option<&str> {
        match *self {}
    }

    pub(super) fn config(&self) -> Option<&str> {
        match *self {}
    }

    #[cfg(feature = "gguf")]
    pub(super) fn metadata(&self) -> &[(String, GgufMetadataValue)] {
        match *self {}
    }

    pub(super) fn files(&self) -> &[(String, String)] {
        match *self {}
    }

    pub(super) fn format(&self) -> &'static str {
        match *self {}
    }

    pub(super) fn companions(&self) -> &[CompanionFile] {
        match *self {}
    }
}

/// Returns `None`: there are no architectures.
///
/// # Errors
/// `Unsupported` if the options ask for a whole model, or for what belongs to one.
pub(super) fn map(
    _model: &ParsedModel,
    _resolution: &mut Resolution<'_>,
    options: &ConvertOptions,
    _report: &mut Report,
) -> Result<Option<WholeModel>> {
    let is_whole = matches!(options.scope, ModelScope::Model | ModelScope::ImageTower);
    match is_whole || options.base.is_some() {
        true => Err(AnamnesisError::unsupported(
            "a whole model",
            "this build lacks the feature `models`",
        )),
        false => Ok(None),
    }
}

/// Returns false: there are no architectures.
pub(super) fn stacks_copies(_model: &ParsedModel, _options: &ConvertOptions) -> bool {
    false
}

/// Leaves all as it is.
pub(super) fn stack_copies(
    _model: &ParsedModel,
    _resolution: &mut Resolution<'_>,
    _options: &ConvertOptions,
) -> Result<()> {
    Ok(())
}
