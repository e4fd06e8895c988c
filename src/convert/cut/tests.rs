//! How matrices are cut into tiles.

use std::ops::Range;

use super::*;
use crate::element::Out;
use crate::model::Part;
use crate::remember::seam::StoredPiece;
use crate::remember::{Buffers, StoredRectangle};
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
            transposed: Some(StoredRows { row_bits: 4, cols: 1, matrix_rows }),
        })
    };
    // The matrices of gpt-oss: one fits a tile, and of the other a half.
    assert_eq!(cut(2880, 2880).tile_rows, 2880);
    assert_eq!((cut(2880, 5760).tile_rows, cut(2880, 5760).across()), (1440, 1));
    // Several small matrices, and parts of which the last is smaller if there are none that are
    // equal.
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

    fn read(&self, _tile: &Tile, _buffers: &mut Buffers) -> crate::Result<()> {
        Ok(())
    }

    fn decode(&self, _: &Tile, _: Range<usize>, _: &Buffers, _: Level, _: Out<'_>) {}

    fn stored_codes(&self, rows: &Range<usize>) -> Option<StoredRectangle<'_>> {
        let matrix_rows = self.grid.transposed?.matrix_rows;
        (rows.len() <= matrix_rows).then(|| StoredRectangle {
            rows: 0..self.grid.cols,
            codes: StoredPiece {
                part: self.part,
                stride: matrix_rows.min(self.grid.rows) / 2,
                bytes: rows.start / 2..rows.end / 2,
            },
            scales: None,
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
        for (rows, cols) in [(4096, 4096), (14_336, 40), (151_936, 1024), (64, 1 << 20), (8, 8)] {
            let decoder = Transposed {
                grid: Grid {
                    rows,
                    cols,
                    row_align: 8,
                    col_align: 1,
                    load_bits: 4.5,
                    transposed: Some(StoredRows { row_bits: 4, cols: 1, matrix_rows }),
                },
                part: model.tensors().next().unwrap().part(),
            };
            let cut = Cut::of_decoder(&decoder);
            let last = cut.tile(cut.tiles() - 1);
            assert_eq!((last.rows.end, last.cols.end), (rows, cols));
            for threads in 1..4 {
                let together = cut.together(threads);
                assert!(together == 1 || cut.across() == 1, "{cut:?}");
                let bytes = together * cut.tile_rows * cols / 2;
                assert!(together == 1 || bytes <= threads * TOGETHER_BYTES, "{cut:?}");
            }
        }
    }
}
