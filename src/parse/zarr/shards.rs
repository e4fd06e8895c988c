//! Shards: values with several chunks, and an index that says where each of them is.

use super::store::{ValuePlace, ZarrStore};
use crate::crc32c::crc32c;
use crate::limits::Budget;
use crate::{AnamnesisError, Result};

/// Offset and length in the index of a chunk that was not written.
const MISSING: u64 = u64::MAX;

/// How the chunks of a shard are stored.
#[derive(Debug, Default)]
pub(super) struct ShardLayout {
    /// Chunks of a shard in each dimension.
    grid: Vec<u64>,
    is_index_first: bool,
    /// Whether a checksum lies behind the index.
    is_summed: bool,
}

impl ShardLayout {
    /// Shards of which nothing is known but how their index is stored.
    pub(super) fn new(is_index_first: bool, is_summed: bool) -> Self {
        Self { grid: vec![], is_index_first, is_summed }
    }

    /// The same of shards of `shard` elements, whose chunks have `chunk`.
    pub(super) fn of_chunks(self, shard: &[u64], chunk: &[u64]) -> Result<Self> {
        let parts = || shard.iter().zip(chunk);
        let is_even = parts().all(|(shard, chunk)| *chunk > 0 && shard % chunk == 0);
        if shard.len() != chunk.len() || !is_even || shard.contains(&0) {
            return Err(wrong(&format!("shards of {shard:?} with chunks of {chunk:?}")));
        }
        let grid = parts().map(|(shard, chunk)| shard / chunk).collect();
        Ok(Self { grid, ..self })
    }

    /// Calls `take` with the coordinates and the place of each chunk of the shard at `at`, whose value is in `place`.
    ///
    /// # Errors
    /// `Parse` if its index is malformed; `LimitExceeded`; `Io`.
    pub(super) fn each(
        &self,
        store: &ZarrStore,
        place: ValuePlace,
        at: &[u64],
        budget: &Budget,
        take: &mut dyn FnMut(&[u64], ValuePlace),
    ) -> Result<()> {
        let sum_len = if self.is_summed { 4 } else { 0 };
        let count = self
            .grid
            .iter()
            .try_fold(1u64, |n, &len| n.checked_mul(len));
        let len = count.and_then(|count| count.checked_mul(16)?.checked_add(sum_len));
        let Some(len) = len.filter(|&len| len <= place.len) else {
            return Err(wrong("a shard is shorter than its index"));
        };
        let offset = match self.is_index_first {
            true => place.offset,
            false => place.offset + place.len - len,
        };
        let mut index = store.bytes(ValuePlace { offset, len, ..place }, budget)?;
        let sum = index.split_off(index.len() - sum_len as usize);
        if self.is_summed && crc32c(&index).to_le_bytes() != *sum {
            return Err(wrong("the index of a shard has the wrong checksum"));
        }
        let mut coordinates = vec![0; self.grid.len()];
        for (number, entry) in (0..).zip(index.chunks_exact(16)) {
            let field = |at: usize| {
                let bytes = entry[at..at + 8].iter().rev();
                bytes.fold(0u64, |n, &byte| n << 8 | u64::from(byte))
            };
            let (start, len) = (field(0), field(8));
            if (start, len) == (MISSING, MISSING) {
                continue;
            }
            if start.checked_add(len).is_none_or(|end| end > place.len) {
                return Err(wrong("a chunk of a shard is not in it"));
            }
            let mut rest = number;
            for (d, &count) in self.grid.iter().enumerate().rev() {
                coordinates[d] = at[d].saturating_mul(count).saturating_add(rest % count);
                rest /= count;
            }
            take(&coordinates, ValuePlace { offset: place.offset + start, len, ..place });
        }
        Ok(())
    }
}

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(what)
}
