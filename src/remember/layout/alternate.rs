//! Every second row of a tensor, whatever its scheme: one of two projections whose rows take turns.

use std::ops::Range;
use std::sync::Arc;

use crate::Result;
use crate::element::Out;
use crate::remember::seam::{Buffers, Decode, ExtractCodes, Grid, GroupCodes, RelaySource, Tile};
use crate::simd::Level;

/// Decoder of every second row of another, which has an even number of rows. Codes can be moved as
/// they are stored.
pub(crate) struct AlternateRows<'m> {
    pub inner: Arc<dyn Decode + 'm>,
    /// The first row that is taken: 0 or 1.
    pub first: usize,
}

/// The pairs of rows that rows come from.
fn pairs(rows: &Range<usize>) -> Range<usize> {
    rows.start * 2..rows.end * 2
}

fn pairs_of_tile(tile: &Tile) -> Tile {
    Tile { rows: pairs(&tile.rows), cols: tile.cols.clone() }
}

impl Decode for AlternateRows<'_> {
    fn grid(&self) -> Grid {
        let inner = self.inner.grid();
        Grid {
            rows: inner.rows / 2,
            // Both rows of a pair are loaded.
            load_bits: inner.load_bits * 2.0,
            ..inner
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.inner.load(&pairs_of_tile(tile), buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (tile, width) = (pairs_of_tile(tile), tile.cols.len());
        let mut rest = out;
        for pair in pairs(&rows).step_by(2) {
            let row = pair + self.first;
            let (line, others) = rest.split_at(width);
            self.inner.decode(&tile, row..row + 1, buffers, level, line);
            rest = others;
        }
    }

    fn find_relay(&self) -> Result<Option<RelaySource>> {
        let found = self.inner.find_relay()?;
        Ok(found.map(|RelaySource { family, codes }| {
            let first = self.first;
            RelaySource::new(family, AlternateCodes { codes, first })
        }))
    }
}

/// Codes of every second row of a loaded tile.
struct AlternateCodes {
    codes: Box<dyn ExtractCodes>,
    first: usize,
}

impl ExtractCodes for AlternateCodes {
    fn extract(&self, [rows, cols]: [usize; 2], buffers: &Buffers, out: &mut GroupCodes) {
        self.codes.extract([rows * 2, cols], buffers, out);
        out.take_rows(rows, rows * 2, |row| 2 * row + self.first);
    }
}
