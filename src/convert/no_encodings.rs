//! Replaces `encodings` in a build without the feature `lethe`. It has the same items, so the pipeline
//! needs no conditions. Nothing can be encoded: no value of the types `Encoding` and `Encodings`
//! exists.

use super::options::ConvertOptions;
use super::output::BoxedOutput;
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

/// Returns the item: nothing is encoded.
pub(super) fn encode_as_class<'m>(
    item: ResolvedItem<'m>,
    _report: &mut Report,
) -> Result<Drafted<'m>> {
    Ok(Drafted::NotEncoded(item))
}

/// Returns `None`: no tensor is encoded.
pub(super) fn distance(_outputs: &[BoxedOutput<'_>]) -> Option<Distance> {
    None
}

/// Returns no warnings: there are no encoders.
pub(super) fn warnings(_outputs: &[BoxedOutput<'_>]) -> Vec<String> {
    Vec::new()
}
