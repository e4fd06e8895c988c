//! [`Spec`]: what reads the message of a model, and the model that is made of it.

use std::path::Path;

use crate::limits::{Budget, cap};
use crate::parse::external::ExternalFiles;
use crate::parse::message::MessageReader;
use crate::source::Source;
use crate::{Container, ParsedModel, Result};

/// Bytes of constants that may be gone through in any case, and for each byte of the files: a mask once to
/// count its elements, and once more if two are compared.
const FREE_WORK: u64 = 16 << 20;
const WORK_PER_BYTE: u64 = 8;

/// A model that is read.
pub(super) struct Spec<'a> {
    pub file: MessageReader<'a>,
    pub budget: &'a Budget,
    pub external: ExternalFiles,
    pub contents: ParsedModel,
    /// Bytes of all files.
    len: u64,
    /// Bytes that have been gone through, of which several constants may have the same.
    work: u64,
}

impl<'a> Spec<'a> {
    pub(super) fn new(source: &'a Source, path: Option<&Path>, budget: &'a Budget) -> Self {
        let mut contents = ParsedModel::new(Container::CoreMl, 0);
        contents.sources.push(source.share());
        let external = ExternalFiles::new("Core ML", path);
        let file = MessageReader::new(source);
        let len = file.len;
        Self { file, budget, external, contents, len, work: 0 }
    }

    /// The source that is another file, and its length.
    ///
    /// # Errors
    /// Those of [`ExternalFiles::source`].
    pub(super) fn other_file(&mut self, location: &str) -> Result<(usize, u64)> {
        let before = self.contents.sources.len();
        let (source, len) = self.external.source(location, &mut self.contents)?;
        if self.contents.sources.len() > before {
            self.len = self.len.saturating_add(len);
        }
        Ok((source, len))
    }

    /// Counts `bytes` bytes of a constant that are gone through.
    ///
    /// # Errors
    /// `LimitExceeded` if constants have the same bytes again and again.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<()> {
        self.work = self.work.saturating_add(bytes);
        let most = FREE_WORK.saturating_add(self.len.saturating_mul(WORK_PER_BYTE));
        cap("COREML_MAX_WORK", self.work, most, "bytes of constants to go through")
    }

    /// Adds a text that describes the model.
    pub(super) fn add_metadata(&mut self, key: &str, text: String) -> Result<()> {
        if !text.is_empty() {
            self.budget.tables(0, 1, 0)?;
            self.contents.metadata.entry(key.to_owned()).or_insert(text);
        }
        Ok(())
    }
}
