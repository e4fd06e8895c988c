//! Pieces of outputs that are put together before they are written: one long write costs less than many short ones, for
//! which threads have to wait for each other.

use crate::Result;

/// Pieces in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
    /// Some of them, in one.
    run: Vec<u8>,
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
        self.pieces.push(Piece { output, at, start: self.bytes.len(), len: bytes.len() });
        self.bytes.extend_from_slice(bytes);
    }

    /// Passes all of them on, in their order in the outputs, and in as few runs as there can be.
    pub(super) fn flush(&mut self, mut write: impl FnMut(usize, u64, &[u8]) -> Result<()>) -> Result<()> {
        self.pieces.sort_unstable();
        let follows = |a: &Piece, b: &Piece| a.output == b.output && a.at + a.len as u64 == b.at;
        for run in self.pieces.chunk_by(follows) {
            self.run.clear();
            for piece in run {
                self.run.extend_from_slice(&self.bytes[piece.start..][..piece.len]);
            }
            write(run[0].output, run[0].at, &self.run)?;
        }
        self.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
