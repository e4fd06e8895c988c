//! [`ReadAhead`]: rectangles of stored matrices in memory, which are read once for several tiles.
//!
//! The rows of some stored matrices run down the columns of the weight. A tile of a few rows of the weight wants a short piece of
//! every stored row, and a read of each piece takes longer than to copy it. So the pieces of many tiles are read at once, by all
//! threads that work on them, and laid down for each tile in the lines that it transposes. A tile takes its lines away, so that the
//! memory of what is decoded holds what is read next.

mod chunks;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use self::chunks::Chunk;
pub(crate) use self::chunks::ChunkPool;
use super::load::{has_short_gaps, read};
use crate::Result;
use crate::containers::model::Part;
use crate::kernels::remember::transpose::LINES;
use crate::simd::LINE;

/// A rectangle of a stored matrix.
#[derive(Debug, Clone)]
pub(crate) struct StoredRectangle<'m> {
    pub part: Part<'m>,
    /// Bytes of a stored row.
    pub stride: usize,
    /// The stored rows.
    pub rows: Range<usize>,
    /// The bytes of each.
    pub bytes: Range<usize>,
}

/// A rectangle of a stored matrix that several tiles beside each other take pieces of.
#[derive(Debug, Clone)]
pub(crate) struct TiledRectangle<'m> {
    pub all: StoredRectangle<'m>,
    /// Bytes of each row that a tile takes; the last may take fewer.
    pub piece: usize,
}

impl TiledRectangle<'_> {
    fn tiles(&self) -> usize {
        self.all.bytes.len().div_ceil(self.piece.max(1))
    }
}

/// Bytes of the stored rows that are laid down together, unless these are fewer than [`LINES`].
const BLOCK_BYTES: usize = 256 << 10;

/// Bytes that one read takes at most: they are in the cache when they are laid down.
const READ_BYTES: usize = 64 << 10;

/// Bytes of the widest lines that lie one behind another, however wide they are. The lines of a wider tile do not fit the first
/// cache, and those a power of two apart share its sets.
const NARROW: usize = 256;

/// Lines that a tile has taken away.
#[derive(Debug)]
pub(crate) struct TakenLines {
    chunk: Chunk,
    /// Bytes from the start of a line to that of the next.
    pub pitch: usize,
    /// The stored rows whose pieces the lines are.
    pub rows: Range<usize>,
}

impl TakenLines {
    /// The lines, with [`LINE`] bytes of any value behind the last.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.chunk.bytes[..self.rows.len() * self.pitch + LINE]
    }
}

/// Rectangles of stored matrices that threads read together. What is not there is read from the file by whoever wants it.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    matrices: Vec<AheadMatrix>,
}

/// A rectangle of one matrix.
#[derive(Debug)]
struct AheadMatrix {
    /// [`Part::identity`] of the matrix.
    tensor: usize,
    rows: Range<usize>,
    bytes: Range<usize>,
    /// Bytes of each row that a tile takes.
    piece: usize,
    /// Bytes from the start of a piece to that of the next of the same tile.
    pitch: usize,
    /// Stored rows of a block: whole [`LINES`], unless one block is all.
    block_rows: usize,
    /// Number of the next block that nobody reads yet.
    next: AtomicUsize,
    /// Of each block, the lines of each tile. A block that is not read has none.
    blocks: Vec<Mutex<Vec<Option<Chunk>>>>,
    pool: Arc<ChunkPool>,
}

impl AheadMatrix {
    /// Will hold `wanted`, in memory of `pool`. Holds nothing if a row of it is longer than a block.
    fn new(wanted: &TiledRectangle<'_>, pool: &Arc<ChunkPool>) -> Self {
        let all = &wanted.all;
        let pitch = match wanted.piece {
            0..NARROW => wanted.piece,
            _ => (wanted.piece.div_ceil(LINE) | 1) * LINE,
        };
        let lines = BLOCK_BYTES / (wanted.tiles() * pitch).max(1);
        let block_rows = (lines - lines % LINES)
            .max(LINES)
            .min(all.rows.len().max(1));
        let rows = match all.bytes.len() {
            1..=BLOCK_BYTES => all.rows.clone(),
            _ => 0..0,
        };
        let count = rows.len().div_ceil(block_rows);
        let matrix = Self {
            tensor: all.part.identity(),
            rows,
            bytes: all.bytes.clone(),
            piece: wanted.piece.max(1),
            pitch,
            block_rows,
            next: AtomicUsize::new(0),
            blocks: (0..count).map(|_| Mutex::default()).collect(),
            pool: Arc::clone(pool),
        };
        pool.begin(matrix.chunk_bytes());
        matrix
    }

    /// Bytes of the lines of a tile in a block.
    fn chunk_bytes(&self) -> usize {
        self.block_rows * self.pitch + LINE
    }

    /// The stored rows of block `i`; empty behind the last.
    fn rows_of(&self, i: usize) -> Range<usize> {
        let first = (self.rows.start + i * self.block_rows).min(self.rows.end);
        first..(first + self.block_rows).min(self.rows.end)
    }

