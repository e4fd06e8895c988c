//! [`Confined`]: which files are those of a model's directory, with links resolved.
//!
//! A downloaded directory can hold links. One to a private file of the user would make that file a
//! part of each output into which a file of the model is copied, or from which keys are made.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The directory of a model, and the blob store of the cache that it may be a part of.
#[derive(Debug)]
pub(crate) struct Confined {
    /// The directory with all links resolved.
    root: PathBuf,
    /// The blob store that links lead to, with all links resolved.
    blobs: Option<PathBuf>,
}

impl Confined {
    pub(crate) fn new(directory: &Path) -> Self {
        // A bare file name has an empty parent, which no system resolves.
        let directory = match directory.as_os_str().is_empty() {
            true => Path::new("."),
            false => directory,
        };
        let root = resolve_links(directory);
        let blobs = blobs_of_snapshot(&root).map(|blobs| resolve_links(&blobs));
        Self { root, blobs }
    }

    /// Whether a file, with links resolved, belongs to the model: it is in the directory, or a blob
    /// of the Hugging Face cache.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let file = resolve_links(path);
        let is_blob = || self.blobs.is_some() && file.parent() == self.blobs.as_deref();
        file.starts_with(&self.root) || file.file_name().is_some_and(is_blob_name) && is_blob()
    }
}

/// `path` with all links resolved, or `path` itself if it cannot be resolved.
pub(crate) fn resolve_links(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The blob store of the snapshot that `root` is or lies in; `None` if it is in no snapshot of the
/// Hugging Face cache.
///
/// There a model is `models--ORG--NAME/snapshots/REVISION`, full of links to
/// `models--ORG--NAME/blobs/HASH`. Any other directory that happens to be called `blobs` may hold
/// what is not the model's.
fn blobs_of_snapshot(root: &Path) -> Option<PathBuf> {
    root.ancestors().find_map(|revision| {
        let snapshots = revision.parent()?;
        let repository = snapshots.parent()?;
        let name = repository.file_name()?.to_str()?;
        let blobs = repository.join("blobs");
        let is_cache = snapshots.file_name()? == "snapshots" && name.starts_with("models--");
        (is_cache && blobs.symlink_metadata().is_ok_and(|there| there.is_dir())).then_some(blobs)
    })
}

/// Whether the cache has a blob of this name: a SHA-1 or SHA-256 in hexadecimal digits.
fn is_blob_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    matches!(name.len(), 40 | 64) && name.iter().all(u8::is_ascii_hexdigit)
}
