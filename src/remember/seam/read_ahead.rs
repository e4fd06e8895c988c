//! [`ReadAhead`]: a rectangle of a stored matrix in memory, which is read once for several tiles.
//!
//! The rows of some stored matrices run down the columns of the weight. A tile of a few rows of the
//! weight wants a short piece of every stored row, and a read of each piece takes longer than to
//! copy it. So the pieces of many tiles are read at once, by all threads that work on them, and
//! each tile takes its own from there.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use super::load::{SHORT_ROW, read};
use crate::Result;
use crate::model::Part;

/// A piece of each row of a stored matrix.
#[derive(Debug, Clone)]
pub(crate) struct StoredPiece<'m> {
    pub part: Part<'m>,
    /// Bytes of a stored row.
    pub stride: usize,
    /// The bytes of each.
    pub bytes: Range<usize>,
}

/// A rectangle of a stored matrix.
#[derive(Debug, Clone)]
pub(crate) struct StoredRectangle<'m> {
    /// The stored rows.
    pub rows: Range<usize>,
    pub codes: StoredPiece<'m>,
    /// What belongs to the codes in the same rows of another matrix.
    pub scales: Option<StoredPiece<'m>>,
}

impl<'m> StoredRectangle<'m> {
    /// Bytes of the blocks of a tile that takes this. 0: they cannot hold it.
    pub(crate) fn block_bytes(&self) -> usize {
        let piece = self.pieces().map(|piece| piece.bytes.len()).sum();
        match strip_rows(piece) {
            0 => 0,
            strip_rows => self.rows.len().div_ceil(strip_rows) * BLOCK_BYTES,
        }
    }

    /// What it has of each matrix.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &StoredPiece<'m>> {
        std::iter::once(&self.codes).chain(&self.scales)
    }
}

/// Stored rows of a strip whose longest pieces have `piece` bytes. 0: these are longer than a
/// block.
fn strip_rows(piece: usize) -> usize {
    BLOCK_BYTES / piece.max(1)
}

/// Bytes of a block. All have this size, so that rectangles of any shape reuse the same memory.
const BLOCK_BYTES: usize = 8 << 10;

/// Bytes that are read before they are spread over blocks: they are still in the cache.
const STAGING_BYTES: usize = 128 << 10;

/// The memory of blocks that no rectangle needs.
#[derive(Debug, Default)]
pub(crate) struct BlockPool(Mutex<Vec<Vec<u8>>>);

impl BlockPool {
    fn free(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rectangle of a stored matrix that threads read together. What is not there is read from the
/// file by whoever wants it.
///
/// It is kept in blocks, each of which has the pieces that one tile takes from a strip of stored
/// rows: those of all rows of the codes, and behind them those of the scales. The blocks of a tile
/// are given back once it is loaded, so that the next rectangle can be read into them.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    pool: Arc<BlockPool>,
    rows: Range<usize>,
    matrices: Vec<Matrix>,
    /// Stored rows of a strip.
    strip_rows: usize,
    /// Number of the next strip that nobody reads yet.
    next: Mutex<usize>,
    /// The blocks of all tiles in the first strip, then those in the next.
    blocks: Vec<RwLock<Block>>,
}

/// One of the matrices that pieces are read of.
#[derive(Debug)]
struct Matrix {
    /// [`Part::identity`] of it.
    tensor: usize,
    /// Where in a stored row the piece of each tile begins, and where the last ends.
    bounds: Vec<usize>,
}

impl Matrix {
    /// Where in a stored row the piece of tile `tile` lies.
    fn piece(&self, tile: usize) -> Range<usize> {
        self.bounds[tile]..self.bounds[tile + 1]
    }

    /// The tile whose piece of a row holds the bytes `bytes`.
    fn tile_of(&self, bytes: &Range<usize>) -> Option<usize> {
        let next = self.bounds.partition_point(|&from| from <= bytes.start);
        let tile = next.checked_sub(1)?;
        (bytes.end <= *self.bounds.get(next)?).then_some(tile)
    }
}

#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    /// Whether the rows have been read.
    is_read: bool,
}

