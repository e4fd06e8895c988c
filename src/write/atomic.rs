//! [`OutputFile`]: an output file that appears whole or not at all. It is a temporary file in the
//! same directory, which is synced and then renamed. Everything that can be wrong with the place is
//! checked before the work.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;

use super::Sink;
use super::temporary::{Creation, Temporary};
use super::written_file::WrittenFile;
use crate::source::directory::OpenDirectory;
use crate::source::inputs::Inputs;
use crate::source::lock::LockFile;
use crate::source::platform::{available_space, has_name};
use crate::{AnamnesisError, Result};

/// How long a process waits for another that gives the same files their names: the renames of all
/// files.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// A file under a temporary name. If it is dropped before [`commit`](Self::commit), it is removed.
#[derive(Debug)]
pub(crate) struct OutputFile {
    temporary: NamedTempFile,
    /// The temporary file once more, to be written.
    written: WrittenFile,
    directory: PathBuf,
    path: PathBuf,
    force: bool,
    /// Removes the temporary file after a panic.
    _removed_at_panic: Temporary,
}

/// What the place of an output is checked for.
#[derive(Debug)]
pub(crate) struct OutputPlace<'a> {
    /// Whether an existing file is replaced.
    pub force: bool,
    /// What the output is made from, which it must not replace.
    pub inputs: &'a Inputs<'a>,
    /// Bytes that must be free: those of all files of the output.
    pub space: u64,
    /// Whether nothing of the file stays in the system's cache.
    pub is_uncached: bool,
}

impl OutputPlace<'_> {
    /// # Errors
    /// `Io` if the file must not or cannot be written at `path`.
    fn check(&self, path: &Path) -> Result<()> {
        self.check_name(path)?;
        self.check_directory(path)
    }

    /// Checks all but the directory of `path`.
    ///
    /// # Errors
    /// `Io` if the file must not be written at `path`.
    pub(crate) fn check_name(&self, path: &Path) -> Result<()> {
        let refuse =
            |kind: ErrorKind, what: &str| Err(AnamnesisError::io_at(path, &Error::new(kind, what)));
        self.inputs.require_other_file(path)?;
        // A link that leads nowhere has no metadata but its own; a rename may replace it.
        match path.metadata().or_else(|_| path.symlink_metadata()) {
            Ok(there) if there.is_dir() => {
                return refuse(ErrorKind::IsADirectory, "the output is a directory");
            }
            Ok(there) if !is_replaceable(&there) => {
                return refuse(ErrorKind::InvalidInput, "the output is not a regular file");
            }
            Ok(_) if !self.force => {
                return refuse(
                    ErrorKind::AlreadyExists,
                    "the output exists; --force (`force`) replaces it",
                );
            }
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(AnamnesisError::io_at(path, &e)),
        }
        if path.file_name().is_none() {
            return refuse(ErrorKind::InvalidInput, "the output has no file name");
        }
        Ok(())
    }

    /// # Errors
    /// `Io` if the directory of `path` is none, or its file system has not enough space.
    fn check_directory(&self, path: &Path) -> Result<()> {
        let directory = directory_of(path);
        let failed = |e: Error| AnamnesisError::io_at(directory, &e);
        if !directory.metadata().map_err(failed)?.is_dir() {
            let what = "the output's directory is not a directory";
            return Err(failed(Error::new(ErrorKind::NotADirectory, what)));
        }
        let (free, space) = (available_space(directory).map_err(failed)?, self.space);
        if free < space {
            let what = format!("the output takes {space} bytes, and {free} are free");
            let error = Error::new(ErrorKind::StorageFull, what);
            return Err(AnamnesisError::io_at(path, &error));
        }
        Ok(())
    }
}

impl OutputFile {
    /// Checks the place for `path` and creates a temporary file of `len` bytes there.
    ///
    /// # Errors
    /// `Io` if `path` is a directory or a device, an existing file without `force`, or an input
    /// under any of its names; if the directory is missing or not writable; if the file system has
    /// not enough space.
    pub(crate) fn create(path: &Path, len: u64, place: &OutputPlace<'_>) -> Result<Self> {
        place.check(path)?;
        let directory = directory_of(path).to_path_buf();
        // In the same directory, because a rename cannot cross file systems.
        let mut builder = tempfile::Builder::new();
        builder.prefix(".anamnesis-").suffix(".tmp");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask
        let creation = Creation::begin();
        let temporary = builder
            .tempfile_in(&directory)
            .map_err(|e| AnamnesisError::io_at(&directory, &e))?;
        let name = temporary.path().to_path_buf();
        let removed_at_panic = creation.end(move || drop(std::fs::remove_file(name)));
        let file = temporary.as_file();
        let written = file.set_len(len).and_then(|()| file.try_clone());
        let written = written.map_err(|e| AnamnesisError::io_at(path, &e))?;
        Ok(Self {
            temporary,
            written: WrittenFile::new(written, place.is_uncached),
            directory,
            path: path.to_path_buf(),
            force: place.force,
            _removed_at_panic: removed_at_panic,
        })
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = self.written.write_at(offset, bytes);
        written.map_err(|e| AnamnesisError::io_at(&self.path, &e))
    }

