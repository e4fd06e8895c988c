//! Scales in the order that NVIDIA's block-scaled matrix products take: tiles of 128 rows and 4
//! columns, 512 scales each. Tiles are stored row-major. In a tile, the scale of row r and column c
//! has the index `r % 32 * 16 + r / 32 * 4 + c`. Tiles at the lower and the right edge are padded
//! to their full size.
//!
//! Layout: <https://docs.nvidia.com/cuda/cublas/index.html#d-block-scaling-factors-layout>, torchao
//! `to_blocked`.

use std::ops::Range;

use crate::Result;
use crate::remember::seam::Floats;
use crate::remember::seam::scale_matrix::ScaleMatrix;

/// Rows, columns and scales of a tile.
pub(crate) const TILE_ROWS: usize = 128;
pub(crate) const TILE_COLS: usize = 4;
pub(crate) const TILE_LEN: usize = TILE_ROWS * TILE_COLS;

/// Tiles of one row of tiles that one read takes: 32768 scales, which bounds the scratch for a wide
/// matrix.
const TILES_PER_READ: usize = 64;

/// A matrix of scales that is stored in tiles.
pub(crate) struct TiledScales<'m> {
    pub floats: Floats<'m>,
    /// Rows and columns of the matrix, without the padding.
    pub rows: usize,
    pub cols: usize,
}

/// Scales that a matrix of `rows` × `cols` takes with its padding, or `None` if that overflows.
pub(crate) fn stored_len(rows: usize, cols: usize) -> Option<usize> {
    // The sizes come from the file's header, so that the product can exceed every address space.
    rows.div_ceil(TILE_ROWS)
        .checked_mul(cols.div_ceil(TILE_COLS))?
        .checked_mul(TILE_LEN)
}

/// Whether scales of this shape fill whole tiles, so that nothing tells those in tiles from those in
/// rows.
pub(crate) fn fills_tiles(shape: &[usize]) -> bool {
    match *shape {
        [.., rows, cols] => rows.is_multiple_of(TILE_ROWS) && cols.is_multiple_of(TILE_COLS),
        _ => false,
    }
}

/// Index in its tile of the scale at `row` and `col` of the matrix.
fn offset_in_tile(row: usize, col: usize) -> usize {
    // A tile is 32 lines of 16 scales, and line r is | row r | row r + 32 | row r + 64 | row r + 96
    // |, 4 columns of each.
    row % 32 * 16 + row % TILE_ROWS / 32 * TILE_COLS + col % TILE_COLS
}

/// `scales` in tiles that lie side by side: rows of `width` scales, no more of them than a tile has. The
/// padding is zeros.
#[cfg_attr(not(feature = "lethe"), allow(dead_code))]
pub(crate) fn in_tiles(scales: &[u8], width: usize) -> Vec<u8> {
    let mut tiles = vec![0; width.div_ceil(TILE_COLS) * TILE_LEN];
    for (row, scales) in scales.chunks(width.max(1)).enumerate() {
        for (col, &scale) in scales.iter().enumerate() {
            tiles[col / TILE_COLS * TILE_LEN + offset_in_tile(row, col)] = scale;
        }
    }
    tiles
}

impl ScaleMatrix for TiledScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (at, width, across) = (out.len(), cols.len(), self.cols.div_ceil(TILE_COLS));
        // Tiles are wider and taller than the rectangle that was asked for, so scales are placed
        // one by one and the padding is never copied.
        out.resize(at + rows.len() * width, 0.0);
        // All tiles as one row, so that adjacent tiles of a row of tiles are one rectangle.
        let all = across * TILE_LEN * self.rows.div_ceil(TILE_ROWS);
        let mut numbers = Vec::new();
        for down in rows.start / TILE_ROWS..rows.end.div_ceil(TILE_ROWS) {
            let band = rows.start.max(down * TILE_ROWS)..rows.end.min((down + 1) * TILE_ROWS);
            for first in
                (cols.start / TILE_COLS..cols.end.div_ceil(TILE_COLS)).step_by(TILES_PER_READ)
            {
                let last = (first + TILES_PER_READ).min(cols.end.div_ceil(TILE_COLS));
                numbers.clear();
                let tiles = down * across + first..down * across + last;
                self.floats.extend(
                    all,
                    0..1,
                    tiles.start * TILE_LEN..tiles.end * TILE_LEN,
                    staging,
                    &mut numbers,
                )?;
                for row in band.clone() {
                    let line = &mut out[at + (row - rows.start) * width..][..width];
                    for col in cols.start.max(first * TILE_COLS)..cols.end.min(last * TILE_COLS) {
                        line[col - cols.start] = numbers
                            [(col / TILE_COLS - first) * TILE_LEN + offset_in_tile(row, col)];
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{offset_in_tile, stored_len};

    #[test]
    fn places() {
        let mut places: Vec<usize> = (0..128)
            .flat_map(|row| (0..4).map(move |col| offset_in_tile(row, col)))
            .collect();
        assert_eq!(
            (offset_in_tile(1, 0), offset_in_tile(32, 0), offset_in_tile(127, 3)),
            (16, 4, 511)
        );
        places.sort_unstable();
        assert!(places.into_iter().eq(0..512));
        assert_eq!((stored_len(129, 5), stored_len(0, 4)), (Some(2048), Some(0)));
    }
}
