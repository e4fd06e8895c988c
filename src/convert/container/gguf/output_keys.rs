//! [`OutputKeys`]: the metadata of an output, before it is encoded.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::convert::options::ConvertOptions;
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};
use crate::parse::gguf::{ResolvedEdits, resolve_edits};
use crate::write::gguf::GgufKeys;
use crate::{AnamnesisError, ParsedModel, Result};

/// The metadata of an output: those of a GGUF input without some keys, and others that replace them.
pub(super) struct OutputKeys<'a> {
    source: Option<&'a GgufMetadata>,
    /// Keys of `source` that the output does not have.
    left_out: HashSet<String>,
    /// Of several values for a key the last one counts.
    made: Vec<(String, GgufMetadataValue)>,
}

impl<'a> OutputKeys<'a> {
    pub(super) fn new(made: Vec<(String, GgufMetadataValue)>) -> Self {
        Self { source: None, left_out: HashSet::new(), made }
    }

    /// Adds the metadata of `model`, if it is GGUF, without the keys that `leave_out` selects.
    pub(super) fn with_those_of(
        mut self,
        model: &'a ParsedModel,
        leave_out: impl Fn(&str) -> bool,
    ) -> Self {
        self.source = model.gguf().map(|source| &source.metadata);
        let keys = self.source.iter().flat_map(|source| source.keys());
        self.left_out = keys
            .filter(|key| leave_out(key))
            .map(str::to_owned)
            .collect();
        self
    }

    /// The metadata with the caller's changes; `None` if there are none.
    ///
    /// # Errors
    /// `Usage` if an edit does not fit its key, or sets a key that is not for callers.
    pub(super) fn with_changes_of(&self, options: &ConvertOptions) -> Result<Option<Self>> {
        if options.gguf_metadata.is_empty() && options.gguf_edits.is_empty() {
            return Ok(None);
        }
        let mut changed = Self {
            source: self.source,
            left_out: self.left_out.clone(),
            made: [&self.made[..], &options.gguf_metadata[..]].concat(),
        };
        let ResolvedEdits { set, removed } =
            resolve_edits(&options.gguf_edits, &|key| changed.get(key))?;
        // What is wrong with the edits alone is no fault of the input.
        GgufKeys::new(None, |_| false, &set).map_err(|error| match error {
            AnamnesisError::Parse { reason } => AnamnesisError::usage(reason),
            error => error,
        })?;
        changed.made.retain(|(key, _)| !removed.contains(key));
        changed.made.extend(set);
        changed.left_out.extend(removed);
        Ok(Some(changed))
    }

    /// The value of `key`.
    pub(super) fn get(&self, key: &str) -> Option<GgufMetadataValue> {
        let made = self.made.iter().rev().find(|(other, _)| other == key);
        let kept = || {
            self.source
                .filter(|_| !self.left_out.contains(key))?
                .get(key)
        };
        made.map(|(_, value)| value.clone()).or_else(kept)
    }

    /// All keys with their values, which are decoded one by one. The last value of a key counts.
    #[cfg_attr(not(feature = "models"), allow(dead_code))]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Cow<'_, GgufMetadataValue>)> {
        let source = self.source.iter().flat_map(|source| source.iter());
        let kept = source.filter(|(key, _)| !self.left_out.contains(*key));
        let made = self.made.iter();
        kept.map(|(key, value)| (key, Cow::Owned(value)))
            .chain(made.map(|(key, value)| (key.as_str(), Cow::Borrowed(value))))
    }

    /// The metadata as a file has it.
    ///
    /// # Errors
    /// Those of [`GgufKeys::new`].
    pub(super) fn encode(&self) -> Result<GgufKeys> {
        GgufKeys::new(self.source, |key| self.left_out.contains(key), &self.made)
    }
}