    /// The temporary file.
    pub(crate) fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// Syncs the file, renames it to its name, and syncs the directory. In this order a crash
    /// leaves the old file or the whole new one, never a name without its data.
    ///
    /// # Errors
    /// `Io` if the file cannot be synced or renamed, or another file is under its temporary name;
    /// without `force`, also if a file has appeared under its name.
    pub(crate) fn commit(self) -> Result<()> {
        self.sync()?;
        self.rename()
    }

    fn sync(&self) -> Result<()> {
        let synced = self.written.sync_all();
        synced.map_err(|e| AnamnesisError::io_at(&self.path, &e))
    }

    /// Gives the file its name, and syncs the directory.
    fn rename(self) -> Result<()> {
        let (path, written) = (self.path, self.written);
        let failed = |e: &Error| AnamnesisError::io_at(&path, e);
        let exchanged = || {
            let what = "another process has put its own file in the place of the output";
            failed(&Error::other(what))
        };
        // The rename goes by name: what has the name now need not be what was written.
        let temporary = self.temporary;
        if !has_name(written.file(), temporary.path()).map_err(|e| failed(&e))? {
            return Err(exchanged());
        }
        let named = match self.force {
            true => temporary.persist(&path),
            false => temporary.persist_noclobber(&path),
        };
        named.map_err(|e| failed(&e.error))?;
        sync_directory(&self.directory);
        // It is named, whether or not the system can tell.
        match has_name(written.file(), &path) {
            Ok(false) => Err(exchanged()),
            _ => Ok(()),
        }
    }
}

/// Commits the files of one output. The first file of several is named last. Readers of a split
/// model open the first file, so until then nobody sees a model of which a part is missing.
///
/// # Errors
/// Those of [`OutputFile::commit`]; without `force`, nothing is named if a file has appeared under
/// one of the names. `Io` if another process is naming its files here and does not end.
pub(crate) fn commit_all(files: Vec<OutputFile>) -> Result<()> {
    files.iter().try_for_each(OutputFile::sync)?;
    // Two runs that name their files at once would leave some of each.
    let lock = match files.as_slice() {
        [first, _, ..] => Some(NamesLock::wait(&first.directory, &first.path)?),
        _ => None,
    };
    if lock.is_some() {
        for file in files.iter().filter(|file| !file.force) {
            if file.path.symlink_metadata().is_ok() {
                let error = Error::from(ErrorKind::AlreadyExists);
                return Err(AnamnesisError::io_at(&file.path, &error));
            }
        }
    }
    files.into_iter().rev().try_for_each(OutputFile::rename)
}

/// The lock of the process that gives the files of an output in several files their names. It is
/// removed while it is locked: then nobody else has it.
struct NamesLock {
    directory: OpenDirectory,
    lock: LockFile,
    name: String,
}

impl NamesLock {
    /// Waits for the lock of the output whose first file is `first`.
    ///
    /// # Errors
    /// `Io` if another process has it for long, or the system fails.
    fn wait(directory: &Path, first: &Path) -> Result<Self> {
        let failed = |e: &Error| AnamnesisError::io_at(first, e);
        let name = first.file_name().unwrap_or_default();
        // The sum of the name, which itself may be as long as names can be.
        let sum = crc32fast::hash(name.as_encoded_bytes());
        let name = format!(".anamnesis-{sum:08x}.tmp");
        let directory = directory.canonicalize();
        let directory = directory.and_then(|directory| OpenDirectory::open(&directory));
        let directory = directory.map_err(|e| failed(&e))?;
        let started = Instant::now();
        loop {
            match LockFile::lock(&directory, name.as_ref(), false) {
                Ok(lock) => {
                    return Ok(Self { directory, lock, name });
                }
                Err(e) if matches!(e.kind(), ErrorKind::ResourceBusy | ErrorKind::NotFound) => {}
                Err(e) => return Err(failed(&e)),
            }
            if started.elapsed() > LONGEST_WAIT {
                let what = "another process is naming the files of this output, and does not end";
                return Err(failed(&Error::new(ErrorKind::ResourceBusy, what)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for NamesLock {
    fn drop(&mut self) {
        let name = self.name.as_ref();
        let _ = self.directory.remove_written(self.lock.file(), name);
    }
}

/// The directory that `path` is in; `.` for a bare name.
pub fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| *parent != Path::new(""))
        .unwrap_or(Path::new("."))
}

/// Makes renames in `directory` durable. Errors are ignored: some file systems cannot sync
/// directories, and the files are whole all the same.
pub(crate) fn sync_directory(directory: &Path) {
    #[cfg(unix)]
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
    #[cfg(not(unix))]
    let _ = directory;
}

/// Whether a rename may replace the entry: a regular file, or a link that leads nowhere.
fn is_replaceable(there: &Metadata) -> bool {
    there.is_file() || there.is_symlink()
}

impl Sink for Vec<OutputFile> {
    fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self[file].write_at(offset, bytes)
    }

    fn written_file(&self, file: usize) -> Option<&WrittenFile> {
        self.get(file).map(|file| &file.written)
    }
}
