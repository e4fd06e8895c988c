//! An output file that exists whole or not at all: a temporary file in the same directory, synced and then
//! renamed. Everything that can be wrong with the place is found before the work.

use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::Sink;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// A file under a temporary name. Dropped before [`commit`](Self::commit), it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct OutputFile {
    temporary: NamedTempFile,
    directory: PathBuf,
    path: PathBuf,
    force: bool,
}

/// What an output must not take the place of, and what it needs.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    /// Whether an existing file is replaced.
    pub force: bool,
    /// What the output is made from.
    pub inputs: &'a [&'a Source],
    /// Bytes of all files of the output.
    pub space: u64,
}

impl OutputFile {
    /// Checks the place for `path` and creates a temporary file of `len` bytes there.
    ///
    /// Refused: a directory or device, an existing file without `force`, an input under any of its names, a
    /// directory that is missing or not writable, a file system without the space.
    pub(crate) fn create(path: &Path, len: u64, place: &Place<'_>) -> Result<Self> {
        let &Place {
            force,
            inputs,
            space,
        } = place;
        let refuse =
            |kind: ErrorKind, what: &str| Err(AnamnesisError::io_at(path, &Error::new(kind, what)));
        if inputs.iter().any(|input| input.is_file_at(path)) {
            return refuse(ErrorKind::InvalidInput, "the output is the input");
        }
        match path.metadata().or_else(|_| path.symlink_metadata()) {
            Ok(there) if there.is_dir() => {
                return refuse(ErrorKind::IsADirectory, "the output is a directory");
            }
            Ok(there) if !is_replaceable(&there) => {
                return refuse(ErrorKind::InvalidInput, "the output is not a regular file");
            }
            Ok(_) if !force => {
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
        let directory = directory_of(path).to_path_buf();
        match directory.metadata() {
            Ok(there) if there.is_dir() => {}
            Ok(_) => {
                return refuse(
                    ErrorKind::NotADirectory,
                    "the output's directory is not a directory",
                );
            }
            Err(e) => return Err(AnamnesisError::io_at(&directory, &e)),
        }
        let free =
            fs4::available_space(&directory).map_err(|e| AnamnesisError::io_at(&directory, &e))?;
        if free < space {
            let what = format!("the output takes {space} bytes, and {free} are free");
            return refuse(ErrorKind::StorageFull, &what);
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".anamnesis-").suffix(".tmp");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // less the umask
        let temporary = builder
            .tempfile_in(&directory)
            .map_err(|e| AnamnesisError::io_at(&directory, &e))?;
        temporary
            .as_file()
            .set_len(len)
            .map_err(|e| AnamnesisError::io_at(path, &e))?;
        Ok(Self {
            temporary,
            directory,
            path: path.to_path_buf(),
            force,
        })
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        write_all_at(self.file(), offset, bytes).map_err(|e| AnamnesisError::io_at(&self.path, &e))
    }

    /// The file, to be read back.
    pub(crate) fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// Gives the file its name, durably.
    pub(crate) fn commit(self) -> Result<()> {
        let Self {
            temporary,
            directory,
            path,
            force,
        } = self;
        temporary
            .as_file()
            .sync_all()
            .map_err(|e| AnamnesisError::io_at(&path, &e))?;
        let named = if force {
            temporary.persist(&path)
        } else {
            temporary.persist_noclobber(&path)
        };
        named.map_err(|e| AnamnesisError::io_at(&path, &e.error))?;
        sync_directory(&directory);
        Ok(())
    }
}

/// The directory that `path` is in.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| *parent != Path::new(""))
        .unwrap_or(Path::new("."))
}

/// Makes names in `directory` durable. Some file systems cannot; the files are there and whole all the same.
pub(crate) fn sync_directory(directory: &Path) {
    #[cfg(unix)]
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
    #[cfg(not(unix))]
    let _ = directory;
}

/// A regular file, or a link that leads nowhere: what a rename may replace.
fn is_replaceable(there: &Metadata) -> bool {
    there.is_file() || there.is_symlink()
}

impl Sink for Vec<OutputFile> {
    fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self[file].write_at(offset, bytes)
    }
}

#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, offset) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
