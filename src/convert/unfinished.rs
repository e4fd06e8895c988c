//! [`UnfinishedDirectory`]: the hidden directory in which an output is made.
//!
//! It is beside the output, where others may be able to create files: in a shared folder they could
//! put a link in its place or into it, and have files of the user overwritten. So the directory is
//! opened once, without following a link, must be the user's, and is closed to everybody else until
//! it gets its name. All that is below it is reached from its handle.

mod claim;

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use self::claim::Claim;
pub(super) use self::claim::Claimant;
use crate::config::{MARKER_FILE, RECORD_PREFIX};
use crate::source::directory::OpenDirectory;
use crate::{AnamnesisError, Result};

/// Longest manifest that is read, in bytes. One has about 100 bytes for each shard and each file of
/// the input.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// The hidden directory of an output that is being made, open.
#[derive(Debug)]
pub(super) struct UnfinishedDirectory {
    handle: OpenDirectory,
    /// Path that it was opened by.
    path: PathBuf,
    /// What keeps other processes away.
    claim: Claim,
}

impl UnfinishedDirectory {
    /// Opens the directory at `path` to look at it; `None` if there is none.
    ///
    /// # Errors
    /// `Io` if something else is there, such as a link to a directory, or if another user has made
    /// it.
    pub(super) fn open(path: &Path) -> Result<Option<Self>> {
        match OpenDirectory::open(path) {
            Ok(handle) => Self::new(handle, path).map(Some),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(AnamnesisError::io_at(path, &e)),
        }
    }

    /// Closes the directory to everybody else, and fails if there is anything in it that the user
    /// has not made.
    ///
    /// # Errors
    /// Those of [`require_own_files`](Self::require_own_files); or the system fails.
    pub(super) fn make_private(&self) -> Result<()> {
        // First nobody else may write there any more; what they have written before then shows.
        let private = self.handle.make_private();
        private.map_err(|e| AnamnesisError::io_at(&self.path, &e))?;
        self.require_own_files()
    }

    pub(super) fn new(handle: OpenDirectory, path: &Path) -> Result<Self> {
        let failed = |e: Error| AnamnesisError::io_at(path, &e);
        if !handle.is_own(path).map_err(failed)? {
            let error = Error::new(ErrorKind::PermissionDenied, "it belongs to another user");
            return Err(failed(error));
        }
        Ok(Self { handle, path: path.to_path_buf(), claim: Claim::default() })
    }

    /// Fails with `Io` unless all that is in the directory belongs to the user: regular files of
    /// one name each, and directories. Anything else was planted there; it would be written to, or
    /// become a part of the model.
    pub(super) fn require_own_files(&self) -> Result<()> {
        let found = self.handle.require_own_files();
        found.map_err(|e| AnamnesisError::io_at(&self.path, &e))
    }

    pub(super) fn handle(&self) -> &OpenDirectory {
        &self.handle
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory may be continued or removed: it is empty, or holds the marker or a
    /// manifest.
    pub(super) fn is_unfinished_conversion(&self) -> Result<bool> {
        let entries = self.handle.entries();
        let entries = entries.map_err(|e| AnamnesisError::io_at(&self.path, &e))?;
        // Another process may be beginning its part at this moment. The marker is the first file
        // that it creates, so a directory that is not empty has it already, even if there is no
        // manifest yet.
        let is_ours = |name: &str| name == MARKER_FILE || is_manifest(name);
        let mut names = entries.iter().map(|(name, _)| name.to_str());
        Ok(entries.is_empty() || names.any(|name| name.is_some_and(is_ours)))
    }

    /// Names of the manifests, sorted.
    ///
    /// # Errors
    /// `Io` if the directory cannot be read.
    pub(super) fn manifests(&self) -> Result<Vec<String>> {
        let entries = self.handle.entries();
        let entries = entries.map_err(|e| AnamnesisError::io_at(&self.path, &e))?;
        let names = entries
            .into_iter()
            .filter_map(|(name, _)| name.into_string().ok());
        Ok(names.filter(|name| is_manifest(name)).collect())
    }

    /// Opens the regular file `name` to read; `None` if there is none.
    ///
    /// # Errors
    /// `Io` if a link or a directory is there, or the file cannot be opened.
    pub(super) fn open_file(&self, name: &str) -> Result<Option<File>> {
        let found = self.handle.open_file(name.as_ref());
        found.map_err(|e| AnamnesisError::io_at(&self.path.join(name), &e))
    }

    /// Reads the small file `name`; `None` if there is none.
    ///
    /// # Errors
    /// `Io` if it cannot be read, or is too large for any file of this program.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open_file(name)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut bytes);
        let read = read.and_then(|n| match n as u64 > MAX_MANIFEST_BYTES {
            true => Err(Error::new(ErrorKind::InvalidData, "the file is too large")),
            false => Ok(()),
        });
        read.map_err(|e| AnamnesisError::io_at(&self.path.join(name), &e))?;
        Ok(Some(bytes))
    }

