//! Systems whose directories have no handles in the standard library.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

use super::OpenDirectory;
use crate::source::platform;

/// The path: the standard library has no handles here.
pub(super) type Handle = PathBuf;

impl OpenDirectory {
    /// Opens the directory `path`, whose last component must not be a link.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        match path.symlink_metadata()?.is_dir() {
            true => Ok(Self(path.to_path_buf())),
            false => Err(Error::new(ErrorKind::NotADirectory, "it is a link, or no directory")),
        }
    }

    /// Creates the directory `path` unless it is there.
    pub(crate) fn create_private(path: &Path) -> Result<Self> {
        match std::fs::create_dir(path) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => Self::open(path),
        }
    }

    /// Does nothing: permissions are inherited here.
    pub(crate) fn make_private(&self) -> Result<()> {
        Ok(())
    }

    /// Does nothing: permissions are inherited here.
    pub(crate) fn make_public(&self) -> Result<()> {
        Ok(())
    }

    /// Always true: the standard library does not tell owners here.
    pub(crate) fn is_own(&self, _path: &Path) -> Result<bool> {
        Ok(true)
    }

    /// Fails if there is a link in the directory.
    pub(crate) fn require_own_files(&self) -> Result<()> {
        for (name, is_directory) in self.entries()? {
            if is_directory {
                self.open_below(&name)?.require_own_files()?;
            } else if !self.0.join(&name).symlink_metadata()?.is_file() {
                let what = format!("`{}` in it is a link", name.display());
                return Err(Error::new(ErrorKind::PermissionDenied, what));
            }
        }
        Ok(())
    }

    /// Whether the name `path` is still that of a directory.
    pub(crate) fn is_at(&self, path: &Path) -> Result<bool> {
        Ok(path.symlink_metadata()?.is_dir())
    }

    /// Names of all entries, sorted, with whether each is a directory.
    pub(crate) fn entries(&self) -> Result<Vec<(OsString, bool)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.0)? {
            let entry = entry?;
            found.push((entry.file_name(), entry.file_type()?.is_dir()));
        }
        found.sort_unstable();
        Ok(found)
    }

    pub(super) fn open_below(&self, name: &OsStr) -> Result<Self> {
        Self::open(&self.0.join(name))
    }

    pub(super) fn open_any(&self, name: &OsStr) -> Result<File> {
        platform::open_unlinked(&self.0.join(name))
    }

    pub(super) fn open_to_sync(&self, name: &OsStr) -> Result<File> {
        // Windows syncs only files that are open for writing.
        File::options()
            .read(true)
            .write(cfg!(windows))
            .open(self.0.join(name))
    }

    pub(super) fn create_directory(&self, name: &OsStr) -> Result<()> {
        std::fs::create_dir(self.0.join(name))
    }

    pub(super) fn open_to_write(&self, name: &OsStr) -> Result<File> {
        let path = self.0.join(name);
        match path.symlink_metadata()?.is_file() {
            true => File::options().read(true).write(true).open(path),
            false => Err(Error::other("not a regular file")),
        }
    }

    /// Whether `name` is still that of `file`. Always true where the system cannot tell.
    pub(crate) fn is_file_at(&self, file: &File, name: &OsStr) -> Result<bool> {
        platform::has_name(file, &self.0.join(name))
    }

    pub(super) fn remove_directory(&self, name: &OsStr) -> Result<()> {
        std::fs::remove_dir(self.0.join(name))
    }

    /// Removes the file or link `name`.
    pub(crate) fn remove_file(&self, name: &OsStr) -> Result<()> {
        std::fs::remove_file(self.0.join(name))
    }

    /// Renames a file of the directory, and replaces the file `to`.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()> {
        std::fs::rename(self.0.join(from), self.0.join(to))
    }

    /// Does nothing: directories have no handles that could be synced.
    pub(crate) fn sync(&self) {}

    pub(super) fn create_file(&self, name: &OsStr, _is_executable: bool) -> Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        options.open(self.0.join(name))
    }
}
