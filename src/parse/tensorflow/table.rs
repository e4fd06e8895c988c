//! A table of LevelDB: blocks of entries, whose keys share beginnings with those before them, and a
//! block that lists the blocks.
//!
//! Format: `table_format.md` of LevelDB.

use super::{Entries, wrong};
use crate::crc32c::crc32c;
use crate::limits::Budget;
use crate::parse::magic::TABLE_END;
use crate::protobuf::varint;
use crate::{AnamnesisError, Result};

/// Bytes at the end of a table: the places of two blocks, padding, and the mark.
const FOOTER: usize = 48;

/// Bytes behind a block: how it is compressed, and its checksum.
const TRAILER: usize = 5;

/// Longest key, in bytes.
const MAX_KEY: usize = 16 << 10;

/// A table in memory.
pub(super) struct LevelTable<'a> {
    bytes: &'a [u8],
}

impl<'a> LevelTable<'a> {
    /// The entries of the table `bytes`.
    ///
    /// # Errors
    /// `Parse` if it is malformed, or a checksum is wrong; `Unsupported` if blocks are compressed;
    /// `LimitExceeded`.
    pub(super) fn read(bytes: &'a [u8], budget: &Budget) -> Result<Entries> {
        let table = Self { bytes };
        let footer = bytes
            .len()
            .checked_sub(FOOTER)
            .and_then(|at| bytes.get(at..));
        let footer = footer.filter(|footer| footer.ends_with(TABLE_END));
        let mut footer = footer.ok_or_else(|| wrong("its index is truncated"))?;
        // The first block says more of the table, which this one does not do.
        table.block(handle(&mut footer)?)?;
        let index = table.block(handle(&mut footer)?)?;
        let (mut out, mut end) = (Entries::new(), 0);
        for_each(index, |_, mut place| {
            let place = handle(&mut place)?;
            // Blocks follow each other, so that none is read twice.
            if place.0 < end {
                return Err(wrong("blocks of its index overlap"));
            }
            end = place.0.saturating_add(place.1);
            for_each(table.block(place)?, |key, value| {
                budget.tables(0, 1 + key.len() as u64 / 256, 0)?;
                budget.grow((key.len() + value.len()) as u64, "an index of variables")?;
                let is_last = out.last_key_value().is_none_or(|(last, _)| **last < *key);
                match is_last {
                    true => drop(out.insert(key.to_vec(), value.to_vec())),
                    false => return Err(wrong("keys of its index do not ascend")),
                }
                Ok(())
            })
        })?;
        Ok(out)
    }

    /// The entries of the block at a place, and what follows them.
    fn block(&self, (offset, len): (u64, u64)) -> Result<&'a [u8]> {
        let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let block = range.and_then(|(offset, len)| {
            let behind = offset.checked_add(len)?.checked_add(TRAILER)?;
            self.bytes.get(offset..behind)
        });
        let block = block.ok_or_else(|| wrong("a block of its index is past the end"))?;
        let (checked, sum) = block.split_at(block.len() - 4);
        let (content, kind) = checked.split_at(checked.len() - 1);
        if sum != masked(crc32c(checked)).to_le_bytes() {
            return Err(wrong("a block of its index has the wrong checksum"));
        }
        match kind {
            [0] => Ok(content),
            _ => {
                Err(AnamnesisError::unsupported("TensorFlow checkpoint", "its index is compressed"))
            }
        }
    }
}

/// Takes a place, an offset and a length, from the beginning of `bytes`.
fn handle(bytes: &mut &[u8]) -> Result<(u64, u64)> {
    Ok((number(bytes)?, number(bytes)?))
}

fn number(bytes: &mut &[u8]) -> Result<u64> {
    let (value, n) = varint(bytes).map_err(|what| wrong(format!("{what} of its index")))?;
    *bytes = &bytes[n..];
    Ok(value)
}

/// Passes the key and the value of each entry of a block to `take`. Behind them it has places where keys
/// are whole, and how many these are.
fn for_each(block: &[u8], mut take: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
    let malformed = || wrong("a block of its index is malformed");
    let (rest, count) = block.split_last_chunk::<4>().ok_or_else(malformed)?;
    let restarts = (u32::from_le_bytes(*count) as usize).checked_mul(4);
    let end = restarts
        .and_then(|n| rest.len().checked_sub(n))
        .ok_or_else(malformed)?;
    let (mut rest, mut key) = (&rest[..end], Vec::new());
    while !rest.is_empty() {
        let mut next = || number(&mut rest).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let (shared, own, len) = (next()?, next()?, next()?);
        if shared > key.len() || own > rest.len() || shared + own > MAX_KEY {
            return Err(malformed());
        }
        key.truncate(shared);
        key.extend(&rest[..own]);
        rest = &rest[own..];
        let value = rest.get(..len).ok_or_else(malformed)?;
        take(&key, value)?;
        rest = &rest[len..];
    }
    Ok(())
}

/// A checksum as LevelDB stores it, for data that has checksums itself.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}
