//! What stands in for `encode` in a build without the feature `lethe`: nothing can be encoded, and no value of these types
//! exists, so that the pipeline needs no conditions.

use super::draft::Draft;
use super::options::ConvertOptions;
use super::plan::Plan;
use super::report::{Distance, Report};
use crate::Result;
use crate::containers::model::ParsedModel;
use crate::scheme::{Resolution, ResolvedItem};

/// The choices for a model's tensors: nobody can make any.
pub(super) enum Encodings {}

/// What encoding makes of an item.
pub(super) enum Drafted<'m> {
    #[expect(dead_code, reason = "only the encoder makes it")]
    Encoded(Vec<Draft<'m>>),
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

    pub(super) fn finish(
        self,
        _drafts: &mut [Draft<'_>],
        _report: &mut Report,
    ) -> Option<(Vec<&'static str>, serde_json::Value)> {
        match self {}
    }
}

/// The errors of encoded tensors: none.
pub(super) fn distance(_plan: &Plan<'_>) -> Option<Distance> {
    None
}

/// What encoders have to say: nothing.
pub(super) fn warnings(_plan: &Plan<'_>) -> Vec<String> {
    Vec::new()
}
