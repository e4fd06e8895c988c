//! The first columns of a tensor, whatever its scheme: rows that are stored with more columns than
//! the weight has, up to whole blocks.

use std::ops::Range;

use super::assembled::widen_values;
use crate::Result;
use crate::element::Out;
use crate::remember::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::Level;

/// Decoder of the first `cols` columns of `stored`.
pub(crate) struct FirstColumns<'m> {
    pub stored: Box<dyn Decode + 'm>,
    pub cols: usize,
}

impl FirstColumns<'_> {
    /// `tile` with the columns that fill its last block.
    fn stored_tile(&self, tile: &Tile) -> Tile {
        let grid = self.stored.grid();
        let end = tile.cols.end.next_multiple_of(grid.col_align.max(1));
        Tile { rows: tile.rows.clone(), cols: tile.cols.start..end.min(grid.cols) }
    }
}

impl Decode for FirstColumns<'_> {
    fn grid(&self) -> Grid {
        let grid = self.stored.grid();
        Grid {
            load_bits: grid.load_bits * grid.cols as f64 / self.cols.max(1) as f64,
            cols: self.cols,
            ..grid
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.stored.load(&self.stored_tile(tile), buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        mut out: Out<'_>,
    ) {
        let stored = self.stored_tile(tile);
        if stored.cols == tile.cols {
            return self.stored.decode(tile, rows, buffers, level, out);
        }
        let mut values = vec![0.0; stored.cols.len()];
        for row in rows {
            let line = Out::F32(&mut values);
            self.stored
                .decode(&stored, row..row + 1, buffers, level, line);
            let (now, rest) = out.split_at(tile.cols.len());
            widen_values(&values[..tile.cols.len()], level, now);
            out = rest;
        }
    }
}
