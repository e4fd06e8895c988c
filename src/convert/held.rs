//! [`Pieces`], which merges bytes before they are written, and [`HeldWrites`], the short pieces of
//! several jobs.

use std::sync::{Mutex, PoisonError};

use crate::Result;
use crate::write::Sink;

/// Bytes of short pieces that are held at most. Longer pieces are written at once.
const HELD_BYTES: usize = 128 << 10;

/// Bytes of merged pieces that are written at once, or more by one piece: they are still in the
/// cache.
const MERGED_BYTES: usize = 256 << 10;

/// Short pieces of an output file, such as the scales of an encoded tile, that are written together
/// with those of other jobs.
///
/// The system lets one thread at a time write to a file. A job that wrote its codes and then some
/// bytes of scales would wait twice, and the second time as long as another thread takes to write
/// its codes.
#[derive(Debug, Default)]
pub(super) struct HeldWrites(Mutex<Pieces>);

impl HeldWrites {
    /// Writes `bytes` at `at` of file number `file`, now or with later pieces.
    ///
    /// # Errors
    /// The sink cannot write these bytes, or those before.
    pub(super) fn write(
        &self,
        sink: &dyn Sink,
        (file, at): (usize, u64),
        bytes: &[u8],
    ) -> Result<()> {
        if bytes.len() >= HELD_BYTES {
            return sink.write_at(file, at, bytes);
        }
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.add(file, at, bytes);
        if pieces.len() < HELD_BYTES {
            return Ok(());
        }
        let mut held = std::mem::take(&mut *pieces);
        // Other threads go on while these are written.
        drop(pieces);
        held.flush(|file, at, bytes| sink.write_at(file, at, bytes))
    }

    /// Writes what is held.
    ///
    /// # Errors
    /// The sink cannot write.
    pub(super) fn finish(&self, sink: &dyn Sink) -> Result<()> {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.flush(|file, at, bytes| sink.write_at(file, at, bytes))
    }
}

/// Bytes for several output tensors or files, collected in any order and written in as few runs as
/// possible.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// The bytes for each output, in the order in which they were added.
    bytes: Vec<Vec<u8>>,
    pieces: Vec<Piece>,
    /// Scratch for merging adjacent pieces into one write.
    merged: Vec<u8>,
}

/// A contiguous run of bytes of one output. The derived order sorts by output and offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    output: usize,
    /// Offset in the output.
    at: u64,
    /// Offset in the output's [`Pieces::bytes`].
    start: usize,
    len: usize,
}

impl Pieces {
    /// Number of bytes.
    fn len(&self) -> usize {
        self.bytes.iter().map(Vec::len).sum()
    }

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
        // Bytes of one output lie behind one another, so that what follows its last piece makes
        // that longer.
        let last = self
            .pieces
            .iter_mut()
            .rev()
            .find(|piece| piece.output == output);
        match last {
            Some(last) if last.at + last.len as u64 == at => last.len += bytes.len(),
            _ => self
                .pieces
                .push(Piece { output, at, start: all.len(), len: bytes.len() }),
        }
        all.extend_from_slice(bytes);
    }

    /// Passes all pieces to `write` in the order of outputs and offsets, adjacent ones merged, and
    /// removes them.
    ///
    /// # Errors
    /// The first error of `write`.
    pub(super) fn flush(
        &mut self,
        mut write: impl FnMut(usize, u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        // A stable sort merges the pieces of tiles, which are in order already.
        self.pieces.sort();
        let follows = |a: &Piece, b: &Piece| a.output == b.output && a.at + a.len as u64 == b.at;
        for run in self.pieces.chunk_by(follows) {
            let bytes = |piece: &Piece| &self.bytes[piece.output][piece.start..][..piece.len];
            if let [piece] = run {
                write(piece.output, piece.at, bytes(piece))?;
                continue;
            }
            let mut at = run[0].at;
            self.merged.clear();
            for piece in run {
                self.merged.extend_from_slice(bytes(piece));
                if self.merged.len() >= MERGED_BYTES {
                    write(piece.output, at, &self.merged)?;
                    at += self.merged.len() as u64;
                    self.merged.clear();
                }
            }
            if !self.merged.is_empty() {
                write(run[0].output, at, &self.merged)?;
            }
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
        // Rows of eight bytes, of which each of two tiles has a half, and three bytes of another
        // output.
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

    #[test]
    fn long_runs_are_written_in_parts() {
        let (mut pieces, mut found) = (Pieces::default(), vec![]);
        let len = MERGED_BYTES / 2 - 1;
        for i in [4, 1, 3, 0, 2] {
            pieces.add(0, (i * len) as u64, &vec![i as u8; len]);
        }
        let write = |_, at, bytes: &[u8]| {
            found.push((at, bytes.to_vec()));
            Ok(())
        };
        pieces.flush(write).unwrap();
        let all: Vec<u8> = (0..5).flat_map(|i| vec![i; len]).collect();
        let parts = [0..3 * len, 3 * len..5 * len];
        assert!(found == parts.map(|part| (part.start as u64, all[part].to_vec())));
    }

    /// A sink that notes what is written.
    #[derive(Default)]
    struct Notes(Mutex<Vec<(usize, u64, usize)>>);

    impl Notes {
        /// What has been written since the last call.
        fn take(&self) -> Vec<(usize, u64, usize)> {
            std::mem::take(&mut *self.0.lock().unwrap())
        }
    }

    impl Sink for Notes {
        fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
            self.0.lock().unwrap().push((file, offset, bytes.len()));
            Ok(())
        }
    }

    #[test]
    fn short_pieces_are_written_together() {
        let (held, notes) = (HeldWrites::default(), Notes::default());
        let write = |file, at: usize, len| {
            held.write(&notes, (file, at as u64), &vec![0; len])
                .unwrap();
        };
        // Long pieces do not wait.
        write(0, 7, HELD_BYTES);
        assert_eq!(notes.take(), [(0, 7, HELD_BYTES)]);
        let step = HELD_BYTES / 8;
        for i in [1, 0, 3, 2, 6, 5, 4] {
            write(0, i * step, step);
        }
        assert_eq!(notes.take(), []);
        write(1, 5, step);
        assert_eq!(notes.take(), [(0, 0, 7 * step), (1, 5, step)]);
        held.finish(&notes).unwrap();
        assert_eq!(notes.take(), []);
        write(0, 100, 4);
        write(0, 96, 4);
        held.finish(&notes).unwrap();
        held.finish(&notes).unwrap();
        assert_eq!(notes.take(), [(0, 96, 8)]);
    }
}
