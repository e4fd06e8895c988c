//! [`ScaleGrid`]: which scale belongs to which value of a matrix, or of a stack of them.

use std::ops::Range;

/// Which scale belongs to which value of a stack of matrices of `matrix_rows` rows each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScaleGrid {
    pub matrix_rows: usize,
    /// Rows and columns that share a scale. Blocks start anew in each matrix; edge blocks are
    /// smaller.
    pub block_rows: usize,
    pub block_cols: usize,
    /// Rows of scales of one matrix.
    pub rows_per_matrix: usize,
    /// Scales in a row of scales.
    pub cols: usize,
}

impl ScaleGrid {
    /// The row of scales that row `r` of the stack uses.
    pub(crate) fn row(&self, r: usize) -> usize {
        // `matrix_rows` may be `usize::MAX`: then the quotient is 0 and the remainder is the row.
        r / self.matrix_rows * self.rows_per_matrix + r % self.matrix_rows / self.block_rows
    }

    /// The rows of scales that `rows` use.
    pub(crate) fn rows(&self, rows: &Range<usize>) -> Range<usize> {
        if rows.is_empty() {
            0..0
        } else {
            self.row(rows.start)..self.row(rows.end - 1) + 1
        }
    }
}
