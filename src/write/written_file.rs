//! [`WrittenFile`]: a file whose data is on its way to the disk while more is written.

use std::fs::File;
use std::io::{Error, Result};
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::model::Part;
use crate::source::platform::{forget_cached, write_all_at};

/// Bytes after which the data so far is sent to the disk. The system itself begins when a tenth of
/// the memory is to be written, and then stops those who write. Too short steps leave the disk idle
/// between them.
const STEP: u64 = 64 << 20;

/// A file that several threads write to, at any positions.
///
/// A sync at the end alone takes as long as the disk needs for all of the file. So another thread
/// syncs it after each [`STEP`] bytes, while the writers go on. A file that is dropped before its
/// last sync does not wait for a running one: cancelling would take as long as the disk does.
#[derive(Debug)]
pub(crate) struct WrittenFile {
    file: Arc<File>,
    /// Bytes that were written so far.
    written: AtomicU64,
    step: u64,
    sync: Mutex<LastSync>,
    /// Whether what is on the disk is to leave the system's cache.
    is_uncached: bool,
}

/// The sync that was begun last.
#[derive(Debug, Default)]
enum LastSync {
    #[default]
    None,
    Running(JoinHandle<Result<()>>),
    /// The system reports the loss of data to one sync alone, so its error is kept for the last.
    Failed(Error),
}

impl WrittenFile {
    /// `file` is empty. If `is_uncached`, nothing of it stays in the system's cache.
    pub(crate) fn new(file: File, is_uncached: bool) -> Self {
        Self { is_uncached, ..Self::with_step(file, STEP) }
    }

    fn with_step(file: File, step: u64) -> Self {
        Self {
            file: Arc::new(file),
            written: AtomicU64::new(0),
            step,
            sync: Mutex::default(),
            is_uncached: false,
        }
    }

    /// The file itself.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The file itself, to be kept.
    pub(crate) fn shared(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Writes all of `bytes` at `offset`.
    pub(crate) fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        write_all_at(&self.file, offset, bytes)?;
        self.count(bytes.len() as u64);
        Ok(())
    }

    /// Has the system copy `len` bytes of `part` from `at` on to `offset`. `false` if they have to
    /// be written.
    pub(crate) fn copy_at(&self, offset: u64, part: &Part<'_>, at: u64, len: u64) -> bool {
        let is_copied = part.copy_to(at, (&*self.file, offset), len);
        if is_copied {
            self.count(len);
        }
        is_copied
    }

    /// Counts `len` bytes that were written, and syncs the file after each step.
    fn count(&self, len: u64) {
        let before = self.written.fetch_add(len, Ordering::Relaxed);
        if before / self.step != (before + len) / self.step {
            self.begin_sync();
        }
    }

    /// Waits until all data and the length are on the disk. Nothing is written any more.
    ///
    /// # Errors
    /// This sync or one before it has failed.
    pub(crate) fn sync_all(&self) -> Result<()> {
        let last = take(&mut *self.lock());
        last.wait()?;
        self.file.sync_all()?;
        if self.is_uncached {
            forget_cached(&self.file);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, LastSync> {
        self.sync.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs the data on another thread, unless one still does so or has failed.
    fn begin_sync(&self) {
        let mut sync = self.lock();
        let is_running = matches!(&*sync, LastSync::Running(thread) if !thread.is_finished());
        if is_running {
            return;
        }
        *sync = match take(&mut *sync).wait() {
            Ok(()) => {
                let (file, is_uncached) = (self.file.clone(), self.is_uncached);
                let sync = move || {
                    file.sync_data()?;
                    if is_uncached {
                        forget_cached(&file);
                    }
                    Ok(())
                };
                let thread = thread::Builder::new().name("anamnesis-sync".to_owned());
                // Without threads the last sync does it all.
                thread.spawn(sync).map_or(LastSync::None, LastSync::Running)
            }
            Err(error) => LastSync::Failed(error),
        };
    }
}

impl LastSync {
    /// Waits for its end.
    fn wait(self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Running(thread) => match thread.join() {
                Ok(result) => result,
                Err(_) => Err(Error::other("a thread failed")),
            },
            Self::Failed(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::platform::read_exact_at;

    #[test]
    fn writers_go_on_while_data_is_synced() {
        let file = WrittenFile::with_step(tempfile::tempfile().unwrap(), 1000);
        let pieces: Vec<u8> = (0..=255).collect();
        thread::scope(|scope| {
            for first in 0..2 {
                let (file, pieces) = (&file, &pieces);
                scope.spawn(move || {
                    for i in (first..100).step_by(2) {
                        file.write_at(i * 256, pieces).unwrap();
                    }
                });
            }
        });
        file.sync_all().unwrap();
        let mut bytes = vec![0; 25_600];
        read_exact_at(file.file(), 0, &mut bytes).unwrap();
        assert!(bytes.chunks(256).all(|piece| piece == pieces));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_failure_is_kept_for_the_last_sync() {
        // The device takes all bytes, and cannot be synced.
        let device = File::options().write(true).open("/dev/null").unwrap();
        let file = WrittenFile::with_step(device, 1);
        for at in 0..3 {
            file.write_at(at, &[0]).unwrap();
            while matches!(&*file.lock(), LastSync::Running(thread) if !thread.is_finished()) {
                thread::yield_now();
            }
        }
        assert!(matches!(&*file.lock(), LastSync::Failed(_)));
        assert!(file.sync_all().is_err());
    }
}
