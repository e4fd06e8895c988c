//! [`AheadSlot`]: which stored rows the jobs of an output file read together; see [`ReadAhead`].

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::cut::Cut;
use super::output::{Job, Output, ValueSource};
use crate::Result;
use crate::scheme::{Buffers, Decode, ReadAhead, StoredRectangle, Tile};

/// Bytes of the shortest pieces of stored rows in a rectangle beside which the next one is in memory. Two rectangles in the memory
/// of one have pieces half as long, which take twice the reads; where pieces are shorter, the reads cost more than is gained.
const MIN_PIECE: usize = 768;

/// Outputs behind that of a job that are looked through for the rectangle that is read next.
const MOST_SKIPPED: usize = 16;

/// What the jobs of one output file read together, one rectangle at a time.
///
/// The system lets one thread at a time write to a file. If all threads read a whole rectangle first, nobody would write meanwhile,
/// and then they would wait for each other. So each job of a rectangle reads a share of the next one, if both fit the memory.
///
/// A job that comes to the next rectangle waits until all have loaded from one before. So it waits for lower jobs alone,
/// which wait for nobody.
pub(super) struct AheadSlot {
    /// The threads that work on the file, and the files that they share.
    threads: usize,
    files: usize,
    /// The rectangle that is taken from, and the next one.
    shared: [RwLock<Shared>; 2],
}

#[derive(Default)]
struct Shared {
    /// The rectangle that is read; `None` before the first.
    begun: Option<RectangleId>,
    ahead: Arc<ReadAhead>,
}

impl Shared {
    /// Begins the rectangle of `together`, unless it or a later one is begun.
    fn begin(&mut self, together: &Together<'_>) {
        if self.begun >= Some(together.id) {
            return;
        }
        if let Some(ahead) = Arc::get_mut(&mut self.ahead) {
            ahead.begin(&together.wanted);
            self.begun = Some(together.id);
        }
    }
}

/// The job of the first tile that takes from a rectangle. Later rectangles compare greater.
type RectangleId = usize;

/// Tiles whose stored rows are read together.
struct Together<'a> {
    id: RectangleId,
    /// The tiles of the tensor.
    tiles: Range<usize>,
    wanted: StoredRectangle<'a>,
    /// Whether the next rectangle may be in memory beside this one.
    has_neighbour: bool,
}

impl AheadSlot {
    /// For one of `files` output files that `threads` threads write side by side.
    pub(super) fn new(threads: usize, files: usize) -> Self {
        Self {
            threads,
            files,
            shared: Default::default(),
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
        let first = job.number - job.no;
        let together = self.together((decoder, job.output()), &job.of_tensor, job.no, first);
        let shared = together.as_ref().and_then(|together| self.share(together));
        buffers.ahead = shared.as_ref().map(|shared| Arc::clone(&shared.ahead));
        let loaded = decoder.load(tile, buffers);
        // Given back before the lock, so that nobody has it when the next rectangle begins.
        buffers.ahead = None;
        drop(shared);
        if let Some(together) = together.filter(|together| together.has_neighbour) {
            self.fill_next(decoder, job, &together);
        }
        loaded
    }

    /// Reads all of a rectangle that other threads do not read. `None` if its tiles have to read for themselves.
    fn share(&self, together: &Together<'_>) -> Option<RwLockReadGuard<'_, Shared>> {
        let shared = self.begun(together.id).or_else(|| {
            self.begin(together, true);
            self.begun(together.id)
        })?;
        shared.ahead.fill(&together.wanted, (1, 1));
        Some(shared)
    }

    /// Reads the share of `job` of the rectangle behind `together`, its own: all jobs with tiles there read all of it.
    fn fill_next(&self, decoder: &dyn Decode, job: &Job<'_, '_>, together: &Together<'_>) {
        let Some(next) = self.next(decoder, job, together) else {
            return;
        };
        let shared = self.begun(next.id).or_else(|| {
            self.begin(&next, false);
            self.begun(next.id)
        });
        if let Some(shared) = shared {
            let share = (job.no + 1 - together.tiles.start, together.tiles.len());
            shared.ahead.fill(&next.wanted, share);
        }
    }

    /// The rectangle behind `together`, of the same tensor or one behind it, if it may be in memory as well.
    fn next<'a>(
        &self,
        decoder: &'a dyn Decode,
        job: &'a Job<'_, '_>,
        together: &Together<'_>,
    ) -> Option<Together<'a>> {
        let (no, mut first) = (together.tiles.end, job.number - job.no);
        if no < job.of_tensor.end {
            let next = self.together((decoder, job.output()), &job.of_tensor, no, first);
            return next.filter(|next| next.has_neighbour);
        }
        let mut jobs = job.output().body.jobs(&job.output().cut);
        if no < jobs {
            return None;
        }
        let file = job.output().place.file;
        // There are as many checksums as the run makes tensors.
        let made = job.outputs.iter().zip(job.checksums).skip(1);
        for (output, _) in made.take(MOST_SKIPPED) {
            first += jobs;
            jobs = output.body.jobs(&output.cut);
            if output.place.file != file {
                return None;
            }
            if let ValueSource::Decoded(decoder, _) = output.body.values()
                && let Some(next) = self.together((decoder, output), &(0..jobs), 0, first)
            {
                return Some(next).filter(|next| next.has_neighbour);
            }
        }
        None
    }

