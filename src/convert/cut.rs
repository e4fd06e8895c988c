//! How an output tensor is cut into tiles: the unit of work of a decoding job.

use crate::Dtype;
use crate::scheme::{Decode, Grid, StoredRows, Tile};

/// Values that are decoded at once (a slab). 128 Ki values are at most 512 KiB of output, which stays in the L2 cache
/// until it is written.
pub(super) const SLAB_VALUES: usize = 128 << 10;

/// Bytes that a tile loads at most, scales included. With the slab and staging buffers, a worker stays below 4 MiB, or 8 if stored
/// codes of a whole tile are staged.
const LOAD_BYTES: f64 = 2.5 * 1024.0 * 1024.0;

/// The same for transposed matrices. Their reads are short pieces of many stored rows, so larger tiles take fewer. With its
/// buffers, a worker stays below 8 MiB.
const TRANSPOSED_LOAD_BYTES: f64 = 5.5 * 1024.0 * 1024.0;

/// Rows that a decoder needs together from which on a tile of them loads as much as a transposed one, to have whole rows.
const HIGH_TILE: usize = 16;

/// The same for tiles whose stored rows are read together: what a thread loads stays in its cache.
const TOGETHER_LOAD_BYTES: f64 = 1024.0 * 1024.0;

/// Stored bytes of the tiles that are read together, for each thread.
const TOGETHER_BYTES: usize = 5 << 20;

/// Bytes of a stored row that a tile reads as fast for itself.
const LONG_PIECE: usize = 8 << 10;

/// Values of a transposed tile at most: a stream holds the output of a row of tiles for each thread.
pub(super) const TRANSPOSED_VALUES: usize = 64 * SLAB_VALUES;

/// Bytes that a tile reads of each stored row of a transposed matrix, at most: bounds the staging buffer of the transposition.
const STORED_ROW_BYTES: usize = 16 << 10;

/// Tiles beside each other that a transposed matrix is cut into at most, unless its rows are longer than a slab.
const MAX_ACROSS: usize = 32;

/// How many reads of short pieces a write of one may replace. A write costs more: threads wait for each other when they write to
/// one file, and a page that is written in parts is looked up for each.
const WRITE_COST: usize = 4;

/// Parts of a matrix of a stack beyond the least number that are tried for equal ones.
const MOST_MORE_PARTS: usize = 16;

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
    /// Tiles below each other that are made one after another for each thread, because they take pieces of the same stored rows.
    pub together: usize,
}

impl Cut {
    /// No tiles, for an output that is written with another one.
    #[cfg(feature = "lethe")]
    pub(super) const EMPTY: Self = Self {
        rows: 0,
        cols: 0,
        tile_rows: 1,
        tile_cols: 1,
        together: 1,
    };

    /// One tile of `len` bytes.
    pub(super) fn single(len: usize) -> Self {
        Self {
            rows: 1,
            cols: len,
            tile_rows: 1,
            tile_cols: len.max(1),
            together: 1,
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
            together: 1,
        }
    }

    /// Tiles of consecutive bytes that do not split an element.
    pub(super) fn of_bytes(len: usize, dtype: Dtype) -> Self {
        Self {
            rows: 1,
            cols: len,
            tile_rows: 1,
            tile_cols: round_down(COPY_BYTES, dtype.type_size().unwrap_or(1)),
            together: 1,
        }
    }

