//! [`ChunkPool`]: the memory of stored rows that were read ahead, which follow each other in it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory of rectangles that follow each other.
#[derive(Debug)]
pub(crate) struct ChunkPool {
    /// Bytes of the chunks that are in use at most, before what is needed at once.
    most: usize,
    free: Mutex<FreeChunks>,
    /// Bytes of the chunks that are in use.
    pub(super) in_use: AtomicUsize,
}

/// Chunks of one length that nobody uses.
#[derive(Debug, Default)]
struct FreeChunks {
    len: usize,
    chunks: Vec<Vec<u8>>,
}

impl ChunkPool {
    /// A pool for `most` bytes.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            free: Mutex::default(),
            in_use: AtomicUsize::new(0),
        })
    }

    fn free(&self) -> MutexGuard<'_, FreeChunks> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chunks have `len` bytes from now on. Those of another length are given back to the system.
    pub(super) fn begin(&self, len: usize) {
        let mut free = self.free();
        if free.len != len {
            *free = FreeChunks {
                len,
                chunks: Vec::new(),
            };
        }
    }

    /// Whether `bytes` more may be in use.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.in_use.load(Ordering::Relaxed).saturating_add(bytes) <= self.most
    }

    /// A chunk of `len` bytes of any value.
    pub(super) fn chunk(self: &Arc<Self>, len: usize) -> Chunk {
        self.in_use.fetch_add(len, Ordering::Relaxed);
        let mut free = self.free();
        let bytes = match free.len == len {
            true => free.chunks.pop(),
            false => None,
        };
        drop(free);
        Chunk {
            bytes: bytes.unwrap_or_else(|| vec![0; len]),
            pool: Arc::clone(self),
        }
    }
}

/// Memory that goes back to its pool when it is dropped.
#[derive(Debug)]
pub(super) struct Chunk {
    pub bytes: Vec<u8>,
    pool: Arc<ChunkPool>,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.in_use.fetch_sub(bytes.len(), Ordering::Relaxed);
        let mut free = self.pool.free();
        if free.len == bytes.len() {
            free.chunks.push(bytes);
        }
    }
}
