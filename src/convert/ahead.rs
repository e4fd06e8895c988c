//! [`AheadSlot`]: which stored rows the jobs of an output file read together; see [`ReadAhead`].

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::cut::Cut;
use crate::Result;
use crate::remember::{BlockPool, Buffers, Decode, ReadAhead, StoredRectangle};

/// The first rectangle of a file has a third of the usual tiles, because no thread can write while
/// it is read.
const FIRST_SHARE: usize = 3;

/// What the jobs of one output file read together: one rectangle at a time, and the next one.
///
/// The system lets one thread at a time write to a file. If all threads read a whole rectangle
/// first, nobody would write meanwhile, and then they would wait for each other. So each job of a
/// rectangle reads a share of the next one, into the memory that its own tile took before.
///
/// A job that comes to the next rectangle waits until all have loaded from one before. So it waits
/// for lower jobs alone, which wait for nobody.
pub(super) struct AheadSlot {
    /// The threads that work on the file, and the files that they share.
    threads: usize,
    files: usize,
    /// The first job of the plan that has the slot.
    first_job: usize,
    /// The rectangle that is taken from, and the next one.
    shared: [RwLock<Shared>; 2],
}

struct Shared {
    /// The rectangle that is read; `None` before the first.
    begun: Option<RectangleId>,
    ahead: Arc<ReadAhead>,
}

impl Shared {
    /// With no rectangle.
    fn new(pool: &Arc<BlockPool>) -> RwLock<Self> {
        let ahead = ReadAhead::new(Arc::clone(pool));
        RwLock::new(Self { begun: None, ahead: Arc::new(ahead) })
    }

    /// Begins the rectangle of `together`, unless it or a later one is begun.
    fn begin(&mut self, together: &Together<'_>) {
        if self.begun >= Some(together.id) {
            return;
        }
        if let Some(ahead) = Arc::get_mut(&mut self.ahead) {
            ahead.begin(&together.of_tiles());
            self.begun = Some(together.id);
        }
    }
}

/// The job of the first tile that takes from a rectangle. Later rectangles compare greater.
type RectangleId = usize;

/// A tensor that is decoded in jobs of one tile each.
pub(super) struct DecodedTiles<'a> {
    pub decoder: &'a dyn Decode,
    pub cut: Cut,
    /// Number of the job of its first tile in the plan.
    pub first_job: usize,
    /// The tiles that the file's jobs decode.
    pub tiles: Range<usize>,
}

/// Tiles whose stored rows are read together.
struct Together<'a> {
    id: RectangleId,
    /// The tiles of the tensor.
    tiles: Range<usize>,
    wanted: StoredRectangle<'a>,
    decoder: &'a dyn Decode,
    cut: Cut,
}

impl Together<'_> {
    /// What each tile wants.
    fn of_tiles(&self) -> Vec<StoredRectangle<'_>> {
        let of_tile = |no| self.decoder.stored_codes(&self.cut.tile(no).rows);
        self.tiles.clone().filter_map(of_tile).collect()
    }
}

/// The rectangle of which a job reads its share, after that which its tile takes from.
pub(super) struct NextRectangle<'a> {
    rectangle: Together<'a>,
    /// Number of the job's tile among those that read all of it, and how many these are.
    tile: (usize, usize),
}

impl AheadSlot {
    /// For one of `files` output files that `threads` threads write side by side, from job
    /// `first_job` of the plan on.
    pub(super) fn new(threads: usize, files: usize, first_job: usize) -> Self {
        let pool = Arc::default();
        Self { threads, files, first_job, shared: [Shared::new(&pool), Shared::new(&pool)] }
    }

