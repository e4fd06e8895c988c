//! Extensible arrays: entries of chunks in blocks that become larger and more numerous.
//!
//! The first entries are in the index block. Behind them are data blocks, in groups (super blocks):
//! group `u` has `2^(u / 2)` of them, each with `2^((u + 1) / 2)` times the least number of entries.
//! The index block has the addresses of the first data blocks, and then those of groups.

use super::file::{Hdf5File, StructureFields, wrong};
use crate::Result;

/// The array, as its header describes it.
struct ExtensibleArray {
    client: u8,
    /// Bytes of an entry.
    entry: u64,
    /// Bits of a number of entries.
    bits: u32,
    in_index: u64,
    /// Fewest entries of a data block.
    least: u64,
    /// Fewest data blocks of a group with an address of its own.
    pointers: u64,
    /// Entries of a page of a data block.
    page: u64,
}

/// The entries of an array in its order, each with its number.
pub(super) struct Entries {
    pub client: u8,
    pub entry: u64,
    /// Pieces of entries: the number of the first, and their bytes.
    pub pieces: Vec<(u64, Vec<u8>)>,
}

/// Reads the first `most` entries of the array with the header at `address`.
///
/// # Errors
/// `Parse` if it is malformed; `LimitExceeded`; `Io`.
pub(super) fn entries(file: &mut Hdf5File<'_>, address: u64, most: u64) -> Result<Entries> {
    let (o, l) = file.sizes;
    let head = file.structure(address, (12 + 6 * l + o) as u64)?;
    let mut fields = file.fields(&head);
    fields.magic(b"EAHD")?;
    let (_, client, entry, bits) =
        (fields.u8()?, fields.u8()?, fields.u8()?.into(), fields.u8()?.into());
    let (in_index, least, pointers, page_bits) =
        (fields.u8()?.into(), fields.u8()?.into(), fields.u8()?.into(), fields.u8()?);
    fields.take(6 * l)?;
    let index = fields.address()?;
    let is_power = |n: u64| n.is_power_of_two();
    if !is_power(least) || !is_power(pointers) || entry == 0 || bits > 64 || page_bits > 32 {
        return Err(wrong("an array of false sizes"));
    }
    let page = 1 << page_bits;
    let array = ExtensibleArray { client, entry, bits, in_index, least, pointers, page };
    let pieces = match index {
        Some(index) => array.pieces(file, index, most)?,
        None => vec![],
    };
    Ok(Entries { client, entry, pieces })
}

impl ExtensibleArray {
    fn pieces(
        &self,
        file: &mut Hdf5File<'_>,
        index: u64,
        most: u64,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let o = file.sizes.0 as u64;
        let groups = (1 + self.bits).saturating_sub(self.least.ilog2());
        let direct = 2 * self.pointers.ilog2();
        let blocks = 2 * (self.pointers - 1);
        let addresses = blocks + u64::from(groups.saturating_sub(direct));
        let begin = index.saturating_add(6 + o);
        self.check(file, index, b"EAIB")?;
        let bytes = file.structure(begin, self.in_index * self.entry + addresses * o)?;
        let mut fields = file.fields(&bytes);
        let first = fields.take((self.in_index * self.entry) as usize)?;
        let mut pieces = vec![(0, first.to_vec())];
        let mut next = self.in_index;
        for group in 0..groups {
            if next >= most {
                break;
            }
            let (count, size) = self
                .group(group)
                .ok_or_else(|| wrong("an array that is too long"))?;
            if group < direct {
                for _ in 0..count {
                    let block = fields.address()?;
                    self.block(file, (block, next, size), None, most, &mut pieces)?;
                    next = next.saturating_add(size);
                }
                continue;
            }
            if let Some(block) = fields.address()? {
                self.super_block(file, (block, next), (count, size), most, &mut pieces)?;
            }
            next = next.saturating_add(count.saturating_mul(size));
        }
        Ok(pieces)
    }

    /// Data blocks of a group, and entries of each.
    fn group(&self, group: u32) -> Option<(u64, u64)> {
        let count = 1u64.checked_shl(group / 2)?;
        let size = 1u64
            .checked_shl(group.div_ceil(2))?
            .checked_mul(self.least)?;
        Some((count, size))
    }

    fn check(&self, file: &mut Hdf5File<'_>, address: u64, magic: &[u8]) -> Result<()> {
        let head = file.structure(address, 6)?;
        let mut fields = file.fields(&head);
        fields.magic(magic)?;
        match (fields.u8()?, fields.u8()?) {
            (0, client) if client == self.client => Ok(()),
            _ => Err(wrong("a block of another array")),
        }
    }

    /// Bytes of the beginning of a block that is not the index.
    fn head_len(&self, o: u64) -> u64 {
        6 + o + u64::from(self.bits.div_ceil(8))
    }

    /// The data blocks of a group with an address of its own.
    fn super_block(
        &self,
        file: &mut Hdf5File<'_>,
        (address, first): (u64, u64),
        (count, size): (u64, u64),
        most: u64,
        pieces: &mut Vec<(u64, Vec<u8>)>,
    ) -> Result<()> {
        let o = file.sizes.0 as u64;
        self.check(file, address, b"EASB")?;
        // A bit for each page of each data block.
        let bitmap = match size > self.page {
            true => (size / self.page).div_ceil(8),
            false => 0,
        };
        let begin = address.saturating_add(self.head_len(o));
        let len = count.saturating_mul(bitmap + o);
        let bytes = file.structure(begin, len)?;
        let mut fields = file.fields(&bytes);
        let bitmaps = fields.take((count * bitmap) as usize)?;
        for number in 0..count {
            let next = first.saturating_add(number.saturating_mul(size));
            let pages = bitmaps
                .get((number * bitmap) as usize..)
                .filter(|_| bitmap > 0);
            self.block(file, (fields.address()?, next, size), pages, most, pieces)?;
        }
        Ok(())
    }

    /// The entries of a data block, of which those behind `most` are left out.
    fn block(
        &self,
        file: &mut Hdf5File<'_>,
        (address, first, size): (Option<u64>, u64, u64),
        pages: Option<&[u8]>,
        most: u64,
        pieces: &mut Vec<(u64, Vec<u8>)>,
    ) -> Result<()> {
        let Some(address) = address.filter(|_| first < most) else {
            return Ok(());
        };
        self.check(file, address, b"EADB")?;
        let begin = address.saturating_add(self.head_len(file.sizes.0 as u64));
        let kept = size.min(most - first);
        let Some(pages) = pages else {
            let entries = file.structure(begin, kept.saturating_mul(self.entry))?;
            pieces.push((first, entries));
            return Ok(());
        };
        // A checksum lies before the pages and behind each.
        for number in 0..kept.div_ceil(self.page) {
            let byte = pages.get((number / 8) as usize).copied().unwrap_or(0);
            if byte >> (7 - number % 8) & 1 != 0 {
                let at = number * self.page;
                let page = number.saturating_mul(self.page * self.entry + 4);
                let len = (kept - at).min(self.page) * self.entry;
                let entries = file.structure(begin.saturating_add(4 + page), len)?;
                pieces.push((first + at, entries));
            }
        }
        Ok(())
    }
}

impl Entries {
    /// The entries one by one, with their numbers.
    pub(super) fn each<'b>(
        &'b self,
        file: &'b Hdf5File<'_>,
    ) -> impl Iterator<Item = (u64, StructureFields<'b>)> {
        let entry = self.entry as usize;
        self.pieces.iter().flat_map(move |(first, bytes)| {
            (*first..).zip(bytes.chunks_exact(entry).map(|bytes| file.fields(bytes)))
        })
    }
}
