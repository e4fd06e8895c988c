//! Moves of bits from interleaved blocks to blocks of each row, in words of 32 bits. The same word
//! of many blocks is moved at once: vectors of it are made by transposing the blocks' words, and
//! those of the result are transposed back.

use std::collections::BTreeMap;
use std::ops::Range;

use super::moves::BitMove;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{InMemory, LANES, Level, Routine, Transpose, copy, perform, zip};

/// Bytes of a word.
const WORD: usize = 4;

/// Blocks that are moved together: two vectors of AVX2 for each word, which take the time that one
/// takes.
const TOGETHER: usize = 2 * LANES;

/// Bytes of a line of a square that is transposed.
const LINE: usize = WORD * LANES;

/// The same word of all blocks that are moved together.
type Words = [u32; TOGETHER];

/// Bits of a word that are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WordMove {
    /// The word of the interleaved block.
    from: usize,
    /// By how many bits it is shifted to the left, or else to the right.
    left: u32,
    right: u32,
    /// The bits of the result that are kept.
    mask: u32,
}

/// How interleaved blocks become blocks of each row.
pub(super) struct RowMoves {
    /// Bytes of an interleaved block and of a row's.
    block: usize,
    row_block: usize,
    /// Bytes before a row's block in its words, which make most moves those of whole words.
    before: usize,
    rows: Vec<OneRow>,
}

/// The moves of one row.
#[derive(Default)]
struct OneRow {
    /// Moves in the order of the words that they go to.
    moves: Vec<WordMove>,
    /// How many moves each word has.
    counts: Vec<usize>,
}

impl RowMoves {
    /// The moves of `rows` rows, whose blocks have the bytes of `sizes`: interleaved and of one
    /// row. `count` blocks are taken as one.
    pub(super) fn new(moves: &[BitMove], rows: usize, sizes: [usize; 2], count: usize) -> Self {
        let [block, row_block] = sizes.map(|size| size * count);
        let of_one = moves.iter().flat_map(bits_of);
        let bits: Vec<_> = of_one
            .flat_map(|(to, from, row)| {
                let next = move |i| (to + 8 * sizes[1] * i, from + 8 * sizes[0] * i, row);
                (0..count).map(next)
            })
            .collect();
        let with = |before: usize| {
            let words = (before + row_block).div_ceil(WORD);
            let row = |row| OneRow::new(&bits, row, 8 * before, words);
            let rows: Vec<OneRow> = (0..rows).map(row).collect();
            Self { block, row_block, before, rows }
        };
        let mut best = with(0);
        for before in 1..WORD {
            let other = with(before);
            if other.len() < best.len() {
                best = other;
            }
        }
        best
    }

    /// The number of moves.
    fn len(&self) -> usize {
        self.rows.iter().map(|row| row.moves.len()).sum()
    }

    /// Writes what interleaved `blocks` have of each row to `out`: of each `per_row` blocks the
    /// row's blocks, row after row.
    pub(super) fn perform(&self, level: Level, blocks: &[u8], per_row: usize, out: &mut [u8]) {
        let mut mover = Mover { all: self, blocks, per_row: per_row.max(1), out };
        perform(level, &mut mover);
    }
}

impl OneRow {
    /// The moves to `words` words, in which the row's block begins at bit `before`.
    fn new(bits: &[MovedBit], row: usize, before: usize, words: usize) -> Self {
        const BITS: usize = 8 * WORD;
        let mut masks = BTreeMap::new();
        for &(to, from, distance) in bits {
            let (to, from) = (to + before, from + row * distance);
            let shifts = (
                (to % BITS).saturating_sub(from % BITS) as u32,
                (from % BITS).saturating_sub(to % BITS) as u32,
            );
            // A bit that is brought to a place twice is not there.
            *masks.entry((to / BITS, from / BITS, shifts)).or_insert(0) ^= 1u32 << (to % BITS);
        }
        let mut row = Self { moves: Vec::with_capacity(masks.len()), counts: vec![0; words] };
        for ((to, from, (left, right)), mask) in masks {
            row.counts[to] += 1;
            row.moves.push(WordMove { from, left, right, mask });
        }
        row
    }

    /// Makes the words of a row's blocks of those of interleaved blocks.
    #[inline(always)]
    fn perform(&self, source: &[Words], target: &mut [Words]) {
        let mut moves = self.moves.iter();
        for (target, &count) in zip(&mut target[..], &self.counts) {
            let mut words = [0; TOGETHER];
            for m in moves.by_ref().take(count) {
                let from = &source[m.from];
                for i in 0..TOGETHER {
                    words[i] ^= from[i].wrapping_shl(m.left).wrapping_shr(m.right) & m.mask;
                }
            }
            *target = words;
        }
    }
}

/// A bit's place in the row's block, its place in the interleaved block, and the distance between
/// rows there.
type MovedBit = (usize, usize, usize);

