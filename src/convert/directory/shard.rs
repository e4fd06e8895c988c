//! One shard of a directory, from its creation until it is durable under its name.

use std::fs::{File, OpenOptions};
use std::io::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use crate::containers::write::Sink;
use crate::convert::manifest::Manifest;
use crate::source::platform::write_all_at;
use crate::{AnamnesisError, Result};

/// A shard that is being written, under the temporary name `NAME.partial`.
///
/// The shard gets its name only when its data is durable. A file under a shard's name is therefore whole, unless somebody
/// else has changed it.
pub(super) struct ShardFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl ShardFile {
    /// Creates the temporary file for the shard `path`, `len` bytes long. What an interrupted run left under the temporary
    /// name is overwritten: nothing says how much of it was written.
    ///
    /// # Errors
    /// `Io` if the file cannot be created or extended.
    pub(super) fn create(path: &Path, len: u64) -> Result<Self> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".partial");
        let temporary = PathBuf::from(temporary);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary);
        let shard = Self {
            file: file.map_err(|e| AnamnesisError::io_at(&temporary, &e))?,
            temporary,
            path: path.to_path_buf(),
        };
        let extended = shard.file.set_len(len);
        extended.map_err(|e| AnamnesisError::io_at(&shard.temporary, &e))?;
        Ok(shard)
    }

    /// Syncs the data and renames the file to the shard's name. The rename itself is durable once the directory is synced,
    /// which [`Manifest::write`] does when it records the shard.
    fn commit(&self) -> Result<()> {
        let named = self
            .file
            .sync_all()
            .and_then(|()| std::fs::rename(&self.temporary, &self.path));
        named.map_err(|e| AnamnesisError::io_at(&self.path, &e))
    }
}

/// A shard that was not committed is removed: nothing says how much of it was written, and it takes its whole length.
impl Drop for ShardFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.temporary);
    }
}

impl Sink for ShardFile {
    fn write_at(&self, _file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        write_all_at(&self.file, offset, bytes)
            .map_err(|e| AnamnesisError::io_at(&self.temporary, &e))
    }
}

/// A shard that a thread of its own commits.
///
/// Syncing a shard of several GB takes as long as the disk needs to write it. The workers decode the next shard meanwhile,
/// so neither the CPU nor the disk waits for the other.
pub(super) struct ShardCommit {
    name: String,
    shard: Arc<ShardFile>,
    /// `None` if no thread could be started.
    thread: Option<thread::JoinHandle<Result<()>>>,
}

impl ShardCommit {
    /// Starts to commit `shard`, whose bytes are all written. `name` is its name in the manifest.
    pub(super) fn start(shard: ShardFile, name: String) -> Self {
        let shard = Arc::new(shard);
        let theirs = shard.clone();
        let thread = thread::Builder::new().name("anamnesis-sync".to_owned());
        Self {
            name,
            thread: thread.spawn(move || theirs.commit()).ok(),
            shard,
        }
    }

    /// Waits until the shard is durable, and records it as finished in the manifest at `path`.
    ///
    /// # Errors
    /// `Io` if the shard cannot be synced or renamed, or the manifest cannot be written.
    pub(super) fn wait(self, manifest: &mut Manifest, path: &Path) -> Result<()> {
        let failed = |_| AnamnesisError::Io(Error::other("a thread failed"));
        match self.thread {
            Some(thread) => thread.join().map_err(failed)??,
            None => self.shard.commit()?,
        }
        // Only now: a manifest must never name a shard that a crash could still lose.
        manifest.finished.push(self.name);
        manifest.write(path)
    }
}