impl ReadAhead {
    /// Holds nothing yet. Takes memory from `pool`, and gives it back.
    pub(crate) fn new(pool: Arc<BlockPool>) -> Self {
        Self { pool, ..Self::default() }
    }

    /// Takes the place of the rectangle before: holds what its tiles want of it, which are below
    /// each other, once [`fill`](Self::fill) has read it. Holds nothing if a piece is empty, or
    /// those of a row are longer than a block.
    pub(crate) fn begin(&mut self, tiles: &[StoredRectangle<'_>]) {
        (0..self.tiles()).for_each(|tile| self.release(tile));
        self.matrices = matrices_of(tiles);
        let mut lens: Vec<usize> = vec![0; self.tiles()];
        let mut is_empty = false;
        for matrix in &self.matrices {
            for (tile, len) in lens.iter_mut().enumerate() {
                let piece = matrix.piece(tile).len();
                is_empty |= piece == 0;
                *len += piece;
            }
        }
        let longest = lens.into_iter().max().filter(|_| !is_empty);
        self.strip_rows = longest.map_or(0, strip_rows);
        self.rows = match (tiles, self.strip_rows) {
            ([first, ..], 1..) => first.rows.clone(),
            _ => 0..0,
        };
        *self.next.get_mut().unwrap_or_else(PoisonError::into_inner) = 0;
        let count = self.strips() * self.tiles();
        self.blocks.resize_with(count, RwLock::default);
    }

    /// Number of tiles that take from the rectangle.
    fn tiles(&self) -> usize {
        let codes = self.matrices.first();
        codes.map_or(0, |codes| codes.bounds.len() - 1)
    }

    /// Number of strips.
    fn strips(&self) -> usize {
        self.rows.len().div_ceil(self.strip_rows.max(1))
    }

    /// The stored rows of strip `i`.
    fn rows_of(&self, i: usize) -> Range<usize> {
        let first = (self.rows.start + i * self.strip_rows).min(self.rows.end);
        first..(first + self.strip_rows).min(self.rows.end)
    }

    /// The blocks of the next strip that nobody reads yet, and its number, if it is among the first
    /// `end`.
    ///
    /// Strips are handed out with their blocks locked: who finds none left can rely on it that
    /// those of others are read.
    fn next_strip(&self, end: usize) -> Option<(usize, Vec<RwLockWriteGuard<'_, Block>>)> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (i, tiles) = (*next, self.tiles());
        let blocks = self.blocks.get(i * tiles..(i + 1) * tiles)?;
        if i >= end || blocks.is_empty() {
            return None;
        }
        *next += 1;
        let lock = |block| RwLock::write(block).unwrap_or_else(PoisonError::into_inner);
        Some((i, blocks.iter().map(lock).collect()))
    }

    /// Reads strips of the rectangle, which is `wanted`, until the first `share` of them are read
    /// or other threads read the rest. A share of one is all of them. `staging` is scratch.
    ///
    /// A strip that cannot be read stays empty. The tile that wants it meets the error when it
    /// reads for itself, so the error is that of the first tile, whichever thread is here first.
    pub(crate) fn fill(
        &self,
        wanted: &StoredRectangle<'_>,
        (share, of): (usize, usize),
        staging: &mut Vec<u8>,
    ) {
        let end = (self.strips() * share).div_ceil(of.max(1));
        while let Some((i, mut blocks)) = self.next_strip(end) {
            for block in &mut blocks {
                let free = self.pool.free().pop();
                block.bytes = free.unwrap_or_else(|| vec![0; BLOCK_BYTES]);
            }
            let is_read = self.read_strip(wanted, self.rows_of(i), &mut blocks, staging);
            for block in &mut blocks {
                block.is_read = is_read.is_ok();
            }
        }
    }

    /// Reads rows `rows` of `wanted` into the blocks of a strip.
    fn read_strip(
        &self,
        wanted: &StoredRectangle<'_>,
        rows: Range<usize>,
        blocks: &mut [RwLockWriteGuard<'_, Block>],
        staging: &mut Vec<u8>,
    ) -> Result<()> {
        for (number, piece) in wanted.pieces().enumerate() {
            // Of short rows all is read: a read takes longer than to copy so many bytes.
            let read_bytes = match piece.stride <= SHORT_ROW {
                true => 0..piece.stride,
                false => piece.bytes.clone(),
            };
            let (begin, len) = (read_bytes.start, read_bytes.len().max(1));
            let at_once = (STAGING_BYTES / len).max(1);
            for first in rows.clone().step_by(at_once) {
                let now = first..(first + at_once).min(rows.end);
                let read_bytes = read_bytes.clone();
                read(&piece.part, piece.stride, now, read_bytes, staging)?;
                for (tile, block) in blocks.iter_mut().enumerate() {
                    let (at, of_tile) = self.place(number, tile);
                    let of_tile = of_tile.start - begin..of_tile.end - begin;
                    let at = at + (first - rows.start) * of_tile.len();
                    let lines = block.bytes[at..].chunks_exact_mut(of_tile.len().max(1));
                    for (line, row) in lines.zip(staging.chunks_exact(len)) {
                        line.copy_from_slice(&row[of_tile.clone()]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Where in a block of tile `tile` the pieces of matrix `number` begin, and where in a stored
    /// row they lie.
    fn place(&self, number: usize, tile: usize) -> (usize, Range<usize>) {
        let before = self.matrices[..number].iter();
        let before: usize = before.map(|matrix| matrix.piece(tile).len()).sum();
        (before * self.strip_rows, self.matrices[number].piece(tile))
    }

    /// Gives back the memory of tile `tile` of the rectangle, which takes nothing more.
    pub(crate) fn release(&self, tile: usize) {
        for block in self.blocks.iter().skip(tile).step_by(self.tiles().max(1)) {
            let mut block = block.write().unwrap_or_else(PoisonError::into_inner);
            block.is_read = false;
            let bytes = std::mem::take(&mut block.bytes);
            if bytes.capacity() > 0 {
                self.pool.free().push(bytes);
            }
        }
    }

    /// Passes bytes `bytes` of each of the stored rows `rows` of `part` to `take`, with the number
    /// of the row among them. `false` if some of them are not there.
    pub(crate) fn take(
        &self,
        part: &Part<'_>,
        rows: Range<usize>,
        bytes: &Range<usize>,
        mut take: impl FnMut(usize, &[u8]),
    ) -> bool {
        let is_inside = self.rows.start <= rows.start && rows.end <= self.rows.end;
        let is_read_of = |matrix: &Matrix| matrix.tensor == part.identity();
        let Some(number) = self.matrices.iter().position(is_read_of) else {
            return false;
        };
        let tile = self.matrices[number].tile_of(bytes);
        let Some(tile) = tile.filter(|_| is_inside) else {
            return false;
        };
        let (at, piece) = self.place(number, tile);
        let wanted = bytes.start - piece.start..bytes.end - piece.start;
        let mut row = rows.start;
        while row < rows.end {
            let strip = (row - self.rows.start) / self.strip_rows.max(1);
            let Some(block) = self.blocks.get(strip * self.tiles() + tile) else {
                return false;
            };
            let block = block.read().unwrap_or_else(PoisonError::into_inner);
            if !block.is_read {
                return false;
            }
            let of_strip = self.rows_of(strip);
            let last = of_strip.end.min(rows.end);
            let lines = block.bytes[at..].chunks_exact(piece.len().max(1));
            // A block may have room for more rows than the strip has.
            for (line, row) in lines.skip(row - of_strip.start).zip(row..last) {
                take(row - rows.start, &line[wanted.clone()]);
            }
            row = last;
        }
        true
    }
}

/// The matrices of which `tiles`, which are below each other, want pieces.
fn matrices_of(tiles: &[StoredRectangle<'_>]) -> Vec<Matrix> {
    let Some(last) = tiles.last() else {
        return vec![];
    };
    let matrix = |(number, last): (usize, &StoredPiece<'_>)| {
        let pieces = tiles.iter().filter_map(|tile| tile.pieces().nth(number));
        let starts = pieces.map(|piece| piece.bytes.start);
        Matrix { tensor: last.part.identity(), bounds: starts.chain([last.bytes.end]).collect() }
    };
    last.pieces().enumerate().map(matrix).collect()
}

#[cfg(test)]
mod tests;
