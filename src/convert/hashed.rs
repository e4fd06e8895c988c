//! SHA-256 of output files, computed while they are written.
//!
//! SHA-256 has to see the bytes of a file in order, and jobs write them in any order. Whoever
//! writes the next bytes in order hashes them, and then the bytes behind them that others have
//! written meanwhile, which are read back: they were written a moment ago, and the system still has
//! them in memory. One thread hashes at a time, and no thread waits for it. To keep the bytes
//! instead would take the memory of whatever the other threads write in that time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::plan::Plan;
use super::report::FileSum;
use crate::source::platform::read_exact_at;
use crate::source::{FileHasher, sha256_of_file};
use crate::write::Sink;
use crate::write::atomic::OutputFile;
use crate::{AnamnesisError, CancelToken, Result};

/// Bytes that are read back at once.
const PIECE_BYTES: u64 = 256 << 10;

/// A [`Sink`] whose bytes can be read back.
pub(super) trait ReadBack: Sink {
    /// Reads the bytes at `offset` of file number `file`, which have been written.
    fn read_back(&self, file: usize, offset: u64, bytes: &mut [u8]) -> Result<()>;
}

impl ReadBack for Vec<OutputFile> {
    fn read_back(&self, file: usize, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(read_exact_at(self[file].file(), offset, bytes)?)
    }
}

/// Writes to another sink and hashes the files from file `first` on.
pub(super) struct HashingSink<'a> {
    sink: &'a dyn ReadBack,
    first: usize,
    files: Vec<FileDigest>,
    cancel: &'a CancelToken,
}

/// The digest of a file that is being written.
struct FileDigest {
    len: u64,
    written: Mutex<Written>,
    hashed: Mutex<Hashed>,
}

/// What has been written of a file.
struct Written {
    /// Everything before this offset.
    end: u64,
    /// Beginning and end of what is written behind, with something missing between any two.
    behind: BTreeMap<u64, u64>,
}

/// What has been hashed of a file: everything before `at`.
struct Hashed {
    at: u64,
    hasher: FileHasher,
    buffer: Vec<u8>,
}

impl<'a> HashingSink<'a> {
    /// Hashes the files `first..` of `plan`, as many as `count`, whose bytes beside the tensors'
    /// data are in `sink` already.
    ///
    /// # Errors
    /// `Unsupported` in a build without SHA-256.
    pub(super) fn new(
        sink: &'a dyn ReadBack,
        plan: &Plan<'_>,
        (first, count): (usize, usize),
        cancel: &'a CancelToken,
    ) -> Result<Self> {
        let files = (first..first + count).map(|file| FileDigest::new(plan, file));
        Ok(Self { sink, first, files: files.collect::<Result<_>>()?, cancel })
    }

    /// The sums of the files in hexadecimal digits, once everything is written.
    ///
    /// # Errors
    /// `Io` if a file cannot be read back; `Cancelled`.
    pub(super) fn finish(self) -> Result<Vec<String>> {
        for (i, digest) in self.files.iter().enumerate() {
            let mut hashed = lock(&digest.hashed);
            // Behind the patches of headers, if there are some, and then it is the whole file.
            lock(&digest.written).end = digest.len;
            self.catch_up(self.first + i, digest, &mut hashed)?;
        }
        let digests = self.files.into_iter().map(|digest| digest.hashed);
        let hashed =
            digests.map(|hashed| hashed.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(hashed.map(|hashed| hashed.hasher.finish()).collect())
    }

    /// Hashes all bytes up to the first that is not written.
    fn catch_up(&self, file: usize, digest: &FileDigest, hashed: &mut Hashed) -> Result<()> {
        loop {
            let end = lock(&digest.written).end;
            let len = PIECE_BYTES.min(end.saturating_sub(hashed.at)) as usize;
            if len == 0 {
                return Ok(());
            }
            self.cancel.check()?;
            hashed.buffer.resize(len, 0);
            self.sink.read_back(file, hashed.at, &mut hashed.buffer)?;
            hashed.hasher.update(&hashed.buffer);
            hashed.at += len as u64;
        }
    }
}

impl Sink for HashingSink<'_> {
    fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.sink.write_at(file, offset, bytes)?;
        let digest = &self.files[file - self.first];
        lock(&digest.written).add(offset, bytes.len() as u64)?;
        let mut hashed = match digest.hashed.try_lock() {
            Ok(hashed) => hashed,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The thread that has it comes to these bytes, or the next that writes does, or
            // `finish`.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        if hashed.at == offset && lock(&digest.written).end > offset {
            hashed.hasher.update(bytes);
            hashed.at += bytes.len() as u64;
        }
        self.catch_up(file, digest, &mut hashed)
    }
}

