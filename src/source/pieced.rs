//! [`Pieced`]: one tensor whose elements lie in several places, as training on many devices stores
//! it. Each piece is a rectangle of the tensor, stored in row-major order by itself.
//!
//! Readers see the bytes of the whole tensor in row-major order. Where a byte lies is looked up in
//! a tree of straight cuts ([`cuts`]), so that a read costs a few comparisons for each run of bytes
//! that lies in one piece.

mod cuts;

use std::sync::Arc;

use self::cuts::Cuts;
use super::Source;
use crate::{AnamnesisError, Result};

/// A rectangle of a tensor, and where its bytes are. The last dimension counts bytes, the others
/// elements.
#[derive(Debug, Clone)]
pub(crate) struct TensorPiece {
    /// First element of each dimension.
    pub start: Vec<u64>,
    /// Length of each dimension, not zero.
    pub sizes: Vec<u64>,
    /// Which of the sources has the bytes, and the offset there of the first.
    pub source: usize,
    pub offset: u64,
    /// The CRC-32 of its storage, of which the piece may be a part.
    pub check: Option<StorageCheck>,
}

/// A checksum over bytes of a source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StorageCheck {
    pub crc: u32,
    pub offset: u64,
    pub len: u64,
}

/// A tensor in pieces, as a source of its bytes.
#[derive(Debug)]
pub(crate) struct Pieced {
    /// The files of the model, which all its tensors share.
    sources: Arc<[Source]>,
    /// Which of them have pieces.
    used: Vec<usize>,
    /// The last dimension counts bytes, the others elements.
    shape: Vec<u64>,
    pieces: Vec<TensorPiece>,
    cuts: Cuts,
    len: u64,
}

impl Pieced {
    /// The tensor of `shape`, of which `pieces` are all the parts. The last dimension of all counts
    /// bytes. No dimension is zero.
    ///
    /// # Errors
    /// `Parse` if pieces overlap, lie outside of the tensor, or are missing; `Unsupported` if they
    /// lie such that no straight cut parts them.
    pub(crate) fn new(
        sources: Arc<[Source]>,
        shape: Vec<u64>,
        pieces: Vec<TensorPiece>,
    ) -> Result<Self> {
        let len = cuts::volume(&shape)
            .ok_or_else(|| AnamnesisError::parse("the size of the tensor overflows"))?;
        let cuts = Cuts::new(&shape, &pieces)?;
        let mut used: Vec<usize> = pieces.iter().map(|piece| piece.source).collect();
        used.sort_unstable();
        used.dedup();
        Ok(Self { sources, used, shape, pieces, cuts, len })
    }

    /// The bytes of `ranges` of `base`, each an offset and a length, one after another.
    ///
    /// # Errors
    /// `Parse` if they overflow.
    #[cfg(any(feature = "mindspore", feature = "msgpack", feature = "pth"))]
    pub(crate) fn joined(base: Source, ranges: impl Iterator<Item = (u64, u64)>) -> Result<Self> {
        Self::of_several([base].into(), ranges.map(|(offset, len)| (0, offset, len)))
    }

    /// The bytes of `ranges` of `sources`, each the number of a source, an offset and a length, one after another.
    ///
    /// # Errors
    /// `Parse` if they overflow.
    #[cfg(any(feature = "mindspore", feature = "msgpack", feature = "pth", feature = "zarr"))]
    pub(crate) fn of_several(
        sources: Arc<[Source]>,
        ranges: impl Iterator<Item = (usize, u64, u64)>,
    ) -> Result<Self> {
        let (mut pieces, mut at) = (vec![], 0u64);
        for (source, offset, len) in ranges.filter(|&(.., len)| len > 0) {
            let (start, sizes) = (vec![at], vec![len]);
            pieces.push(TensorPiece { start, sizes, source, offset, check: None });
            let end = at.checked_add(len);
            at = end.ok_or_else(|| AnamnesisError::parse("the size of the tensor overflows"))?;
        }
        Self::new(sources, vec![at], pieces)
    }

    /// Bytes of the tensor.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Compares the files that have pieces with their states when they were opened.
    pub(super) fn require_unchanged(&self) -> Result<()> {
        let mut used = self.used.iter().filter_map(|&i| self.sources.get(i));
        used.try_for_each(Source::require_unchanged)
    }

