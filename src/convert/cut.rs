//! How an output tensor is cut into tiles: the unit of work of a decoding job.

use crate::Dtype;
use crate::remember::{Decode, Grid, StoredRows, Tile};

/// Values that are decoded at once (a slab). 128 Ki values are at most 512 KiB of output, which
/// stays in the L2 cache until it is written.
pub(super) const SLAB_VALUES: usize = 128 << 10;

/// Bytes that a tile loads at most, scales included. With the slab and staging buffers, a worker
/// stays below 4 MiB, or 8 if stored codes of a whole tile are staged.
const LOAD_BYTES: f64 = 2.5 * 1024.0 * 1024.0;

/// The same for transposed matrices. Their reads are short pieces of many stored rows, so larger
/// tiles take fewer. With its buffers, a worker stays below 8 MiB.
const TRANSPOSED_LOAD_BYTES: f64 = 5.5 * 1024.0 * 1024.0;

/// Rows that a decoder needs together from which on a tile of them loads as much as a transposed
/// one, to have whole rows.
const HIGH_TILE: usize = 16;

/// The same for tiles whose stored rows are read together: what a thread loads stays in its cache.
const TOGETHER_LOAD_BYTES: f64 = 1024.0 * 1024.0;

/// Stored bytes of the tiles that are read together, for each thread.
const TOGETHER_BYTES: usize = 17 << 18;

/// Bytes of a stored row that a tile reads as fast for itself.
const LONG_PIECE: usize = 8 << 10;

/// Values of a transposed tile at most: a stream holds the output of a row of tiles for each
/// thread.
pub(super) const TRANSPOSED_VALUES: usize = 64 * SLAB_VALUES;

/// Bytes that a tile reads of each stored row of a transposed matrix, at most: bounds the staging
/// buffer of the transposition.
const STORED_ROW_BYTES: usize = 16 << 10;

/// Tiles beside each other that a transposed matrix is cut into at most, unless its rows are longer
/// than a slab.
const MAX_ACROSS: usize = 32;

/// How many reads of short pieces a write of one may replace. A write costs more: threads wait for
/// each other when they write to one file, and a page that is written in parts is looked up for
/// each.
const WRITE_COST: usize = 4;

/// Parts of a matrix of a stack beyond the least number that are tried for equal ones.
const MOST_MORE_PARTS: usize = 16;

/// Bytes of a strided tensor that are gathered at once.
pub(super) const GATHER_BYTES: usize = 2 << 20;

/// Bytes of a tensor that are copied at once.
const COPY_BYTES: usize = 256 << 10;

/// A grid of `rows` × `cols` cut into tiles of `tile_rows` × `tile_cols`. Tiles are numbered in
/// row-major order; those at the right and lower edges may be smaller.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub rows: usize,
    pub cols: usize,
    pub tile_rows: usize,
    pub tile_cols: usize,
    /// Bytes of the stored rows that a tile takes pieces of together with those below it. 0: it
    /// reads for itself.
    pub shared_bytes: usize,
}

impl Cut {
    /// No tiles, for an output that is written with another one.
    #[cfg(feature = "lethe")]
    pub(super) const EMPTY: Self =
        Self { rows: 0, cols: 0, tile_rows: 1, tile_cols: 1, shared_bytes: 0 };

