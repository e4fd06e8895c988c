//! A tensor that is put together from rows of others: experts that are stacked, heads whose rows
//! are in another order, the halves of a fused projection, norms with an offset.
//!
//! Values are decoded tile by tile and moved as F32, so that the rows may come from any scheme.
//! What is moved has been rounded to the dtype of the output before, and is exact.

mod order;
#[cfg(test)]
#[cfg(feature = "models")]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use zerocopy::IntoBytes;

pub(crate) use self::order::{Change, RowOrder, Tiles};
use crate::element::Out;
use crate::remember::kernels::widen::Widen;
use crate::remember::seam::decode::Assembly;
use crate::remember::seam::widening::aligned;
use crate::remember::seam::{
    Buffers, Decode, ExtractCodes, Grid, GroupCodes, RelaySource, Tile, Widening, covering, lcm,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result, TargetDtype};

/// Decoder of a tensor of `cols` columns whose rows are those of `pieces`: one piece after another,
/// or in turns.
pub(crate) struct Assembled<'m> {
    pub pieces: Vec<Piece<'m>>,
    /// Whether rows come from one piece after the other, so many as its `turn`, and after the last
    /// from the first again.
    pub takes_turns: bool,
    pub cols: usize,
    /// Element type of the output.
    pub dtype: TargetDtype,
    pub change: Change,
    /// Order of the values in each row.
    pub columns: Option<Tiles>,
}

/// Rows of one decoder.
pub(crate) struct Piece<'m> {
    pub decoder: Arc<dyn Decode + 'm>,
    /// Number of the rows that are taken.
    pub rows: usize,
    pub order: RowOrder,
    /// Rows that are taken at once, where pieces take turns. All pieces have as many turns.
    pub turn: usize,
}

impl Piece<'_> {
    /// Reads rows `rows` of the piece, in columns `cols`, to `out`.
    fn read(
        &self,
        (rows, cols): (Range<usize>, &Range<usize>),
        whole: &Assembled<'_>,
        (buffers, scratch): (&mut Buffers, &mut Assembly),
        out: &mut [f32],
    ) -> Result<()> {
        // Rows of a tile may lie far from each other, so each run of neighbours is read for itself.
        if let RowOrder::Tiled { .. } = self.order {
            let (mut row, width) = (rows.start, cols.len());
            while row < rows.end {
                let first = self.order.source(row);
                let is_next = |n: &usize| self.order.source(row + n) == first + n;
                let n = (1..rows.end - row).take_while(is_next).count() + 1;
                let out = &mut out[(row - rows.start) * width..][..n * width];
                let place = (first..first + n, cols);
                self.read_range(place, whole, (&mut *buffers, &mut *scratch), out)?;
                row += n;
            }
            return Ok(());
        }
        let width = cols.len();
        let source = |row| self.order.source(row);
        let (Some(least), Some(most)) =
            (rows.clone().map(source).min(), rows.clone().map(source).max())
        else {
            return Ok(());
        };
        if let RowOrder::From(_) = self.order {
            return self.read_range((least..most + 1, cols), whole, (buffers, scratch), out);
        }
        // Aligned tiles come from as many rows, or from every second of them.
        let mut covering = std::mem::take(&mut scratch.covering);
        covering.resize((most + 1 - least) * width, 0.0);
        let place = (least..most + 1, cols);
        let result = self.read_range(place, whole, (buffers, scratch), &mut covering);
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            let at = (source(row) - least) * width;
            out.copy_from_slice(&covering[at..at + width]);
        }
        scratch.covering = covering;
        result
    }

    /// Reads rows `rows` of the decoder, in columns `cols`, to `out`.
    fn read_range(
        &self,
        (rows, cols): (Range<usize>, &Range<usize>),
        whole: &Assembled<'_>,
        (buffers, scratch): (&mut Buffers, &mut Assembly),
        out: &mut [f32],
    ) -> Result<()> {
        let grid = self.decoder.grid();
        let widening = Widening { dtype: whole.dtype, level: Level::default() };
        let decoder = &*self.decoder;
        if grid.cols == whole.cols {
            let tile =
                Tile { rows: aligned(rows.clone(), grid.row_align, grid.rows), cols: cols.clone() };
            decoder.load(&tile, buffers)?;
            widening.decode(decoder, (&tile, rows), buffers, &mut scratch.rounded, out);
            return Ok(());
        }
        // The decoder's rows are others, such as one flat run of blocks. Both number the elements
        // alike, and tiles have whole rows here.
        let elements = rows.start * whole.cols..rows.end * whole.cols;
        read_elements(decoder, &widening, elements, (buffers, scratch), out)
    }
}

