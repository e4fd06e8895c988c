//! Tensors whose blocks run over all their values in order, whatever the rows.

use std::ops::Range;

use crate::scheme::{Grid, Tile};

/// A grid that is cut only between units of so many values: inside rows if those hold whole units, else between rows.
pub(super) fn grid(rows: usize, cols: usize, unit: usize, load_bits: f64) -> Grid {
    let inside = cols.is_multiple_of(unit);
    let (row_align, col_align) = if inside { (1, unit) } else { (unit / gcd(cols, unit), cols) };
    Grid { rows, cols, row_align, col_align: col_align.max(1), load_bits, transposed: false }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// The runs of values of a tile that follow one another in a tensor of `cols` columns: where each begins there, and
/// where it is in the tile.
pub(super) fn runs(tile: &Tile, cols: usize) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
    let (first, width) = (tile.rows.start * cols + tile.cols.start, tile.cols.len());
    let (count, len) = if width == cols { (1, tile.values()) } else { (tile.rows.len(), width) };
    (0..count).map(move |i| (first + i * cols, i * len..(i + 1) * len))
}

/// Whether the tile passes on what belongs to no tile.
pub(super) fn is_first(tile: &Tile) -> bool {
    tile.rows.start == 0 && tile.cols.start == 0
}
