//! Scales in the order that NVIDIA's block-scaled matrix products want them: tiles of 128 rows and four columns, 512
//! numbers each, row of tiles by row of tiles. In a tile, row r and column c are number
//! `r % 32 * 16 + r / 32 * 4 + c`. What is missing of the last tiles is padding.
//!
//! Layout: <https://docs.nvidia.com/cuda/cublas/index.html#d-block-scaling-factors-layout>, torchao `to_blocked`.

use std::ops::Range;

use crate::Result;
use crate::scheme::seam::Floats;
use crate::scheme::seam::numbers::ScaleMatrix;

/// Rows and columns of a tile, and the numbers in it.
pub(crate) const HEIGHT: usize = 128;
pub(crate) const WIDTH: usize = 4;
const TILE: usize = HEIGHT * WIDTH;

/// Tiles that are read at once.
const RUN: usize = 64;

/// A matrix in tiles.
pub(crate) struct Tiled<'m> {
    pub floats: Floats<'m>,
    /// Rows and columns of the matrix, without the padding.
    pub rows: usize,
    pub cols: usize,
}

/// Numbers that are stored for `rows` × `cols`, if they can be counted.
pub(crate) fn stored(rows: usize, cols: usize) -> Option<usize> {
    rows.div_ceil(HEIGHT)
        .checked_mul(cols.div_ceil(WIDTH))?
        .checked_mul(TILE)
}

/// Where a number is in its tile.
fn place(row: usize, col: usize) -> usize {
    row % 32 * 16 + row % HEIGHT / 32 * WIDTH + col % WIDTH
}

impl ScaleMatrix for Tiled<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (at, width, across) = (out.len(), cols.len(), self.cols.div_ceil(WIDTH));
        out.resize(at + rows.len() * width, 0.0);
        let all = across * TILE * self.rows.div_ceil(HEIGHT);
        let mut numbers = Vec::new();
        for down in rows.start / HEIGHT..rows.end.div_ceil(HEIGHT) {
            let band = rows.start.max(down * HEIGHT)..rows.end.min((down + 1) * HEIGHT);
            for first in (cols.start / WIDTH..cols.end.div_ceil(WIDTH)).step_by(RUN) {
                let last = (first + RUN).min(cols.end.div_ceil(WIDTH));
                numbers.clear();
                let tiles = down * across + first..down * across + last;
                self.floats.extend(
                    all,
                    0..1,
                    tiles.start * TILE..tiles.end * TILE,
                    staging,
                    &mut numbers,
                )?;
                for row in band.clone() {
                    let line = &mut out[at + (row - rows.start) * width..][..width];
                    for col in cols.start.max(first * WIDTH)..cols.end.min(last * WIDTH) {
                        line[col - cols.start] =
                            numbers[(col / WIDTH - first) * TILE + place(row, col)];
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{place, stored};

    #[test]
    fn places() {
        let mut places: Vec<usize> = (0..128)
            .flat_map(|row| (0..4).map(move |col| place(row, col)))
            .collect();
        assert_eq!((place(1, 0), place(32, 0), place(127, 3)), (16, 4, 511));
        places.sort_unstable();
        assert!(places.into_iter().eq(0..512));
        assert_eq!((stored(129, 5), stored(0, 4)), (Some(2048), Some(0)));
    }
}
