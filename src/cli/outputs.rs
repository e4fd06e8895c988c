//! Where the outputs of one input or of several go.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::input::NamedModel;
use super::printed::print_line;
use crate::error::printable;
use crate::hooks::directory_of;
use crate::{AnamnesisError, Result};

/// Where the output of an input goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum OutputChoice<'a> {
    /// To the path that `-o` names, or under the default name beside the input.
    OfOne(Option<&'a Path>),
    /// Under the default name beside the input, or in the directory.
    OfSeveral(Option<&'a Path>),
}

impl<'a> OutputChoice<'a> {
    /// The place of `n` outputs, the directory `path` if it is given.
    ///
    /// # Errors
    /// `Usage` if `path` is no directory.
    pub(super) fn of_several(path: Option<&'a Path>, n: usize) -> Result<Self> {
        match path.filter(|path| !path.is_dir() && !is_named_as_directory(path)) {
            Some(path) => {
                let path = path.display();
                Err(AnamnesisError::usage(format!(
                    "-o {path}: {n} inputs have as many outputs; give a directory, which ends in `/`"
                )))
            }
            None => Ok(Self::OfSeveral(path)),
        }
    }

    /// The path that the output has, if `-o` names one.
    pub(super) fn path(self) -> Option<&'a Path> {
        match self {
            Self::OfOne(path) => path,
            Self::OfSeveral(_) => None,
        }
    }

    pub(super) fn is_of_several(self) -> bool {
        matches!(self, Self::OfSeveral(_))
    }

    /// The path of an output whose name is `default` if none is given.
    pub(super) fn output(self, default: PathBuf, is_directory: bool) -> PathBuf {
        let directory = match self {
            Self::OfOne(Some(path)) if is_directory || !is_named_as_directory(path) => {
                return path.to_path_buf();
            }
            Self::OfOne(path) | Self::OfSeveral(path) => path,
        };
        match (directory, default.file_name()) {
            (Some(directory), Some(name)) => directory.join(name),
            _ => default,
        }
    }
}

/// Whether a path ends in a slash.
fn is_named_as_directory(path: &Path) -> bool {
    let last = path.as_os_str().as_encoded_bytes().last();
    last.is_some_and(|&last| std::path::is_separator(char::from(last)))
}

/// The path of an output that is not there, with the real path of its directory.
pub(super) fn full_path(output: &Path) -> PathBuf {
    let parent = directory_of(output);
    let parent = std::fs::canonicalize(parent).unwrap_or_else(|_| parent.to_path_buf());
    parent.join(output.file_name().unwrap_or_default())
}

/// Makes the directory of the output, if `-o` names one that is not there.
pub(super) fn make_directory(place: OutputChoice<'_>, output: &Path) -> Result<()> {
    let directory = match place {
        OutputChoice::OfOne(path) | OutputChoice::OfSeveral(path) => path,
    };
    match directory.filter(|path| is_named_as_directory(path) && *path != output) {
        Some(path) if !path.exists() => {
            std::fs::create_dir(path).map_err(|e| AnamnesisError::io_at(path, &e))
        }
        _ => Ok(()),
    }
}

/// Fails if `output` is in a cache of the Hugging Face hub: tools delete or believe what is there.
pub(super) fn require_outside_cache(output: &Path) -> Result<()> {
    let full = full_path(output);
    let parts: Vec<_> = full.iter().filter_map(|part| part.to_str()).collect();
    let is_in_cache = parts.windows(2).any(|pair| {
        let is_model = ["models--", "datasets--"]
            .iter()
            .any(|kind| pair[0].starts_with(kind));
        is_model && matches!(pair[1], "snapshots" | "blobs" | "refs")
    });
    if !is_in_cache {
        return Ok(());
    }
    let what = "the output is in the cache of Hugging Face, whose tools delete what is not theirs";
    let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
    Err(AnamnesisError::io_at(output, &error))
}

/// Prints the line that says which of several inputs comes.
pub(super) fn print_input(input: &NamedModel, out: &mut impl Write) {
    let path = input.model.path().unwrap_or(&input.named);
    let path = printable(&path.to_string_lossy()).to_string();
    print_line(out, format_args!("Input:  {path}"));
}
