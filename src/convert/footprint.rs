//! What a conversion has to do, and which files are there of it: what the program says while it
//! runs and when it ends.

use std::path::{Path, PathBuf};

use super::Recovery;
use super::destination::partial_path;

/// What is left of an interrupted conversion to a directory.
pub(crate) struct Unfinished {
    /// The hidden directory.
    pub path: PathBuf,
    /// How many files of weights it has.
    pub finished: usize,
}

impl Recovery<'_> {
    /// Whether the output is a model of another family of formats, with settings and tokenizer.
    pub(crate) fn is_whole_model(&self) -> bool {
        self.plan.whole.is_some()
    }

    /// Bytes and number of the output tensors that [`write`](Self::write) makes; of one of several
    /// parts, its own.
    pub(crate) fn work(&self) -> (u64, usize) {
        let (part, parts) = self.options.part.unwrap_or((1, 1));
        let outputs = self.plan.outputs.iter();
        let mine = outputs.filter(|output| output.place.file % parts == part - 1);
        mine.fold((0, 0), |(bytes, n), output| (bytes + output.len, n + 1))
    }

    /// Paths of the weight files that are there after [`write`](Self::write): as
    /// [`paths`](Self::paths), but of one of several parts its own files, which are in a hidden
    /// directory until all are made.
    pub(crate) fn written_paths(&self, output: &Path) -> Vec<PathBuf> {
        let parts = self.options.part.filter(|(_, parts)| *parts > 1);
        match (parts, &self.plan.shard_names, partial_path(output)) {
            (Some((part, parts)), Some(names), Ok(partial)) => {
                let mine = names.iter().skip(part - 1).step_by(parts);
                mine.map(|name| partial.join(name)).collect()
            }
            _ => self.paths(output),
        }
    }

    /// What an interrupted [`write`](Self::write) has left of a directory at `output`; `None` if
    /// nothing is there, or the output is no directory.
    pub(crate) fn unfinished(&self, output: &Path) -> Option<Unfinished> {
        let names = self.plan.shard_names.as_ref()?;
        let path = partial_path(output).ok()?;
        path.is_dir().then(|| Unfinished {
            finished: names
                .iter()
                .filter(|name| path.join(name).is_file())
                .count(),
            path,
        })
    }
}
