//! Matrices whose rows are packed in runs: a row of words holds the codes of several rows that lie far apart, one of
//! each run. So BitNet, quanto and HQQ pack them.

use crate::Result;
use crate::containers::model::Part;
use crate::scheme::seam::grouped::Unpack;
use crate::scheme::seam::{Tile, read};

/// Codes in runs.
pub(crate) struct StridedRows<'m> {
    pub part: Part<'m>,
    /// Rows of words, which is as many as a run has, and the words in one.
    pub rows: usize,
    pub cols: usize,
    /// Bytes of a word: one or four.
    pub word: usize,
    pub bits: usize,
    /// Where in a word the codes of the first run begin.
    pub first: usize,
    /// Whether the next run lies above the one before it, or below.
    pub upward: bool,
}

impl<'m> StridedRows<'m> {
    /// Bytes with the first run in their lowest bits.
    pub(crate) fn low_first(part: Part<'m>, rows: usize, cols: usize, bits: usize) -> Self {
        Self {
            part,
            rows,
            cols,
            word: 1,
            bits,
            first: 0,
            upward: true,
        }
    }

    /// Codes of a word.
    pub(crate) fn codes_per_word(&self) -> usize {
        if self.upward {
            self.word * 8 / self.bits
        } else {
            self.first / self.bits + 1
        }
    }

    /// Takes several rows for one of `cols`, if each run has whole ones.
    pub(crate) fn regroup(&mut self, cols: usize) -> bool {
        let run = self
            .rows
            .checked_mul(self.cols)
            .filter(|n| cols > 0 && n.is_multiple_of(cols));
        if let Some(codes) = run {
            (self.rows, self.cols) = (codes / cols, cols);
        }
        run.is_some()
    }
}

impl Unpack for StridedRows<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let mask = (1u32 << self.bits) - 1;
        let mut row = tile.rows.start;
        while row < tile.rows.end {
            let (run, first) = (row / self.rows.max(1), row % self.rows.max(1));
            let n = (self.rows - first).min(tile.rows.end - row);
            let cols = tile.cols.start * self.word..tile.cols.end * self.word;
            read(
                &self.part,
                self.cols * self.word,
                first..first + n,
                cols,
                staging,
            )?;
            let shift = if self.upward {
                self.first + run * self.bits
            } else {
                self.first - run * self.bits
            };
            if self.word == 1 {
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
