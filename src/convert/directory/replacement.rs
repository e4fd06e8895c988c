//! The last steps of an output directory, from its rename on. They are few, but a process can be
//! killed between any two of them: the next run for that output finishes or undoes them
//! ([`settle`]).
//!
//! The marker file comes with the directory when it is renamed, and is removed last of all. While
//! it is in an output, the output is whole, and what has to be cleared away is still there. Before
//! a directory is moved aside, the marker gets its identity: nothing else is ever removed or put
//! back.

use std::io::{Error, ErrorKind, Read, Result as IoResult};
use std::path::Path;

use crate::config::MARKER_FILE;
use crate::convert::destination::{partial_path, replaced_path};
use crate::convert::unfinished::{UnfinishedDirectory, is_manifest};
use crate::source::directory::OpenDirectory;
use crate::source::lock::LockFile;
use crate::source::platform::{place, write_all_at};
use crate::write::atomic::{directory_of, sync_directory};
use crate::{AnamnesisError, Result};

/// What stands in a marker while the directory of this identity is replaced. `None` if there is no
/// directory.
fn identity(replaced: &Path) -> Option<String> {
    let there = replaced
        .symlink_metadata()
        .ok()
        .filter(|there| there.is_dir())?;
    let (device, inode) = place(&there);
    Some(format!("replaces {device}:{inode}\n"))
}

/// The longest text that [`identity`] makes is 51 bytes.
const MAX_IDENTITY: u64 = 64;

/// A marker, locked for the process that does the last steps. The lock ends with the process,
/// however that ends.
pub(super) struct LockedMarker {
    /// `None` if the lock is that of the unfinished directory.
    _lock: Option<LockFile>,
    text: String,
}

impl LockedMarker {
    /// Locks the marker in `directory`; `None` if there is none.
    ///
    /// # Errors
    /// `Io` if another process has locked it, or it cannot be read.
    fn lock(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(MARKER_FILE);
        let failed = |e: Error| AnamnesisError::io_at(&path, &e);
        if !path.symlink_metadata().is_ok_and(|there| there.is_file()) {
            return Ok(None);
        }
        let directory = OpenDirectory::open(directory).map_err(failed)?;
        let lock = match LockFile::lock(&directory, MARKER_FILE.as_ref(), false) {
            Ok(lock) => lock,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) if e.kind() == ErrorKind::ResourceBusy => {
                let what = "another process finishes this directory";
                return Err(failed(Error::new(ErrorKind::ResourceBusy, what)));
            }
            Err(e) => return Err(failed(e)),
        };
        // Another process has ended its last steps meanwhile.
        if lock.is_new {
            let _ = directory.remove_written(lock.file(), MARKER_FILE.as_ref());
            return Ok(None);
        }
        let mut text = Vec::new();
        let read = lock.file().take(MAX_IDENTITY).read_to_end(&mut text);
        read.map_err(failed)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let lock = Some(lock);
        Ok(Some(Self { _lock: lock, text }))
    }

    /// Writes the identity of `replaced` to the marker of `directory`, which is locked.
    ///
    /// # Errors
    /// The system fails.
    pub(super) fn record(directory: &UnfinishedDirectory, replaced: &Path) -> IoResult<Self> {
        let text = identity(replaced).unwrap_or_default();
        directory.with_marker(|marker| {
            marker.set_len(0)?;
            write_all_at(marker, 0, text.as_bytes())?;
            marker.sync_all()
        })?;
        directory.handle().sync();
        Ok(Self { _lock: None, text })
    }

    /// Whether the marker is of the replacement that has moved a directory to `old`.
    fn names(&self, old: &Path) -> bool {
        identity(old).is_some_and(|identity| identity == self.text)
    }

    /// Clears away what the last steps leave at `output`, which is whole: manifests, the replaced
    /// directory, and the marker. Returns a note if that fails. It is no failure of the conversion,
    /// and the next run tries again.
    pub(super) fn clear(self, output: &Path) -> Option<String> {
        let old = replaced_path(output);
        let gone = |done: IoResult<()>| match done {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
        let cleared = || {
            let directory = OpenDirectory::open(output)?;
            for (name, _) in directory.entries()? {
                if name.to_str().is_some_and(is_manifest) {
                    gone(directory.remove_file(&name))?;
                }
            }
            if self.names(&old) {
                gone(std::fs::remove_dir_all(&old))?;
            }
            gone(directory.remove_file(MARKER_FILE.as_ref()))
        };
        let failure = cleared().err()?;
        let what = match old.symlink_metadata() {
            Ok(_) => format!("`{}`, which was replaced,", old.display()),
            Err(_) => format!("a record of the work in `{}`", output.display()),
        };
        Some(format!("{what} could not be removed: {failure}"))
    }
}

/// What was done about an earlier run that was interrupted in its last steps.
#[derive(Debug)]
pub struct Settled {
    /// For the user.
    pub note: String,
    /// Whether its output has its name; otherwise the old directory has it again.
    pub is_finished: bool,
}

/// Finishes or undoes the last steps of an earlier run for `output`, if that was interrupted in
/// them.
///
/// - The new directory has its name: what it replaced is removed.
/// - The old directory was moved aside and the new one has no name yet: the old one gets its name
///   back. The new one is complete, and `--resume` goes on with it.
///
/// # Errors
/// `Io` if another process is at these steps, or if the old directory cannot be renamed.
pub(crate) fn settle(output: &Path) -> Result<Option<Settled>> {
    if let Some(marker) = LockedMarker::lock(output)? {
        let note = format!(
            "`{}` was made by a run that was interrupted at its end; what it left is cleared away",
            output.display()
        );
        return Ok(Some(Settled { note: marker.clear(output).unwrap_or(note), is_finished: true }));
    }
    let old = replaced_path(output);
    if output.symlink_metadata().is_ok() || old.symlink_metadata().is_err() {
        return Ok(None);
    }
    match LockedMarker::lock(&partial_path(output)?)? {
        Some(marker) if marker.names(&old) => {
            std::fs::rename(&old, output).map_err(|e| AnamnesisError::io_at(output, &e))?;
            sync_directory(directory_of(output));
            let note = format!(
                "the replacement of `{}` was interrupted; the old directory is back under its name",
                output.display()
            );
            Ok(Some(Settled { note, is_finished: false }))
        }
        _ => Ok(None),
    }
}