    /// Loads tile `no` of `tensor` into `buffers`. What other jobs take of the same stored rows is
    /// read along, with the threads that have come to them. Returns what is read next, for
    /// [`fill_next`](Self::fill_next): of this tensor, or of those `behind` it.
    ///
    /// # Errors
    /// Those of [`Decode::load`].
    pub(super) fn load<'a>(
        &self,
        (tensor, no): (&DecodedTiles<'a>, usize),
        behind: impl Iterator<Item = DecodedTiles<'a>>,
        buffers: &mut Buffers,
    ) -> Result<Option<NextRectangle<'a>>> {
        let (decoder, tile) = (tensor.decoder, &tensor.cut.tile(no));
        let Some(together) = self.together(tensor, no) else {
            return decoder.load(tile, buffers).map(|()| None);
        };
        let shared = self.share(&together, &mut buffers.staging);
        buffers.ahead = shared.as_ref().map(|shared| Arc::clone(&shared.ahead));
        let loaded = decoder.load(tile, buffers);
        let place = no - together.tiles.start;
        if let Some(ahead) = &buffers.ahead {
            ahead.release(place);
        }
        // Given back before the lock, so that nobody has it when the next rectangle begins.
        buffers.ahead = None;
        drop(shared);
        loaded?;
        let next = self.next(tensor, together.tiles.end, behind);
        Ok(next.map(|rectangle| NextRectangle { rectangle, tile: (place, together.tiles.len()) }))
    }

    /// Reads all of a rectangle that other threads do not read. `None` if its tiles have to read
    /// for themselves.
    fn share(
        &self,
        together: &Together<'_>,
        staging: &mut Vec<u8>,
    ) -> Option<RwLockReadGuard<'_, Shared>> {
        let shared = self.begun_or_begin(together, true)?;
        shared.ahead.fill(&together.wanted, (1, 1), staging);
        Some(shared)
    }

    /// Reads the share of `next` that is due when its job has written rows `done` of `of`: all jobs
    /// whose tiles are read together read all of it, a little after each piece that they write.
    pub(super) fn fill_next(
        &self,
        next: &NextRectangle<'_>,
        (done, of): (usize, usize),
        staging: &mut Vec<u8>,
    ) {
        let (no, tiles) = next.tile;
        if let Some(shared) = self.begun_or_begin(&next.rectangle, false) {
            let share = (no * of + done, tiles * of);
            shared.ahead.fill(&next.rectangle.wanted, share, staging);
        }
    }

    /// The rectangle that begins with tile `no` of `tensor`, or with the first of one `behind` it.
    fn next<'a>(
        &self,
        tensor: &DecodedTiles<'a>,
        no: usize,
        mut behind: impl Iterator<Item = DecodedTiles<'a>>,
    ) -> Option<Together<'a>> {
        match no < tensor.tiles.end {
            true => self.together(tensor, no),
            false => behind.find_map(|tensor| self.together(&tensor, 0)),
        }
    }

    /// What is shared, if it is the rectangle `id`.
    fn begun(&self, id: RectangleId) -> Option<RwLockReadGuard<'_, Shared>> {
        let shared = self.shared.iter().map(read);
        shared.into_iter().find(|shared| shared.begun == Some(id))
    }

    /// What is shared, if it is the rectangle of `together`, or that could be begun.
    fn begun_or_begin(
        &self,
        together: &Together<'_>,
        waits: bool,
    ) -> Option<RwLockReadGuard<'_, Shared>> {
        self.begun(together.id).or_else(|| {
            self.begin(together, waits);
            self.begun(together.id)
        })
    }

    /// Begins the rectangle of `together` in the place of the earlier one, unless both are later: a
    /// thread can be late with the last job of a rectangle. Waits until all have loaded from the
    /// earlier one, or does nothing if `waits` is false.
    fn begin(&self, together: &Together<'_>, waits: bool) {
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

    /// What tile `no` of `tensor` is read with. `None` if it reads alone.
    fn together<'a>(&self, tensor: &DecodedTiles<'a>, no: usize) -> Option<Together<'a>> {
        let &DecodedTiles { decoder, cut, first_job, tiles: ref jobs } = tensor;
        if cut.shared_bytes == 0 || jobs.is_empty() {
            return None;
        }
        debug_assert!(jobs.end <= cut.tiles(), "jobs of the tensor alone");
        // The files that are in flight share the memory of all threads.
        let most = (cut.together(self.threads) / self.files.max(1)).max(cut.together(1));
        let matrix = tiles_of_matrix(no, (decoder, &cut))?;
        let matrix = matrix.start.max(jobs.start)..matrix.end.min(jobs.end);
        let is_first = first_job + matrix.start == self.first_job;
        let tiles = tiles_around(no, matrix, most, is_first);
        let rows = cut.tile(tiles.start).rows.start..cut.tile(tiles.end - 1).rows.end;
        let wanted = decoder.stored_codes(&rows)?;
        let is_shared = tiles.len() > 1 && !wanted.codes.part.is_in_memory();
        is_shared.then(|| Together { id: first_job + tiles.start, tiles, wanted, decoder, cut })
    }
}

/// The tiles of the matrix that tile `no` is of. `None` if tiles have rows of several matrices.
fn tiles_of_matrix(no: usize, (decoder, cut): (&dyn Decode, &Cut)) -> Option<Range<usize>> {
    let matrix_rows = decoder.grid().transposed?.matrix_rows.min(cut.rows);
    if matrix_rows != cut.rows && !matrix_rows.is_multiple_of(cut.tile_rows) {
        return None;
    }
    let of_matrix = matrix_rows.div_ceil(cut.tile_rows);
    let start = no / of_matrix * of_matrix;
    Some(start..start + of_matrix)
}

/// Those of the tiles `matrix` that are read with tile `no`, at most `most`. If they are the first
/// of a file, the first rectangle is smaller than others, if there are several: nobody writes while
/// it is read.
fn tiles_around(no: usize, matrix: Range<usize>, most: usize, is_first: bool) -> Range<usize> {
    let mut start = matrix.start;
    if is_first && matrix.len() > most {
        let end = start + (most / FIRST_SHARE).max(2);
        if no < end {
            return start..end;
        }
        start = end;
    }
    // Rectangles of about one height.
    let left = (matrix.end - start).max(1);
    let tiles = left.div_ceil(left.div_ceil(most.clamp(1, left)));
    start += (no - start) / tiles * tiles;
    start..(start + tiles).min(matrix.end)
}

fn read(shared: &RwLock<Shared>) -> RwLockReadGuard<'_, Shared> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(shared: &RwLock<Shared>) -> RwLockWriteGuard<'_, Shared> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rectangles_cover_the_tiles_of_a_matrix() {
        for (len, most) in [1, 2, 3, 10, 64, 111]
            .into_iter()
            .flat_map(|len| [1, 2, 3, 9, 10, 200].map(|most| (len, most)))
        {
            for is_first in [false, true] {
                let matrix = 7..7 + len;
                let around = |no| tiles_around(no, matrix.clone(), most, is_first);
                let mut end = matrix.start;
                let mut heights = vec![];
                while end < matrix.end {
                    let tiles = around(end);
                    assert_eq!(tiles.start, end);
                    assert!(tiles.clone().all(|no| around(no) == tiles), "{tiles:?}");
                    assert!((1..=most.max(2)).contains(&tiles.len()), "{tiles:?}");
                    heights.push(tiles.len());
                    end = tiles.end;
                }
                assert_eq!(end, matrix.end);
                if is_first && most >= 9 && len > most {
                    assert_eq!(heights[0], most / 3);
                }
            }
        }
    }
}