    /// Tiles of a decoder. Those whose stored rows are read together are so small that they stay in the cache.
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
        let together = match first.bytes.len() {
            LONG_PIECE.. => 1,
            piece => TOGETHER_BYTES / piece.saturating_mul(first.rows.len()).max(1),
        };
        Self {
            tile_rows: rows.max(1),
            tile_cols: grid.cols.max(1),
            together: together.max(1),
            ..cut
        }
    }

    /// Tiles of a decoder's grid that load at most [`LOAD_BYTES`] and whose rows fit a slab.
    pub(super) fn of_grid(grid: &Grid) -> Self {
        if let Some(stored) = &grid.transposed {
            return Self::of_transposed(grid, stored);
        }
        let loadable = |bytes: f64| (bytes * 8.0 / grid.load_bits) as usize;
        let usual = loadable(LOAD_BYTES).min(2 * SLAB_VALUES);
        // Tiles of many rows, all of which are needed together, are wide if they can be: short rows take many writes.
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
            together: 1,
        }
    }

    /// Tiles of a transposed matrix. Tall tiles read long pieces of stored rows, and wide ones write long rows; the tiles are
    /// those that take the least time for both.
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
                together: 1,
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

    /// Rows of a tile, at most `most`, of matrices of `matrix_rows` rows that are stored transposed.
    fn height(matrix_rows: usize, most: usize, grid: &Grid) -> usize {
        if most >= matrix_rows {
            return round_down(most, matrix_rows);
        }
        let parts = matrix_rows.div_ceil(most);
        // A tile with rows of two matrices takes two reads for each column, so parts of a matrix of a stack are equally high.
        let equal = (parts..parts.saturating_add(MOST_MORE_PARTS)).find(|parts| {
            matrix_rows < grid.rows
                && matrix_rows.is_multiple_of(parts.saturating_mul(grid.row_align))
        });
        // Tiles of about one height: the last would leave threads without work.
        let rows = matrix_rows.div_ceil(equal.unwrap_or(parts));
        rows.next_multiple_of(grid.row_align)
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

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;
    use crate::containers::model::Part;
    use crate::element::Out;
    use crate::scheme::{Buffers, StoredRectangle};
    use crate::simd::Level;

    fn cut(rows: usize, cols: usize, row_bits: usize, cols_per_row: usize) -> Cut {
        Cut::of_grid(&Grid {
            rows,
            cols,
            row_align: 8,
            col_align: 1,
            load_bits: 4.5,
            transposed: Some(StoredRows::of_one(row_bits, cols_per_row)),
        })
    }

    #[test]
    fn transposed_tiles_cover_the_matrix_and_fit() {
        for rows in [8, 64, 1000, 4096, 14_336, 151_936, 1 << 24] {
            for cols in [1, 7, 128, 4096, 25_600, 1 << 20] {
                for (row_bits, cols_per_row) in [(4, 1), (32, 8), (64, 16)] {
                    let cut = cut(rows, cols, row_bits, cols_per_row);
                    let last = cut.tile(cut.tiles() - 1);
                    assert_eq!((last.rows.end, last.cols.end), (rows, cols));
                    assert!(cut.tile_rows.is_multiple_of(8) && cut.tile_cols <= SLAB_VALUES);
                    let values = cut.tile_rows * cut.tile_cols;
                    assert!(
                        values as f64 * 4.5 / 8.0 <= TRANSPOSED_LOAD_BYTES
                            && cut.tile_rows * row_bits <= STORED_ROW_BYTES * 8,
                        "{cut:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn parts_of_stacked_matrices_are_equal() {
        let cut = |matrix_rows: usize, cols: usize| {
            Cut::of_grid(&Grid {
                rows: 32 * matrix_rows,
                cols,
                row_align: 32,
                col_align: 1,
                load_bits: 4.25,
                transposed: Some(StoredRows {
                    row_bits: 4,
                    cols: 1,
                    matrix_rows,
                }),
            })
        };
        // The matrices of gpt-oss: one fits a tile, and of the other a half.
        assert_eq!(cut(2880, 2880).tile_rows, 2880);
        assert_eq!(
            (cut(2880, 5760).tile_rows, cut(2880, 5760).across()),
            (1440, 1)
        );
        // Several small matrices, and parts of which the last is smaller if there are none that are equal.
        assert_eq!(cut(64, 128).tile_rows % 64, 0);
        assert_eq!(cut(32 * 97, 14_336).tile_rows % 32, 0);
    }

    #[test]
    fn rows_are_cut_where_stored_rows_are_short() {
        // 14 336 stored rows of 2 KiB: whole rows would be read in pieces of 292 bytes.
        assert!(cut(4096, 14_336, 4, 1).across() > 1);
        // Pieces of a KiB are long enough to write whole rows.
        assert_eq!(cut(14_336, 4096, 4, 1).across(), 1);
    }

    /// Matrices of four bits whose stored rows run down the columns.
    struct Transposed<'m> {
        grid: Grid,
        part: Part<'m>,
    }

    impl Decode for Transposed<'_> {
        fn grid(&self) -> Grid {
            self.grid
        }

        fn load(&self, _tile: &Tile, _buffers: &mut Buffers) -> crate::Result<()> {
            Ok(())
        }

        fn decode(&self, _: &Tile, _: Range<usize>, _: &Buffers, _: Level, _: Out<'_>) {}

        fn stored_codes(&self, rows: &Range<usize>) -> Option<StoredRectangle<'_>> {
            let matrix_rows = self.grid.transposed?.matrix_rows;
            (rows.len() <= matrix_rows).then(|| StoredRectangle {
                part: self.part,
                stride: matrix_rows.min(self.grid.rows) / 2,
                rows: 0..self.grid.cols,
                bytes: rows.start / 2..rows.end / 2,
            })
        }
    }

    #[test]
    fn tiles_that_are_read_together_fit_the_memory() {
        let header = br#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let len = header.len() as u64;
        let file = [&len.to_le_bytes(), header.as_slice(), b"!"].concat();
        let model = crate::parse_bytes(file).unwrap();
        for matrix_rows in [8, 64, 1000, 4096, 14_336, 151_936, usize::MAX] {
            for (rows, cols) in [
                (4096, 4096),
                (14_336, 40),
                (151_936, 1024),
                (64, 1 << 20),
                (8, 8),
            ] {
                let decoder = Transposed {
                    grid: Grid {
                        rows,
                        cols,
                        row_align: 8,
                        col_align: 1,
                        load_bits: 4.5,
                        transposed: Some(StoredRows {
                            row_bits: 4,
                            cols: 1,
                            matrix_rows,
                        }),
                    },
                    part: model.tensors().next().unwrap().part(),
                };
                let cut = Cut::of_decoder(&decoder);
                let last = cut.tile(cut.tiles() - 1);
                assert_eq!((last.rows.end, last.cols.end), (rows, cols));
                assert!(cut.together == 1 || cut.across() == 1, "{cut:?}");
                let bytes = cut.together * cut.tile_rows * cols / 2;
                assert!(cut.together == 1 || bytes <= TOGETHER_BYTES, "{cut:?}");
            }
        }
    }
}
