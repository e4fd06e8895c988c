//! How a tensor that is encoded is cut into tiles, which suit both the decoder of its values and
//! the encoder.

use super::strips::Strips;
use crate::TargetDtype;
use crate::convert::cut::{Cut, SLAB_VALUES, round_down};
use crate::lethe::Encode;
use crate::remember::{Decode, Grid, lcm};

/// Values of a tile at most, unless the alignments of both sides want more: as many as a slab has,
/// so that they are still in the cache when they are encoded.
pub(super) const TILE_VALUES: usize = SLAB_VALUES;

/// Values of a tile of which no more than a part is widened: only the stored values have to be in
/// the cache, and long rows are written at once.
const SURVEYED_TILE_VALUES: usize = 4 * TILE_VALUES;

/// Columns of a tile if the decoder's input runs down the columns: tall tiles read longer pieces
/// than wide ones.
const TRANSPOSED_INPUT_COLS: usize = 256;

/// Columns of a tile if the encoder's output runs down the columns. Tiles below one another are
/// written together as a band, so the pieces that are written are long although the tile, which is
/// wide to read long rows, is low.
const TRANSPOSED_OUTPUT_COLS: usize = 1024;

/// Columns of a tile if neighbouring codes of a row share a line of such an output. A band then
/// writes a few lines for each thousand columns, and reads of whole rows count for more.
const PACKED_OUTPUT_COLS: usize = 4096;

/// The cut of a tensor whose values are those of `decoder`, rounded to `dtype`, and the strips of
/// its tiles. A search for scales wants all of a block's values at once, not only the largest magnitude.
pub(super) fn cut_for(
    encoder: &dyn Encode,
    decoder: &dyn Decode,
    dtype: TargetDtype,
    is_searched: bool,
) -> (Cut, Option<Strips>) {
    let (from, to, line) = (decoder.grid(), encoder.grid(), encoder.values_per_line());
    let wide = cut(&to, line, &from, SURVEYED_TILE_VALUES);
    if !is_searched && let Some(strips) = Strips::surveyed(wide.tile_cols, encoder, decoder, dtype)
    {
        return (wide, Some(strips));
    }
    let cut = cut(&to, line, &from, TILE_VALUES);
    (cut, Strips::new(&cut, encoder, decoder))
}

/// A tensor cut into tiles of about `tile_values` that start at multiples of both sides'
/// alignments.
pub(super) fn cut(
    encoder: &Grid,
    values_per_line: usize,
    decoder: &Grid,
    tile_values: usize,
) -> Cut {
    let Grid { rows, cols, .. } = *encoder;
    // Where the rows of the two sides differ, the decoder's alignments say nothing about the
    // encoder's tiles: `values` decodes whatever covers a tile.
    let has_same_rows = decoder.cols == cols;
    let (row_align, col_align) = match has_same_rows {
        true => (
            lcm(encoder.row_align, decoder.row_align),
            lcm(encoder.col_align, decoder.col_align).min(cols),
        ),
        false => (encoder.row_align, encoder.col_align.min(cols)),
    };
    // The input counts first: a transposed input in low tiles reads a few bytes at a time, and
    // bands cannot mend that.
    let widest = match () {
        () if has_same_rows && decoder.transposed.is_some() => TRANSPOSED_INPUT_COLS,
        () if encoder.transposed.is_some() && values_per_line > 1 => {
            (tile_values / row_align).clamp(TRANSPOSED_OUTPUT_COLS, PACKED_OUTPUT_COLS)
        }
        () if encoder.transposed.is_some() => TRANSPOSED_OUTPUT_COLS,
        () => tile_values / row_align,
    };
    let tile_cols = if cols <= widest {
        cols
    } else {
        round_down(widest, col_align).min(cols)
    };
    let tile_rows = round_down(tile_values / tile_cols.max(1), row_align).min(rows.max(1));
    Cut { rows, cols, tile_rows, tile_cols: tile_cols.max(1), shared_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remember::StoredRows;

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
            let cut = cut(&grid(8, true), values_per_line, &decoder, TILE_VALUES);
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
