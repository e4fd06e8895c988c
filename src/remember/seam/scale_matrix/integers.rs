//! Scales and zero points that are stored as integers.

use std::ops::Range;

use super::ScaleMatrix;
use crate::model::{Part, Tensor};
use crate::remember::seam::{read, wrong};
use crate::{Dtype, Result};

/// Row-major integers of one byte or four, as floats.
pub(crate) struct Integers<'m> {
    part: Part<'m>,
    dtype: Dtype,
    cols: usize,
    /// Subtracted from each integer.
    offset: f32,
}

impl<'m> Integers<'m> {
    /// # Errors
    /// `t` is not I8, U8, I32 or I64.
    pub(crate) fn new(t: &Tensor<'m>, cols: usize, offset: f32) -> Result<Self> {
        match t.dtype() {
            Dtype::I8 | Dtype::U8 | Dtype::I32 | Dtype::I64 => {
                Ok(Self { part: t.part(), dtype: t.dtype(), cols, offset })
            }
            _ => Err(wrong(t, "zero points are I8, U8, I32 or I64")),
        }
    }
}

impl ScaleMatrix for Integers<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let size = self.dtype.bits() / 8;
        read(&self.part, self.cols * size, rows, cols.start * size..cols.end * size, staging)?;
        // I8 and U8 minus an offset of at most 128 are exact in F32. So are I32 and I64 below 2^24,
        // and zero points of codes are.
        match self.dtype {
            Dtype::I8 => out.extend(staging.iter().map(|&b| f32::from(b as i8) - self.offset)),
            Dtype::U8 => out.extend(staging.iter().map(|&b| f32::from(b) - self.offset)),
            Dtype::I64 => out.extend(
                staging
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| i64::from_le_bytes(b) as f32 - self.offset),
            ),
            _ => out.extend(
                staging
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| i32::from_le_bytes(b) as f32 - self.offset),
            ),
        }
        Ok(())
    }
}

/// Integers of 1 to 8 bits, packed along the rows: each column of each matrix is a bit stream,
/// least significant bit first, in little-endian words of four bytes.
pub(crate) struct ColumnPackedInts<'m> {
    pub part: Part<'m>,
    pub cols: usize,
    pub bits: usize,
    /// Integers in a word if none crosses into the next word; `None`: the bit stream has no gaps.
    pub per_word: Option<usize>,
    /// Subtracted from each integer.
    pub offset: f32,
    /// Rows of integers of one matrix of a stack.
    pub rows: usize,
    /// Rows of words of one matrix.
    pub word_rows: usize,
}

impl ScaleMatrix for ColumnPackedInts<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // A code that begins at bit 31 ends at bit 38, so two words are joined in 64 bits.
        let mask = (1u64 << self.bits) - 1;
        for row in rows {
            let (matrix, r) = (row / self.rows.max(1), row % self.rows.max(1));
            let (word, shift) = match self.per_word {
                Some(n) => (r / n, r % n * self.bits),
                None => (r * self.bits / 32, r * self.bits % 32),
            };
            // At most 8 bits a code, so that a code lies in two words at most.
            // With `per_word` no code crosses: that many whole codes fit a word.
            let across = shift + self.bits > 32;
            let first = matrix * self.word_rows + word;
            let lines = first..first + 1 + usize::from(across);
            read(&self.part, self.cols * 4, lines, cols.start * 4..cols.end * 4, staging)?;
            let words = staging.as_chunks().0;
            for c in 0..cols.len() {
                let low = u64::from(u32::from_le_bytes(words[c]));
                let high = if across {
                    u64::from(u32::from_le_bytes(words[cols.len() + c]))
                } else {
                    0
                };
                out.push(((low | high << 32) >> shift & mask) as f32 - self.offset);
            }
        }
        Ok(())
    }
}