/// Each bit that is moved.
pub(super) fn bits_of(m: &BitMove) -> Vec<MovedBit> {
    let mut bits: Vec<_> = (0..m.bits).map(|i| (m.to + i, m.from + i, m.row)).collect();
    for &(count, to, from) in m.steps {
        let moved = |i| {
            bits.iter()
                .map(move |&(t, f, row)| (t + i * to, f + i * from, row))
        };
        bits = (0..count).flat_map(moved).collect();
    }
    bits
}

/// Moves blocks at one level.
struct Mover<'a> {
    all: &'a RowMoves,
    blocks: &'a [u8],
    per_row: usize,
    out: &'a mut [u8],
}

impl Routine for Mover<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.blocks(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.blocks(avx2);
    }
}

impl Mover<'_> {
    #[inline(always)]
    fn blocks(&mut self, unit: impl Transpose) {
        let (all, block) = (self.all, self.all.block.max(1));
        let words = (all.before + all.row_block).div_ceil(WORD);
        let squares = words.div_ceil(LANES);
        let mut source = vec![Words::default(); block.div_ceil(LINE) * LANES];
        let mut target = vec![Words::default(); squares * LANES];
        // Blocks that begin before their first byte end before their last line does.
        let mut lines = vec![0; TOGETHER * squares * LINE + LINE];
        for (at, blocks) in zip((0..).step_by(TOGETHER), self.blocks.chunks(TOGETHER * block)) {
            gather(unit, blocks, block, &mut source);
            let count = blocks.len() / block;
            for (r, row) in all.rows.iter().enumerate() {
                row.perform(&source, &mut target);
                scatter(unit, &target, &mut lines);
                self.put(&lines, squares * LINE, r, at..at + count);
            }
        }
    }

    /// Writes the blocks of row `row` that are in `lines`, `pitch` bytes each.
    #[inline(always)]
    fn put(&mut self, lines: &[u8], pitch: usize, row: usize, blocks: Range<usize>) {
        let RowMoves { row_block, before, .. } = *self.all;
        let (mut group, mut col) = (blocks.start / self.per_row, blocks.start % self.per_row);
        let whole = row_block.next_multiple_of(LINE);
        for i in 0..blocks.len() {
            let at = ((group * self.all.rows.len() + row) * self.per_row + col) * row_block;
            let (from, to) = (&lines[i * pitch + before..], &mut self.out[at..]);
            let coming = (self.per_row - col).min(blocks.len() - i) * row_block;
            if whole <= coming {
                // Whole lines, whose bytes behind the block become those of the blocks that come.
                let to = to[..whole].as_chunks_mut::<LINE>().0;
                for (to, from) in zip(&mut to[..], from.as_chunks::<LINE>().0) {
                    *to = *from;
                }
            } else {
                copy(&from[..row_block], &mut to[..row_block]);
            }
            col += 1;
            if col == self.per_row {
                (group, col) = (group + 1, 0);
            }
        }
    }
}

/// The words of blocks of `block` bytes, word by word. Behind the last block are zeros.
#[inline(always)]
fn gather(unit: impl Transpose, blocks: &[u8], block: usize, words: &mut [Words]) {
    for (left, words) in zip((0..).step_by(LINE), words.as_chunks_mut::<LANES>().0) {
        for half in 0..TOGETHER / LANES {
            let mut square = [[0u32; LANES]; LANES];
            for (i, line) in square.iter_mut().enumerate() {
                let at = (half * LANES + i) * block + left;
                let bytes = blocks.get(at..).unwrap_or_default();
                let bytes = match bytes.first_chunk::<LINE>() {
                    Some(bytes) => *bytes,
                    None => last_line(bytes),
                };
                for (word, &bytes) in zip(&mut line[..], bytes.as_chunks().0) {
                    *word = u32::from_le_bytes(bytes);
                }
            }
            let square = unit.columns(square);
            for (words, column) in zip(&mut words[..], square) {
                words.as_chunks_mut().0[half] = column;
            }
        }
    }
}

/// A line of fewer bytes.
#[cold]
fn last_line(bytes: &[u8]) -> [u8; LINE] {
    let mut line = [0; LINE];
    copy(bytes, &mut line[..bytes.len()]);
    line
}

/// Writes words that lie word by word to `lines`, block by block.
#[inline(always)]
fn scatter(unit: impl Transpose, words: &[Words], lines: &mut [u8]) {
    let squares = words.as_chunks::<LANES>().0;
    let lines = lines.as_chunks_mut::<LINE>().0;
    for (left, words) in squares.iter().enumerate() {
        for half in 0..TOGETHER / LANES {
            let mut square = [[0u32; LANES]; LANES];
            for (line, words) in zip(&mut square[..], words) {
                *line = words.as_chunks().0[half];
            }
            let square = unit.columns(square);
            for (i, row) in square.iter().enumerate() {
                let line = &mut lines[(half * LANES + i) * squares.len() + left];
                for (bytes, word) in zip(line.as_chunks_mut().0, row) {
                    *bytes = word.to_le_bytes();
                }
            }
        }
    }
}