impl FileDigest {
    fn new(plan: &Plan<'_>, file: usize) -> Result<Self> {
        let (planned, outputs) = (&plan.files[file], &plan.outputs[plan.outputs_of(file)]);
        let mut written = Written { end: 0, behind: BTreeMap::new() };
        // A header that is patched at the end is hashed at the end, and with it all that lies
        // behind.
        if outputs.iter().all(|output| output.place.patch.is_none()) {
            let data = outputs
                .iter()
                .map(|output| (output.place.offset, output.len));
            let mut data: Vec<_> = data.filter(|(_, len)| *len > 0).collect();
            data.sort_unstable();
            data.push((planned.len, 0));
            let mut end = 0;
            for (at, len) in data {
                written.add(end, at.saturating_sub(end))?;
                end = at + len;
            }
        }
        Ok(Self {
            len: planned.len,
            written: Mutex::new(written),
            hashed: Mutex::new(Hashed { at: 0, hasher: FileHasher::new()?, buffer: Vec::new() }),
        })
    }
}

impl Written {
    /// Adds `len` bytes at `at`.
    ///
    /// # Errors
    /// `Io` if a byte among them was written before: it may have been hashed, and the sum would be
    /// wrong.
    fn add(&mut self, at: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (mut from, mut to) = (at, at + len);
        let before = self.behind.range(..=at).next_back().map(|(&a, &b)| (a, b));
        let after = self.behind.range(at..).next().map(|(&a, &b)| (a, b));
        let is_again = at < self.end
            || before.is_some_and(|(_, end)| end > at)
            || after.is_some_and(|(start, _)| start < to);
        if is_again {
            let what = format!("the bytes at {at} of the output were written twice");
            return Err(AnamnesisError::Io(std::io::Error::other(what)));
        }
        if let Some((start, _)) = before.filter(|(_, end)| *end == at) {
            self.behind.remove(&start);
            from = start;
        }
        if let Some((start, end)) = after.filter(|(start, _)| *start == to) {
            self.behind.remove(&start);
            to = end;
        }
        match from == self.end {
            true => self.end = to,
            false => drop(self.behind.insert(from, to)),
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sums of all files in the finished directory `output` and below it, sorted by path. Those in
/// `known`, which were computed before, are not read again.
///
/// # Errors
/// `Io` if a file cannot be read; `Cancelled`.
pub(crate) fn sums_of_directory(
    output: &Path,
    known: Vec<FileSum>,
    cancel: &CancelToken,
) -> Result<Vec<FileSum>> {
    let (mut files, mut buffer) = (Vec::new(), Vec::new());
    add_files(output, &mut files)?;
    let mut sums: BTreeMap<PathBuf, String> = known
        .into_iter()
        .map(|sum| (sum.file, sum.sha256))
        .collect();
    for file in files {
        if let Entry::Vacant(sum) = sums.entry(file) {
            let sha256 = sha256_of_file(sum.key(), &mut buffer, &mut |_| cancel.check())?;
            sum.insert(sha256);
        }
    }
    let sums = sums.into_iter();
    Ok(sums
        .map(|(file, sha256)| FileSum { file, sha256 })
        .collect())
}

/// Adds the files in `directory` and below. Outputs have no links.
fn add_files(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |e: std::io::Error| AnamnesisError::io_at(directory, &e);
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        match (kind.is_dir(), kind.is_file()) {
            (true, _) => add_files(&entry.path(), files)?,
            (_, true) => files.push(entry.path()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order() {
        let pieces = [(3, 2), (7, 1), (0, 3), (5, 2), (9, 1), (8, 1)];
        let mut written = Written { end: 0, behind: BTreeMap::new() };
        for (at, len) in pieces {
            written.add(at, len).unwrap();
            for again in [(at, 1), (at + len - 1, 4)] {
                assert!(written.add(again.0, again.1).is_err(), "{again:?}");
            }
        }
        assert_eq!((written.end, written.behind.len()), (10, 0));
    }
}
