//! Matrices whose rows are packed at a stride. With `stride` rows of words and n codes in a word,
//! word row r holds the codes of rows r, r + stride, r + 2 * stride, …, r + (n - 1) * stride of the
//! matrix. BitNet, quanto and HQQ pack like this.

use crate::Result;
use crate::model::Part;
use crate::remember::seam::grouped::Unpack;
use crate::remember::seam::{Tile, read};

/// Codes of rows that are packed at a stride.
pub(crate) struct StridedRows<'m> {
    pub part: Part<'m>,
    /// Rows of words, which is the distance of two rows that share words.
    pub stride: usize,
    /// Words in a row, which is the number of columns.
    pub cols: usize,
    /// Bytes of a word: one or four (little-endian).
    pub word_bytes: usize,
    pub bits: usize,
    /// Lowest bit of the codes of the first `stride` rows.
    pub first_shift: usize,
    /// Whether the next `stride` rows lie in higher bits than the ones before, rather than in lower
    /// bits.
    pub is_low_first: bool,
}

impl<'m> StridedRows<'m> {
    /// One-byte words with the first `stride` rows in their lowest bits.
    pub(crate) fn low_first(part: Part<'m>, stride: usize, cols: usize, bits: usize) -> Self {
        Self { part, stride, cols, word_bytes: 1, bits, first_shift: 0, is_low_first: true }
    }

    pub(crate) fn codes_per_word(&self) -> usize {
        if self.is_low_first {
            self.word_bytes * 8 / self.bits
        } else {
            self.first_shift / self.bits + 1
        }
    }

    /// Reshapes the matrix to rows of `cols` columns, and returns true, if `stride` rows together
    /// are whole rows of `cols`.
    ///
    /// The codes of `stride` rows are adjacent, row by row, at one bit position. If they make up
    /// whole rows of the new width, a change of stride and width moves no code to another word or
    /// bit.
    pub(crate) fn reshape(&mut self, cols: usize) -> bool {
        let words = self
            .stride
            .checked_mul(self.cols)
            .filter(|n| cols > 0 && n.is_multiple_of(cols));
        if let Some(words) = words {
            (self.stride, self.cols) = (words / cols, cols);
        }
        words.is_some()
    }
}

impl Unpack for StridedRows<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let mask = (1u32 << self.bits) - 1;
        let mut row = tile.rows.start;
        while row < tile.rows.end {
            // With 2 bits and stride s, byte row r holds (bits 7-6 first) rows r+3s | r+2s | r+s |
            // r if `is_low_first`, as BitNet and quanto pack; HQQ packs r | r+s | r+2s | r+3s. Up
            // to the next multiple of the stride, adjacent rows lie in adjacent word rows and in
            // the same bits.
            let (slot, first) = (row / self.stride.max(1), row % self.stride.max(1));
            let n = (self.stride - first).min(tile.rows.end - row);
            let cols = tile.cols.start * self.word_bytes..tile.cols.end * self.word_bytes;
            read(&self.part, self.cols * self.word_bytes, first..first + n, cols, staging)?;
            let shift = if self.is_low_first {
                self.first_shift + slot * self.bits
            } else {
                self.first_shift - slot * self.bits
            };
            if self.word_bytes == 1 {
                out.extend(staging.iter().map(|&byte| byte >> shift & mask as u8));
            } else {
                let words = staging
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&word| u32::from_le_bytes(word));
                out.extend(words.map(|word| (word >> shift & mask) as u8));
            }
            row += n;
        }
        Ok(())
    }
}

/// Codes of rows of `cols` columns, which are whole rows of a matrix of groups.
pub(crate) struct RegroupedRows<'m> {
    /// The matrix whose rows are groups.
    pub groups: StridedRows<'m>,
    pub cols: usize,
}

impl Unpack for RegroupedRows<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let (width, per_row) = (self.groups.cols, self.cols / self.groups.cols);
        // Groups of whole rows are adjacent.
        if tile.cols == (0..self.cols) {
            let rows = tile.rows.start * per_row..tile.rows.end * per_row;
            let groups = Tile { rows, cols: 0..width };
            return self.groups.unpack(&groups, staging, out);
        }
        let (first, end) = (tile.cols.start / width, tile.cols.end / width);
        let mut row_codes = Vec::with_capacity(tile.cols.len());
        let mut codes = Vec::with_capacity(tile.rows.len() * tile.cols.len());
        for row in tile.rows.clone() {
            let groups = Tile { rows: row * per_row + first..row * per_row + end, cols: 0..width };
            self.groups.unpack(&groups, staging, &mut row_codes)?;
            codes.extend_from_slice(&row_codes);
        }
        *out = codes;
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (1, self.groups.cols)
    }
}

/// Four-bit codes. A byte has those of two rows, the upper one in its low nibble.
pub(crate) struct RowPairs<'m> {
    pub part: Part<'m>,
    pub cols: usize,
    /// How far these rows are apart: 1 if they are adjacent.
    pub apart: usize,
}

impl RowPairs<'_> {
    /// The codes of rows that are not adjacent, each by itself.
    fn unpack_apart(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        for row in tile.rows.clone() {
            let (index, line) = (row / self.apart, row % self.apart);
            let stored = index / 2 * self.apart + line;
            read(&self.part, self.cols, stored..stored + 1, tile.cols.clone(), staging)?;
            let shift = index % 2 * 4;
            out.extend(staging.iter().map(|byte| byte >> shift & 15));
        }
        Ok(())
    }
}

impl Unpack for RowPairs<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        if self.apart > 1 {
            return self.unpack_apart(tile, staging, out);
        }
        let width = tile.cols.len();
        let pairs = tile.rows.start / 2..tile.rows.end.div_ceil(2);
        read(&self.part, self.cols, pairs, tile.cols.clone(), staging)?;
        out.clear();
        // Even row first, then odd: the two lines of `out` that the byte row stands for.
        for bytes in staging.chunks_exact(width.max(1)) {
            out.extend(bytes.iter().map(|byte| byte & 15));
            out.extend(bytes.iter().map(|byte| byte >> 4));
        }
        // The last of an odd number of rows is alone in its bytes.
        out.truncate(tile.rows.len() * width);
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (if self.apart > 1 { 1 } else { 2 }, 1)
    }
}
