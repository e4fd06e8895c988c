//! Writes an edited file: to another name, or in place.
//!
//! In place, what is on the disk must be the old header or the new one, whatever happens. Disks write a
//! sector as a whole, which databases rely on (PostgreSQL's `pg_control` fits into 512 bytes for this
//! reason), and a process that is killed has written such a piece or has not. So a change within one
//! sector is written where it is. Any other takes several sectors, of which a crash could leave some:
//! then a new file is made beside the old one, synced, and renamed.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{EditOptions, EditReport, EditWritten, EditedHeader};
use crate::limits::zeroed;
use crate::source::Source;
use crate::source::inputs::Inputs;
use crate::source::lock::try_lock;
use crate::source::platform::{take_owner, write_all_at};
use crate::write::atomic::{OutputFile, OutputPlace};
use crate::{AnamnesisError, Result};

/// The least that disks write as a whole, in bytes.
const SECTOR: usize = 512;

/// Data is copied in pieces of this many bytes; between them the edit can be stopped.
const PIECE: u64 = 64 << 20;

/// Bytes that are read at once where the system does not copy by itself.
const READ: u64 = 1 << 20;

/// Writes `edited`, the new beginning of the file at `path`, as `options` ask for it.
///
/// # Errors
/// `Io` if the file has changed meanwhile, or cannot be written; `Cancelled`.
pub(super) fn write(
    source: Source,
    path: &Path,
    edited: EditedHeader,
    options: &EditOptions,
) -> Result<EditReport> {
    let EditedHeader { old, new, changes, notes } = edited;
    let data = old.len() as u64..source.len().unwrap_or(0);
    let output = options.output.as_deref().unwrap_or(path);
    let place = Place::of(path, options)?;
    let sector = changed_sector(&old, &new).filter(|_| place.is_in_place);
    let written = match sector {
        _ if place.is_in_place && old == new => EditWritten::Nothing,
        Some(_) => EditWritten::Header,
        None => EditWritten::File,
    };
    if !options.dry_run {
        if let Some(backup) = options
            .backup
            .as_deref()
            .filter(|_| written != EditWritten::Nothing)
        {
            write_backup(backup, &old, &source, options)?;
        }
        match sector {
            _ if written == EditWritten::Nothing => {}
            Some(range) => place.overwrite(&source, range.start as u64, &new[range])?,
            None => place.write_file(source, &new, data.clone(), options)?,
        }
    }
    Ok(EditReport {
        input: path.to_path_buf(),
        output: output.to_path_buf(),
        output_bytes: new.len() as u64 + (data.end - data.start),
        changes,
        written,
        notes,
    })
}

/// The bytes that differ, if all are in one sector; `None` if they are not, or none differ.
fn changed_sector(old: &[u8], new: &[u8]) -> Option<Range<usize>> {
    let differs = |(a, b): (&u8, &u8)| a != b;
    let first = old
        .iter()
        .zip(new)
        .position(differs)
        .filter(|_| old.len() == new.len())?;
    let last = old.len() - 1 - old.iter().rev().zip(new.iter().rev()).position(differs)?;
    (first / SECTOR == last / SECTOR).then_some(first..last + 1)
}

/// Where an edited file goes.
struct Place {
    /// Of a link to a file that is edited in place, that file.
    path: PathBuf,
    is_in_place: bool,
}

impl Place {
    /// The place for the edited file at `path`.
    ///
    /// # Errors
    /// `Io` if the file is named by the hash of its content, as in the caches of Hugging Face and Ollama:
    /// it would be something else than its name says.
    fn of(path: &Path, options: &EditOptions) -> Result<Self> {
        if let Some(output) = &options.output {
            return Ok(Self { path: output.clone(), is_in_place: false });
        }
        let real = path
            .canonicalize()
            .map_err(|e| AnamnesisError::io_at(path, &e))?;
        let parent = real.parent().and_then(Path::file_name);
        if parent.is_none_or(|name| name != "blobs") {
            return Ok(Self { path: real, is_in_place: true });
        }
        let what = "the file is in a cache of Hugging Face or Ollama, and is named by the hash of its content; -o OUT writes a copy";
        Err(AnamnesisError::io_at(path, &Error::new(ErrorKind::InvalidInput, what)))
    }

