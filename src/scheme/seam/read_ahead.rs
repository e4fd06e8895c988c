//! [`ReadAhead`]: a rectangle of a stored matrix in memory, which is read once for several tiles.
//!
//! The rows of some stored matrices run down the columns of the weight. A tile of a few rows of the weight wants a short piece of
//! every stored row, and a read of each piece takes longer than to copy it. So the pieces of many tiles are read at once, by all
//! threads that work on them, and each tile takes its own from there.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use super::load::read;
use crate::Result;
use crate::containers::model::Part;

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

impl StoredRectangle<'_> {
    /// Bytes of the blocks of a tile that takes this. 0: they cannot hold it.
    pub(crate) fn block_bytes(&self) -> usize {
        match strip_rows(self.bytes.len()) {
            0 => 0,
            strip_rows => self.rows.len().div_ceil(strip_rows) * BLOCK_BYTES,
        }
    }
}

/// Stored rows of a strip whose longest pieces have `piece` bytes. 0: these are longer than a block.
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

/// A rectangle of a stored matrix that threads read together. What is not there is read from the file by whoever wants it.
///
/// It is kept in blocks, each of which has the pieces that one tile takes from a strip of stored rows. The blocks of a tile are
/// given back once it is loaded, so that the next rectangle can be read into them.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    pool: Arc<BlockPool>,
    /// [`Part::identity`] of the matrix.
    tensor: usize,
    rows: Range<usize>,
    /// Where in a stored row the piece of each tile begins, and where the last ends.
    bounds: Vec<usize>,
    /// Stored rows of a strip.
    strip_rows: usize,
    /// Number of the next strip that nobody reads yet.
    next: Mutex<usize>,
    /// The blocks of all tiles in the first strip, then those in the next.
    blocks: Vec<RwLock<Block>>,
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
        Self {
            pool,
            ..Self::default()
        }
    }

    /// Takes the place of the rectangle before: holds `wanted` from now on, once [`fill`](Self::fill) has read it. `bounds` are where
    /// in a stored row the pieces of its tiles begin, and where the last ends. Holds nothing if a piece is empty or longer than a block.
    pub(crate) fn begin(&mut self, wanted: &StoredRectangle<'_>, bounds: Vec<usize>) {
        (0..self.tiles()).for_each(|tile| self.release(tile));
        self.tensor = wanted.part.identity();
        self.bounds = bounds;
        let lens: Vec<usize> = self.pieces().map(|piece| piece.len()).collect();
        self.strip_rows = match lens.iter().max() {
            Some(&longest) if !lens.contains(&0) => strip_rows(longest),
            _ => 0,
        };
        self.rows = match self.strip_rows {
            0 => 0..0,
            _ => wanted.rows.clone(),
        };
        *self.next.get_mut().unwrap_or_else(PoisonError::into_inner) = 0;
        let count = self.strips() * self.tiles();
        self.blocks.resize_with(count, RwLock::default);
    }

    /// Where in a stored row the piece of each tile lies.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.bounds.iter().skip(1);
        self.bounds.iter().zip(ends).map(|(&from, &end)| from..end)
    }

    /// Number of tiles that take from the rectangle.
    fn tiles(&self) -> usize {
        self.bounds.len().saturating_sub(1)
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

    /// The blocks of the next strip that nobody reads yet, and its number, if it is among the first `end`.
    ///
    /// Strips are handed out with their blocks locked: who finds none left can rely on it that those of others are read.
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

    /// Reads strips of the rectangle, which is `wanted`, until the first `share` of them are read or other threads read the rest.
    /// A share of one is all of them. `staging` is scratch.
    ///
    /// A strip that cannot be read stays empty. The tile that wants it meets the error when it reads for itself, so the error is
    /// that of the first tile, whichever thread is here first.
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
        let (begin, len) = (wanted.bytes.start, wanted.bytes.len().max(1));
        let at_once = (STAGING_BYTES / len).max(1);
        for first in rows.clone().step_by(at_once) {
            let done = first - rows.start;
            let rows = first..(first + at_once).min(rows.end);
            read(
                &wanted.part,
                wanted.stride,
                rows,
                wanted.bytes.clone(),
                staging,
            )?;
            for (block, piece) in blocks.iter_mut().zip(self.pieces()) {
                let piece = piece.start - begin..piece.end - begin;
                let lines = block.bytes[done * piece.len()..].chunks_exact_mut(piece.len().max(1));
                for (line, row) in lines.zip(staging.chunks_exact(len)) {
                    line.copy_from_slice(&row[piece.clone()]);
                }
            }
        }
        Ok(())
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

    /// Passes bytes `bytes` of each of the stored rows `rows` of `part` to `take`, with the number of the row among them. `false`
    /// if some of them are not there.
    pub(crate) fn take(
        &self,
        part: &Part<'_>,
        rows: Range<usize>,
        bytes: &Range<usize>,
        mut take: impl FnMut(usize, &[u8]),
    ) -> bool {
        let is_inside = self.rows.start <= rows.start && rows.end <= self.rows.end;
        let Some(tile) = self.tile_of(bytes).filter(|_| is_inside) else {
            return false;
        };
        if self.tensor != part.identity() {
            return false;
        }
        let (first, end) = (self.bounds[tile], self.bounds[tile + 1]);
        let wanted = bytes.start - first..bytes.end - first;
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
            let lines = block.bytes.chunks_exact((end - first).max(1));
            // A block may have room for more rows than the strip has.
            for (line, row) in lines.skip(row - of_strip.start).zip(row..last) {
                take(row - rows.start, &line[wanted.clone()]);
            }
            row = last;
        }
        true
    }

    /// The tile whose piece of a row holds the bytes `bytes`.
    fn tile_of(&self, bytes: &Range<usize>) -> Option<usize> {
        let next = self.bounds.partition_point(|&from| from <= bytes.start);
        let tile = next.checked_sub(1)?;
        (bytes.end <= *self.bounds.get(next)?).then_some(tile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParsedModel;

    /// A model with the tensors `a` and `b` of `rows` × `stride` bytes, and the bytes of `a`.
    fn matrices(rows: usize, stride: usize) -> (ParsedModel, Vec<u8>) {
        let len = rows * stride;
        let bytes: Vec<u8> = (0..2 * len).map(|i| (i * 7 + i / 251) as u8).collect();
        let tensor = |name: &str, from: usize| {
            format!(
                r#""{name}":{{"dtype":"U8","shape":[{rows},{stride}],"data_offsets":[{from},{}]}}"#,
                from + len
            )
        };
        let header = format!("{{{},{}}}", tensor("a", 0), tensor("b", len));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes().chain(bytes.iter().copied()));
        (crate::parse_bytes(file).unwrap(), bytes[..len].to_vec())
    }

    fn rectangle<'m>(
        model: &'m ParsedModel,
        stride: usize,
        [rows, bytes]: [Range<usize>; 2],
    ) -> StoredRectangle<'m> {
        StoredRectangle {
            part: model.tensors().next().unwrap().part(),
            stride,
            rows,
            bytes,
        }
    }

    /// What `ahead` has of the pieces; `None` if some are not there.
    fn taken(
        ahead: &ReadAhead,
        part: &Part<'_>,
        rows: Range<usize>,
        bytes: Range<usize>,
    ) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let take = |row: usize, piece: &[u8]| {
            assert_eq!(out.len(), row * piece.len());
            out.extend_from_slice(piece);
        };
        ahead.take(part, rows, &bytes, take).then_some(out)
    }

    /// Where the pieces of `tiles` tiles begin, which share the bytes `bytes` of a row, and where the last ends.
    fn bounds(bytes: &Range<usize>, tiles: usize) -> Vec<usize> {
        // Of different widths, so that a block of one has room for more rows than that of another.
        let bound = |tile| bytes.start + tile * tile * bytes.len() / (tiles * tiles);
        (0..=tiles).map(bound).collect()
    }

    #[test]
    fn pieces_are_those_of_the_matrix() {
        let mut ahead = ReadAhead::default();
        // One block, several, and fewer again; whole rows and pieces; one tile and several of different widths.
        for (rows, stride, all, tiles) in [
            (67, 12, 0..12, 1),
            (700, 1500, 300..1499, 4),
            (5, 200_000, 1..12_000, 3),
            (3, 16, 4..16, 2),
        ] {
            let (model, bytes) = matrices(rows, stride);
            let wanted = rectangle(&model, stride, [1..rows, all.clone()]);
            let bounds = bounds(&all, tiles);
            ahead.begin(&wanted, bounds.clone());
            let pieces: Vec<Range<usize>> = ahead.pieces().collect();
            assert_eq!(pieces.len(), tiles);
            assert_eq!(taken(&ahead, &wanted.part, 1..2, pieces[0].clone()), None);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| ahead.fill(&wanted, (1, 1), &mut vec![]));
                }
            });
            for piece in pieces {
                let narrow = piece.start + 1..piece.end - 1;
                for (some, piece) in [(1..rows, piece.clone()), (rows / 2..rows - 1, narrow)] {
                    let expected = some
                        .clone()
                        .flat_map(|row| &bytes[row * stride..][piece.clone()]);
                    let expected: Vec<u8> = expected.copied().collect();
                    assert_eq!(taken(&ahead, &wanted.part, some, piece), Some(expected));
                }
            }
        }
    }

    #[test]
    fn what_was_not_read_is_not_there() {
        let (model, _) = matrices(40, 20);
        let wanted = rectangle(&model, 20, [10..30, 4..12]);
        let mut ahead = ReadAhead::default();
        let staging = &mut vec![];
        ahead.begin(&wanted, vec![4, 8, 12]);
        ahead.fill(&wanted, (1, 1), staging);
        let (part, other) = (wanted.part, model.tensors().nth(1).unwrap().part());
        assert!(taken(&ahead, &part, 10..30, 4..8).is_some());
        assert!(taken(&ahead, &part, 10..30, 8..12).is_some());
        // Rows and bytes outside, and pieces of two tiles.
        for (rows, bytes) in [
            (9..30, 4..8),
            (10..31, 4..8),
            (10..30, 3..8),
            (10..30, 0..2),
            (10..30, 8..13),
            (10..30, 7..9),
        ] {
            assert_eq!(taken(&ahead, &part, rows, bytes), None);
        }
        assert_eq!(taken(&ahead, &other, 10..30, 4..8), None);
        // Rows beyond the tensor cannot be read, and neither can their strip.
        let beyond = rectangle(&model, 20, [30..50, 0..20]);
        ahead.begin(&beyond, vec![0, 20]);
        ahead.fill(&beyond, (1, 1), staging);
        assert_eq!(taken(&ahead, &part, 30..31, 0..20), None);
        // Pieces longer than a block are left to the tiles.
        let (model, _) = matrices(2, BLOCK_BYTES + 1);
        let long = rectangle(&model, BLOCK_BYTES + 1, [0..2, 0..BLOCK_BYTES + 1]);
        ahead.begin(&long, vec![0, BLOCK_BYTES + 1]);
        ahead.fill(&long, (1, 1), staging);
        assert_eq!(taken(&ahead, &long.part, 0..1, 0..1), None);
    }

    #[test]
    fn rectangles_share_the_memory_of_tiles_that_are_loaded() {
        let (rows, stride) = (4 * BLOCK_BYTES / 10, 20);
        let (model, _) = matrices(rows, stride);
        let wanted = rectangle(&model, stride, [0..rows, 0..stride]);
        let pool = Arc::<BlockPool>::default();
        let [mut first, mut next] = [(); 2].map(|()| ReadAhead::new(Arc::clone(&pool)));
        let staging = &mut vec![];
        for ahead in [&mut first, &mut next] {
            ahead.begin(&wanted, vec![0, 10, 20]);
        }
        first.fill(&wanted, (1, 1), staging);
        first.release(0);
        let free = pool.free().len();
        assert_eq!(free, first.strips());
        // Half of the next rectangle has as many blocks as one of two tiles.
        next.fill(&wanted, (1, 2), staging);
        assert!(pool.free().len() <= 1, "of {free}");
        assert_eq!(taken(&first, &wanted.part, 0..1, 0..10), None);
        assert!(taken(&first, &wanted.part, 0..rows, 10..20).is_some());
        assert!(taken(&next, &wanted.part, 0..rows / 2, 0..10).is_some());
        // A later rectangle gives back what was not released.
        first.begin(&wanted, vec![0, 20]);
        assert!(pool.free().len() >= free);
    }
}
