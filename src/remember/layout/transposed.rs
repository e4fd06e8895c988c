//! A stack of matrices that are stored transposed, whatever their scheme.

use std::ops::Range;
use std::sync::Arc;

use super::assembled::{decode_values, load_values, read_elements};
use crate::element::Out;
use crate::remember::seam::decode::Assembly;
use crate::remember::seam::widening::aligned;
use crate::remember::seam::{Buffers, Decode, Grid, StoredRows, Tile, Widening};
use crate::simd::Level;
use crate::{Result, TargetDtype};

/// Decoder of a stack of matrices that are stored transposed.
pub(crate) struct TransposedStack<'m> {
    pub inner: Arc<dyn Decode + 'm>,
    /// Rows and columns of each matrix, as they are here.
    pub rows: usize,
    pub cols: usize,
    /// Element type of the output.
    pub dtype: TargetDtype,
}

impl TransposedStack<'_> {
    fn fill(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        (values, scratch): (&mut [f32], &mut Assembly),
    ) -> Result<()> {
        let (mut row, width) = (tile.rows.start, tile.cols.len());
        let widening = Widening { dtype: self.dtype, level: Level::default() };
        while row < tile.rows.end {
            // What the tile has of one matrix.
            let (matrix, first) = (row / self.rows, row % self.rows);
            let n = (self.rows - first).min(tile.rows.end - row);
            let stored = matrix * self.cols;
            let grid = self.inner.grid();
            let rows = stored + tile.cols.start..stored + tile.cols.end;
            let mut lines = std::mem::take(&mut scratch.piece);
            lines.resize(rows.len() * n, 0.0);
            if grid.cols == self.rows {
                let all = Tile {
                    rows: aligned(rows.clone(), grid.row_align, grid.rows),
                    cols: first..first + n,
                };
                self.inner.load(&all, buffers)?;
                widening.decode(
                    &*self.inner,
                    (&all, rows),
                    buffers,
                    &mut scratch.rounded,
                    &mut lines,
                );
            } else {
                // The decoder's rows are others, such as one flat run of blocks; it numbers the
                // elements alike.
                for (row, line) in rows.zip(lines.chunks_exact_mut(n)) {
                    let start = row * self.rows + first;
                    let elements = start..start + n;
                    let places = (&mut *buffers, &mut *scratch);
                    read_elements(&*self.inner, &widening, elements, places, line)?;
                }
            }
            let out = &mut values[(row - tile.rows.start) * width..][..n * width];
            for (at, line) in lines.chunks_exact(n).enumerate() {
                let column = out[at..].iter_mut().step_by(width);
                column.zip(line).for_each(|(out, value)| *out = *value);
            }
            scratch.piece = lines;
            row += n;
        }
        Ok(())
    }
}

impl Decode for TransposedStack<'_> {
    fn grid(&self) -> Grid {
        let inner = self.inner.grid();
        let (row_align, col_align) = match inner.cols == self.rows {
            true => (inner.col_align, inner.row_align),
            false => (1, 1),
        };
        Grid {
            rows: inner.rows * inner.cols / self.cols.max(1),
            cols: self.cols,
            row_align,
            col_align,
            // Beside what the decoder loads: the values, in either order, and rounded.
            load_bits: inner.load_bits + 96.0,
            // Stored rows have values of whatever the decoder reads; what it loads for one is close
            // to that.
            transposed: Some(StoredRows {
                row_bits: inner.load_bits as usize,
                cols: 1,
                matrix_rows: self.rows,
            }),
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        load_values(tile, buffers, |values, buffers, scratch| {
            self.fill(tile, buffers, (values, scratch))
        })
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        decode_values(tile, rows, buffers, level, out);
    }
}
