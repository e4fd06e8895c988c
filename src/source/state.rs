//! [`FileState`]: what the file system says of a file, by which a change of its content is noticed
//! without reading it.
//!
//! Nobody keeps other programs from writing to an input while it is read: locks are advisory, and
//! most writers take none. So each file's state is taken when it is opened, and compared before an
//! output that was made of it gets its name.

use std::fs::Metadata;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::platform;
use crate::AnamnesisError;
use crate::error::printable;

/// Length, times and place of a file.
///
/// Programs can set the modification time, and many set it back to that of an original that they
/// copy. The change time only the system sets: at every change of content, name count, owner or
/// permissions, and never when a file is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct FileState {
    /// Length in bytes.
    pub len: u64,
    /// Modification time in nanoseconds since 1970; 0 if it is before or unknown.
    pub modified: u128,
    /// Change time in nanoseconds since 1970; 0 where the system has none.
    pub changed: u128,
    /// Device and inode; zeros where the system has none. Only a running process can compare them:
    /// a device may have another number after a restart of the system.
    #[serde(skip)]
    pub place: (u64, u64),
}

impl FileState {
    pub(crate) fn of(meta: &Metadata) -> Self {
        let modified = meta.modified().ok();
        let since_1970 = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Self {
            len: meta.len(),
            modified: since_1970.map_or(0, |time| time.as_nanos()),
            changed: platform::change_time(meta),
            place: platform::place(meta),
        }
    }

    /// Describes what differs in `now`, a later state of the file; `None` if nothing does.
    pub(crate) fn difference(&self, now: &Self) -> Option<String> {
        let (before, after) = (self.len, now.len);
        if self.place != now.place {
            Some("another file is in its place (device or inode)".to_owned())
        } else if before != after {
            Some(format!("it had {before} bytes and has {after}"))
        } else if self.modified != now.modified {
            Some("it was written to (modification time)".to_owned())
        } else if self.changed != now.changed {
            Some("it, its names or its permissions were changed (change time)".to_owned())
        } else {
            None
        }
    }

    /// Fails with what differs in `now`, the state of the file at `path`.
    pub(super) fn require(&self, now: &Self, path: &Path) -> Result<()> {
        match self.difference(now) {
            None => Ok(()),
            Some(what) => Err(changed(path, &what)),
        }
    }
}

/// The error for the file at `path`, which `what` says has changed.
fn changed(path: &Path, what: &str) -> Error {
    let path = printable(&path.to_string_lossy());
    Error::other(format!("{path}: the file has changed since it was parsed: {what}"))
}

/// A file beside the weights that shapes what is made of them: a config or an index. It need not
/// exist.
#[derive(Debug, Clone)]
pub(crate) struct CompanionFile {
    pub path: PathBuf,
    /// State before the file was read; `None` if there was none.
    state: Option<FileState>,
}

impl CompanionFile {
    /// Takes the state of the file at `path`, which is read after that.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { state: state_at(&path), path }
    }

    /// Whether the file was there.
    pub(crate) fn exists(&self) -> bool {
        self.state.is_some()
    }

    /// Fails with `Io` if the file was there, for it is no longer.
    pub(crate) fn require_absent(&self) -> crate::Result<()> {
        match self.state {
            None => Ok(()),
            Some(_) => Err(AnamnesisError::Io(changed(&self.path, "it is no longer there"))),
        }
    }

    /// Fails with `Io` unless the file is as it was, or has lost its name: what was read of it
    /// holds.
    pub(crate) fn require_unchanged(&self) -> crate::Result<()> {
        let now = state_at(&self.path);
        let result = match (&self.state, &now) {
            (None | Some(_), None) => Ok(()),
            (None, Some(_)) => Err(changed(&self.path, "it was not there")),
            (Some(before), Some(now)) => before.require(now, &self.path),
        };
        result.map_err(AnamnesisError::Io)
    }
}

/// State of the regular file that `path` leads to; `None` if there is none.
fn state_at(path: &Path) -> Option<FileState> {
    let meta = std::fs::metadata(path).ok()?;
    meta.is_file().then(|| FileState::of(&meta))
}

/// State of the file that `path` leads to; `None` if the name is gone.
pub(super) fn state_of_name(path: &Path) -> Result<Option<FileState>> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(Some(FileState::of(&meta))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}
