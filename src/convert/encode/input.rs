//! The values that are encoded: tiles of a decoder, cut so that they suit the encoder as well.

use std::sync::Arc;

use super::Scratch;
use crate::convert::cut::{Cut, SLAB_VALUES, round_down};
use crate::forget::Encode;
use crate::kernels::lethe::distance::first_not_finite;
use crate::scheme::{Buffers, Decode, Grid, Tile, Widening, covering, lcm};
use crate::simd::Level;
use crate::{AnamnesisError, Result, TargetDtype};

/// Values of a tile at most, unless the alignments of both sides want more: as many as a slab has, so that they are still
/// in the cache when they are encoded.
const TILE_VALUES: usize = SLAB_VALUES;

/// Values of a strip, about: with what they become, and with what they decode to, they stay in the L1 cache or pass through it in
/// order.
const STRIP_VALUES: usize = 8 << 10;

/// Columns of a tile if the decoder's input runs down the columns: tall tiles read longer pieces than wide ones.
const TRANSPOSED_INPUT_COLS: usize = 256;

/// Columns of a tile if the encoder's output runs down the columns. Tiles below one another are written together as a
/// band, so the pieces that are written are long although the tile, which is wide to read long rows, is low.
const TRANSPOSED_OUTPUT_COLS: usize = 1024;

/// Columns of a tile if neighbouring codes of a row share a line of such an output. A band then writes a few lines for each
/// thousand columns, and reads of whole rows count for more.
const PACKED_OUTPUT_COLS: usize = 4096;

/// A tensor whose values are encoded, or surveyed for another that is.
#[derive(Clone)]
pub(super) struct EncodeInput<'m> {
    pub name: String,
    pub(super) decoder: Arc<dyn Decode + 'm>,
    /// Values are rounded to this dtype before they are encoded, as they would be if the decoded tensor were stored.
    pub(super) dtype: TargetDtype,
    pub cut: Cut,
    /// Rows of a strip: what is decoded, and encoded, at once. A tile is read as a whole.
    pub strip_rows: usize,
}

impl EncodeInput<'_> {
    /// Reads `tile`, decodes its values into `scratch.values` strip by strip, and passes each strip to `each`.
    ///
    /// # Errors
    /// Reading fails, or a value is not finite: no scheme has a code for it. `scheme` is named in the message. The errors of
    /// `each`.
    pub(super) fn for_each_strip(
        &self,
        tile: &Tile,
        scheme: &str,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
        mut each: impl FnMut(&Tile, &mut Scratch) -> Result<()>,
    ) -> Result<()> {
        let is_cut = self.strip_rows < tile.rows.len();
        if is_cut {
            self.decoder.load(tile, buffers)?;
        }
        for first in tile.rows.clone().step_by(self.strip_rows.max(1)) {
            let strip = Tile {
                rows: first..(first + self.strip_rows).min(tile.rows.end),
                cols: tile.cols.clone(),
            };
            if is_cut {
                scratch.values.resize(strip.values(), 0.0);
                let (values, rounded) = (&mut scratch.values, &mut scratch.rounded);
                let rows = strip.rows.clone();
                self.widening(level)
                    .decode(&*self.decoder, (tile, rows), buffers, rounded, values);
            } else {
                self.decode_values(&strip, buffers, scratch, level)?;
            }
            let values = &scratch.values;
            if let Some(i) = first_not_finite(values, level) {
                let what = format!("{} cannot be encoded to {scheme}", values[i]);
                return Err(self.refused(&strip, i, scheme, &what));
            }
            each(&strip, scratch)?;
        }
        Ok(())
    }

    fn widening(&self, level: Level) -> Widening {
        Widening {
            dtype: self.dtype,
            level,
        }
    }

    /// Decodes the values of `tile` into `scratch.values`, row by row.
    ///
    /// # Errors
    /// Reading fails.
    pub(super) fn decode_values(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
    ) -> Result<()> {
        let Scratch {
            values,
            rounded,
            surrounding,
            ..
        } = scratch;
        values.resize(tile.values(), 0.0);
        if self.decoder.grid().cols == self.cut.cols {
            self.decode(tile, buffers, rounded, level, values)?;
        } else {
            // The rows of the two grids have different lengths, for example because one side is a flat run of blocks.
            // Both number the elements of the tensor alike.
            for (first, run) in tile.runs(self.cut.cols) {
                let (covering, before) =
                    covering(&self.decoder.grid(), &(first..first + run.len()));
                surrounding.resize(covering.values(), 0.0);
                self.decode(&covering, buffers, rounded, level, surrounding)?;
                let found = &surrounding[before..before + run.len()];
                values[run].copy_from_slice(found);
            }
        }
        Ok(())
    }

    /// Decodes a tile of the decoder's grid to F32, rounded to `self.dtype`. `rounded` is scratch.
    fn decode(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        rounded: &mut Vec<u32>,
        level: Level,
        out: &mut [f32],
    ) -> Result<()> {
        self.decoder.load(tile, buffers)?;
        let rows = tile.rows.clone();
        self.widening(level)
            .decode(&*self.decoder, (tile, rows), buffers, rounded, out);
        Ok(())
    }

    /// The error that value `i` of `tile` cannot be encoded to `scheme`.
    pub(super) fn refused(
        &self,
        tile: &Tile,
        i: usize,
        scheme: &str,
        what: &str,
    ) -> AnamnesisError {
        let (row, col) = (
            tile.rows.start + i / tile.cols.len(),
            tile.cols.start + i % tile.cols.len(),
        );
        AnamnesisError::unsupported(
            scheme,
            format!("tensor `{}`, row {row}, column {col}: {what}", self.name),
        )
    }
}

