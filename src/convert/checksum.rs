//! A checksum of bytes that come in pieces, in any order, from any thread.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crc32fast::Hasher;

use crate::containers::write::ChecksumPatch;

/// CRC-32 of the pieces so far; neighbours are joined, so that few are kept.
#[derive(Debug, Default)]
pub(super) struct ChecksumAccumulator(Mutex<BTreeMap<u64, (u64, u32)>>);

impl ChecksumAccumulator {
    /// Adds the piece that begins at byte `at`.
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

    /// CRC-32 of `before` (length and sum) and all the pieces.
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

/// The checksums that go with an output tensor.
#[derive(Debug, Default)]
pub(super) struct TensorChecksums {
    /// Of the stored bytes, where they are copied as they are.
    pub input: ChecksumAccumulator,
    /// Of the written bytes, where the container wants it.
    pub output: Option<(ChecksumAccumulator, ChecksumPatch)>,
}

impl TensorChecksums {
    pub(super) fn new(patch: Option<ChecksumPatch>) -> Self {
        Self {
            input: ChecksumAccumulator::default(),
            output: patch.map(|patch| (ChecksumAccumulator::default(), patch)),
        }
    }
}

/// The sum of two runs of bytes, each given as length and sum.
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
