//! Replaces `whole` in a build without the feature `models`: every output has the input's tensors
//! under their own names.

use super::adapters::ConfigField;
use super::options::{ConvertOptions, ModelScope};
use super::parts;
use super::report::Report;
use crate::model::ParsedModel;
#[cfg(feature = "gguf")]
use crate::model::gguf::GgufMetadataValue;
use crate::remember::{Resolution, ResolvedItem};
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

/// Stands for what changes in a model without some of its layers: nothing.
pub(super) struct Pruned {
    pub fields: Vec<ConfigField>,
    #[cfg(feature = "gguf")]
    pub keys: Vec<(String, GgufMetadataValue)>,
}

impl Pruned {
    /// Returns what changes nothing.
    ///
    /// # Errors
    /// `Unsupported` if the options leave out layers.
    pub(super) fn of(_model: &ParsedModel, options: &ConvertOptions) -> Result<Self> {
        match options.names.prune_layers.is_empty() {
            true => Ok(Self {
                fields: vec![],
                #[cfg(feature = "gguf")]
                keys: vec![],
            }),
            false => Err(AnamnesisError::unsupported(
                "--prune-layers",
                "this build lacks the feature `models`",
            )),
        }
    }

    /// Returns no names: nothing is left out.
    pub(super) fn apply(&mut self, _items: &mut [ResolvedItem<'_>]) -> Vec<String> {
        vec![]
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
    match is_whole
        || options.base.is_some()
        || options.kohya_names
        || parts::option(options).is_some()
    {
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
