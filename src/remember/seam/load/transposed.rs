//! Rectangles of stored matrices whose rows run along the columns of the weight.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::Result;
use crate::model::Part;
use crate::remember::kernels::transpose::{
    Columns, LINES, Lines, PER_WORD, transpose_bytes, transpose_codes,
};
use crate::remember::seam::ReadAhead;
use crate::simd::{LINE, Level, zip};

/// Bytes of the words that are transposed together, of each column: two cache lines of the result,
/// which CPUs fetch together.
const STRIP_BYTES: usize = 128;

/// The gap between the wanted pieces of two rows that is read along, as a part of a row: what is
/// read and not wanted takes less time than a read for each piece, and hardly more of a disk's.
const GAP: usize = 16;

/// Bytes of the longest rows of which all is read for any piece of them: a read takes longer than
/// to copy so many.
pub(crate) const SHORT_ROW: usize = 512;

/// Largest read of a strip of rows with its gaps, in bytes.
const SPAN: usize = 256 << 10;

/// Words of 32 bits in a cache line.
const LINE_WORDS: usize = 16;

/// Words of the shortest column that ends with a whole cache line: a quarter of what a set of the
/// first cache is apart from the next of the same.
const LONG_COLUMN: usize = 256;

/// 32-bit words that each column takes in the result of [`read_transposed`] of `rows` rows.
///
/// Columns a power of two apart share cache sets and evict each other while they are written. So
/// long ones are an odd number of cache lines.
pub(crate) fn transposed_words<const SIZE: usize>(rows: usize) -> usize {
    match (rows * SIZE).div_ceil(4) {
        words if words < LONG_COLUMN => words,
        words => (words.div_ceil(LINE_WORDS) | 1) * LINE_WORDS,
    }
}

/// A stored matrix whose rows run along the columns of the weight.
#[derive(Clone, Copy)]
pub(crate) struct StoredWords<'a, 'm> {
    pub part: &'a Part<'m>,
    /// Words of a row.
    pub stride: usize,
    /// What of it may be read ahead.
    pub ahead: Option<&'a ReadAhead>,
}

/// Fills `out` with the transposed words at `rows` × `cols` of a matrix, whose words have `SIZE`
/// bytes.
///
/// In `out` each column begins at a multiple of `words` 32-bit words. With words of four bytes,
/// word (r, c) is at `out[c * words + r]`; smaller words are packed, the first in the lowest bytes.
pub(crate) fn read_transposed<const SIZE: usize>(
    matrix: StoredWords<'_, '_>,
    [rows, cols]: [Range<usize>; 2],
    staging: &mut Vec<u8>,
    words: usize,
    out: &mut [u32],
) -> Result<()> {
    let wanted = Wanted {
        part: matrix.part,
        ahead: matrix.ahead,
        stride: matrix.stride * SIZE,
        rows,
        bytes: cols.start * SIZE..cols.end * SIZE,
        strip: STRIP_BYTES / SIZE,
    };
    wanted.read(staging, |lines, rows| match SIZE {
        1 => {
            let mut columns = Columns { bytes: out.as_mut_bytes(), len: 4 * words, filled: rows };
            transpose_bytes(Level::detect(), lines, &mut columns);
        }
        4 => transpose_words(lines, out, words, rows),
        _ => transpose_short_words::<SIZE>(lines, out, words, rows),
    })
}

/// 32-bit words that each column takes in the result of [`read_transposed_codes`] of `rows` rows.
pub(crate) fn transposed_code_words(rows: usize) -> usize {
    transposed_words::<1>(rows.div_ceil(2))
}

/// Fills `out` with the transposed codes of four bits at `rows` × `words` of a matrix, whose words
/// have 32 bits. Their code i belongs to column `order[i]` of its eight. Each column begins at a
/// multiple of [`transposed_code_words`] in `out`, and is a bit stream.
pub(crate) fn read_transposed_codes(
    matrix: StoredWords<'_, '_>,
    order: [usize; PER_WORD],
    [rows, words]: [Range<usize>; 2],
    staging: &mut Vec<u8>,
    out: &mut [u32],
) -> Result<()> {
    let len = 4 * transposed_code_words(rows.len());
    let wanted = Wanted {
        part: matrix.part,
        ahead: matrix.ahead,
        stride: matrix.stride * 4,
        rows,
        bytes: words.start * 4..words.end * 4,
        strip: LINES,
    };
    wanted.read(staging, |lines, rows| {
        let mut columns = Columns {
            bytes: out.as_mut_bytes(),
            len,
            filled: rows.start / 2..rows.end.div_ceil(2),
        };
        transpose_codes(Level::detect(), order, lines, &mut columns);
    })
}