    /// Fills `out` with the tensor's bytes from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(AnamnesisError::parse("tensor data past the end"));
        }
        let (mut at, mut rest) = (offset, out);
        let mut index = vec![0; self.shape.len()];
        while !rest.is_empty() {
            let mut place = at;
            for (i, &len) in index.iter_mut().zip(&self.shape).rev() {
                (*i, place) = (place % len, place / len);
            }
            let piece = &self.pieces[self.cuts.find(&index)];
            let (inside, run) = self.run_from(piece, &index);
            let n = run.min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at_mut(n);
            self.source_of(piece)?.read_at(piece.offset + inside, now)?;
            (at, rest) = (at + n as u64, later);
        }
        Ok(())
    }

    /// Where the byte at `index` of the tensor lies in `piece`, and how many bytes from it on
    /// follow each other in both.
    fn run_from(&self, piece: &TensorPiece, index: &[u64]) -> (u64, u64) {
        // `len` counts the bytes of the dimensions behind the current one, and `run` those from the
        // index on.
        let (mut inside, mut len, mut run, mut is_whole) = (0, 1, 0, true);
        for (d, &i) in index.iter().enumerate().rev() {
            let at = i - piece.start[d];
            inside += at * len;
            if is_whole {
                // The run began as the rest of one row of this dimension; it goes on through the
                // rows that follow.
                let rows = piece.sizes[d] - at;
                run = match d + 1 == index.len() {
                    true => rows,
                    false => (rows - 1) * len + run,
                };
                is_whole = piece.sizes[d] == self.shape[d];
            }
            len *= piece.sizes[d];
        }
        (inside, run)
    }

    fn source_of(&self, piece: &TensorPiece) -> Result<&Source> {
        let missing = || AnamnesisError::parse("a piece whose file is missing");
        self.sources.get(piece.source).ok_or_else(missing)
    }

    /// Whether any piece has a checksum.
    pub(crate) fn has_checksums(&self) -> bool {
        self.pieces.iter().any(|piece| piece.check.is_some())
    }

    /// Compares the pieces with their checksums. Returns whether they agree.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn checksums_agree(&self) -> Result<bool> {
        for piece in &self.pieces {
            let Some(StorageCheck { crc, offset, len }) = piece.check else {
                continue;
            };
            let source = self.source_of(piece)?;
            if source.crc32(offset, len, Default::default())? != crc {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor of `shape` in pieces, each given as its first element and its sizes, in one buffer
    /// behind each other. Byte `n` of the tensor is `n`.
    fn pieced(shape: &[u64], rectangles: &[(Vec<u64>, Vec<u64>)]) -> Result<Pieced> {
        let (mut bytes, mut pieces) = (vec![], vec![]);
        for (start, sizes) in rectangles {
            let offset = bytes.len() as u64;
            let n: u64 = sizes.iter().product();
            for first in 0..n {
                let mut i = first;
                let (mut at, mut stride) = (0, 1);
                for d in (0..shape.len()).rev() {
                    at += (start[d] + i % sizes[d]) * stride;
                    (i, stride) = (i / sizes[d], stride * shape[d]);
                }
                bytes.push(at as u8);
            }
            let (crc, len) = (crc32fast::hash(&bytes[offset as usize..]), n);
            let (start, sizes) = (start.clone(), sizes.clone());
            pieces.push(TensorPiece {
                start,
                sizes,
                source: 0,
                offset,
                check: Some(StorageCheck { crc, offset, len }),
            });
        }
        let sources = Arc::from(vec![Source::Bytes(Arc::new(bytes))]);
        Pieced::new(sources, shape.to_vec(), pieces)
    }

    fn rectangles(list: &[(&[u64], &[u64])]) -> Vec<(Vec<u64>, Vec<u64>)> {
        let owned = list
            .iter()
            .map(|(start, sizes)| (start.to_vec(), sizes.to_vec()));
        owned.collect()
    }

    #[test]
    fn every_range_of_every_split() {
        let splits: [(&[u64], Vec<_>); 6] = [
            (&[7], rectangles(&[(&[0], &[3]), (&[3], &[4])])),
            (&[4, 5], rectangles(&[(&[3, 0], &[1, 5]), (&[0, 0], &[3, 5])])),
            (&[4, 5], rectangles(&[(&[0, 0], &[4, 2]), (&[0, 2], &[4, 3])])),
            // Each band of rows is cut at another column.
            (
                &[5, 6],
                rectangles(&[
                    (&[0, 0], &[2, 1]),
                    (&[0, 1], &[2, 5]),
                    (&[2, 0], &[3, 4]),
                    (&[2, 4], &[3, 2]),
                ]),
            ),
            (
                &[3, 4, 5],
                rectangles(&[
                    (&[0, 0, 0], &[3, 1, 5]),
                    (&[0, 1, 0], &[1, 3, 5]),
                    (&[1, 1, 0], &[2, 3, 2]),
                    (&[1, 1, 2], &[2, 3, 3]),
                ]),
            ),
            (&[2, 3, 4], rectangles(&[(&[1, 0, 0], &[1, 3, 4]), (&[0, 0, 0], &[1, 3, 4])])),
        ];
        for (shape, rectangles) in splits {
            let tensor = pieced(shape, &rectangles).unwrap();
            let len = tensor.len();
            assert_eq!(len, shape.iter().product::<u64>());
            for from in 0..=len {
                for to in from..=len {
                    let mut out = vec![0xff; (to - from) as usize];
                    tensor.read_at(from, &mut out).unwrap();
                    assert!(out.iter().map(|&b| u64::from(b)).eq(from..to), "{shape:?}");
                }
            }
            assert!(tensor.read_at(len, &mut [0]).is_err());
            assert!(tensor.has_checksums() && tensor.checksums_agree().unwrap());
        }
    }

    #[test]
    fn rows_that_follow_each_other_are_one_run() {
        let split = rectangles(&[(&[0, 0, 0], &[2, 3, 4]), (&[2, 0, 0], &[3, 3, 4])]);
        let tensor = pieced(&[5, 3, 4], &split).unwrap();
        assert_eq!(tensor.run_from(&tensor.pieces[1], &[2, 1, 1]), (5, 31));
        let split = rectangles(&[(&[0, 0, 0], &[5, 1, 4]), (&[0, 1, 0], &[5, 2, 4])]);
        let tensor = pieced(&[5, 3, 4], &split).unwrap();
        assert_eq!(tensor.run_from(&tensor.pieces[1], &[2, 1, 1]), (17, 7));
    }

    #[test]
    fn a_wrong_byte_in_a_piece() {
        let mut tensor = pieced(&[4, 5], &rectangles(&[(&[0, 0], &[4, 2]), (&[0, 2], &[4, 3])]));
        let pieces = &mut tensor.as_mut().unwrap().pieces;
        pieces[1].check.as_mut().unwrap().crc ^= 1;
        assert!(!tensor.unwrap().checksums_agree().unwrap());
    }
}
