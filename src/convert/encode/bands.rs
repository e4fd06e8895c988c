//! Bands, which are the adjacent tiles that one job encodes, and [`Pieces`], which merges the bytes of a band before they are
//! written.
//!
//! A tile of a wide tensor yields a short run of bytes for each of its rows. The runs of adjacent tiles are contiguous in the
//! output. One long write costs less than many short ones, because threads wait for each other when they write to one file.

use std::iter::StepBy;
use std::ops::Range;

use crate::Result;
use crate::convert::cut::{Cut, SLAB_VALUES};

/// Largest number of slabs of values in a band, for bands across and for bands down. A band down is larger, because its tiles
/// yield shorter runs.
const MAX_SLABS: [usize; 2] = [4, 8];

/// A grid of tiles divided into bands. A band consists of tiles side by side. If the output is transposed, it consists of tiles
/// one below another, because their bytes are contiguous then.
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
        Self {
            across,
            down,
            len,
            is_transposed,
        }
    }

    /// Number of bands. Each is one job.
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

    /// Numbers of the tiles in band `job`.
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

/// Bytes for several output tensors, collected in any order and written in as few runs as possible.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The bytes for each output, in the order in which they were added.
    bytes: Vec<Vec<u8>>,
    pieces: Vec<Piece>,
    /// Scratch for merging adjacent pieces into one write.
    merged: Vec<u8>,
}

/// A contiguous run of bytes of one output tensor. The derived order sorts by output and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    output: usize,
    /// Offset in the output tensor.
    at: u64,
    /// Offset in the output's [`Pieces::bytes`].
    start: usize,
    len: usize,
}

impl Pieces {
    /// Removes all pieces. The buffers are kept.
    pub(super) fn clear(&mut self) {
        self.bytes.iter_mut().for_each(Vec::clear);
        self.pieces.clear();
    }

    /// Adds `bytes` for output `output` at its byte `at`.
    pub(super) fn add(&mut self, output: usize, at: u64, bytes: &[u8]) {
        if self.bytes.len() <= output {
            self.bytes.resize_with(output + 1, Vec::new);
        }
        let all = &mut self.bytes[output];
        // Bytes of one output lie behind one another, so that what follows its last piece makes that longer.
        let last = self
            .pieces
            .iter_mut()
            .rev()
            .find(|piece| piece.output == output);
        match last {
            Some(last) if last.at + last.len as u64 == at => last.len += bytes.len(),
            _ => self.pieces.push(Piece {
                output,
                at,
                start: all.len(),
                len: bytes.len(),
            }),
        }
        all.extend_from_slice(bytes);
    }

    /// Passes all pieces to `write` in the order of outputs and offsets, adjacent ones merged, and removes them.
    ///
    /// # Errors
    /// The first error of `write`.
    pub(super) fn flush(
        &mut self,
        mut write: impl FnMut(usize, u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.pieces.sort_unstable();
        let follows = |a: &Piece, b: &Piece| a.output == b.output && a.at + a.len as u64 == b.at;
        for run in self.pieces.chunk_by(follows) {
            let bytes = |piece: &Piece| &self.bytes[piece.output][piece.start..][..piece.len];
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
                            shared_bytes: 0,
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
