//! Data of tensors in other files, beside the model.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Confined;
use crate::error::InTensor;
use crate::parse::listing::is_inside;
use crate::parse::message::MessageReader;
use crate::source::{FilePool, Source};
use crate::{AnamnesisError, ParsedModel, Result};

/// The other files of a model.
pub(super) struct ExternalFiles {
    /// The directory of the model, and the files that belong to it; `None` if it is no file.
    directory: Option<(PathBuf, Confined)>,
    pool: Arc<FilePool>,
    /// The source of each file.
    opened: HashMap<String, usize>,
}

/// What the entries of a tensor say.
#[derive(Default)]
struct ExternalEntries {
    location: String,
    offset: u64,
    len: Option<u64>,
}

impl ExternalFiles {
    /// The files beside `path`.
    pub(super) fn new(path: Option<&Path>) -> Self {
        let directory = path.map(|path| path.parent().unwrap_or(Path::new("")).to_path_buf());
        Self {
            directory: directory.map(|directory| (directory.clone(), Confined::new(&directory))),
            pool: Arc::default(),
            opened: HashMap::new(),
        }
    }

    /// Finds `bytes` bytes of data by the `entries` of a tensor in `model`. Returns the source, which
    /// is added to `contents`, and the offset.
    ///
    /// # Errors
    /// `Parse` if the file is outside of the model's directory, missing or too short; `Unsupported`
    /// if the model was not given by a path; `Io`.
    pub(super) fn find(
        &mut self,
        model: &Source,
        entries: &[Range<u64>],
        bytes: u64,
        contents: &mut ParsedModel,
    ) -> Result<(usize, u64)> {
        let entries = read_entries(model, entries)?;
        let ExternalEntries { location, offset, len } = entries;
        let location = location.strip_prefix("./").unwrap_or(&location);
        let source = match self.opened.get(location) {
            Some(&source) => source,
            None => {
                let source = self.open(location)?;
                contents.sources.push(source);
                let number = contents.sources.len() - 1;
                self.opened.insert(location.to_owned(), number);
                number
            }
        };
        let file_len = contents.sources[source].len().unwrap_or(0);
        let rest = file_len.checked_sub(offset);
        let have = len.or(rest);
        if have != Some(bytes) || rest < have {
            return Err(AnamnesisError::parse(format!(
                "its data is {} bytes at {offset} of `{location}`, which has {file_len}; its type and shape need {bytes}",
                have.unwrap_or(0)
            )));
        }
        Ok((source, offset))
    }

    /// Opens the file `location` of the model's directory.
    fn open(&self, location: &str) -> Result<Source> {
        let Some((directory, confined)) = &self.directory else {
            return Err(AnamnesisError::unsupported(
                "ONNX with data in other files",
                format!("its data is in `{location}`; give the path of the model"),
            ));
        };
        let path = directory.join(location);
        if !is_inside(location) || path.exists() && !confined.has(&path) {
            return Err(AnamnesisError::parse(format!(
                "its data is in `{location}`, which is not in the model's directory"
            )));
        }
        Source::open_pooled(&self.pool, self.opened.len(), &path).map_err(|error| match error {
            AnamnesisError::Io(e) if e.kind() == std::io::ErrorKind::NotFound => {
                AnamnesisError::parse(format!(
                    "the file of its data, `{location}`, is missing: {e}"
                ))
            }
            error => error,
        })
    }

    /// Checks that tensors in other files share all of their bytes or none: a tensor that begins
    /// within another has a wrong offset.
    ///
    /// # Errors
    /// `Parse` with both names.
    pub(super) fn check_ranges(&self, contents: &ParsedModel) -> Result<()> {
        let other = |source: usize| self.opened.values().any(|&opened| opened == source);
        if self.opened.is_empty() {
            return Ok(());
        }
        let tensors = contents.tensors.iter();
        let mut ranges: Vec<_> = tensors
            .filter(|t| t.len > 0 && other(t.source))
            .map(|t| ((t.source, t.offset, t.offset + t.len), &*t.name))
            .collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            let [(before, a), (after, b)] = pair else {
                continue;
            };
            if before.0 == after.0 && after.1 < before.2 && before != after {
                return Err(AnamnesisError::parse(format!(
                    "{}: its data overlaps that of `{a}`",
                    InTensor(b)
                )));
            }
        }
        Ok(())
    }
}

/// Reads the entries of a tensor: pairs of texts, of which those that are not known say nothing of
/// the place.
fn read_entries(model: &Source, entries: &[Range<u64>]) -> Result<ExternalEntries> {
    let mut file = MessageReader::new(model);
    let mut out = ExternalEntries::default();
    for entry in entries {
        let (key, value) = file.entry(entry.clone())?;
        let number = || {
            let wrong = |_| AnamnesisError::parse(format!("its {key} is `{value}`"));
            value.parse::<u64>().map_err(wrong)
        };
        match key.as_str() {
            "location" => out.location = value,
            "offset" => out.offset = number()?,
            "length" => out.len = Some(number()?),
            _ => {}
        }
    }
    match out.location.is_empty() {
        true => Err(AnamnesisError::parse("its data is in another file, which is not named")),
        false => Ok(out),
    }
}
