//! [`AheadSlot`]: which stored rows the jobs of an output file read together; see [`ReadAhead`].

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::output::Job;
use crate::Result;
use crate::scheme::{Buffers, Decode, ReadAhead, StoredRectangle, Tile};

/// What the jobs of one output file read together, one rectangle at a time.
///
/// A job that comes to the next rectangle waits until all have loaded from the one before. So it waits for lower jobs alone,
/// which wait for nobody.
pub(super) struct AheadSlot {
    /// The threads that work on the file, and the files that they share.
    threads: usize,
    files: usize,
    shared: RwLock<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The rectangle that is read; `None` before the first.
    begun: Option<RectangleId>,
    ahead: Arc<ReadAhead>,
}

/// The job of the first tile that takes from a rectangle. Later rectangles compare greater.
type RectangleId = usize;

impl AheadSlot {
    /// For one of `files` output files that `threads` threads write side by side.
    pub(super) fn new(threads: usize, files: usize) -> Self {
        Self {
            threads,
            files,
            shared: RwLock::default(),
        }
    }

    /// For the jobs of one thread.
    pub(super) fn of_thread() -> Self {
        Self::new(1, 1)
    }

    /// Loads `tile`, which is that of `job`, into `buffers`. What other jobs take of the same stored rows is read along, with the threads that
    /// have come to them.
    ///
    /// # Errors
    /// Those of [`Decode::load`].
    pub(super) fn load(
        &self,
        (decoder, tile): (&dyn Decode, &Tile),
        job: &Job<'_, '_>,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let shared = self.share(decoder, job);
        buffers.ahead = shared.as_ref().map(|shared| Arc::clone(&shared.ahead));
        let loaded = decoder.load(tile, buffers);
        // Given back before the lock, so that nobody has it when the next rectangle begins.
        buffers.ahead = None;
        drop(shared);
        loaded
    }

    /// Reads what the tile of `job` is decoded from, and what others take of the same stored rows. `None` if the tile has to read
    /// for itself.
    fn share(
        &self,
        decoder: &dyn Decode,
        job: &Job<'_, '_>,
    ) -> Option<RwLockReadGuard<'_, Shared>> {
        let (tiles, cut) = (self.tiles_together(decoder, job)?, &job.output().cut);
        let rows = cut.tile(tiles.start).rows.start..cut.tile(tiles.end - 1).rows.end;
        let wanted = decoder.stored_codes(&rows)?;
        if wanted.part.is_in_memory() {
            return None;
        }
        let id = job.number - job.no + tiles.start;
        let mut shared = self.begun(id);
        if shared.is_none() {
            self.begin(id, &wanted);
            shared = self.begun(id);
        }
        let shared = shared?;
        shared.ahead.fill(&wanted);
        Some(shared)
    }

    /// What is shared, if it is the rectangle `id`.
    fn begun(&self, id: RectangleId) -> Option<RwLockReadGuard<'_, Shared>> {
        let shared = self.shared.read().unwrap_or_else(PoisonError::into_inner);
        (shared.begun == Some(id)).then_some(shared)
    }

    /// Begins the rectangle `wanted`, unless it or a later one is begun: a thread can be late with the last job of a rectangle.
    fn begin(&self, id: RectangleId, wanted: &StoredRectangle<'_>) {
        let mut shared = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        if shared.begun >= Some(id) {
            return;
        }
        let Shared { begun, ahead } = &mut *shared;
        if let Some(ahead) = Arc::get_mut(ahead) {
            ahead.begin(wanted);
            *begun = Some(id);
        }
    }

    /// The tiles whose stored rows are read together with those of the tile of `job`; `None` if it reads alone.
    fn tiles_together(&self, decoder: &dyn Decode, job: &Job<'_, '_>) -> Option<Range<usize>> {
        let cut = &job.output().cut;
        if cut.together <= 1 {
            return None;
        }
        // The files that are in flight share the memory of all threads.
        let most = cut.together.saturating_mul(self.threads) / self.files.max(1);
        let matrix_rows = decoder.grid().transposed?.matrix_rows.min(cut.rows);
        let of_matrix = matrix_rows.div_ceil(cut.tile_rows);
        let is_whole = matrix_rows == cut.rows || matrix_rows.is_multiple_of(cut.tile_rows);
        let most = most.max(cut.together).min(of_matrix);
        if !is_whole || most <= 1 {
            return None;
        }
        // Rectangles of about one height.
        let together = of_matrix.div_ceil(of_matrix.div_ceil(most));
        let matrix = job.no / of_matrix * of_matrix;
        let start = matrix + (job.no - matrix) / together * together;
        let end = (start + together).min(matrix + of_matrix);
        let tiles = start.max(job.of_tensor.start)..end.min(job.of_tensor.end);
        (tiles.len() > 1).then_some(tiles)
    }
}
