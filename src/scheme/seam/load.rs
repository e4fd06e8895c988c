//! Positional reads of rectangles of stored matrices, as bytes, as floats, or transposed.

use std::ops::Range;

use super::wrong;
use crate::containers::model::{Part, Tensor};
use crate::element::{f32_from_bf16, f32_from_f16};
use crate::kernels::remember::fp8::{
    E4M3, Float8, f32_from_e8m0, f32_from_exponent, half_of_exponent,
};
use crate::{Dtype, Result};

/// Replaces `out` with rows `rows` and bytes `cols` of each, of a matrix with `stride` bytes a row. Whole rows take
/// one read, parts of rows one read each.
pub(crate) fn read(
    part: &Part<'_>,
    stride: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut Vec<u8>,
) -> Result<()> {
    // Not cleared first: what is there will be overwritten, and zeroing it would cost as much as a copy.
    out.resize(rows.len() * cols.len(), 0);
    if out.is_empty() {
        return Ok(());
    }
    // In 64 bits: a file may be larger than the address space of a 32-bit machine, as it is never
    // mapped here.
    let at = |row: usize| row as u64 * stride as u64 + cols.start as u64;
    if cols.len() == stride || rows.len() == 1 {
        return part.read_at(at(rows.start), out);
    }
    for (row, out) in rows.zip(out.chunks_exact_mut(cols.len())) {
        part.read_at(at(row), out)?;
    }
    Ok(())
}

/// A tensor of scales that widens to f32 exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floats<'m> {
    pub part: Part<'m>,
    dtype: Dtype,
    exponents: ExponentForm,
}

/// Which value the byte of an exponent has.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ExponentForm {
    /// The value that the dtype defines.
    Plain,
    /// Half of the power of two, which is finite for every byte.
    Half,
    /// The power of two, but zero for byte 0.
    Flushed,
}

impl<'m> Floats<'m> {
    /// Accepts F32, F16, BF16, F8_E8M0 and U8; the last two are exponents of two.
    pub(crate) fn new(t: &Tensor<'m>) -> Result<Self> {
        // U8 is an exponent here. Formats that store E4M3 under U8 call `fp8` instead: nothing in
        // the bytes tells the two apart.
        match t.dtype() {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8E8M0 | Dtype::U8 => Ok(Self {
                part: t.part(),
                dtype: t.dtype(),
                exponents: ExponentForm::Plain,
            }),
            _ => Err(wrong(
                t,
                "scales are F32, F16, BF16, F8_E8M0 or U8 exponents",
            )),
        }
    }

    /// U8 exponents, each read as half of its power of two.
    pub(crate) fn half_exponents(t: &Tensor<'m>) -> Self {
        Self {
            part: t.part(),
            dtype: Dtype::U8,
            exponents: ExponentForm::Half,
        }
    }

    /// Exponents of which byte 0 is zero and byte 255 infinity, as in comfy-kitchen `e8m0_to_f32`.
    pub(crate) fn flushed_exponents(t: &Tensor<'m>) -> Result<Self> {
        match t.dtype() {
            Dtype::F8E8M0 | Dtype::U8 => Ok(Self {
                part: t.part(),
                // As U8 and not F8_E8M0: torch's dtype makes NaN of byte 255, while comfy-kitchen
                // shifts it into F32's exponent field, which is infinity.
                dtype: Dtype::U8,
                exponents: ExponentForm::Flushed,
            }),
            _ => Err(wrong(t, "scales of these blocks are F8_E8M0")),
        }
    }

    /// E4M3, also under dtype U8.
    pub(crate) fn fp8(t: &Tensor<'m>) -> Result<Self> {
        match t.dtype() {
            Dtype::F8E4M3 | Dtype::U8 => Ok(Self {
                part: t.part(),
                dtype: Dtype::F8E4M3,
                exponents: ExponentForm::Plain,
            }),
            _ => Err(wrong(t, "scales of these blocks are F8_E4M3")),
        }
    }

    /// Accepts F32, F16 and BF16.
    pub(crate) fn ieee(t: &Tensor<'m>) -> Result<Self> {
        match t.dtype() {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(Self {
                part: t.part(),
                dtype: t.dtype(),
                exponents: ExponentForm::Plain,
            }),
            _ => Err(wrong(t, "scales are F32, F16 or BF16")),
        }
    }

