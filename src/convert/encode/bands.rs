//! Bands, which are the adjacent tiles that one job encodes. Their bytes are merged before they are
//! written.
//!
//! A tile of a wide tensor yields a short run of bytes for each of its rows. The runs of adjacent
//! tiles are contiguous in the output. One long write costs less than many short ones, because
//! threads wait for each other when they write to one file.

use std::iter::StepBy;
use std::ops::Range;

use crate::convert::cut::{Cut, SLAB_VALUES};

/// Largest number of slabs of values in a band, for bands across and for bands down. A band down is
/// larger, because its tiles yield shorter runs: 4096 rows of 1024 columns have runs of 2 KiB of
/// 4-bit codes.
const MAX_SLABS: [usize; 2] = [4, 32];

/// A grid of tiles divided into bands. A band consists of tiles side by side. If the output is
/// transposed, it consists of tiles one below another, because their bytes are contiguous then.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bands {
    /// Number of tiles in a row of tiles.
    across: usize,
    /// Number of rows of tiles.
    down: usize,
    /// Number of tiles in a band; the last band of a row or column may be shorter.
    len: usize,
    is_transposed: bool,
}

impl Bands {
    pub(super) fn new(cut: &Cut, is_transposed: bool) -> Self {
        let across = cut.across().max(1);
        let down = cut.tiles() / across;
        let (slabs, end) = if is_transposed {
            (MAX_SLABS[1], down)
        } else {
            (MAX_SLABS[0], across)
        };
        let len =
            (slabs * SLAB_VALUES / (cut.tile_rows * cut.tile_cols).max(1)).clamp(1, end.max(1));
        Self { across, down, len, is_transposed }
    }

    /// Number of bands. Each is one job.
    pub(super) fn jobs(&self) -> usize {
        let &Self { across, down, len, is_transposed } = self;
        if is_transposed {
            across * down.div_ceil(len)
        } else {
            down * across.div_ceil(len)
        }
    }

    /// Numbers of the tiles in band `job`.
    pub(super) fn tiles(&self, job: usize) -> StepBy<Range<usize>> {
        let &Self { across, down, len, is_transposed } = self;
        if is_transposed {
            let (first, column) = (job / across * len, job % across);
            let end = (first + len).min(down);
            return (first * across + column..end * across).step_by(across);
        }
        let per_row = across.div_ceil(len);
        let (row, first) = (job / per_row * across, job % per_row * len);
        (row + first..row + (first + len).min(across)).step_by(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_is_in_one_band() {
        for (rows, cols) in
            [(1, 1), (40, 70_000), (5000, 5000), (300, 900), (128, 1 << 20), (0, 64)]
        {
            for (tile_rows, tile_cols) in [(128, 1024), (512, 256), (1, 131_072), (3, 700)] {
                for is_transposed in [false, true] {
                    let bands = Bands::new(
                        &Cut { rows, cols, tile_rows, tile_cols, shared_bytes: 0 },
                        is_transposed,
                    );
                    let mut tiles: Vec<usize> =
                        (0..bands.jobs()).flat_map(|job| bands.tiles(job)).collect();
                    tiles.sort_unstable();
                    let all = rows.div_ceil(tile_rows) * cols.div_ceil(tile_cols);
                    assert!(
                        tiles == (0..all).collect::<Vec<_>>(),
                        "{rows} × {cols}, {tile_rows} × {tile_cols}"
                    );
                }
            }
        }
    }
}