/// A tensor cut into tiles that start at multiples of both sides' alignments.
pub(super) fn cut(encoder: &Grid, values_per_line: usize, decoder: &Grid) -> Cut {
    let Grid { rows, cols, .. } = *encoder;
    // Where the rows of the two sides differ, the decoder's alignments say nothing about the encoder's tiles: `values`
    // decodes whatever covers a tile.
    let has_same_rows = decoder.cols == cols;
    let (row_align, col_align) = match has_same_rows {
        true => (
            lcm(encoder.row_align, decoder.row_align),
            lcm(encoder.col_align, decoder.col_align).min(cols),
        ),
        false => (encoder.row_align, encoder.col_align.min(cols)),
    };
    // The input counts first: a transposed input in low tiles reads a few bytes at a time, and bands cannot mend that.
    let widest = match () {
        () if has_same_rows && decoder.transposed.is_some() => TRANSPOSED_INPUT_COLS,
        () if encoder.transposed.is_some() && values_per_line > 1 => {
            (TILE_VALUES / row_align).clamp(TRANSPOSED_OUTPUT_COLS, PACKED_OUTPUT_COLS)
        }
        () if encoder.transposed.is_some() => TRANSPOSED_OUTPUT_COLS,
        () => TILE_VALUES / row_align,
    };
    let tile_cols = if cols <= widest {
        cols
    } else {
        round_down(widest, col_align).min(cols)
    };
    let tile_rows = round_down(TILE_VALUES / tile_cols.max(1), row_align).min(rows.max(1));
    Cut {
        rows,
        cols,
        tile_rows,
        tile_cols: tile_cols.max(1),
        together: 1,
    }
}

/// The rows of a strip of tiles of `cut`. Strips are for decoders that have nothing to prepare, and for encoders that write rows
/// one after the other; otherwise a tile is one strip.
pub(super) fn strip_rows(cut: &Cut, encoder: &dyn Encode, decoder: &dyn Decode) -> usize {
    let grid = encoder.grid();
    let is_cut = encoder.takes_any_rows()
        && grid.transposed.is_none()
        && decoder.stored_dtype().is_some()
        && decoder.grid().cols == cut.cols;
    match is_cut {
        true => round_down(STRIP_VALUES / cut.tile_cols, grid.row_align),
        false => cut.tile_rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::StoredRows;

    #[test]
    fn tiles_are_wide_where_codes_of_a_row_share_lines() {
        let grid = |row_align, is_transposed: bool| Grid {
            rows: 4096,
            cols: 4096,
            row_align,
            col_align: 128,
            load_bits: 16.0,
            transposed: is_transposed.then_some(StoredRows::of_one(4, 1)),
        };
        let size = |values_per_line, decoder| {
            let cut = cut(&grid(8, true), values_per_line, &decoder);
            [cut.tile_rows, cut.tile_cols]
        };
        // Whole rows, as tall as the words of a line.
        assert_eq!(size(8, grid(1, false)), [32, 4096]);
        assert_eq!(size(1, grid(1, false)), [128, 1024]);
        // Tiles stay as small where the input has to be read in tall pieces.
        assert_eq!(size(8, grid(128, false)), [128, 1024]);
        assert_eq!(size(8, grid(8, true)), [512, 256]);
    }
}
