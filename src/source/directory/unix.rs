//! Directories by their handles.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fchmod, fsync, mkdir, mkdirat, open, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::OpenDirectory;
use crate::source::platform::place;

/// What makes a handle good for [`OpenDirectory`].
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Name of a directory that is made and removed again, to see the permissions of what is made here.
const PROBE: &str = ".anamnesis-mode";

pub(super) type Handle = OwnedFd;

impl OpenDirectory {
    /// Opens the directory `path`, whose last component must not be a link.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        match open(path, DIRECTORY, Mode::empty()) {
            Ok(handle) => Ok(Self(handle)),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::MLINK) => {
                Err(Error::new(ErrorKind::NotADirectory, "it is a link, or no directory"))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Creates the directory `path`, to which nobody else has access, unless it is there.
    pub(crate) fn create_private(path: &Path) -> Result<Self> {
        match mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Self::open(path),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes from everybody else the access to the directory.
    pub(crate) fn make_private(&self) -> Result<()> {
        let mode = Mode::from_raw_mode(self.metadata()?.mode() as _);
        let private = mode.difference(Mode::RWXG | Mode::RWXO) | Mode::RWXU;
        self.set_mode(mode, private)
    }

    /// Gives the directory the permissions that any new directory has.
    pub(crate) fn make_public(&self) -> Result<()> {
        // Only what is created shows the umask of the process and the defaults of the parent.
        match mkdirat(&self.0, PROBE, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let probe = statat(&self.0, PROBE, AtFlags::SYMLINK_NOFOLLOW)?;
        unlinkat(&self.0, PROBE, AtFlags::REMOVEDIR)?;
        let mode = Mode::from_raw_mode(self.metadata()?.mode() as _);
        self.set_mode(mode, Mode::from_raw_mode(probe.st_mode))
    }

    fn set_mode(&self, from: Mode, to: Mode) -> Result<()> {
        // File systems without permissions refuse a change, and need none: everything has the same
        // there.
        if from == to {
            return Ok(());
        }
        Ok(fchmod(&self.0, to)?)
    }

    /// Whether the directory, which is at `path`, belongs to the user of this process.
    pub(crate) fn is_own(&self, path: &Path) -> Result<bool> {
        let owner = self.metadata()?.uid();
        if owner == geteuid().as_raw() {
            return Ok(true);
        }
        // Some file systems give all files one owner: those of other systems, and shares. What a
        // new file gets is ours there.
        let beside = path.parent().filter(|parent| *parent != Path::new(""));
        let new = tempfile::tempfile_in(beside.unwrap_or(Path::new(".")))?;
        Ok(new.metadata()?.uid() == owner)
    }

    /// Fails unless all that is in the directory has its owner, and is a regular file of one name
    /// or a directory.
    pub(crate) fn require_own_files(&self) -> Result<()> {
        self.require_owner(self.metadata()?.uid(), Path::new(""))
    }

    fn require_owner(&self, owner: u32, below: &Path) -> Result<()> {
        for (name, is_directory) in self.entries()? {
            let there = match statat(&self.0, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(there) => there,
                // Another process of ours, which makes another part, has just renamed or removed
                // it.
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(e.into()),
            };
            let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
            let below = below.join(&name);
            let what = if there.st_uid != owner {
                "belongs to another user"
            } else if !is_directory && !is_file {
                "is a link or a device"
            } else if is_file && there.st_nlink > 1 {
                "has another name elsewhere (a hard link)"
            } else {
                if is_directory {
                    self.open_below(&name)?.require_owner(owner, &below)?;
                }
                continue;
            };
            let what = format!("`{}` in it {what}", below.display());
            return Err(Error::new(ErrorKind::PermissionDenied, what));
        }
        Ok(())
    }

    /// Whether the name `path` still leads to this directory, and not through a link.
    pub(crate) fn is_at(&self, path: &Path) -> Result<bool> {
        Ok(place(&self.metadata()?) == place(&path.symlink_metadata()?))
    }

    fn metadata(&self) -> Result<Metadata> {
        File::from(self.0.try_clone()?).metadata()
    }

    /// Names of all entries, sorted, with whether each is a directory.
    pub(crate) fn entries(&self) -> Result<Vec<(OsString, bool)>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            // Some file systems do not tell the kind in the listing.
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let there = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(there.st_mode)
                }
                kind => kind,
            };
            found.push((name.to_owned(), kind == FileType::Directory));
        }
        found.sort_unstable();
        Ok(found)
    }

    pub(super) fn open_below(&self, name: &OsStr) -> Result<Self> {
        Ok(Self(openat(&self.0, name, DIRECTORY, Mode::empty())?))
    }

    pub(super) fn open_any(&self, name: &OsStr) -> Result<File> {
        // Without waiting, in case that it is a pipe.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    pub(super) fn open_to_sync(&self, name: &OsStr) -> Result<File> {
        self.open_any(name)
    }

    pub(super) fn create_directory(&self, name: &OsStr) -> Result<()> {
        Ok(mkdirat(&self.0, name, Mode::from_raw_mode(0o777))?) // less the umask
    }

    pub(super) fn open_to_write(&self, name: &OsStr) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }

    /// Whether `name` is still that of `file`.
    pub(crate) fn is_file_at(&self, file: &File, name: &OsStr) -> Result<bool> {
        match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) => Ok(place(&file.metadata()?) == (there.st_dev as _, there.st_ino as _)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    pub(super) fn remove_directory(&self, name: &OsStr) -> Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes the file or link `name`.
    pub(crate) fn remove_file(&self, name: &OsStr) -> Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Renames a file of the directory, and replaces the file or link `to`.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> Result<()> {
        Ok(renameat(&self.0, from, &self.0, to)?)
    }

    /// Makes renames in the directory durable. Errors are ignored: some file systems cannot sync
    /// directories.
    pub(crate) fn sync(&self) {
        let _ = fsync(&self.0);
    }

    /// Creates a file that is not there, and that nobody else has put there.
    pub(super) fn create_file(&self, name: &OsStr, is_executable: bool) -> Result<File> {
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = if is_executable { 0o766 } else { 0o666 }; // less the umask
        Ok(openat(&self.0, name, flags, Mode::from_raw_mode(mode))?.into())
    }
}