    /// Reads blocks of the rectangle, which is `wanted`; see [`ReadAhead::fill`].
    fn fill(&self, wanted: &TiledRectangle<'_>, share: Share, staging: &mut Vec<u8>) {
        let (last, is_needed) = match share {
            Share::All => (self.blocks.len(), true),
            Share::Part(some, of) => ((self.blocks.len() * some).div_ceil(of.max(1)), false),
        };
        while self.next.load(Ordering::Relaxed) < last {
            if !is_needed && !self.pool.has_room(wanted.tiles() * self.chunk_bytes()) {
                return;
            }
            // Relaxed suffices: each number is handed out once, and what is read is behind the block's lock.
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(block) = self.blocks.get(i) else {
                return;
            };
            let mut block = block.lock().unwrap_or_else(PoisonError::into_inner);
            if let Ok(chunks) = self.read_block(i, wanted, staging) {
                *block = chunks.into_iter().map(Some).collect();
            }
        }
    }

    /// Reads block `i` and lays it down: the lines of each tile.
    fn read_block(
        &self,
        i: usize,
        wanted: &TiledRectangle<'_>,
        staging: &mut Vec<u8>,
    ) -> Result<Vec<Chunk>> {
        let (rows, all) = (self.rows_of(i), &wanted.all);
        let width = all.bytes.len();
        let chunk = |_| self.pool.chunk(self.chunk_bytes());
        let mut chunks: Vec<Chunk> = (0..wanted.tiles()).map(chunk).collect();
        let is_joined = has_short_gaps(all.stride, width);
        let read_pitch = if is_joined { all.stride } else { width };
        let at_once = (READ_BYTES / read_pitch.max(1)).max(1);
        for first in rows.clone().step_by(at_once) {
            let some = first..(first + at_once).min(rows.end);
            if is_joined {
                let at = first as u64 * all.stride as u64 + all.bytes.start as u64;
                staging.resize((some.len() - 1) * all.stride + width, 0);
                all.part.read_at(at, staging)?;
            } else {
                read(&all.part, all.stride, some, all.bytes.clone(), staging)?;
            }
            for (tile, chunk) in chunks.iter_mut().enumerate() {
                let piece = tile * self.piece..((tile + 1) * self.piece).min(width);
                let lines = &mut chunk.bytes[(first - rows.start) * self.pitch..];
                for (line, row) in lines.chunks_mut(self.pitch).zip(staging.chunks(read_pitch)) {
                    line[..piece.len()].copy_from_slice(&row[piece.clone()]);
                }
            }
        }
        Ok(chunks)
    }

    /// Takes away the lines of the tile of bytes `bytes`, from row `first` of `rows` on, which are all of the tile.
    fn take(&self, first: usize, rows: &Range<usize>, bytes: &Range<usize>) -> Option<TakenLines> {
        let (row, left) = (
            first.checked_sub(self.rows.start)?,
            bytes.start.checked_sub(self.bytes.start)?,
        );
        let end = (bytes.start + self.piece).min(self.bytes.end);
        let is_whole = *rows == self.rows && left.is_multiple_of(self.piece) && bytes.end == end;
        if !is_whole || !row.is_multiple_of(self.block_rows) {
            return None;
        }
        let i = row / self.block_rows;
        let block = self.blocks.get(i)?;
        let mut block = block.lock().unwrap_or_else(PoisonError::into_inner);
        Some(TakenLines {
            chunk: block.get_mut(left / self.piece)?.take()?,
            pitch: self.pitch,
            rows: self.rows_of(i),
        })
    }
}

/// How much of the rectangles is read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Share {
    /// All, because it is needed now.
    All,
    /// The first so many of so many parts, as far as there is memory.
    Part(usize, usize),
}

impl ReadAhead {
    /// Takes the place of the rectangles before: holds `wanted` from now on, once [`fill`](Self::fill) has read them, each in memory of
    /// a pool of its own.
    pub(crate) fn begin(&mut self, wanted: &[TiledRectangle<'_>], pools: &[Arc<ChunkPool>]) {
        // What nobody has taken goes back to the pools first.
        self.matrices.clear();
        let matrices = wanted.iter().zip(pools);
        self.matrices
            .extend(matrices.map(|(wanted, pool)| AheadMatrix::new(wanted, pool)));
    }

    /// Reads blocks of the rectangles, which are `wanted`, until `share` of them is read or other threads read the rest.
    ///
    /// A block that cannot be read stays empty. The tile that wants it meets the error when it reads for itself, so the error is
    /// that of the first tile, whichever thread is here first.
    pub(crate) fn fill(&self, wanted: &[TiledRectangle<'_>], share: Share, staging: &mut Vec<u8>) {
        for (matrix, wanted) in self.matrices.iter().zip(wanted) {
            matrix.fill(wanted, share, staging);
        }
    }

    /// Takes away lines of a tile that wants bytes `bytes` of each of the stored rows `rows` of `part`, from row `first` on. `None` if
    /// they are not there, or taken already.
    pub(crate) fn take(
        &self,
        part: &Part<'_>,
        first: usize,
        rows: &Range<usize>,
        bytes: &Range<usize>,
    ) -> Option<TakenLines> {
        let tensor = part.identity();
        let mut of_tensor = self
            .matrices
            .iter()
            .filter(|matrix| matrix.tensor == tensor);
        of_tensor.find_map(|matrix| matrix.take(first, rows, bytes))
    }
}

#[cfg(test)]
mod tests;
