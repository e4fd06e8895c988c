//! CRC-32 of bytes that arrive in pieces, in any order, from any thread.
//!
//! Jobs finish in any order, and keeping their bytes until they can be summed in order would take the memory of a tensor. The
//! CRC-32 of two adjacent pieces follows from the CRC-32 and length of each, so only those are kept.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crc32fast::Hasher;

/// Offset, length and CRC-32 of the pieces so far. Adjacent pieces are merged at once. There are then at most about as many
/// entries as pieces in flight, and one in the end.
#[derive(Debug, Default)]
pub(super) struct ChecksumAccumulator(Mutex<BTreeMap<u64, (u64, u32)>>);

impl ChecksumAccumulator {
    /// Adds the bytes that begin at byte `at`. No byte may be added twice.
    pub(super) fn add(&self, at: u64, bytes: &[u8]) {
        let (mut start, mut len, mut crc) = (at, bytes.len() as u64, crc32fast::hash(bytes));
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

    /// CRC-32 of all pieces, behind a prefix of which `before` gives length and CRC-32. The pieces must be complete: a gap would
    /// be taken as empty.
    pub(super) fn total(&self, before: (u64, u32)) -> u32 {
        let pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces
            .values()
            .fold(before, |all, &piece| {
                (all.0 + piece.0, combine_crc32(all, piece))
            })
            .1
    }
}

/// Checksums that the jobs of one output tensor accumulate in one run. A second run sums the same bytes again, so it has its own.
#[derive(Debug, Default)]
pub(super) struct TensorChecksums {
    /// Of the input's stored bytes, if they are copied as they are. It is compared with the container's checksum.
    pub input: ChecksumAccumulator,
    /// Of the written bytes, if the output's container stores a checksum.
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
            assert_eq!(
                sum.total((10, crc32fast::hash(&bytes[..10]))),
                crc32fast::hash(&bytes)
            );
            assert_eq!(sum.0.lock().unwrap().len(), 1);
        }
    }
}
