//! What a conversion has to do, where it has room, and which files are there of it.

use std::path::{Path, PathBuf};

use super::Conversion;
use super::destination::partial_path;
use crate::Result;
use crate::source::platform::available_space;
use crate::write::atomic::directory_of;

impl Conversion<'_> {
    /// Whether the output is a whole model of another family of formats, with settings and tokenizer:
    /// GGUF of a Hugging Face directory, or the other way round.
    #[must_use]
    pub fn is_whole_model(&self) -> bool {
        self.plan.whole.is_some()
    }

    /// Bytes and number of the output tensors that [`write`](Self::write) makes; of one of several
    /// parts, its own.
    #[must_use]
    pub fn work(&self) -> (u64, usize) {
        let (part, parts) = self.options.part.unwrap_or((1, 1));
        let outputs = self.plan.outputs.iter();
        let mine = outputs.filter(|output| output.place.file % parts == part - 1);
        mine.fold((0, 0), |(bytes, n), output| (bytes + output.len, n + 1))
    }

    /// Paths of the weight files that are there after [`write`](Self::write): as
    /// [`paths`](Self::paths), but of one of several parts its own files, which are in a hidden
    /// directory until all are made.
    #[must_use]
    pub fn written_paths(&self, output: impl AsRef<Path>) -> Vec<PathBuf> {
        let output = output.as_ref();
        let parts = self.options.part.filter(|(_, parts)| *parts > 1);
        match (parts, &self.plan.shard_names, partial_path(output)) {
            (Some((part, parts)), Some(names), Ok(partial)) => {
                let mine = names.iter().skip(part - 1).step_by(parts);
                mine.map(|name| partial.join(name)).collect()
            }
            _ => self.paths(output),
        }
    }

    /// What an interrupted [`write`](Self::write) has left of a directory at `output`, for
    /// [`resume`](super::ConvertOptions::resume): the hidden directory, and the number of its files of
    /// weights. `None` if nothing is there, or the output is no directory.
    #[must_use]
    pub fn unfinished(&self, output: impl AsRef<Path>) -> Option<(PathBuf, usize)> {
        let names = self.plan.shard_names.as_ref()?;
        let path = partial_path(output.as_ref()).ok()?;
        let is_there = |name: &&String| path.join(name).is_file();
        let finished = names.iter().filter(is_there).count();
        path.is_dir().then_some((path, finished))
    }

    /// Bytes that are free for `output` on its file system. [`write`](Self::write) fails at once if the
    /// output does not fit.
    ///
    /// # Errors
    /// `Io` if the system does not tell.
    pub fn free_space(&self, output: impl AsRef<Path>) -> Result<u64> {
        Ok(available_space(directory_of(output.as_ref()))?)
    }
}
