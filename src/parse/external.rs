//! Data of tensors in other files, beside the model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::Confined;
use crate::error::InTensor;
use crate::parse::listing::is_inside;
use crate::source::{FilePool, Source};
use crate::{AnamnesisError, ParsedModel, Result};

/// The other files of a model.
pub(super) struct ExternalFiles {
    /// What errors call the format.
    format: &'static str,
    /// The directory of the model, and the files that belong to it; `None` if it is no file.
    directory: Option<(PathBuf, Confined)>,
    pool: Arc<FilePool>,
    /// The source of each file.
    opened: HashMap<String, usize>,
}

impl ExternalFiles {
    /// The files beside `path`.
    pub(super) fn new(format: &'static str, path: Option<&Path>) -> Self {
        let directory = path.map(|path| path.parent().unwrap_or(Path::new("")).to_path_buf());
        Self {
            format,
            directory: directory.map(|directory| (directory.clone(), Confined::new(&directory))),
            pool: Arc::default(),
            opened: HashMap::new(),
        }
    }

    /// The source that is the file `location`, which is added to `contents` the first time, and the
    /// file's length.
    ///
    /// # Errors
    /// `Parse` if the file is outside of the model's directory, or missing; `Unsupported` if the model was
    /// not given by a path; `Io`.
    pub(super) fn source(
        &mut self,
        location: &str,
        contents: &mut ParsedModel,
    ) -> Result<(usize, u64)> {
        let location = location.strip_prefix("./").unwrap_or(location);
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
        Ok((source, contents.sources[source].len().unwrap_or(0)))
    }

    /// Opens the file `location` of the model's directory.
    fn open(&self, location: &str) -> Result<Source> {
        let Some((directory, confined)) = &self.directory else {
            return Err(AnamnesisError::unsupported(
                format!("{} with data in other files", self.format),
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
