//! Tensors whose blocks run over all their values in order, whatever the rows.

use crate::scheme::{Grid, lcm};

/// A grid that is cut only between units of so many values: inside rows if those hold whole units, else between rows.
pub(super) fn grid(rows: usize, cols: usize, unit: usize, load_bits: f64) -> Grid {
    let inside = cols.is_multiple_of(unit);
    let (row_align, col_align) = if inside { (1, unit) } else { (lcm(unit, cols) / cols, cols) };
    Grid { rows, cols, row_align, col_align: col_align.max(1), load_bits, transposed: false }
}
