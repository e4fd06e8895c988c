//! Which process works on an unfinished directory.
//!
//! Two processes that write in one directory would take each other's files for their own: one
//! removes or renames what the other is still writing, and a shard gets its name with zeros in it.
//! So a process locks the marker of the directory as long as it works: alone, or together with
//! those that make other parts of the output. Who makes a part locks a file of that part as well.
//! Locks end with their process, also if that is killed. A process that is stopped keeps them.

use std::fs::File;
use std::io::{Error, ErrorKind, Result as IoResult};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{UnfinishedDirectory, lock_name};
use crate::config::MARKER_FILE;
use crate::source::directory::OpenDirectory;
use crate::source::lock::LockFile;
use crate::{AnamnesisError, Result};

/// How often a directory is opened anew because it was removed or renamed just then.
const ATTEMPTS: usize = 100;

/// Who may work on an unfinished directory at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::convert) enum Claimant {
    /// One process alone.
    Sole,
    /// As `Sole`; nothing of what is in the directory is used.
    Anew,
    /// The processes that make parts.
    Part,
}

/// The locks that a process has on an unfinished directory; none if it only looks at it.
#[derive(Debug, Default)]
pub(super) struct Claim {
    marker: Mutex<Option<LockFile>>,
    /// The lock of the part with its name.
    part: Option<(LockFile, String)>,
    /// Whether the file system has locks.
    is_locked: bool,
    /// Whether the marker was not there before: nobody has begun in the directory.
    is_new: bool,
}

impl UnfinishedDirectory {
    /// Opens the directory at `path` for `claimant`; `None` if there is none.
    ///
    /// # Errors
    /// `Io` if another process works on it; if something else is there, or another user has made
    /// it or a file in it; or the system fails.
    pub(in crate::convert) fn claim(path: &Path, claimant: Claimant) -> Result<Option<Self>> {
        Self::claim_opened(path, claimant, || Self::open(path))
    }

    /// Opens the directory at `path` for `claimant`, and creates it if there is none.
    ///
    /// # Errors
    /// Those of [`claim`](Self::claim).
    pub(in crate::convert) fn create(path: &Path, claimant: Claimant) -> Result<Self> {
        let open = || {
            let handle = OpenDirectory::create_private(path);
            let handle = handle.map_err(|e| AnamnesisError::io_at(path, &e))?;
            Self::new(handle, path).map(Some)
        };
        let claimed = Self::claim_opened(path, claimant, open).inspect_err(|_| {
            // An empty directory would be in the way of the next run.
            let _ = std::fs::remove_dir(path);
        });
        claimed?.ok_or_else(|| path_is_busy(path))
    }

    fn claim_opened(
        path: &Path,
        claimant: Claimant,
        open: impl Fn() -> Result<Option<Self>>,
    ) -> Result<Option<Self>> {
        for _ in 0..ATTEMPTS {
            let Some(mut directory) = open()? else {
                return Ok(None);
            };
            if !directory.is_unfinished_conversion()? {
                let what = "a directory of this name is there, and it is no unfinished conversion";
                let error = Error::new(ErrorKind::AlreadyExists, what);
                return Err(AnamnesisError::io_at(path, &error));
            }
            if claimant != Claimant::Anew {
                directory.require_own_files()?;
            }
            if directory.lock_marker(claimant)? {
                return Ok(Some(directory));
            }
        }
        Err(path_is_busy(path))
    }

    /// Locks the marker, which is created if it is missing: so a directory that is not empty can be
    /// recognized as ours from its first file on. False if the directory was removed or renamed
    /// meanwhile.
    fn lock_marker(&mut self, claimant: Claimant) -> Result<bool> {
        let name = MARKER_FILE.as_ref();
        let is_shared = claimant == Claimant::Part;
        let marker = match LockFile::lock(self.handle(), name, is_shared) {
            Ok(marker) => marker,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) if e.kind() == ErrorKind::ResourceBusy => return Err(path_is_busy(self.path())),
            Err(e) => return Err(AnamnesisError::io_at(&self.path().join(MARKER_FILE), &e)),
        };
        // The process that had it locked may have given it the name of the output.
        let is_there = self.handle().is_at(self.path()).unwrap_or(false);
        if !is_there && marker.is_new {
            let _ = self.handle().remove_written(marker.file(), name);
        }
        self.claim.is_locked = marker.is_locked;
        self.claim.is_new = marker.is_new;
        self.claim.marker = Mutex::new(Some(marker));
        Ok(is_there)
    }

    /// Locks the part `part`, a number and the number of parts, for this process.
    ///
    /// # Errors
    /// `Io` if another process makes it, or the system fails.
    pub(in crate::convert) fn claim_part(&mut self, part: (usize, usize)) -> Result<()> {
        let name = lock_name(part);
        let failed = |e: Error| {
            let what = format!(
                "another process is making part {} of {}; wait until it ends, or stop it",
                part.0, part.1
            );
            match e.kind() {
                ErrorKind::ResourceBusy => {
                    AnamnesisError::io_at(self.path(), &Error::new(e.kind(), what))
                }
                _ => AnamnesisError::io_at(&self.path().join(&name), &e),
            }
        };
        let lock = (0..ATTEMPTS)
            .map(|_| LockFile::lock(self.handle(), name.as_ref(), false))
            // Another process has just ended and removed it.
            .find(|lock| !matches!(lock, Err(e) if e.kind() == ErrorKind::NotFound));
        let lock = lock.unwrap_or_else(|| Err(ErrorKind::NotFound.into()));
        let lock = lock.map_err(failed)?;
        self.claim.part = Some((lock, name));
        Ok(())
    }

    /// Whether this process is the first in the directory.
    pub(in crate::convert) fn is_new(&self) -> bool {
        self.claim.is_new
    }

    /// A note if the file system has no locks.
    pub(in crate::convert) fn lock_note(&self) -> Option<String> {
        (!self.claim.is_locked).then(|| {
            format!(
                "`{}`: this file system has no locks; start no second process for this output while one works on it",
                self.path().display()
            )
        })
    }

    /// Passes the marker to `take`, as long as it is locked.
    pub(in crate::convert) fn with_marker(
        &self,
        take: impl FnOnce(&File) -> IoResult<()>,
    ) -> IoResult<()> {
        let marker = self.claim.marker.lock();
        let marker = marker.unwrap_or_else(PoisonError::into_inner);
        let marker = marker.as_ref().ok_or(ErrorKind::NotFound)?;
        take(marker.file())
    }

    /// Closes the marker where a directory with an open file cannot be renamed.
    pub(in crate::convert) fn allow_rename(&self) {
        if cfg!(windows) {
            let marker = self.claim.marker.lock();
            marker.unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

/// The lock of a part is removed while it is locked: then nobody else has it.
impl Drop for UnfinishedDirectory {
    fn drop(&mut self) {
        if let Some((lock, name)) = &self.claim.part {
            let _ = self.handle().remove_written(lock.file(), name.as_ref());
        }
    }
}

/// The error that another process works on the directory `path`.
fn path_is_busy(path: &Path) -> AnamnesisError {
    let what = "another process is working on this output; wait until it ends, or stop it";
    AnamnesisError::io_at(path, &Error::new(ErrorKind::ResourceBusy, what))
}
