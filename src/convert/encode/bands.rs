//! Tiles that are encoded together, and what is stored of them, put together before it is written: one long write costs
//! less than many short ones, for which threads have to wait for each other.

use std::iter::StepBy;
use std::ops::Range;

use crate::Result;
use crate::convert::cut::{Cut, SLAB_VALUES};

/// Slabs of values in a band at most, across and down. Down, each makes many short runs.
const MAX_SLABS: [usize; 2] = [4, 8];

/// Tiles in bands: beside each other or, where the output runs across rows, one below another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bands {
    /// Numbers of tiles.
    across: usize,
    down: usize,
    /// Tiles in a band.
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
        Self {
            across,
            down,
            len,
            is_transposed,
        }
    }

    /// Number of bands: of the jobs that encode.
    pub(super) fn jobs(&self) -> usize {
        let &Self {
            across,
            down,
            len,
            is_transposed,
        } = self;
        if is_transposed {
            across * down.div_ceil(len)
        } else {
            down * across.div_ceil(len)
        }
    }

    /// Numbers of the tiles of job `job`.
    pub(super) fn tiles(&self, job: usize) -> StepBy<Range<usize>> {
        let &Self {
            across,
            down,
            len,
            is_transposed,
        } = self;
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

/// Pieces in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// Some of them, in one.
    merged: Vec<u8>,
}

/// Some bytes of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    output: usize,
    /// Where they belong there.
    at: u64,
    /// Where they are here.
    start: usize,
    len: usize,
}

impl Pieces {
    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.pieces.clear();
    }

    /// Keeps bytes of output `output`, from its byte `at` on.
    pub(super) fn add(&mut self, output: usize, at: u64, bytes: &[u8]) {
        self.pieces.push(Piece {
            output,
            at,
            start: self.bytes.len(),
            len: bytes.len(),
        });
        self.bytes.extend_from_slice(bytes);
    }

    /// Passes all of them on, in their order in the outputs, and in as few runs as there can be.
    pub(super) fn flush(
        &mut self,
        mut write: impl FnMut(usize, u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.pieces.sort_unstable();
        let follows = |a: &Piece, b: &Piece| a.output == b.output && a.at + a.len as u64 == b.at;
        for run in self.pieces.chunk_by(follows) {
            let bytes = |piece: &Piece| &self.bytes[piece.start..][..piece.len];
            if let [piece] = run {
                write(piece.output, piece.at, bytes(piece))?;
                continue;
            }
            self.merged.clear();
            run.iter()
                .for_each(|piece| self.merged.extend_from_slice(bytes(piece)));
            write(run[0].output, run[0].at, &self.merged)?;
        }
        self.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_is_in_one_band() {
        for (rows, cols) in [
            (1, 1),
            (40, 70_000),
            (5000, 5000),
            (300, 900),
            (128, 1 << 20),
            (0, 64),
        ] {
            for (tile_rows, tile_cols) in [(128, 1024), (512, 256), (1, 131_072), (3, 700)] {
                for is_transposed in [false, true] {
                    let bands = Bands::new(
                        &Cut {
                            rows,
                            cols,
                            tile_rows,
                            tile_cols,
                        },
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

    #[test]
    fn neighbours_become_one() {
        let mut pieces = Pieces::default();
        // Rows of eight bytes, of which each of two tiles has a half, and three bytes of another output.
        for tile in 0..2u8 {
            for row in 0..3u8 {
                let at = u64::from(row) * 8 + u64::from(tile) * 4;
                pieces.add(1, at, &[row * 2 + tile; 4]);
            }
            pieces.add(0, 5 + 2 * u64::from(tile), &[tile; 1]);
        }
        let mut found = vec![];
        let mut flush = |pieces: &mut Pieces| {
            pieces.flush(|output, at, bytes| {
                found.push((output, at, bytes.to_vec()));
                Ok(())
            })
        };
        flush(&mut pieces).unwrap();
        flush(&mut pieces).unwrap();
        let rows: Vec<u8> = (0..6).flat_map(|n| [n; 4]).collect();
        assert_eq!(found, [(0, 5, vec![0]), (0, 7, vec![1]), (1, 0, rows)]);
    }
}
