//! CRC-32 of bytes that arrive in pieces, in any order, from any thread.
//!
//! Jobs finish in any order, and keeping their bytes until they can be summed in order would take
//! the memory of a tensor. The CRC-32 of two adjacent pieces follows from the CRC-32 and length of
//! each, so only those are kept.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crc32fast::Hasher;

use crate::source::platform::read_exact_at;
use crate::{AnamnesisError, CancelToken, Result};

/// Bytes that are read at once to sum a file.
const PIECE: u64 = 1 << 20;

/// Offset, length and CRC-32 of the pieces so far. Adjacent pieces are merged at once. There are
/// then at most about as many entries as pieces in flight, and one in the end.
#[derive(Debug, Default)]
pub(super) struct ChecksumAccumulator(Mutex<BTreeMap<u64, (u64, u32)>>);

impl ChecksumAccumulator {
    /// Adds the bytes that begin at byte `at`. No byte may be added twice.
    pub(super) fn add(&self, at: u64, bytes: &[u8]) {
        self.add_piece(at, (bytes.len() as u64, crc32fast::hash(bytes)));
    }

    /// Adds the piece at `at` that has this length and CRC-32. No byte may be added twice.
    fn add_piece(&self, at: u64, (len, crc): (u64, u32)) {
        let (mut start, mut len, mut crc) = (at, len, crc);
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((&before, &(n, sum))) = pieces.range(..at).next_back()
            && before + n == at
        {
            pieces.remove(&before);
            (start, crc) = (before, combine_crc32((n, sum), (len, crc)));
            len += n;
        }
        if let Some((n, sum)) = pieces.remove(&(start + len)) {
            crc = combine_crc32((len, crc), (n, sum));
            len += n;
        }
        pieces.insert(start, (len, crc));
    }

    /// The pieces so far, each with its offset moved by `base`.
    pub(super) fn pieces(&self, base: u64) -> Vec<(u64, (u64, u32))> {
        let pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces
            .iter()
            .map(|(&at, &piece)| (base + at, piece))
            .collect()
    }

    /// CRC-32 of all pieces, behind a prefix of which `before` gives length and CRC-32. The pieces
    /// must be complete: a gap would be taken as empty.
    pub(super) fn total(&self, before: (u64, u32)) -> u32 {
        let pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces
            .values()
            .fold(before, |all, &piece| (all.0 + piece.0, combine_crc32(all, piece)))
            .1
    }
}

/// CRC-32 of a file of `len` bytes whose pieces are known by offset, length and CRC-32. Bytes that
/// are in none are zeros.
pub(super) fn checksum_of_pieces(mut pieces: Vec<(u64, (u64, u32))>, len: u64) -> u32 {
    pieces.sort_unstable();
    pieces.push((len, (0, 0)));
    let mut all = (0, 0);
    for (at, piece) in pieces {
        let gap = at.saturating_sub(all.0);
        if gap > 0 {
            all = (all.0 + gap, combine_crc32(all, (gap, checksum_of_zeros(gap))));
        }
        all = (all.0 + piece.0, combine_crc32(all, piece));
    }
    all.1
}

/// CRC-32 of `len` zeros.
fn checksum_of_zeros(len: u64) -> u32 {
    let zeros = [0; 4096];
    let mut hasher = Hasher::new();
    let mut left = len;
    while left > 0 {
        let n = left.min(zeros.len() as u64);
        hasher.update(&zeros[..n as usize]);
        left -= n;
    }
    hasher.finalize()
}

