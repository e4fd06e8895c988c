//! [`OpenDirectory`]: a directory by its handle. What is below it is reached by name from there,
//! and no link is followed: a name that somebody else plants in a shared folder leads nowhere else.

#[cfg(not(unix))]
mod by_path;
#[cfg(unix)]
mod unix;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};

#[cfg(not(unix))]
use self::by_path::Handle;
#[cfg(unix)]
use self::unix::Handle;

/// A directory that was opened, and that no link led to.
#[derive(Debug)]
pub(crate) struct OpenDirectory(Handle);

impl OpenDirectory {
    /// Opens the directory `name` below, and creates it if there is none.
    ///
    /// # Errors
    /// Anything but a directory is there, such as a link to one; or the system fails.
    pub(crate) fn open_or_create(&self, name: &OsStr) -> Result<Self> {
        match self.create_directory(name) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => self.open_below(name),
        }
    }

    /// Creates the file `name`, and removes the file or link of that name before. `is_executable`
    /// gives its owner the right to run it; all other rights are those of any new file.
    pub(crate) fn create_anew(&self, name: &OsStr, is_executable: bool) -> Result<File> {
        match self.remove_file(name) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => self.create_file(name, is_executable),
        }
    }

    /// Opens the regular file `name` to write, and creates it if there is none; returns also
    /// whether it was created. Several processes may do so at once.
    ///
    /// # Errors
    /// `NotFound` if the directory is removed; anything but a regular file is there, such as a link
    /// to one; or the system fails.
    pub(crate) fn open_or_create_file(&self, name: &OsStr) -> Result<(File, bool)> {
        match self.create_file(name, false) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            created => return created.map(|file| (file, true)),
        }
        let file = self.open_to_write(name)?;
        match file.metadata()?.is_file() {
            true => Ok((file, false)),
            false => Err(Error::other("not a regular file")),
        }
    }

    /// Renames `file`, which was created as `from`, and replaces the file or link `to`.
    ///
    /// A rename goes by name. So the name is compared with the file before, and after the rename
    /// once more: another process may have put its own file there.
    ///
    /// # Errors
    /// Another file is under the name `from`, or under `to` after the rename; or the system fails.
    pub(crate) fn rename_written(&self, file: &File, from: &OsStr, to: &OsStr) -> Result<()> {
        let exchanged = || Error::other("another process has put its own file in its place");
        if !self.is_file_at(file, from)? {
            return Err(exchanged());
        }
        self.rename(from, to)?;
        // The rename is done, whether or not the system can tell what it renamed.
        match self.is_file_at(file, to) {
            Ok(false) => Err(exchanged()),
            _ => Ok(()),
        }
    }

    /// Removes the name `name` if it is that of `file`.
    pub(crate) fn remove_written(&self, file: &File, name: &OsStr) -> Result<()> {
        match self.is_file_at(file, name)? {
            true => self.remove_file(name),
            false => Ok(()),
        }
    }

    /// Removes all that is in the directory, but for the file `kept`.
    pub(crate) fn remove_all_but(&self, kept: &OsStr) -> Result<()> {
        for (name, is_directory) in self.entries()? {
            let removed = if is_directory {
                self.open_below(&name)?.remove_all_but(OsStr::new(""))?;
                self.remove_directory(&name)
            } else if name != kept {
                self.remove_file(&name)
            } else {
                continue;
            };
            // A thread of this process may have removed it.
            match removed {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Opens the regular file `name` to read; `None` if there is none.
    ///
    /// # Errors
    /// Anything but a regular file is there, such as a link to one; or the system fails.
    pub(crate) fn open_file(&self, name: &OsStr) -> Result<Option<File>> {
        match self.open_any(name) {
            Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
            Ok(_) => Err(Error::other("not a regular file")),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes all files durable that are below the directory.
    pub(crate) fn sync_all(&self) -> Result<()> {
        for (name, is_directory) in self.entries()? {
            if is_directory {
                self.open_below(&name)?.sync_all()?;
                continue;
            }
            match self.open_to_sync(&name) {
                // Windows syncs only files that are open for writing, and a read-only file cannot
                // be opened so.
                Err(_) if cfg!(windows) => {}
                file => file?.sync_all()?,
            }
        }
        self.sync();
        Ok(())
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// What is planted between a look at the directory and a write to it: a link is neither read,
    /// written through nor taken for a new file.
    #[test]
    fn links_below_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let theirs = root.path().join("theirs");
        std::fs::write(&theirs, "precious").unwrap();
        let directory = OpenDirectory::create_private(&root.path().join("ours")).unwrap();
        let link = root.path().join("ours/link");
        symlink(&theirs, &link).unwrap();
        let name = OsStr::new("link");
        directory.open_file(name).unwrap_err();
        directory.create_file(name, false).unwrap_err();
        directory.open_or_create_file(name).unwrap_err();
        let mut file = directory.create_anew(name, false).unwrap();
        file.write_all(b"ours").unwrap();
        assert_eq!(std::fs::read(&theirs).unwrap(), b"precious");
        assert_eq!(std::fs::read(&link).unwrap(), b"ours");
    }

    /// From its first moment on, whatever the umask is.
    #[test]
    fn a_private_directory_is_made_private() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("ours");
        OpenDirectory::create_private(&path).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    /// What another process puts under the name is neither renamed nor removed.
    #[test]
    fn only_the_file_that_was_written_is_renamed() {
        let root = tempfile::tempdir().unwrap();
        let directory = OpenDirectory::create_private(&root.path().join("ours")).unwrap();
        let (from, to) = (OsStr::new("from"), OsStr::new("to"));
        let written = directory.create_anew(from, false).unwrap();
        let mut theirs = directory.create_anew(from, false).unwrap();
        theirs.write_all(b"theirs").unwrap();
        directory.rename_written(&written, from, to).unwrap_err();
        directory.remove_written(&written, from).unwrap();
        assert!(directory.open_file(to).unwrap().is_none());
        directory.rename_written(&theirs, from, to).unwrap();
        assert!(directory.open_file(from).unwrap().is_none());
        let found = std::fs::read(root.path().join("ours/to")).unwrap();
        assert_eq!(found, b"theirs");
    }
}
