//! Replaces `encode` in a build without the feature `lethe`. It has the same items, so the pipeline
//! needs no conditions. Nothing can be encoded: no value of the types `Encoding` and `Encodings`
//! exists.

use super::options::ConvertOptions;
use super::output::BoxedOutput;
use super::plan::Plan;
use super::report::{Distance, Report};
use crate::Result;
use crate::model::ParsedModel;
use crate::remember::{Resolution, ResolvedItem};

/// Stands for the decisions on a model's tensors; no value exists.
pub(super) enum Encodings {}

/// The result of [`Encodings::draft`], which is never called.
pub(super) enum Drafted<'m> {
    #[expect(dead_code, reason = "only the encoder makes it")]
    Encoded(Vec<BoxedOutput<'m>>),
    #[expect(dead_code, reason = "only the encoder makes it")]
    NotEncoded(ResolvedItem<'m>),
}

impl Encodings {
    pub(super) fn new(
        _model: &ParsedModel,
        _resolution: &mut Resolution<'_>,
        _options: &ConvertOptions,
        _report: &mut Report,
    ) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(super) fn draft<'m>(&mut self, _item: ResolvedItem<'m>) -> Result<Drafted<'m>> {
        match *self {}
    }

    #[cfg(feature = "gguf")]
    pub(super) fn take_gguf_keys(&mut self) -> Vec<(String, crate::GgufMetadataValue)> {
        match *self {}
    }

    pub(super) fn finish(
        self,
        _drafts: &mut [BoxedOutput<'_>],
        _report: &mut Report,
    ) -> Option<(Vec<&'static str>, serde_json::Value)> {
        match self {}
    }
}

/// Returns no files: there are no options for encoding.
pub(super) fn files(_options: &ConvertOptions) -> Vec<std::path::PathBuf> {
    Vec::new()
}

/// Returns `None`: no tensor is encoded.
pub(super) fn distance(_plan: &Plan<'_>) -> Option<Distance> {
    None
}

/// Returns no warnings: there are no encoders.
pub(super) fn warnings(_plan: &Plan<'_>) -> Vec<String> {
    Vec::new()
}

/// Returns `false`: there are no options for encoding.
pub(super) fn is_asked_for(_options: &ConvertOptions) -> bool {
    false
}

/// Returns the options unchanged: there are no schemes. The container that needs one is left out of
/// this build, too.
pub(super) fn with_scheme(options: ConvertOptions, _scheme: &str) -> Result<ConvertOptions> {
    Ok(options)
}

/// Returns `None`: there are no schemes.
#[cfg(feature = "gguf")]
pub(super) fn file_type(_options: &ConvertOptions) -> Option<u32> {
    None
}

/// Returns `false`: nothing is encoded.
#[cfg(feature = "models")]
pub(super) fn is_mlx(_options: &ConvertOptions) -> bool {
    false
}

/// Returns `None`: nothing is encoded.
pub(super) fn fingerprint(_options: &ConvertOptions) -> Option<String> {
    None
}