    /// Writes the file `name` durably: under a temporary name, synced, renamed, and then the
    /// directory is synced. A crash leaves the old file or the new one.
    ///
    /// # Errors
    /// `Io` if it cannot be written, synced or renamed. Nothing is left under the temporary name
    /// then.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = Path::new(name).with_extension("partial");
        let temporary = path.as_os_str();
        let written = self
            .handle
            .create_anew(temporary, false)
            .and_then(|mut file| {
                let named = file.write_all(bytes).and_then(|()| file.sync_all());
                let rename = || self.handle.rename_written(&file, temporary, name.as_ref());
                named.and_then(|()| rename()).inspect_err(|_| {
                    let _ = self.handle.remove_written(&file, temporary);
                })
            });
        written.map_err(|e| AnamnesisError::io_at(&self.path.join(name), &e))?;
        self.handle.sync();
        Ok(())
    }

    /// Fails with `Io` unless `path` is the name of this directory. In a folder where others may
    /// rename what is not theirs, it may be that of another.
    pub(super) fn require_at(&self, path: &Path) -> Result<()> {
        let found = self.handle.is_at(path).and_then(|is_there| match is_there {
            true => Ok(()),
            false => Err(Error::other("another directory is in its place")),
        });
        found.map_err(|e| AnamnesisError::io_at(path, &e))
    }

    /// Removes the file `name`.
    ///
    /// # Errors
    /// `Io` if the system fails.
    pub(super) fn remove_file(&self, name: &str) -> Result<()> {
        let removed = self.handle.remove_file(name.as_ref());
        removed.map_err(|e| AnamnesisError::io_at(&self.path.join(name), &e))
    }

    /// Removes all that is in the directory but the marker, which this process has locked: nobody
    /// else may begin there meanwhile.
    ///
    /// # Errors
    /// `Io` if another directory has its name, or the system fails.
    pub(super) fn empty(&self) -> Result<()> {
        self.require_at(&self.path)?;
        let emptied = self.handle.remove_all_but(MARKER_FILE.as_ref());
        emptied.map_err(|e| AnamnesisError::io_at(&self.path, &e))
    }

    /// Removes the directory with all that is in it, if it has its name still.
    ///
    /// # Errors
    /// `Io` if another directory has its name, or the system fails.
    pub(super) fn remove(&self) -> Result<()> {
        self.empty()?;
        self.remove_file(MARKER_FILE)?;
        // It stays if another process has just begun in it.
        match std::fs::remove_dir(&self.path) {
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed.map_err(|e| AnamnesisError::io_at(&self.path, &e)),
        }
    }
}

/// Name of the manifest of part `part` of `of`, counted from 1.
pub(super) fn manifest_name((part, of): (usize, usize)) -> String {
    format!("{RECORD_PREFIX}{part}-of-{of}.json")
}

/// Name of the file that the process which makes part `part` of `of` holds locked.
pub(super) fn lock_name((part, of): (usize, usize)) -> String {
    format!("anamnesis-part-{part}-of-{of}.lock")
}

/// Whether a file of this name is a manifest.
pub(super) fn is_manifest(name: &str) -> bool {
    has_manifest_prefix(name) && name.ends_with(".json")
}

/// Whether a file of this name is a manifest, the temporary file of one that was being written, or
/// the lock of a part.
pub(super) fn has_manifest_prefix(name: &str) -> bool {
    name.starts_with(RECORD_PREFIX)
}
