//! [`FileHandle`]: a file that stays open, or one of a [`FilePool`], which bounds how many files of
//! a sharded model are open at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::state::FileState;

/// Most files of a pool that are open at a time. Systems allow a process at least 256.
const MAX_OPEN: usize = 64;

/// A file to read from.
#[derive(Debug, Clone)]
pub(crate) enum FileHandle {
    Open(Arc<File>),
    /// A file of a pool: opened when it is read, closed when other files of the pool are read
    /// instead.
    Pooled(Arc<PooledFile>),
}

/// A file of a pool.
#[derive(Debug)]
pub(crate) struct PooledFile {
    path: PathBuf,
    /// State when the file was parsed. A reopened file must still have it.
    state: FileState,
    number: usize,
    pool: Arc<FilePool>,
}

/// The open files of one sharded model, each with its number, in the order of their opening.
#[derive(Debug, Default)]
pub(crate) struct FilePool(Mutex<VecDeque<(usize, Arc<File>)>>);

impl FileHandle {
    pub(super) fn get(&self) -> io::Result<Arc<File>> {
        match self {
            Self::Open(file) => Ok(file.clone()),
            Self::Pooled(file) => file.get(),
        }
    }

    /// Adds `file`, which is open and in state `state`, to `pool` under `number`.
    pub(super) fn pooled(
        pool: &Arc<FilePool>,
        number: usize,
        path: &Path,
        file: File,
        state: FileState,
    ) -> Self {
        pool.keep(number, &Arc::new(file));
        Self::Pooled(Arc::new(PooledFile {
            path: path.to_path_buf(),
            state,
            number,
            pool: pool.clone(),
        }))
    }
}

impl PooledFile {
    fn get(&self) -> io::Result<Arc<File>> {
        // The lock is held for the look-up alone, so that no thread waits for another's `open`.
        let found = {
            let files = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
            files
                .iter()
                .find(|(number, _)| *number == self.number)
                .map(|(_, file)| file.clone())
        };
        if let Some(file) = found {
            return Ok(file);
        }
        let file = Arc::new(File::open(&self.path)?);
        let now = FileState::of(&file.metadata()?);
        self.state.require(&now, &self.path)?;
        self.pool.keep(self.number, &file);
        Ok(file)
    }
}

impl FilePool {
    /// Adds an open file, unless another thread has opened it meanwhile. A full pool drops the file
    /// that was opened first; a reader that still uses it holds an `Arc` of its own.
    fn keep(&self, number: usize, file: &Arc<File>) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if files.iter().any(|(other, _)| *other == number) {
            return;
        }
        if files.len() == MAX_OPEN {
            files.pop_front();
        }
        files.push_back((number, file.clone()));
    }
}
