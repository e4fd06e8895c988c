//! [`OpenDirectory`]: a directory by its handle. What is below it is reached by name from there, and no link is followed: a
//! name that somebody else plants in a shared folder leads nowhere else.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::path::Path;

#[cfg(unix)]
pub(crate) use self::unix::OpenDirectory;

#[cfg(not(unix))]
pub(crate) use self::by_path::OpenDirectory;

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

    /// Creates the file `name`, and removes the file or link of that name before. `is_executable` gives its owner the right
    /// to run it; all other rights are those of any new file.
    pub(crate) fn create_anew(&self, name: &OsStr, is_executable: bool) -> Result<File> {
        match self.remove_file(name) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => self.create_file(name, is_executable),
        }
    }
}

#[cfg(unix)]
mod unix {
    use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, open, openat, unlinkat};
    use std::os::fd::OwnedFd;

    use super::*;

    /// What makes a handle good for [`OpenDirectory`].
    const DIRECTORY: OFlags = OFlags::RDONLY
        .union(OFlags::DIRECTORY)
        .union(OFlags::NOFOLLOW)
        .union(OFlags::CLOEXEC);

    #[derive(Debug)]
    pub(crate) struct OpenDirectory(OwnedFd);

    impl OpenDirectory {
        /// Opens the directory `path`, whose last component must not be a link.
        pub(crate) fn open(path: &Path) -> Result<Self> {
            Ok(Self(open(path, DIRECTORY, Mode::empty())?))
        }

        pub(super) fn open_below(&self, name: &OsStr) -> Result<Self> {
            Ok(Self(openat(&self.0, name, DIRECTORY, Mode::empty())?))
        }

        pub(super) fn create_directory(&self, name: &OsStr) -> Result<()> {
            Ok(mkdirat(&self.0, name, Mode::from_raw_mode(0o777))?) // less the umask
        }

        pub(super) fn remove_file(&self, name: &OsStr) -> Result<()> {
            Ok(unlinkat(&self.0, name, AtFlags::empty())?)
        }

        /// Creates a file that is not there, and that nobody else has put there.
        pub(super) fn create_file(&self, name: &OsStr, is_executable: bool) -> Result<File> {
            let flags =
                OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = if is_executable { 0o766 } else { 0o666 }; // less the umask
            Ok(openat(&self.0, name, flags, Mode::from_raw_mode(mode))?.into())
        }
    }
}

/// Systems whose directories have no handles in the standard library.
#[cfg(not(unix))]
mod by_path {
    use std::path::PathBuf;

    use super::*;

    #[derive(Debug)]
    pub(crate) struct OpenDirectory(PathBuf);

    impl OpenDirectory {
        /// Opens the directory `path`, whose last component must not be a link.
        pub(crate) fn open(path: &Path) -> Result<Self> {
            match path.symlink_metadata()?.is_dir() {
                true => Ok(Self(path.to_path_buf())),
                false => Err(ErrorKind::NotADirectory.into()),
            }
        }

        pub(super) fn open_below(&self, name: &OsStr) -> Result<Self> {
            Self::open(&self.0.join(name))
        }

        pub(super) fn create_directory(&self, name: &OsStr) -> Result<()> {
            std::fs::create_dir(self.0.join(name))
        }

        pub(super) fn remove_file(&self, name: &OsStr) -> Result<()> {
            std::fs::remove_file(self.0.join(name))
        }

        pub(super) fn create_file(&self, name: &OsStr, _is_executable: bool) -> Result<File> {
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            options.open(self.0.join(name))
        }
    }
}