/// Reads the elements `elements` of `decoder`, whose rows may be any, to `out`.
pub(super) fn read_elements(
    decoder: &dyn Decode,
    widening: &Widening,
    elements: Range<usize>,
    (buffers, scratch): (&mut Buffers, &mut Assembly),
    out: &mut [f32],
) -> Result<()> {
    let (tile, before) = covering(&decoder.grid(), &elements);
    decoder.load(&tile, buffers)?;
    let mut values = std::mem::take(&mut scratch.flat);
    values.resize(tile.values(), 0.0);
    let all = (&tile, tile.rows.clone());
    widening.decode(decoder, all, buffers, &mut scratch.rounded, &mut values);
    out.copy_from_slice(&values[before..before + elements.len()]);
    scratch.flat = values;
    Ok(())
}

impl Assembled<'_> {
    /// Reads a tile of pieces that follow each other.
    fn fill_in_order(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        (values, scratch): (&mut [f32], &mut Assembly),
    ) -> Result<()> {
        let (mut first, width) = (0, tile.cols.len());
        for piece in &self.pieces {
            let rows = tile.rows.start.max(first)..tile.rows.end.min(first + piece.rows);
            if !rows.is_empty() {
                let out = (rows.start - tile.rows.start) * width;
                let out = &mut values[out..out + rows.len() * width];
                let place = (rows.start - first..rows.end - first, &tile.cols);
                piece.read(place, self, (buffers, scratch), out)?;
            }
            first += piece.rows;
        }
        Ok(())
    }

    /// Reads a tile of pieces that take turns.
    fn fill_in_turns(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        (values, scratch): (&mut [f32], &mut Assembly),
    ) -> Result<()> {
        let (round, width) = (self.round(), tile.cols.len());
        let mut own = std::mem::take(&mut scratch.piece);
        let mut first = 0;
        for piece in &self.pieces {
            // How many of the piece's rows lie before a row of the whole, and where one of them
            // lies.
            let before = |row: usize| {
                row / round * piece.turn + (row % round).clamp(first, first + piece.turn) - first
            };
            let place = |row: usize| row / piece.turn * round + first + row % piece.turn;
            let rows = before(tile.rows.start)..before(tile.rows.end);
            own.resize(rows.len() * width, 0.0);
            let source = (rows.clone(), &tile.cols);
            piece.read(source, self, (&mut *buffers, &mut *scratch), &mut own)?;
            for (row, own) in rows.zip(own.chunks_exact(width.max(1))) {
                let at = (place(row) - tile.rows.start) * width;
                values[at..at + width].copy_from_slice(own);
            }
            first += piece.turn;
        }
        scratch.piece = own;
        Ok(())
    }

    /// Rows of one turn of all pieces.
    fn round(&self) -> usize {
        self.pieces.iter().map(|piece| piece.turn).sum()
    }

    fn fill(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        (values, scratch): (&mut [f32], &mut Assembly),
    ) -> Result<()> {
        match self.takes_turns {
            true => self.fill_in_turns(tile, buffers, (&mut *values, &mut *scratch))?,
            false => self.fill_in_order(tile, buffers, (&mut *values, &mut *scratch))?,
        }
        self.change.apply(values);
        if let Some(tiles) = self.columns {
            let line = &mut scratch.flat;
            line.resize(self.cols, 0.0);
            for row in values.chunks_exact_mut(self.cols.max(1)) {
                line.copy_from_slice(row);
                let moved = row.iter_mut().enumerate();
                moved.for_each(|(at, value)| *value = line[tiles.source(at)]);
            }
        }
        Ok(())
    }
}

