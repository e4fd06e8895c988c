//! [`PartialBytes`]: bytes of which several tiles have bits.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::Result;
use crate::lethe::Put;

/// Bytes of which not all bits are known yet. The tile that brings the last bits of a byte writes
/// it, so that the output does not depend on the order of the tiles. Few tiles are done at once,
/// and each has up to two such bytes in a stored tensor.
#[derive(Default)]
pub(super) struct PartialBytes {
    /// By stored tensor and offset: the known bits, and which these are.
    pending: Mutex<HashMap<(usize, u64), [u8; 2]>>,
}

impl PartialBytes {
    /// Passes the bits from `start` to `end` of a stored tensor to `put`. `bytes` begins with the
    /// byte of the first bit. Where they have no part, bits of the first byte and the last are 0.
    ///
    /// # Errors
    /// Those of `put`.
    pub(super) fn put(
        &self,
        (stored, start): (usize, u64),
        bytes: &[u8],
        end: u64,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (from, first, behind) = (start / 8, start.div_ceil(8), end / 8);
        if first < behind {
            let whole = (first - from) as usize..(behind - from) as usize;
            put(stored, first, &bytes[whole])?;
        }
        // Bits of a byte are counted from the highest.
        let known = |byte: u64| {
            let ones = |bit: u64| 0xffu16 >> bit.saturating_sub(byte * 8).min(8);
            (ones(start) & !ones(end)) as u8
        };
        let ends = [from, behind];
        for &byte in &ends[..if from == behind { 1 } else { 2 }] {
            let mask = known(byte);
            let bits = bytes.get((byte - from) as usize);
            if let Some(&bits) = bits.filter(|_| mask != 0 && mask != 0xff)
                && let Some(whole) = self.add((stored, byte), [bits, mask])
            {
                put(stored, byte, &[whole])?;
            }
        }
        Ok(())
    }

    /// Adds bits of a byte. Returns it once all of its bits are known.
    fn add(&self, place: (usize, u64), [bits, mask]: [u8; 2]) -> Option<u8> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = pending.entry(place).or_default();
        *entry = [entry[0] | bits, entry[1] | mask];
        let [whole, known] = *entry;
        (known == 0xff).then(|| {
            pending.remove(&place);
            whole
        })
    }
}