    fn failed(&self, error: &Error) -> AnamnesisError {
        AnamnesisError::io_at(&self.path, error)
    }

    /// Opens the file itself to be written, and locks it: of two edits at the same time one would be
    /// lost. A file that may not be written to is not replaced either.
    fn open(&self) -> Result<File> {
        let file = File::options().write(true).open(&self.path);
        let file = file.map_err(|e| self.failed(&e))?;
        // On Windows nobody could read what is locked.
        if cfg!(unix) {
            try_lock(&file, false).map_err(|e| self.failed(&e))?;
        }
        Ok(file)
    }

    /// Writes `bytes` of one sector at `offset` of the file itself, in one call.
    fn overwrite(&self, source: &Source, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.open()?;
        source.require_unchanged()?;
        let written = write_all_at(&file, offset, bytes).and_then(|()| file.sync_all());
        written.map_err(|e| self.failed(&e))
    }

    /// Makes a file of the header `new` and the tensors' `data`, and gives it its name.
    fn write_file(
        &self,
        source: Source,
        new: &[u8],
        data: Range<u64>,
        options: &EditOptions,
    ) -> Result<()> {
        let replaced = self.is_in_place.then(|| self.open()).transpose()?;
        let sources = match self.is_in_place {
            true => &[],
            false => std::slice::from_ref(&source),
        };
        let inputs = &Inputs { sources, paths: options.backup.iter().cloned().collect() };
        let space = new.len() as u64 + (data.end - data.start);
        let force = options.force || self.is_in_place;
        let place = OutputPlace { force, inputs, space, is_uncached: false };
        let file = OutputFile::create(&self.path, space, &place)?;
        file.write_at(0, new)?;
        copy_data(&source, data, &file, new.len() as u64, options)?;
        if let Some(replaced) = &replaced {
            let taken = replaced
                .metadata()
                .and_then(|there| take_owner(&there, file.file()));
            taken.map_err(|e| self.failed(&e))?;
        }
        source.require_unchanged()?;
        // Windows replaces no file that is open; elsewhere the lock is held until the end.
        drop(source);
        let _locked = replaced.filter(|_| !cfg!(windows));
        file.commit()
    }
}

/// Writes the old header to `backup`, before anything else is written.
fn write_backup(backup: &Path, old: &[u8], source: &Source, options: &EditOptions) -> Result<()> {
    let inputs = &Inputs { sources: std::slice::from_ref(source), paths: vec![] };
    let space = old.len() as u64;
    let place = OutputPlace { force: options.force, inputs, space, is_uncached: false };
    let file = OutputFile::create(backup, space, &place)?;
    file.write_at(0, old)?;
    file.commit()
}

/// Copies `data` of the source to `at` of a file.
fn copy_data(
    source: &Source,
    data: Range<u64>,
    file: &OutputFile,
    mut at: u64,
    options: &EditOptions,
) -> Result<()> {
    let mut from = data.start;
    let mut buffer = Vec::new();
    while from < data.end {
        options.cancel.check()?;
        let len = (data.end - from).min(PIECE);
        if !source.copy_to(from, (file.file(), at), len) {
            for begin in (0..len).step_by(READ as usize) {
                let n = (len - begin).min(READ) as usize;
                if buffer.len() < n {
                    buffer = zeroed(READ, "a piece of the data")?;
                }
                source.read_at(from + begin, &mut buffer[..n])?;
                file.write_at(at + begin, &buffer[..n])?;
            }
        }
        from += len;
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_sector() {
        let old = vec![0u8; 2000];
        let with = |at: &[usize]| {
            let mut new = old.clone();
            at.iter().for_each(|&at| new[at] = 1);
            changed_sector(&old, &new)
        };
        assert_eq!(with(&[]), None);
        assert_eq!(with(&[512]), Some(512..513));
        assert_eq!(with(&[512, 700, 1023]), Some(512..1024));
        assert_eq!(with(&[511, 512]), None);
        assert_eq!(with(&[1999]), Some(1999..2000));
        assert_eq!(changed_sector(&old, &old[..1999]), None);
    }
}
