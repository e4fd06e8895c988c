//! One shard of a directory, from its creation until it is durable under its name.

use std::io::Error;
use std::sync::Arc;
use std::thread;

use crate::convert::hashed::ReadBack;
use crate::convert::manifest::{FinishedShard, Manifest};
use crate::convert::unfinished::UnfinishedDirectory;
use crate::source::platform::read_exact_at;
use crate::write::Sink;
use crate::write::temporary::{Creation, Temporary};
use crate::write::written_file::WrittenFile;
use crate::{AnamnesisError, Result};

/// A shard that is being written, under the temporary name `NAME.partial`.
///
/// The shard gets its name only when its data is durable. A file under a shard's name is therefore
/// whole, unless somebody else has changed it.
pub(super) struct ShardFile {
    file: WrittenFile,
    directory: Arc<UnfinishedDirectory>,
    temporary: String,
    name: String,
    /// Removes the temporary file after a panic.
    _removed_at_panic: Temporary,
}

impl ShardFile {
    /// Creates the temporary file for the shard `name` in `directory`, `len` bytes long. If
    /// `is_uncached`, nothing of it stays in the system's cache. What an interrupted run left under
    /// the temporary name is removed: nothing says how much of it was written.
    ///
    /// # Errors
    /// `Io` if the file cannot be created or extended.
    pub(super) fn create(
        directory: &Arc<UnfinishedDirectory>,
        name: &str,
        len: u64,
        is_uncached: bool,
    ) -> Result<Self> {
        let temporary = format!("{name}.partial");
        let path = directory.path().join(&temporary);
        let creation = Creation::begin();
        let file = directory.handle().create_anew(temporary.as_ref(), false);
        let file = file.map_err(|e| AnamnesisError::io_at(&path, &e))?;
        let file = WrittenFile::new(file, is_uncached);
        let (theirs, written, written_name) = (directory.clone(), file.shared(), temporary.clone());
        let removed_at_panic = creation.end(move || {
            let _ = theirs
                .handle()
                .remove_written(&written, written_name.as_ref());
        });
        let shard = Self {
            file,
            directory: directory.clone(),
            temporary,
            name: name.to_owned(),
            _removed_at_panic: removed_at_panic,
        };
        let extended = shard.file.file().set_len(len);
        extended.map_err(|e| AnamnesisError::io_at(&path, &e))?;
        Ok(shard)
    }

    /// Syncs the data and renames the file to the shard's name. The rename itself is durable once
    /// the directory is synced, which [`Manifest::write`] does when it records the shard.
    fn commit(&self) -> Result<()> {
        let directory = self.directory.handle();
        let (temporary, name) = (self.temporary.as_ref(), self.name.as_ref());
        let rename = || directory.rename_written(self.file.file(), temporary, name);
        let named = self.file.sync_all().and_then(|()| rename());
        named.map_err(|e| AnamnesisError::io_at(&self.directory.path().join(&self.name), &e))
    }
}

/// A shard that was not committed is removed: nothing says how much of it was written, and it takes
/// its whole length.
impl Drop for ShardFile {
    fn drop(&mut self) {
        let directory = self.directory.handle();
        let _ = directory.remove_written(self.file.file(), self.temporary.as_ref());
    }
}

impl Sink for ShardFile {
    fn write_at(&self, _file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let failed = |e| AnamnesisError::io_at(&self.directory.path().join(&self.temporary), &e);
        self.file.write_at(offset, bytes).map_err(failed)
    }

    fn written_file(&self, _file: usize) -> Option<&WrittenFile> {
        Some(&self.file)
    }
}

impl ReadBack for ShardFile {
    fn read_back(&self, _file: usize, offset: u64, bytes: &mut [u8]) -> Result<()> {
        Ok(read_exact_at(self.file.file(), offset, bytes)?)
    }
}

/// A shard that a thread of its own commits.
///
/// Syncing a shard of several GB takes as long as the disk needs to write it. The workers decode
/// the next shard meanwhile, so neither the CPU nor the disk waits for the other.
pub(super) struct ShardCommit {
    finished: FinishedShard,
    shard: Arc<ShardFile>,
    /// `None` if no thread could be started.
    thread: Option<thread::JoinHandle<Result<()>>>,
}

impl ShardCommit {
    /// Starts to commit `shard`, whose bytes are all written and have the checksum `crc`.
    pub(super) fn start(shard: ShardFile, crc: u32) -> Self {
        let shard = Arc::new(shard);
        let theirs = shard.clone();
        let thread = thread::Builder::new().name("anamnesis-sync".to_owned());
        Self {
            finished: FinishedShard { name: shard.name.clone(), crc },
            thread: thread.spawn(move || theirs.commit()).ok(),
            shard,
        }
    }

    /// Waits until the shard is durable, and records it as finished in the manifest, which has the
    /// name `record`.
    ///
    /// # Errors
    /// `Io` if the shard cannot be synced or renamed, or the manifest cannot be written.
    pub(super) fn wait(self, manifest: &mut Manifest, record: &str) -> Result<()> {
        let failed = |_| AnamnesisError::Io(Error::other("a thread failed"));
        match self.thread {
            Some(thread) => thread.join().map_err(failed)??,
            None => self.shard.commit()?,
        }
        // Only now: a manifest must never name a shard that a crash could still lose.
        manifest.add_finished(self.finished);
        manifest.write(&self.shard.directory, record)
    }
}
