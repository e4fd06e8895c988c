//! [`SparseValues`]: a sparse tensor as a dense one.

use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes of values that are read at once.
const PIECE: usize = 16 << 10;

/// The values of a sparse tensor, and zeros everywhere else.
#[derive(Debug)]
pub(crate) struct SparseValues {
    values: Source,
    /// Offset of the first value.
    offset: u64,
    /// Bytes of a value.
    width: usize,
    /// Which element of the dense tensor each value is, in ascending order.
    places: Vec<u64>,
    /// Elements of the dense tensor.
    count: u64,
}

impl SparseValues {
    /// The dense tensor of `count` elements of `width` bytes, of which those at `places` are the
    /// values from `offset` of `values` on.
    ///
    /// # Errors
    /// `Parse` if the places do not ascend, or lie outside.
    pub(crate) fn new(
        values: Source,
        offset: u64,
        width: usize,
        places: Vec<u64>,
        count: u64,
    ) -> Result<Self> {
        if !places.is_sorted_by(|a, b| a < b) {
            return Err(AnamnesisError::parse("its indices do not ascend"));
        }
        if places.last().is_some_and(|&last| last >= count) {
            return Err(AnamnesisError::parse("an index is past the end of the tensor"));
        }
        Ok(Self { values, offset, width, places, count })
    }

    pub(super) fn len(&self) -> u64 {
        self.count * self.width as u64
    }

    pub(super) fn base(&self) -> &Source {
        &self.values
    }

    /// Fills `out` with the bytes of the dense tensor from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        let end = end.filter(|&end| end <= self.len());
        let end = end.ok_or_else(|| AnamnesisError::parse("tensor data past the end"))?;
        out.fill(0);
        let width = self.width as u64;
        let first = self.places.partition_point(|&place| place < offset / width);
        let last = self.places.partition_point(|&place| place * width < end);
        let mut piece = Vec::new();
        for (i, places) in (0..).zip(self.places[first..last].chunks(PIECE / self.width)) {
            piece.resize(places.len() * self.width, 0);
            let number = first as u64 + i * (PIECE / self.width) as u64;
            self.values
                .read_at(self.offset + number * width, &mut piece)?;
            for (&place, value) in places.iter().zip(piece.chunks_exact(self.width)) {
                // The first and the last element may be cut.
                for (at, &byte) in (place * width..).zip(value) {
                    if (offset..end).contains(&at) {
                        out[(at - offset) as usize] = byte;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn every_range_is_dense() {
        let values: Vec<u8> = (1..=8).collect();
        let places = vec![1, 2, 5, 9];
        let mut dense = [0u8; 20];
        for (i, &place) in places.iter().enumerate() {
            dense[place as usize * 2..][..2].copy_from_slice(&values[2 * i..][..2]);
        }
        let new =
            |places| SparseValues::new(Source::Bytes(Arc::new(values.clone())), 0, 2, places, 10);
        let sparse = new(places).unwrap();
        for from in 0..=20 {
            for to in from..=20 {
                let mut out = vec![9; to - from];
                sparse.read_at(from as u64, &mut out).unwrap();
                assert_eq!(out, &dense[from..to], "{from}..{to}");
            }
        }
        assert!(sparse.read_at(20, &mut [0]).is_err());
        assert!(new(vec![1, 1]).is_err() && new(vec![2, 1]).is_err() && new(vec![10]).is_err());
    }
}
