//! A matrix with other matrices in it, and zeros around them: factors of several modules for a
//! module that has the rows of all.

use std::ops::Range;
use std::sync::Arc;

use super::assembled::{decode_values, load_values, read_elements};
use crate::element::Out;
use crate::remember::seam::{Buffers, Decode, Grid, Tile, Widening};
use crate::simd::Level;
use crate::{Result, TargetDtype};

/// Decoder of a matrix of `rows` rows and `cols` columns that is 0 outside of `blocks`.
pub(crate) struct PlacedBlocks<'m> {
    pub blocks: Vec<PlacedBlock<'m>>,
    pub rows: usize,
    pub cols: usize,
    /// Element type of the output.
    pub dtype: TargetDtype,
}

/// Rows of a matrix, and where they are.
pub(crate) struct PlacedBlock<'m> {
    pub decoder: Arc<dyn Decode + 'm>,
    /// The rows that are taken, and the columns that each has.
    pub rows: Range<usize>,
    pub cols: usize,
    /// The row and the column of the first value.
    pub at: [usize; 2],
}

impl Decode for PlacedBlocks<'_> {
    fn grid(&self) -> Grid {
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: 1,
            // Elements of a block are read by rows, which tiles must have whole.
            col_align: self.cols.max(1),
            load_bits: 128.0,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let widening = Widening { dtype: self.dtype, level: Level::default() };
        load_values(tile, buffers, |values, buffers, scratch| {
            values.fill(0.0);
            let mut own = std::mem::take(&mut scratch.piece);
            for PlacedBlock { decoder, rows, cols, at: [top, left] } in &self.blocks {
                let asked = tile.rows.start.max(*top)..tile.rows.end.min(top + rows.len());
                if asked.is_empty() || *cols == 0 {
                    continue;
                }
                let first = (rows.start + asked.start - top) * cols;
                let elements = first..first + asked.len() * cols;
                own.resize(elements.len(), 0.0);
                let place = (&mut *buffers, &mut *scratch);
                read_elements(&**decoder, &widening, elements, place, &mut own)?;
                for (row, own) in asked.zip(own.chunks_exact(*cols)) {
                    let at = (row - tile.rows.start) * self.cols + left;
                    values[at..at + cols].copy_from_slice(own);
                }
            }
            scratch.piece = own;
            Ok(())
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