    /// Dtype that the values are stored in.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Appends to `out`, row-major, the values at `rows` × `cols` of a matrix with `stride` values a row.
    pub(crate) fn extend(
        &self,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let size = self.dtype.bits() / 8;
        read(
            &self.part,
            stride * size,
            rows,
            cols.start * size..cols.end * size,
            staging,
        )?;
        // The staging buffer holds whole values, so `as_chunks` leaves no remainder.
        match self.dtype {
            Dtype::F32 => out.extend(staging.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
            Dtype::F16 => out.extend(
                staging
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f32_from_f16(u16::from_le_bytes(b))),
            ),
            Dtype::BF16 => out.extend(
                staging
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f32_from_bf16(u16::from_le_bytes(b))),
            ),
            Dtype::F8E4M3 => out.extend(staging.iter().map(|&b| E4M3::widen(b))),
            // Both other forms come before the dtype, since they override what it says.
            _ if self.exponents == ExponentForm::Half => {
                out.extend(staging.iter().map(|&b| half_of_exponent(b)));
            }
            _ if self.exponents == ExponentForm::Flushed => {
                out.extend(
                    staging
                        .iter()
                        .map(|&b| if b == 0 { 0.0 } else { f32_from_exponent(b) }),
                );
            }
            Dtype::F8E8M0 => out.extend(staging.iter().map(|&b| f32_from_e8m0(b))),
            _ => out.extend(staging.iter().map(|&b| f32_from_exponent(b))),
        }
        Ok(())
    }
}

/// Bytes of the words that are transposed together, of each column: two cache lines of the result, which CPUs fetch together.
const STRIP_BYTES: usize = 128;

/// The gap between the wanted pieces of two rows that is read along, as a part of a row: what is read and not wanted takes
/// less time than a read for each piece, and hardly more of a disk's.
const GAP: usize = 16;

/// Bytes of the longest rows of which all is read for any piece of them: a read takes longer than to copy so many.
const SHORT_ROW: usize = 512;

/// Largest read of a strip of rows with its gaps, in bytes.
const SPAN: usize = 256 << 10;

/// 32-bit words that each column takes in the result of [`read_transposed`] of `rows` rows.
pub(crate) fn transposed_words<const SIZE: usize>(rows: usize) -> usize {
    (rows * SIZE).div_ceil(4)
}

/// Fills `out` with the transposed words at `rows` × `cols` of a matrix with `stride` words of `SIZE` bytes a row.
///
/// In `out` each column begins at a multiple of [`transposed_words`], which is its length in 32-bit words. With words of four
/// bytes, word (r, c) is at `out[c * rows.len() + r]`; smaller words are packed, the first in the lowest bytes.
pub(crate) fn read_transposed<const SIZE: usize>(
    part: &Part<'_>,
    stride: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    staging: &mut Vec<u8>,
    out: &mut [u32],
) -> Result<()> {
    let strip = STRIP_BYTES / SIZE;
    let (height, width) = (rows.len(), cols.len() * SIZE);
    // Lines a power of two apart share cache sets and evict each other. An extra cache line in the pitch spreads
    // them. The pitch also covers whole squares, so that `transpose` may read beyond `width`.
    let pitch = width.next_multiple_of(SQUARE * SIZE) + 64;
    let stride = stride * SIZE;
    // A row is at least as wide as the wanted piece, so the difference cannot be negative.
    let has_short_gaps = stride <= SHORT_ROW || (stride - width) * GAP <= width;
    let joined = has_short_gaps && stride * strip <= SPAN;
    // Room for the joint read behind the lines, in one allocation that is reused from tile to tile.
    staging.resize((pitch + if joined { stride } else { 0 }) * strip, 0);
    let (lines, joint) = staging.split_at_mut(pitch * strip);
    let words = transposed_words::<SIZE>(height);
    for first in (0..height).step_by(strip) {
        let strip = strip.min(height - first);
        let at =
            |r: usize| (rows.start + first + r) as u64 * stride as u64 + (cols.start * SIZE) as u64;
        // The tail of a line behind `width` keeps old bytes. They are transposed along with the
        // last square, into columns of `block` that are not copied.
        let targets = lines
            .chunks_exact_mut(pitch)
            .take(strip)
            .map(|line| &mut line[..width]);
        if joined {
            let joint = &mut joint[..(strip - 1) * stride + width];
            part.read_at(at(0), joint)?;
            targets
                .zip(joint.chunks(stride))
                .for_each(|(line, piece)| line.copy_from_slice(&piece[..width]));
        } else {
            for (r, line) in targets.enumerate() {
                part.read_at(at(r), line)?;
            }
        }
        transpose::<SIZE>(lines, pitch, out, words, first..first + strip);
    }
    Ok(())
}

/// Columns that are transposed together if their words are packed: a block of a strip × `SQUARE` words stays in registers or the
/// first cache.
const SQUARE: usize = 8;

