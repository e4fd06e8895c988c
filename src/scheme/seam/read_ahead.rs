//! [`ReadAhead`]: a rectangle of a stored matrix in memory, which is read once for several tiles.
//!
//! The rows of some stored matrices run down the columns of the weight. A tile of a few rows of the weight wants a short piece of
//! every stored row, and a read of each piece takes longer than to copy it. So the pieces of many tiles are read at once, by all
//! threads that work on them, and each tile takes its own from there.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use super::load::read;
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

/// Bytes that one thread reads at a time. All blocks have this size, so that matrices of any shape reuse the same memory.
const BLOCK_BYTES: usize = 256 << 10;

/// A rectangle of a stored matrix that threads read together. What is not there is read from the file by whoever wants it.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// [`Part::identity`] of the matrix.
    tensor: usize,
    rows: Range<usize>,
    bytes: Range<usize>,
    /// Stored rows of a block.
    block_rows: usize,
    /// Number of the next block that nobody reads yet.
    next: AtomicUsize,
    blocks: Vec<RwLock<Block>>,
}

#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    /// Whether the rows have been read.
    is_read: bool,
}

impl ReadAhead {
    /// Takes the place of the rectangle before: holds `wanted` from now on, once [`fill`](Self::fill) has read it. Holds nothing
    /// if the piece of a row is longer than a block.
    pub(crate) fn begin(&mut self, wanted: &StoredRectangle<'_>) {
        self.tensor = wanted.part.identity();
        self.bytes = wanted.bytes.clone();
        self.block_rows = BLOCK_BYTES / wanted.bytes.len().max(1);
        self.rows = match self.block_rows {
            0 => 0..0,
            _ => wanted.rows.clone(),
        };
        self.next = AtomicUsize::new(0);
        for block in &mut self.blocks {
            block
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .is_read = false;
        }
        // Memory that is no longer needed is given back: other rectangles may be in memory beside this one.
        let count = self.rows.len().div_ceil(self.block_rows.max(1));
        self.blocks.resize_with(count, RwLock::default);
    }

    /// The stored rows of block `i`; empty behind the last.
    fn rows_of(&self, i: usize) -> Range<usize> {
        let first = (self.rows.start + i * self.block_rows).min(self.rows.end);
        first..(first + self.block_rows).min(self.rows.end)
    }

    /// Reads blocks of the rectangle, which is `wanted`, until the first `share` of them are read or other threads read the rest.
    /// A share of one is all of them.
    ///
    /// A block that cannot be read stays empty. The tile that wants it meets the error when it reads for itself, so the error is
    /// that of the first tile, whichever thread is here first.
    pub(crate) fn fill(&self, wanted: &StoredRectangle<'_>, (share, of): (usize, usize)) {
        let last = (self.blocks.len() * share).div_ceil(of.max(1));
        while self.next.load(Ordering::Relaxed) < last {
            // Relaxed suffices: each number is handed out once, and what is read is behind the block's lock.
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            let rows = self.rows_of(i);
            let Some(block) = self.blocks.get(i).filter(|_| !rows.is_empty()) else {
                return;
            };
            let mut block = block.write().unwrap_or_else(PoisonError::into_inner);
            // All at once: a vector that grows later doubles.
            let len = block.bytes.len();
            block.bytes.reserve_exact(BLOCK_BYTES - len);
            let bytes = self.bytes.clone();
            let result = read(&wanted.part, wanted.stride, rows, bytes, &mut block.bytes);
            block.is_read = result.is_ok();
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
        let holds = |all: &Range<usize>, some: &Range<usize>| {
            all.start <= some.start && some.end <= all.end
        };
        let is_inside = holds(&self.rows, &rows) && holds(&self.bytes, bytes);
        if !is_inside || self.tensor != part.identity() {
            return false;
        }
        let wanted = bytes.start - self.bytes.start..bytes.end - self.bytes.start;
        let mut row = rows.start;
        while row < rows.end {
            let i = (row - self.rows.start) / self.block_rows.max(1);
            let Some(block) = self.blocks.get(i) else {
                return false;
            };
            let block = block.read().unwrap_or_else(PoisonError::into_inner);
            if !block.is_read {
                return false;
            }
            let of_block = self.rows_of(i);
            let lines = block.bytes.chunks_exact(self.bytes.len().max(1));
            for (line, row) in lines.skip(row - of_block.start).zip(row..rows.end) {
                take(row - rows.start, &line[wanted.clone()]);
            }
            row = of_block.end;
        }
        true
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

    #[test]
    fn pieces_are_those_of_the_matrix() {
        let mut ahead = ReadAhead::default();
        // One block, several, and fewer again; whole rows and pieces.
        for (rows, stride, pieces) in [
            (67, 12, 0..12),
            (700, 1500, 300..1499),
            (5, 200_000, 1..199_000),
            (3, 8, 4..8),
        ] {
            let (model, bytes) = matrices(rows, stride);
            let wanted = rectangle(&model, stride, [1..rows, pieces.clone()]);
            ahead.begin(&wanted);
            assert_eq!(taken(&ahead, &wanted.part, 1..2, pieces.clone()), None);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| ahead.fill(&wanted, (1, 1)));
                }
            });
            let narrow = pieces.start + 1..pieces.end - 2;
            for (some, piece) in [(1..rows, pieces.clone()), (rows / 2..rows - 1, narrow)] {
                let expected = some
                    .clone()
                    .flat_map(|row| &bytes[row * stride..][piece.clone()]);
                let expected: Vec<u8> = expected.copied().collect();
                assert_eq!(taken(&ahead, &wanted.part, some, piece), Some(expected));
            }
        }
    }

    #[test]
    fn what_was_not_read_is_not_there() {
        let (model, _) = matrices(40, 20);
        let wanted = rectangle(&model, 20, [10..30, 4..12]);
        let mut ahead = ReadAhead::default();
        ahead.begin(&wanted);
        ahead.fill(&wanted, (1, 1));
        let (part, other) = (wanted.part, model.tensors().nth(1).unwrap().part());
        assert!(taken(&ahead, &part, 10..30, 4..12).is_some());
        for (rows, bytes) in [
            (9..30, 4..12),
            (10..31, 4..12),
            (10..30, 3..12),
            (10..30, 4..13),
        ] {
            assert_eq!(taken(&ahead, &part, rows, bytes), None);
        }
        assert_eq!(taken(&ahead, &other, 10..30, 4..12), None);
        // Rows beyond the tensor cannot be read, and neither can their block.
        let beyond = rectangle(&model, 20, [30..50, 0..20]);
        ahead.begin(&beyond);
        ahead.fill(&beyond, (1, 1));
        assert_eq!(taken(&ahead, &part, 30..31, 0..20), None);
        // Rows longer than a block are left to the tiles.
        let (model, _) = matrices(2, BLOCK_BYTES + 1);
        let long = rectangle(&model, BLOCK_BYTES + 1, [0..2, 0..BLOCK_BYTES + 1]);
        ahead.begin(&long);
        ahead.fill(&long, (1, 1));
        assert_eq!(taken(&ahead, &long.part, 0..1, 0..1), None);
    }
}
