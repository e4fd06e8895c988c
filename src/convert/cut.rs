//! How an output tensor is cut into tiles: the unit of work of a decoding job.

use crate::Dtype;
use crate::scheme::{Grid, Tile};

/// Values that are decoded at once (a slab). 128 Ki values are at most 512 KiB of output, which stays in the L2 cache
/// until it is written.
pub(super) const SLAB_VALUES: usize = 128 << 10;

/// Bytes that a tile loads at most, scales included. With the slab and staging buffers, a worker stays below 4 MiB.
/// Transposed input is read in strips as long as a tile is tall, so those tiles are as tall as this bound allows.
const LOAD_BYTES: f64 = 2.5 * 1024.0 * 1024.0;

/// Rows of a transposed tile at most: bounds the staging buffer of the transposition.
const TRANSPOSED_TILE_ROWS: usize = 4096;

/// Bytes of a strided tensor that are gathered at once.
pub(super) const GATHER_BYTES: usize = 2 << 20;

/// Bytes of a tensor that are copied at once.
const COPY_BYTES: usize = 256 << 10;

/// A grid of `rows` × `cols` cut into tiles of `tile_rows` × `tile_cols`. Tiles are numbered in row-major order; those at
/// the right and lower edges may be smaller.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub rows: usize,
    pub cols: usize,
    pub tile_rows: usize,
    pub tile_cols: usize,
}

impl Cut {
    /// No tiles, for an output that is written with another one.
    #[cfg(feature = "lethe")]
    pub(super) const EMPTY: Self = Self {
        rows: 0,
        cols: 0,
        tile_rows: 1,
        tile_cols: 1,
    };

    /// One tile of `len` bytes.
    pub(super) fn single(len: usize) -> Self {
        Self {
            rows: 1,
            cols: len,
            tile_rows: 1,
            tile_cols: len.max(1),
        }
    }

    /// Tiles of whole rows for a strided tensor, whose columns are its last `inner` dimensions.
    pub(super) fn of_strided(shape: &[usize], element_size: usize, inner: usize) -> Self {
        let (outer, inner) = shape.split_at(shape.len() - inner);
        let (rows, cols) = (outer.iter().product(), inner.iter().product());
        Self {
            rows,
            cols,
            tile_rows: (GATHER_BYTES / (cols * element_size).max(1)).max(1),
            tile_cols: cols.max(1),
        }
    }

    /// Tiles of consecutive bytes that do not split an element.
    pub(super) fn of_bytes(len: usize, dtype: Dtype) -> Self {
        Self {
            rows: 1,
            cols: len,
            tile_rows: 1,
            tile_cols: round_down(COPY_BYTES, dtype.type_size().unwrap_or(1)),
        }
    }

    /// Tiles of a decoder's grid that load at most [`LOAD_BYTES`] and whose rows fit a slab.
    pub(super) fn of_grid(grid: &Grid) -> Self {
        let loadable = (LOAD_BYTES * 8.0 / grid.load_bits) as usize;
        let values = if grid.transposed {
            loadable
        } else {
            loadable.min(2 * SLAB_VALUES)
        };
        let widest = (values / grid.row_align).clamp(1, SLAB_VALUES);
        let tile_cols = if grid.cols <= widest {
            grid.cols
        } else {
            round_down(widest, grid.col_align)
        };
        let tallest = if grid.transposed {
            TRANSPOSED_TILE_ROWS
        } else {
            usize::MAX
        };
        let tile_rows =
            round_down((values / tile_cols.max(1)).min(tallest), grid.row_align).min(grid.rows);
        Self {
            rows: grid.rows,
            cols: grid.cols,
            tile_rows: tile_rows.max(1),
            tile_cols: tile_cols.max(1),
        }
    }

    /// Number of tiles.
    pub(super) fn tiles(&self) -> usize {
        if self.rows == 0 || self.cols == 0 {
            return 0;
        }
        self.rows.div_ceil(self.tile_rows) * self.across()
    }

    /// Number of tiles beside each other.
    pub(super) fn across(&self) -> usize {
        self.cols.div_ceil(self.tile_cols)
    }

    /// Rows and columns of tile number `i`.
    pub(super) fn tile(&self, i: usize) -> Tile {
        let across = self.across();
        let (row, col) = (i / across * self.tile_rows, i % across * self.tile_cols);
        let (end_row, end_col) = (
            (row + self.tile_rows).min(self.rows),
            (col + self.tile_cols).min(self.cols),
        );
        Tile {
            rows: row..end_row,
            cols: col..end_col,
        }
    }
}

/// `n` rounded down to a multiple of `align`, but at least `align`.
pub(super) fn round_down(n: usize, align: usize) -> usize {
    (n - n % align).max(align)
}