/// A strip of `SQUARE` columns.
type Block = [[u32; STRIP_BYTES / 4]; SQUARE];

/// Transposes a strip of lines of words, `pitch` bytes apart, into words `rows` of each column of `out`. A column has `height`
/// words of 32 bits.
fn transpose<const SIZE: usize>(
    lines: &[u8],
    pitch: usize,
    out: &mut [u32],
    height: usize,
    rows: Range<usize>,
) {
    if SIZE == 4 {
        // Every word is stored where it goes. A transposition in registers of AVX2 is no faster.
        for (c, column) in out.chunks_exact_mut(height).enumerate() {
            for (word, line) in column[rows.clone()]
                .iter_mut()
                .zip(lines.chunks_exact(pitch))
            {
                *word = u32::from_le_bytes(line.as_chunks().0[c]);
            }
        }
        return;
    }
    // Strips are cache lines of each column, so that they begin with a whole word of 32 bits.
    let rows = rows.start * SIZE / 4..(rows.end * SIZE).div_ceil(4);
    for (c, columns) in out.chunks_mut(height * SQUARE).enumerate() {
        let block = if SIZE == 1 {
            block_of_bytes(&lines[c * SQUARE..], pitch)
        } else {
            block_of_words::<SIZE>(&lines[c * SQUARE * SIZE..], pitch)
        };
        // The last square may have fewer columns than eight; `zip` ends with those that exist.
        for (column, block) in columns.chunks_exact_mut(height).zip(&block) {
            let column = &mut column[rows.clone()];
            // The length of a whole strip is a constant, which saves a call.
            match column.first_chunk_mut() {
                Some(whole) => *whole = *block,
                None => column.copy_from_slice(&block[..column.len()]),
            }
        }
    }
}

/// The first columns of the words of `lines`.
fn block_of_words<const SIZE: usize>(lines: &[u8], pitch: usize) -> Block {
    let mut block = Block::default();
    for (r, line) in lines.chunks(pitch).enumerate() {
        let words = line.as_chunks::<SIZE>().0;
        for (column, word) in block.iter_mut().zip(words) {
            // Word r of a column goes to byte `r * SIZE` of it, as if the column were stored contiguously.
            let mut padded = [0; 4];
            padded[..SIZE].copy_from_slice(word);
            column[r * SIZE / 4] |= u32::from_le_bytes(padded) << (r * SIZE % 4 * 8);
        }
    }
    block
}

/// The first eight columns of the bytes of `lines`, eight lines at a time: each is a number of 64 bits, and halves, quarters and
/// eighths of two numbers change places.
fn block_of_bytes(lines: &[u8], pitch: usize) -> Block {
    let mut block = Block::default();
    for i in 0..STRIP_BYTES / SQUARE {
        let mut square = [0u64; SQUARE];
        for (r, number) in square.iter_mut().enumerate() {
            let line = &lines[(i * SQUARE + r) * pitch..];
            *number = line
                .first_chunk()
                .map_or(0, |&bytes| u64::from_le_bytes(bytes));
        }
        for (distance, mask) in [
            (4, !0 >> 32),
            (2, 0xffff_0000_ffff),
            (1, 0xff_00ff_00ff_00ff),
        ] {
            for r in (0..SQUARE).filter(|r| r & distance == 0) {
                let (upper, lower) = (square[r], square[r + distance]);
                let swapped = (upper >> (distance * 8) ^ lower) & mask;
                square[r] = upper ^ swapped << (distance * 8);
                square[r + distance] = lower ^ swapped;
            }
        }
        for (column, number) in block.iter_mut().zip(square) {
            column[2 * i] = number as u32;
            column[2 * i + 1] = (number >> 32) as u32;
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParsedModel;

    fn check<const SIZE: usize>(model: &ParsedModel, bytes: &[u8], stride: usize) {
        let tensor = model.tensors().next().unwrap();
        let rows = bytes.len() / (stride * SIZE);
        let all = |n: usize| [0..n, 0..1, n - 1..n, n / 3..n - n / 4];
        for (rows, cols) in all(rows)
            .into_iter()
            .flat_map(|rows| all(stride).map(|cols| (rows.clone(), cols)))
        {
            let height = transposed_words::<SIZE>(rows.len());
            let (mut staging, mut out) = (Vec::new(), vec![7; cols.len() * height]);
            read_transposed::<SIZE>(
                &tensor.part(),
                stride,
                rows.clone(),
                cols.clone(),
                &mut staging,
                &mut out,
            )
            .unwrap();
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