/// CRC-32 of the first `len` bytes of `file`, which `threads` threads read.
///
/// # Errors
/// `Io` if the file is shorter or cannot be read; `Cancelled`.
pub(super) fn checksum_of_file(
    file: &File,
    len: u64,
    threads: usize,
    cancel: &CancelToken,
) -> Result<u32> {
    let (next, sum) = (AtomicU64::new(0), ChecksumAccumulator::default());
    let work = || -> Result<()> {
        let mut piece = vec![0; PIECE.min(len) as usize];
        loop {
            let at = next.fetch_add(PIECE, Ordering::Relaxed);
            if at >= len {
                return Ok(());
            }
            cancel.check()?;
            let piece = &mut piece[..PIECE.min(len - at) as usize];
            read_exact_at(file, at, piece)?;
            sum.add(at, piece);
        }
    };
    thread::scope(|scope| {
        // A thread that cannot be started is not needed: the others take its pieces.
        let start = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let ours = work();
        let failed = |_| Err(AnamnesisError::Io(std::io::Error::other("a thread failed")));
        let join = |other: thread::ScopedJoinHandle<'_, _>| other.join().unwrap_or_else(failed);
        others.into_iter().map(join).fold(ours, Result::and)
    })?;
    Ok(sum.total((0, 0)))
}

/// Checksums that the jobs of one output tensor accumulate in one run. A second run sums the same
/// bytes again, so it has its own.
#[derive(Debug, Default)]
pub(super) struct TensorChecksums {
    /// Of the input's stored bytes, if they are copied as they are. It is compared with the
    /// container's checksum.
    pub input: ChecksumAccumulator,
    /// Of the written bytes, if the output's container stores a checksum or the run is asked for
    /// the sum of its file.
    pub output: Option<ChecksumAccumulator>,
}

/// CRC-32 of two byte strings one after the other, each given as length and CRC-32.
fn combine_crc32(first: (u64, u32), second: (u64, u32)) -> u32 {
    let mut all = Hasher::new_with_initial_len(first.1, first.0);
    all.combine(&Hasher::new_with_initial_len(second.1, second.0));
    all.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_with_gaps() {
        let mut bytes = vec![0; 20_000];
        bytes[7..300].fill(3);
        bytes[9000..9001].fill(4);
        let piece = |at: usize, len: usize| {
            let crc = crc32fast::hash(&bytes[at..at + len]);
            (at as u64, (len as u64, crc))
        };
        let pieces = vec![piece(9000, 1), piece(7, 200), piece(207, 93), piece(500, 0)];
        let expected = crc32fast::hash(&bytes);
        assert_eq!(checksum_of_pieces(pieces, 20_000), expected);
        assert_eq!(checksum_of_pieces(vec![], 0), crc32fast::hash(&[]));
    }

    #[test]
    fn a_file_by_several_threads() {
        use std::io::Write;
        let bytes: Vec<u8> = (0..5 * PIECE as u32 / 2)
            .map(|i| (i * 7 % 251) as u8)
            .collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let sum = |len, threads| checksum_of_file(&file, len, threads, &CancelToken::new());
        for threads in [1, 3, 9] {
            let found = sum(bytes.len() as u64, threads).unwrap();
            assert_eq!(found, crc32fast::hash(&bytes), "{threads} threads");
        }
        assert!(sum(bytes.len() as u64 + 1, 2).is_err());
        assert_eq!(sum(0, 2).unwrap(), 0);
    }

    #[test]
    fn any_order() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7 % 251) as u8).collect();
        for step in [1usize, 3, 7, 11] {
            let sum = ChecksumAccumulator::default();
            let pieces: Vec<_> = bytes[10..].chunks(33).enumerate().collect();
            let mut order: Vec<usize> =
                (0..pieces.len()).map(|i| i * step % pieces.len()).collect();
            order.sort_unstable();
            order.dedup();
            order.reverse();
            for i in order
                .iter()
                .copied()
                .chain((0..pieces.len()).filter(|i| !order.contains(i)))
            {
                sum.add(pieces[i].0 as u64 * 33, pieces[i].1);
            }
            assert_eq!(sum.total((10, crc32fast::hash(&bytes[..10]))), crc32fast::hash(&bytes));
            assert_eq!(sum.0.lock().unwrap().len(), 1);
        }
    }
}
