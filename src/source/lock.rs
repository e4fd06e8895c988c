//! [`LockFile`]: a file that a process holds locked while it works on something, so that others
//! notice. The lock ends with the process, however that ends.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind, Result};

use super::directory::OpenDirectory;

/// A file that is locked until it is closed.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    /// Whether the file was not there before.
    pub is_new: bool,
    /// Whether the file system has locks. Without them nothing is locked.
    pub is_locked: bool,
}

impl LockFile {
    /// Locks the file `name` in `directory`, which is created if it is missing. `is_shared` lets
    /// others lock it likewise.
    ///
    /// # Errors
    /// `ResourceBusy` if another process has locked the file; `NotFound` if the directory or the
    /// file is removed meanwhile; anything but a regular file is there; or the system fails.
    pub(crate) fn lock(directory: &OpenDirectory, name: &OsStr, is_shared: bool) -> Result<Self> {
        // Network file systems lock only what is open for writing.
        let (file, is_new) = directory.open_or_create_file(name)?;
        let is_locked = try_lock(&file, is_shared)?;
        // Whoever had it locked before may have removed it: then others lock another file.
        match directory.is_file_at(&file, name)? {
            true => Ok(Self { file, is_new, is_locked }),
            false => Err(ErrorKind::NotFound.into()),
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

/// Locks `file` until it is closed; false if its file system has no locks.
///
/// # Errors
/// `ResourceBusy` if another process has locked it.
pub(crate) fn try_lock(file: &File, is_shared: bool) -> Result<bool> {
    let locked = match is_shared {
        true => file.try_lock_shared(),
        false => file.try_lock(),
    };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => {
            Err(Error::new(ErrorKind::ResourceBusy, "another process has locked it"))
        }
        // Whatever the reason is, the file system does not lock.
        Err(TryLockError::Error(_)) => Ok(false),
    }
}
