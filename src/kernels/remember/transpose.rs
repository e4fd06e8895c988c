//! Transposition of bytes, and of codes of four bits: lines of a stored matrix become columns.
//!
//! Eight lines of eight bytes are eight numbers of 64 bits, of which halves, quarters and eighths of two change places. Four such
//! squares lie side by side in a vector.

use std::ops::Range;

use crate::simd::{Level, Routine, perform};

/// Lines that are transposed together: two cache lines of bytes, which CPUs fetch together, or one of codes.
pub(crate) const LINES: usize = 128;

/// Bytes of a line that are transposed together.
pub(crate) const WIDTH: usize = 32;

/// Codes of four bits in a word, whose order in it is that of the matrix or another.
pub(crate) const PER_WORD: usize = 8;

/// Some lines of a matrix, at most [`LINES`].
pub(crate) struct Lines<'a> {
    /// Room for [`LINES`] lines of whole [`WIDTH`]s of bytes, whatever number of lines and bytes is wanted.
    pub bytes: &'a [u8],
    /// Bytes from the start of a line to that of the next.
    pub pitch: usize,
}

/// Columns that are made of lines.
pub(crate) struct Columns<'a> {
    pub bytes: &'a mut [u8],
    /// Bytes of a column.
    pub len: usize,
    /// The bytes of each column that the lines fill.
    pub filled: Range<usize>,
}

/// Transposes bytes: a column for each byte of a line.
pub(crate) fn transpose_bytes(level: Level, lines: &Lines<'_>, columns: &mut Columns<'_>) {
    perform(level, &mut Bytes { lines, columns });
}

/// Transposes codes of four bits, eight in each word of four bytes of a line: a column for each code, with the codes of two lines
/// in a byte, the first in the low half. Code i of a word belongs to column `order[i]` of its eight.
pub(crate) fn transpose_codes(
    level: Level,
    order: [usize; PER_WORD],
    lines: &Lines<'_>,
    columns: &mut Columns<'_>,
) {
    let mut routine = Codes {
        order,
        lines,
        columns,
    };
    perform(level, &mut routine);
}

struct Bytes<'a, 'b> {
    lines: &'a Lines<'a>,
    columns: &'a mut Columns<'b>,
}

impl Routine for Bytes<'_, '_> {
    #[inline(always)]
    fn run(&mut self) {
        let Columns { bytes, len, filled } = &mut *self.columns;
        let mut block = [[0; LINES]; WIDTH];
        for (left, columns) in (0..)
            .step_by(WIDTH)
            .zip(bytes.chunks_mut(WIDTH * (*len).max(1)))
        {
            for i in 0..LINES / 8 {
                let squares = self.lines.squares(left, std::array::from_fn(|r| i * 8 + r));
                for (b, numbers) in squares.iter().enumerate() {
                    for (l, number) in numbers.iter().enumerate() {
                        put(&mut block[l * 8 + b], i, *number);
                    }
                }
            }
            copy(&block, columns, *len, filled);
        }
    }
}

struct Codes<'a, 'b> {
    order: [usize; PER_WORD],
    lines: &'a Lines<'a>,
    columns: &'a mut Columns<'b>,
}

impl Routine for Codes<'_, '_> {
    #[inline(always)]
    fn run(&mut self) {
        let Columns { bytes, len, filled } = &mut *self.columns;
        let mut block = [[0; LINES / 2]; 2 * WIDTH];
        for (left, columns) in (0..)
            .step_by(WIDTH)
            .zip(bytes.chunks_mut(2 * WIDTH * (*len).max(1)))
        {
            for i in 0..LINES / 16 {
                // Pairs of lines in turn: the bytes of the second squares come between those of the first.
                let pairs =
                    |first: usize| std::array::from_fn(|r| i * 16 + r / 2 * 4 + first + r % 2);
                let first = self.lines.squares(left, pairs(0));
                let second = self.lines.squares(left, pairs(2));
                for b in 0..8 {
                    for shift in [0, 4] {
                        let mut codes = [0; 4];
                        for (l, codes) in codes.iter_mut().enumerate() {
                            *codes =
                                joined(first[b][l] >> shift) | joined(second[b][l] >> shift) << 8;
                        }
                        for (l, codes) in codes.into_iter().enumerate() {
                            let byte = l * 8 + b;
                            let code = byte % 4 * 2 + shift / 4;
                            let column = byte / 4 * PER_WORD + self.order[code];
                            put(&mut block[column], i, codes);
                        }
                    }
                }
            }
            copy(&block, columns, *len, filled);
        }
    }
}

/// The low halves of every two bytes as one byte, in the lower of the two places.
#[inline(always)]
fn joined(bytes: u64) -> u64 {
    let low = bytes & 0x0f0f_0f0f_0f0f_0f0f;
    (low | low >> 4) & 0x00ff_00ff_00ff_00ff
}

impl Lines<'_> {
    /// The bytes from `left` on of eight lines, transposed: number l of entry b has the bytes of column `8 * l + b`.
    #[inline(always)]
    fn squares(&self, left: usize, lines: [usize; 8]) -> [[u64; 4]; 8] {
        let mut squares = [[0; 4]; 8];
        for (square, line) in squares.iter_mut().zip(lines) {
            let bytes = &self.bytes[line * self.pitch + left..][..WIDTH];
            for (number, bytes) in square.iter_mut().zip(bytes.as_chunks().0) {
                *number = u64::from_le_bytes(*bytes);
            }
        }
        for (distance, mask) in [
            (4, !0 >> 32),
            (2, 0xffff_0000_ffff),
            (1, 0xff_00ff_00ff_00ff),
        ] {
            for r in 0..8 {
                if r & distance != 0 {
                    continue;
                }
                let (upper, lower) = (squares[r], squares[r + distance]);
                for l in 0..4 {
                    let swapped = (upper[l] >> (distance * 8) ^ lower[l]) & mask;
                    squares[r][l] = upper[l] ^ swapped << (distance * 8);
                    squares[r + distance][l] = lower[l] ^ swapped;
                }
            }
        }
        squares
    }
}

/// Puts `number` into place `i` of a line of numbers.
#[inline(always)]
fn put<const N: usize>(line: &mut [u8; N], i: usize, number: u64) {
    line.as_chunks_mut().0[i] = number.to_le_bytes();
}

/// Copies the bytes of a block that are wanted into the columns, of which there may be fewer.
#[inline(always)]
fn copy<const N: usize>(block: &[[u8; N]], columns: &mut [u8], len: usize, filled: &Range<usize>) {
    for (column, bytes) in columns.chunks_exact_mut(len.max(1)).zip(block) {
        let column = &mut column[filled.clone()];
        // The length of a whole block is a constant, which saves a call.
        match column.first_chunk_mut() {
            Some(whole) => *whole = *bytes,
            None => column.copy_from_slice(&bytes[..column.len()]),
        }
    }
}