    /// What is shared, if it is the rectangle `id`.
    fn begun(&self, id: RectangleId) -> Option<RwLockReadGuard<'_, Shared>> {
        let shared = self.shared.iter().map(read);
        shared.into_iter().find(|shared| shared.begun == Some(id))
    }

    /// Begins the rectangle of `together` in the place of the earlier one, unless both are later: a thread can be late with the
    /// last job of a rectangle. Waits until all have loaded from the earlier one, or does nothing if `waits` is false.
    fn begin(&self, together: &Together<'_>, waits: bool) {
        if !together.has_neighbour {
            return self.begin_alone(together);
        }
        let begun = |shared: &RwLock<Shared>| read(shared).begun;
        let [first, second] = self.shared.each_ref().map(begun);
        let (earlier, place) = match first <= second {
            true => (first, &self.shared[0]),
            false => (second, &self.shared[1]),
        };
        let place = match waits {
            true => Some(write(place)),
            false => place.try_write().ok(),
        };
        // Another thread may have begun a rectangle there meanwhile.
        if let Some(mut place) = place.filter(|place| place.begun == earlier) {
            place.begin(together);
        }
    }

    /// Begins the rectangle of `together` in the place of both, unless it or a later one is begun.
    fn begin_alone(&self, together: &Together<'_>) {
        // Nobody else has both locks at once, so their order is without danger.
        let [mut first, mut second] = self.shared.each_ref().map(write);
        if second.begun < Some(together.id) {
            first.begin(together);
            *second = Shared::default();
        }
    }

    /// What tile `no` of `output` is read with, whose first job is job `first` of the plan and whose jobs `jobs` the lane has.
    /// `None` if it reads alone.
    fn together<'a>(
        &self,
        (decoder, output): (&'a dyn Decode, &Output<'_>),
        jobs: &Range<usize>,
        no: usize,
        first: usize,
    ) -> Option<Together<'a>> {
        let cut = &output.cut;
        if cut.shared_bytes == 0 || jobs.is_empty() {
            return None;
        }
        // The files that are in flight share the memory of all threads.
        let most = (cut.together(self.threads) / self.files.max(1)).max(cut.together(1));
        let rectangle = |most| {
            let tiles = tiles_around(no, most, (decoder, cut))?;
            let tiles = tiles.start.max(jobs.start)..tiles.end.min(jobs.end);
            let rows = cut.tile(tiles.start).rows.start..cut.tile(tiles.end - 1).rows.end;
            Some((tiles, decoder.stored_codes(&rows)?))
        };
        let half = rectangle(most / 2)?;
        // A thread that has a file for itself waits for nobody.
        let has_neighbour =
            self.threads > self.files && half.1.bytes.len() >= MIN_PIECE && half.0.len() > 1;
        let (tiles, wanted) = match has_neighbour {
            true => half,
            false => rectangle(most)?,
        };
        let is_shared = tiles.len() > 1 && !wanted.part.is_in_memory();
        is_shared.then(|| Together {
            id: first + tiles.start,
            tiles,
            wanted,
            has_neighbour,
        })
    }
}

/// Tiles of the matrix of tile `no` that are read with it, about `most` of them. `None` if tiles have rows of several matrices.
fn tiles_around(
    no: usize,
    most: usize,
    (decoder, cut): (&dyn Decode, &Cut),
) -> Option<Range<usize>> {
    let matrix_rows = decoder.grid().transposed?.matrix_rows.min(cut.rows);
    if matrix_rows != cut.rows && !matrix_rows.is_multiple_of(cut.tile_rows) {
        return None;
    }
    let of_matrix = matrix_rows.div_ceil(cut.tile_rows);
    // Rectangles of about one height.
    let tiles = of_matrix.div_ceil(of_matrix.div_ceil(most.clamp(1, of_matrix)));
    let matrix = no / of_matrix * of_matrix;
    let start = matrix + (no - matrix) / tiles * tiles;
    Some(start..(start + tiles).min(matrix + of_matrix))
}

fn read(shared: &RwLock<Shared>) -> RwLockReadGuard<'_, Shared> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(shared: &RwLock<Shared>) -> RwLockWriteGuard<'_, Shared> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}
