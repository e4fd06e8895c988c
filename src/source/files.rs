//! Open files: one for good, or as many as are needed of a model in a thousand files.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Files of a pool that are open at a time. Systems allow a process 256 and more.
const OPEN: usize = 64;

/// A file to read from.
#[derive(Debug, Clone)]
pub(crate) enum FileHandle {
    Open(Arc<File>),
    /// Opened when it is read, and closed when others are read instead.
    Pooled(Arc<PooledFile>),
}

/// A file of a pool.
#[derive(Debug)]
pub(crate) struct PooledFile {
    path: PathBuf,
    len: u64,
    number: usize,
    pool: Arc<FilePool>,
}

/// The files of one model, of which few are open.
#[derive(Debug, Default)]
pub(crate) struct FilePool(Mutex<VecDeque<(usize, Arc<File>)>>);

impl FileHandle {
    pub(super) fn get(&self) -> io::Result<Arc<File>> {
        match self {
            Self::Open(file) => Ok(file.clone()),
            Self::Pooled(file) => file.get(),
        }
    }

    /// File `number` of `pool`, which is open now and was found to have `len` bytes.
    pub(super) fn pooled(
        pool: &Arc<FilePool>,
        number: usize,
        path: &Path,
        file: File,
        len: u64,
    ) -> Self {
        pool.keep(number, &Arc::new(file));
        Self::Pooled(Arc::new(PooledFile {
            path: path.to_path_buf(),
            len,
            number,
            pool: pool.clone(),
        }))
    }
}

impl PooledFile {
    fn get(&self) -> io::Result<Arc<File>> {
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
        if file.metadata()?.len() != self.len {
            let what = format!(
                "{}: the file has changed since it was parsed",
                self.path.display()
            );
            return Err(io::Error::other(what));
        }
        self.pool.keep(self.number, &file);
        Ok(file)
    }
}

impl FilePool {
    /// The file that was opened first goes; whoever still reads it has it open.
    fn keep(&self, number: usize, file: &Arc<File>) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if files.iter().any(|(other, _)| *other == number) {
            return;
        }
        if files.len() == OPEN {
            files.pop_front();
        }
        files.push_back((number, file.clone()));
    }
}
