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

/// Stored rows of a strip whose longest pieces have `piece` bytes. 0: these are longer than a block.
fn strip_rows(piece: usize) -> usize {
    BLOCK_BYTES / piece.max(1)
}

/// Bytes of a block. All have this size, so that rectangles of any shape reuse the same memory.
const BLOCK_BYTES: usize = 8 << 10;

/// Bytes of the longest rows of which all is read for any piece of them.
const SHORT_ROW: usize = 512;

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
/// It is kept in blocks, each of which has the pieces that one tile takes from a strip of stored rows: those of all rows of the codes,
/// and behind them those of the scales. The blocks of a tile are
/// given back once it is loaded, so that the next rectangle can be read into them.
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
        Self {
            pool,
            ..Self::default()
        }
    }

    /// Takes the place of the rectangle before: holds what its tiles want of it, which are below each other, once
    /// [`fill`](Self::fill) has read it. Holds nothing if a piece is empty, or those of a row are longer than a block.
    pub(crate) fn begin(&mut self, tiles: &[StoredRectangle<'_>]) {
        (0..self.tiles()).for_each(|tile| self.release(tile));
        self.matrices = matrices_of(tiles);
        let pieces = |tile| {
            self.matrices
                .iter()
                .map(move |matrix| matrix.piece(tile).len())
        };
        let is_empty = (0..self.tiles()).flat_map(pieces).any(|len| len == 0);
        let longest = (0..self.tiles()).map(|tile| pieces(tile).sum()).max();
        let strip_rows = longest.filter(|_| !is_empty).map_or(0, strip_rows);
        self.rows = match (tiles, strip_rows) {
            ([first, ..], 1..) => first.rows.clone(),
            _ => 0..0,
        };
        self.strip_rows = strip_rows;
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

    /// Where in a block of tile `tile` the pieces of matrix `number` begin, and where in a stored row they lie.
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
        Matrix {
            tensor: last.part.identity(),
            bounds: starts.chain([last.bytes.end]).collect(),
        }
    };
    last.pieces().enumerate().map(matrix).collect()
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
        let part = model.tensors().next().unwrap().part();
        StoredRectangle {
            rows,
            codes: StoredPiece {
                part,
                stride,
                bytes,
            },
            scales: None,
        }
    }

    /// What tiles want of `wanted` whose pieces begin at all of `bounds` but the last, where the last one ends.
    fn tiles<'m>(wanted: &StoredRectangle<'m>, bounds: &[usize]) -> Vec<StoredRectangle<'m>> {
        let tile = |bounds: &[usize]| {
            let mut tile = wanted.clone();
            tile.codes.bytes = bounds[0]..bounds[1];
            tile
        };
        bounds.windows(2).map(tile).collect()
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
        for (rows, stride, all, count) in [
            (67, 12, 0..12, 1),
            (700, 1500, 300..1499, 4),
            (5, 200_000, 1..12_000, 3),
            (3, 16, 4..16, 2),
        ] {
            let (model, bytes) = matrices(rows, stride);
            let wanted = rectangle(&model, stride, [1..rows, all.clone()]);
            let bounds = bounds(&all, count);
            ahead.begin(&tiles(&wanted, &bounds));
            let pieces = bounds.windows(2).map(|bounds| bounds[0]..bounds[1]);
            let pieces: Vec<Range<usize>> = pieces.collect();
            assert_eq!(
                taken(&ahead, &wanted.codes.part, 1..2, pieces[0].clone()),
                None
            );
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
                    assert_eq!(
                        taken(&ahead, &wanted.codes.part, some, piece),
                        Some(expected)
                    );
                }
            }
        }
    }

    #[test]
    fn pieces_of_scales_are_those_of_their_matrix() {
        // Short rows, of which all is read, and long ones.
        for (rows, stride) in [(67, 40), (1000, 1600)] {
            let (model, bytes) = matrices(rows, stride);
            let [codes, scales] = [0, 1].map(|i| model.tensors().nth(i).unwrap().part());
            let tile = |from: usize, end: usize| {
                let piece = |part, bytes| StoredPiece {
                    part,
                    stride,
                    bytes,
                };
                StoredRectangle {
                    rows: 1..rows,
                    codes: piece(codes, from..end),
                    scales: Some(piece(scales, from / 4..end / 4)),
                }
            };
            let mut ahead = ReadAhead::default();
            ahead.begin(&[tile(8, 12), tile(12, 32)]);
            ahead.fill(&tile(8, 32), (1, 1), &mut vec![]);
            let len = bytes.len();
            for (part, from, piece) in [
                (&codes, 0, 8..12),
                (&codes, 0, 12..32),
                (&scales, len, 2..3),
                (&scales, len, 3..8),
            ] {
                let byte = |i: usize| (i * 7 + i / 251) as u8;
                let all = (1..rows).flat_map(|row| piece.clone().map(move |b| row * stride + b));
                let expected: Vec<u8> = all.map(|i| byte(from + i)).collect();
                assert_eq!(taken(&ahead, part, 1..rows, piece), Some(expected));
            }
            assert_eq!(taken(&ahead, &scales, 1..rows, 8..12), None);
        }
    }

    #[test]
    fn what_was_not_read_is_not_there() {
        let (model, _) = matrices(40, 20);
        let wanted = rectangle(&model, 20, [10..30, 4..12]);
        let mut ahead = ReadAhead::default();
        let staging = &mut vec![];
        ahead.begin(&tiles(&wanted, &[4, 8, 12]));
        ahead.fill(&wanted, (1, 1), staging);
        let (part, other) = (wanted.codes.part, model.tensors().nth(1).unwrap().part());
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
        ahead.begin(&tiles(&beyond, &[0, 20]));
        ahead.fill(&beyond, (1, 1), staging);
        assert_eq!(taken(&ahead, &part, 30..31, 0..20), None);
        // Pieces longer than a block are left to the tiles.
        let (model, _) = matrices(2, BLOCK_BYTES + 1);
        let long = rectangle(&model, BLOCK_BYTES + 1, [0..2, 0..BLOCK_BYTES + 1]);
        ahead.begin(&tiles(&long, &[0, BLOCK_BYTES + 1]));
        ahead.fill(&long, (1, 1), staging);
        assert_eq!(taken(&ahead, &long.codes.part, 0..1, 0..1), None);
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
            ahead.begin(&tiles(&wanted, &[0, 10, 20]));
        }
        first.fill(&wanted, (1, 1), staging);
        first.release(0);
        let free = pool.free().len();
        assert_eq!(free, first.strips());
        // Half of the next rectangle has as many blocks as one of two tiles.
        next.fill(&wanted, (1, 2), staging);
        assert!(pool.free().len() <= 1, "of {free}");
        assert_eq!(taken(&first, &wanted.codes.part, 0..1, 0..10), None);
        assert!(taken(&first, &wanted.codes.part, 0..rows, 10..20).is_some());
        assert!(taken(&next, &wanted.codes.part, 0..rows / 2, 0..10).is_some());
        // A later rectangle gives back what was not released.
        first.begin(&tiles(&wanted, &[0, 20]));
        assert!(pool.free().len() >= free);
    }
}