/// A rectangle of a stored matrix, in strips of rows.
struct Wanted<'a, 'm> {
    part: &'a Part<'m>,
    ahead: Option<&'a ReadAhead>,
    /// Bytes of a row.
    stride: usize,
    rows: Range<usize>,
    /// The wanted bytes of each row.
    bytes: Range<usize>,
    /// Rows of a strip.
    strip: usize,
}

impl Wanted<'_, '_> {
    /// Calls `each` with the wanted bytes of each strip of rows, and their places among the wanted
    /// rows.
    fn read(
        &self,
        staging: &mut Vec<u8>,
        mut each: impl FnMut(&Lines<'_>, Range<usize>),
    ) -> Result<()> {
        let (stride, width) = (self.stride, self.bytes.len());
        // Lines a power of two apart share cache sets and evict each other. An extra cache line in
        // the pitch spreads them. The pitch also covers what is transposed together, which may
        // reach beyond `width`.
        let pitch = width.next_multiple_of(LINE) + 64;
        // A row is at least as wide as the wanted piece, so the difference cannot be negative.
        let has_short_gaps = stride <= SHORT_ROW || (stride - width) * GAP <= width;
        let joined = has_short_gaps && stride * self.strip <= SPAN;
        // Room for the joint read behind the lines, in one allocation that is reused from tile to
        // tile.
        staging.resize((pitch + if joined { stride } else { 0 }) * self.strip, 0);
        let (lines, joint) = staging.split_at_mut(pitch * self.strip);
        for first in self.rows.clone().step_by(self.strip) {
            let rows = first..(first + self.strip).min(self.rows.end);
            self.read_strip(&rows, (&mut *lines, pitch), joint)?;
            let lines = Lines { bytes: lines, pitch };
            each(&lines, rows.start - self.rows.start..rows.end - self.rows.start);
        }
        Ok(())
    }

    /// Reads the wanted bytes of each of the rows `rows` to the start of a line of `lines`, which
    /// are `pitch` apart. If `joint` is not empty, it is read in one piece, there.
    fn read_strip(
        &self,
        rows: &Range<usize>,
        (lines, pitch): (&mut [u8], usize),
        joint: &mut [u8],
    ) -> Result<()> {
        let width = self.bytes.len();
        // The tail of a line behind `width` keeps old bytes, and so do lines behind the strip. They
        // are transposed along with the others, and not copied.
        let line = |r: usize| r * pitch..r * pitch + width;
        let is_ahead = self.ahead.is_some_and(|ahead| {
            let copy = |r: usize, piece: &[u8]| lines[line(r)].copy_from_slice(piece);
            ahead.take(self.part, rows.clone(), &self.bytes, copy)
        });
        if is_ahead {
            return Ok(());
        }
        let at = |row: usize| row as u64 * self.stride as u64 + self.bytes.start as u64;
        if joint.is_empty() {
            let lines = lines.chunks_exact_mut(pitch).map(|line| &mut line[..width]);
            let pieces = zip(rows.clone(), lines);
            return self.part.read_each(pieces.map(|(row, out)| (at(row), out)));
        }
        let joint = &mut joint[..(rows.len() - 1) * self.stride + width];
        self.part.read_at(at(rows.start), joint)?;
        for (r, piece) in joint.chunks(self.stride).enumerate() {
            lines[line(r)].copy_from_slice(&piece[..width]);
        }
        Ok(())
    }
}

/// Transposes words of 32 bits into words `rows` of each column of `out`, which has `height` of
/// them.
fn transpose_words(lines: &Lines<'_>, out: &mut [u32], height: usize, rows: Range<usize>) {
    // Every word is stored where it goes. A transposition in registers of AVX2 is no faster.
    for (c, column) in out.chunks_exact_mut(height).enumerate() {
        let lines = lines.bytes.chunks_exact(lines.pitch);
        for (word, line) in zip(&mut column[rows.clone()][..], lines) {
            *word = u32::from_le_bytes(line.as_chunks().0[c]);
        }
    }
}

/// Columns of words of two bytes that are transposed together: a block of a strip × `SQUARE` words
/// stays in the first cache.
const SQUARE: usize = 8;

/// As [`transpose_words`], with shorter words, `rows` of each column.
fn transpose_short_words<const SIZE: usize>(
    lines: &Lines<'_>,
    out: &mut [u32],
    height: usize,
    rows: Range<usize>,
) {
    // Strips are cache lines of each column, so that they begin with a whole word of 32 bits.
    let rows = rows.start * SIZE / 4..(rows.end * SIZE).div_ceil(4);
    for (c, columns) in out.chunks_mut(height * SQUARE).enumerate() {
        let mut block = [[0; STRIP_BYTES / 4]; SQUARE];
        let lines = lines.bytes[c * SQUARE * SIZE..].chunks(lines.pitch);
        for (r, line) in lines.enumerate() {
            for (column, word) in zip(&mut block[..], line.as_chunks::<SIZE>().0) {
                // Word r of a column goes to byte `r * SIZE` of it, as if the column were stored
                // contiguously.
                let mut padded = [0; 4];
                padded[..SIZE].copy_from_slice(word);
                column[r * SIZE / 4] |= u32::from_le_bytes(padded) << (r * SIZE % 4 * 8);
            }
        }
        // The last square may have fewer columns than eight; `zip` ends with those that exist.
        for (column, block) in zip(columns.chunks_exact_mut(height), &block) {
            let column = &mut column[rows.clone()];
            column.copy_from_slice(&block[..column.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParsedModel;
    use crate::remember::seam::{StoredPiece, StoredRectangle};

    fn check<const SIZE: usize>(model: &ParsedModel, bytes: &[u8], stride: usize) {
        let tensor = model.tensors().next().unwrap();
        let rows = bytes.len() / (stride * SIZE);
        let all = |n: usize| [0..n, 0..1, n - 1..n, n / 3..n - n / 4];
        for (rows, cols) in all(rows)
            .into_iter()
            .flat_map(|rows| all(stride).map(|cols| (rows.clone(), cols)))
        {
            let height = transposed_words::<SIZE>(rows.len());
            let rectangle = [rows.clone(), cols.clone()];
            let read = |ahead| {
                let (mut staging, mut out) = (Vec::new(), vec![7; cols.len() * height]);
                let matrix = StoredWords { part: &tensor.part(), stride, ahead };
                let staging = &mut staging;
                read_transposed::<SIZE>(matrix, rectangle.clone(), staging, height, &mut out)
                    .unwrap();
                out
            };
            let (out, mut ahead) = (read(None), ReadAhead::default());
            let wanted = StoredRectangle {
                rows: rows.clone(),
                codes: StoredPiece {
                    part: tensor.part(),
                    stride: stride * SIZE,
                    bytes: 0..stride * SIZE,
                },
                scales: None,
            };
            ahead.begin(std::slice::from_ref(&wanted));
            ahead.fill(&wanted, (1, 1), &mut vec![]);
            assert_eq!(out, read(Some(&ahead)));
            for (c, column) in cols.clone().zip(out.chunks(height)) {
                let column: Vec<u8> = column.iter().flat_map(|word| word.to_le_bytes()).collect();
                for (r, word) in rows.clone().zip(column.chunks_exact(SIZE)) {
                    assert_eq!(word, &bytes[(r * stride + c) * SIZE..][..SIZE], "{r}, {c}");
                }
            }
        }
    }

    #[test]
    fn words_of_all_sizes_are_transposed() {
        // Rows of all lengths: short ones, and long ones of which all or pieces are read.
        for (rows, row_bytes) in [(1, 4), (67, 12), (130, 520), (65, 2052), (33, 8)] {
            let bytes: Vec<u8> = (0..rows * row_bytes)
                .map(|i| (i * 7 + i / 251) as u8)
                .collect();
            let header = format!(
                r#"{{"w":{{"dtype":"U8","shape":[{rows},{row_bytes}],"data_offsets":[0,{}]}}}}"#,
                bytes.len()
            );
            let mut file = (header.len() as u64).to_le_bytes().to_vec();
            file.extend(header.bytes().chain(bytes.iter().copied()));
            let model = crate::parse_bytes(file).unwrap();
            check::<1>(&model, &bytes, row_bytes);
            check::<2>(&model, &bytes, row_bytes / 2);
            check::<4>(&model, &bytes, row_bytes / 4);
        }
    }
}