    /// One tile of `len` bytes.
    pub(super) fn single(len: usize) -> Self {
        Self { rows: 1, cols: len, tile_rows: 1, tile_cols: len.max(1), shared_bytes: 0 }
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
            shared_bytes: 0,
        }
    }

    /// Tiles of consecutive bytes that do not split an element.
    pub(super) fn of_bytes(len: usize, dtype: Dtype) -> Self {
        Self {
            rows: 1,
            cols: len,
            tile_rows: 1,
            tile_cols: round_down(COPY_BYTES, dtype.type_size().unwrap_or(1)),
            shared_bytes: 0,
        }
    }

    /// Tiles of a decoder. Those whose stored rows are read together are so small that they stay in
    /// the cache.
    pub(super) fn of_decoder(decoder: &dyn Decode) -> Self {
        let grid = decoder.grid();
        let cut = Self::of_grid(&grid);
        let values = (TOGETHER_LOAD_BYTES * 8.0 / grid.load_bits) as usize;
        let most = values / grid.cols.max(1);
        let Some(stored) = &grid.transposed else {
            return cut;
        };
        if most < grid.row_align || grid.cols > SLAB_VALUES {
            return cut;
        }
        let matrix_rows = stored.matrix_rows.clamp(1, grid.rows.max(1));
        let most = round_down(most, grid.row_align);
        let rows = Self::height(matrix_rows, most, &grid).min(grid.rows);
        let Some(first) = decoder.stored_codes(&(0..rows)) else {
            return cut;
        };
        let shared_bytes = match first.codes.bytes.len() {
            LONG_PIECE.. => 0,
            _ => first.block_bytes(),
        };
        Self { tile_rows: rows.max(1), tile_cols: grid.cols.max(1), shared_bytes, ..cut }
    }

    /// Tiles of a decoder's grid that load at most [`LOAD_BYTES`] and whose rows fit a slab.
    pub(super) fn of_grid(grid: &Grid) -> Self {
        if let Some(stored) = &grid.transposed {
            return Self::of_transposed(grid, stored);
        }
        let loadable = |bytes: f64| (bytes * 8.0 / grid.load_bits) as usize;
        let usual = loadable(LOAD_BYTES).min(2 * SLAB_VALUES);
        // Tiles of many rows, all of which are needed together, are wide if they can be: short rows
        // take many writes.
        let whole = grid.row_align.saturating_mul(grid.cols);
        let values = match grid.row_align >= HIGH_TILE && grid.cols <= SLAB_VALUES {
            true if whole <= loadable(TRANSPOSED_LOAD_BYTES) => whole.max(usual),
            true => loadable(LOAD_BYTES),
            false => usual,
        };
        let widest = (values / grid.row_align).clamp(1, SLAB_VALUES);
        let tile_cols = if grid.cols <= widest {
            grid.cols
        } else {
            round_down(widest, grid.col_align)
        };
        let tile_rows = round_down(values / tile_cols.max(1), grid.row_align).min(grid.rows);
        Self {
            rows: grid.rows,
            cols: grid.cols,
            tile_rows: tile_rows.max(1),
            tile_cols: tile_cols.max(1),
            shared_bytes: 0,
        }
    }

    /// Tiles of a transposed matrix. Tall tiles read long pieces of stored rows, and wide ones
    /// write long rows; the tiles are those that take the least time for both.
    fn of_transposed(grid: &Grid, stored: &StoredRows) -> Self {
        let loadable = (TRANSPOSED_LOAD_BYTES * 8.0 / grid.load_bits) as usize;
        let loadable = loadable.min(TRANSPOSED_VALUES);
        let widest = (loadable / grid.row_align).clamp(1, SLAB_VALUES);
        let tallest = (STORED_ROW_BYTES * 8 / stored.row_bits.max(1)).max(1);
        let matrix_rows = stored.matrix_rows.clamp(1, grid.rows.max(1));
        // As few tiles beside each other as a slab allows, or more.
        let least = grid.cols.div_ceil(widest).max(1);
        let cuts = (least..=least.max(MAX_ACROSS)).map(|across| {
            let cols = grid.cols.div_ceil(across).next_multiple_of(grid.col_align);
            let cols = cols.min(grid.cols).max(1);
            let most = round_down((loadable / cols).min(tallest), grid.row_align);
            let rows = Self::height(matrix_rows, most, grid);
            Self {
                rows: grid.rows,
                cols: grid.cols,
                tile_rows: rows.min(grid.rows).max(1),
                tile_cols: cols,
                shared_bytes: 0,
            }
        });
        let cost = |cut: &Self| {
            let (down, across) = (cut.rows.div_ceil(cut.tile_rows), cut.across());
            let lines = cut.cols.div_ceil(stored.cols.max(1));
            // Whole stored rows are read many at once, and whole rows written.
            let is_whole = cut.tile_rows.is_multiple_of(matrix_rows);
            let reads = if is_whole { 0 } else { down * lines };
            let writes = if across <= 1 { 0 } else { across * cut.rows };
            reads + WRITE_COST * writes
        };
        cuts.min_by_key(cost).unwrap_or(Self::single(0))
    }

    /// Rows of a tile, at most `most`, of matrices of `matrix_rows` rows that are stored
    /// transposed.
    fn height(matrix_rows: usize, most: usize, grid: &Grid) -> usize {
        if most >= matrix_rows {
            return round_down(most, matrix_rows);
        }
        let parts = matrix_rows.div_ceil(most);
        // A tile with rows of two matrices takes two reads for each column, so parts of a matrix of
        // a stack are equally high.
        let equal = (parts..parts.saturating_add(MOST_MORE_PARTS)).find(|parts| {
            matrix_rows < grid.rows
                && matrix_rows.is_multiple_of(parts.saturating_mul(grid.row_align))
        });
        // Tiles of about one height: the last would leave threads without work.
        let rows = matrix_rows.div_ceil(equal.unwrap_or(parts));
        rows.next_multiple_of(grid.row_align)
    }

    /// Tiles below each other that are made one after another by `threads` threads, because they
    /// take pieces of the same stored rows.
    pub(super) fn together(&self, threads: usize) -> usize {
        match self.shared_bytes {
            0 => 1,
            bytes => (TOGETHER_BYTES.saturating_mul(threads) / bytes).max(1),
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
        let (end_row, end_col) =
            ((row + self.tile_rows).min(self.rows), (col + self.tile_cols).min(self.cols));
        Tile { rows: row..end_row, cols: col..end_col }
    }
}

/// `n` rounded down to a multiple of `align`, but at least `align`.
pub(super) fn round_down(n: usize, align: usize) -> usize {
    (n - n % align).max(align)
}

#[cfg(test)]
mod tests;