impl Decode for Assembled<'_> {
    fn grid(&self) -> Grid {
        let mut whole = Grid {
            rows: self.pieces.iter().map(|piece| piece.rows).sum(),
            cols: self.cols,
            row_align: 1,
            col_align: 1,
            load_bits: 0.0,
            transposed: None,
        };
        for piece in &self.pieces {
            let grid = piece.decoder.grid();
            let (rows, cols) = match grid.cols == self.cols {
                true => (grid.row_align, grid.col_align),
                false => (1, self.cols),
            };
            whole.row_align = lcm(whole.row_align, lcm(rows, piece.order.align()));
            whole.col_align = lcm(whole.col_align, cols);
            whole.load_bits = whole.load_bits.max(grid.load_bits);
            whole.transposed = whole.transposed.or(grid.transposed);
        }
        whole.col_align = whole.col_align.min(self.cols.max(1));
        if self.columns.is_some() {
            whole.col_align = self.cols.max(1);
        }
        // Beside what the decoder loads: the values, a copy of them in their order there, and one
        // that is rounded.
        whole.load_bits += if self.takes_turns { 128.0 } else { 96.0 };
        whole
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

    /// Codes move if rows of one piece only change places within runs that tiles have whole: its
    /// decoder has loaded the tile then, and the buffers hold its codes.
    fn find_relay(&self) -> Result<Option<RelaySource>> {
        let ([piece], Change::None, None) = (&self.pieces[..], self.change, self.columns) else {
            return Ok(None);
        };
        let grid = piece.decoder.grid();
        let order = match piece.order {
            order @ (RowOrder::Interleaved { .. } | RowOrder::Split { .. }) => order,
            _ => return Ok(None),
        };
        if (grid.rows, grid.cols) != (piece.rows, self.cols) {
            return Ok(None);
        }
        let found = piece.decoder.find_relay()?;
        Ok(found.map(|RelaySource { family, codes }| {
            RelaySource::new(family, ReorderedCodes { codes, order })
        }))
    }
}

/// Codes of a loaded tile, whose rows change places.
struct ReorderedCodes {
    codes: Box<dyn ExtractCodes>,
    order: RowOrder,
}

impl ExtractCodes for ReorderedCodes {
    fn extract(&self, [rows, cols]: [usize; 2], buffers: &Buffers, out: &mut GroupCodes) {
        self.codes.extract([rows, cols], buffers, out);
        // Tiles begin with a run, so that the order is the same in all.
        out.take_rows(rows, rows, |row| self.order.source(row));
    }
}

/// Lets `fill` compute the values of a tile into the buffers.
pub(super) fn load_values(
    tile: &Tile,
    buffers: &mut Buffers,
    fill: impl FnOnce(&mut [f32], &mut Buffers, &mut Assembly) -> Result<()>,
) -> Result<()> {
    // The other decoder fills the same buffers, and may be put together from others itself.
    let mut scratch = std::mem::take(&mut buffers.assembly);
    let mut values = std::mem::take(&mut scratch.values);
    values.resize(tile.values(), 0.0);
    let result = fill(&mut values, buffers, &mut scratch);
    scratch.values = values;
    buffers.assembly = scratch;
    result
}

/// Writes rows of a tile whose values are in the buffers.
pub(super) fn decode_values(
    tile: &Tile,
    rows: Range<usize>,
    buffers: &Buffers,
    level: Level,
    out: Out<'_>,
) {
    let width = tile.cols.len();
    let first = (rows.start - tile.rows.start) * width;
    let values = &buffers.assembly.values[first..first + rows.len() * width];
    widen_values(values, level, out);
}

/// Writes `values` as the dtype of `out`.
pub(super) fn widen_values(values: &[f32], level: Level, out: Out<'_>) {
    let (dtype, bytes) = (Dtype::F32, values.as_bytes());
    dispatch(level, &Widen { dtype, bytes }, out);
}

/// Decoder of a vector whose values are computed and not stored.
pub(crate) struct Computed(pub Vec<f32>);

/// The grid of a vector of `cols` computed values.
fn grid_of_vector(cols: usize) -> Grid {
    Grid { rows: 1, cols, row_align: 1, col_align: 1, load_bits: 32.0, transposed: None }
}

impl Decode for Computed {
    fn grid(&self) -> Grid {
        grid_of_vector(self.0.len())
    }

    fn read(&self, _tile: &Tile, _buffers: &mut Buffers) -> Result<()> {
        Ok(())
    }

    fn decode(&self, tile: &Tile, _: Range<usize>, _: &Buffers, level: Level, out: Out<'_>) {
        widen_values(&self.0[tile.cols.clone()], level, out);
    }
}

/// Decoder of integers that are known already.
pub(crate) struct ComputedIntegers {
    /// Type that they are written in: I64, I32 or BOOL.
    pub dtype: Dtype,
    pub values: Vec<i64>,
}

impl Decode for ComputedIntegers {
    fn grid(&self) -> Grid {
        grid_of_vector(self.values.len())
    }

    fn read(&self, _tile: &Tile, _buffers: &mut Buffers) -> Result<()> {
        Ok(())
    }

    fn decode(&self, tile: &Tile, _: Range<usize>, _: &Buffers, level: Level, out: Out<'_>) {
        let values = self.values[tile.cols.clone()].iter();
        widen_values(&values.map(|n| *n as f32).collect::<Vec<_>>(), level, out);
    }

    fn integers(&self) -> Option<(Dtype, &[i64])> {
        Some((self.dtype, &self.values))
    }
}
