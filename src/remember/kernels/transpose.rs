//! Transposition of bytes, and of codes of four bits: lines of a stored matrix become columns.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{InMemory, LINE, Level, Routine, Transpose, copy, perform, zip};

/// Lines that are transposed together: two cache lines of bytes, which CPUs fetch together, or one
/// of codes.
pub(crate) const LINES: usize = 128;

/// Codes of four bits in a word, whose order in it is that of the matrix or another.
pub(crate) const PER_WORD: usize = 8;

/// Some lines of a matrix, at most [`LINES`].
pub(crate) struct Lines<'a> {
    /// Room for [`LINES`] lines of whole [`LINE`]s of bytes, whatever number of lines and bytes is
    /// wanted.
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

/// Transposes codes of four bits, eight in each word of four bytes of a line: a column for each
/// code, with the codes of two lines in a byte, the first in the low half. Code i of a word belongs
/// to column `order[i]` of its eight.
pub(crate) fn transpose_codes(
    level: Level,
    order: [usize; PER_WORD],
    lines: &Lines<'_>,
    columns: &mut Columns<'_>,
) {
    let mut routine = Codes { order, lines, columns };
    perform(level, &mut routine);
}

struct Bytes<'a, 'b> {
    lines: &'a Lines<'a>,
    columns: &'a mut Columns<'b>,
}

impl Routine for Bytes<'_, '_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.transpose(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.transpose(avx2);
    }
}

impl Bytes<'_, '_> {
    #[inline(always)]
    fn transpose(&mut self, by: impl Transpose) {
        let Columns { bytes, len, filled } = &mut *self.columns;
        let mut block = [[0; LINES]; LINE];
        for (left, columns) in zip((0..).step_by(LINE), bytes.chunks_mut(LINE * (*len).max(1))) {
            for i in 0..LINES / 8 {
                let mut lines = [self.lines.at(i * 8, left); 8];
                for (r, line) in lines.iter_mut().enumerate() {
                    *line = self.lines.at(i * 8 + r, left);
                }
                let numbers = by.transpose(lines);
                for (column, number) in zip(&mut block[..], numbers) {
                    put(column, i, number);
                }
            }
            copy_columns(&block, columns, *len, filled);
        }
    }
}

struct Codes<'a, 'b> {
    order: [usize; PER_WORD],
    lines: &'a Lines<'a>,
    columns: &'a mut Columns<'b>,
}

impl Routine for Codes<'_, '_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.transpose(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.transpose(avx2);
    }
}

impl Codes<'_, '_> {
    #[inline(always)]
    fn transpose(&mut self, by: impl Transpose) {
        let Columns { bytes, len, filled } = &mut *self.columns;
        let mut block = [[0; LINES / 2]; 2 * LINE];
        for (left, columns) in zip((0..).step_by(LINE), bytes.chunks_mut(2 * LINE * (*len).max(1)))
        {
            for i in 0..LINES / 16 {
                // Pairs of lines in turn: the bytes of the second pairs come between those of the
                // first.
                let mut pairs = [[self.lines.at(i * 16, left); 8]; 2];
                for r in 0..16 {
                    pairs[r / 2 % 2][r / 4 * 2 + r % 2] = self.lines.at(i * 16 + r, left);
                }
                let (first, second) = (by.transpose(pairs[0]), by.transpose(pairs[1]));
                let mut codes = [[0; LINE]; 2];
                for (half, codes) in codes.iter_mut().enumerate() {
                    for (codes, (first, second)) in zip(&mut codes[..], zip(first.iter(), &second))
                    {
                        *codes = joined(first >> (half * 4)) | joined(second >> (half * 4)) << 8;
                    }
                }
                for byte in 0..LINE {
                    for (half, codes) in codes.iter().enumerate() {
                        let code = self.order[byte % 4 * 2 + half];
                        put(&mut block[byte / 4 * PER_WORD + code], i, codes[byte]);
                    }
                }
            }
            copy_columns(&block, columns, *len, filled);
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
    /// The bytes of line `line` from `left` on.
    #[inline(always)]
    fn at(&self, line: usize, left: usize) -> &[u8; LINE] {
        const ZEROS: [u8; LINE] = [0; LINE];
        let bytes = self.bytes.get(line * self.pitch + left..);
        bytes.and_then(<[u8]>::first_chunk).unwrap_or(&ZEROS)
    }
}

/// Puts `number` into place `i` of a line of numbers.
#[inline(always)]
fn put<const N: usize>(line: &mut [u8; N], i: usize, number: u64) {
    line.as_chunks_mut().0[i] = number.to_le_bytes();
}

/// Copies the bytes of a block that are wanted into the columns, of which there may be fewer.
#[inline(always)]
fn copy_columns<const N: usize>(
    block: &[[u8; N]],
    columns: &mut [u8],
    len: usize,
    filled: &Range<usize>,
) {
    for (column, bytes) in zip(columns.chunks_exact_mut(len.max(1)), block) {
        let column = &mut column[filled.clone()];
        // The length of a whole block is a constant, which saves a call.
        match column.first_chunk_mut() {
            Some(whole) => *whole = *bytes,
            None => copy(&bytes[..column.len()], column),
        }
    }
}
