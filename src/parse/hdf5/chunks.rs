//! Indexes of chunks: where each chunk of a dataset is.

use super::btree1::{self, TreeKind};
use super::btree2;
use super::extensible;
use super::file::{Hdf5File, StructureFields, bytes_of, wrong};
use crate::limits::cap;
use crate::source::ChunkPlace;
use crate::{AnamnesisError, Result};

/// Most bytes of a chunk.
const MAX_CHUNK: u64 = 64 << 20;

/// A dataset in chunks, in numbers.
pub(super) struct ChunkShape {
    /// Chunks in each dimension.
    grid: Vec<u64>,
    chunk: Vec<u64>,
    /// Bytes of a chunk.
    bytes: u64,
    /// Chunks in all.
    count: u64,
}

impl ChunkShape {
    pub(super) fn new(shape: &[u64], chunk: &[u64], size: u64) -> Result<Self> {
        let grid: Vec<u64> = shape
            .iter()
            .zip(chunk)
            .map(|(n, c)| n.div_ceil(*c))
            .collect();
        let product = |sizes: &[u64]| sizes.iter().try_fold(1u64, |n, &size| n.checked_mul(size));
        let overflow = || wrong("chunks whose size overflows");
        let bytes = product(chunk)
            .and_then(|n| n.checked_mul(size))
            .ok_or_else(overflow)?;
        cap("MAX_HDF5_CHUNK", bytes, MAX_CHUNK, "bytes of a chunk")?;
        let count = product(&grid).ok_or_else(overflow)?;
        Ok(Self { grid, chunk: chunk.to_vec(), bytes, count })
    }

    /// The number of the chunk with these coordinates, counted in chunks; `None` outside.
    fn number(&self, coordinates: impl Iterator<Item = u64>) -> Option<u64> {
        let mut both = self.grid.iter().zip(coordinates);
        both.try_fold(0u64, |n, (&len, at)| {
            n.checked_mul(len)?.checked_add(at).filter(|_| at < len)
        })
    }
}

/// How chunks are found.
pub(super) enum ChunkIndexKind {
    /// Version 1 of B-trees.
    Tree,
    /// The only chunk: its stored size and the filters that were left out, if it is filtered.
    Single(Option<(u64, u32)>),
    /// One after another.
    Implicit,
    /// An array of fixed length.
    Fixed,
    /// One that may grow.
    Extensible,
    /// Version 2 of B-trees.
    Tree2,
}

/// The index of the chunks of a dataset.
pub(super) struct ChunkIndex {
    pub index: ChunkIndexKind,
    /// Its address, unless nothing was written.
    pub address: Option<u64>,
    /// Whether sizes of filtered chunks have eight bytes.
    pub wide: bool,
}

/// An index, the elements of a chunk in each dimension with the bytes of an element behind them, and
/// whether partial chunks are not filtered.
type Described = (ChunkIndex, Vec<u64>, bool);

/// A layout of version 1 to 3, behind the number of dimensions `rank`.
pub(super) fn in_a_tree(fields: &mut StructureFields<'_>, rank: u8) -> Result<Described> {
    let address = fields.address()?;
    let chunk = (0..rank)
        .map(|_| fields.u32().map(u64::from))
        .collect::<Result<_>>()?;
    let index = ChunkIndex { index: ChunkIndexKind::Tree, address, wide: false };
    Ok((index, chunk, false))
}

/// A layout of version 4 or 5, behind the class.
pub(super) fn of_version_4(fields: &mut StructureFields<'_>) -> Result<Described> {
    let (flags, rank, size) = (fields.u8()?, fields.u8()?, usize::from(fields.u8()?));
    if size > 8 {
        return Err(wrong("sizes of chunks that are too long"));
    }
    let chunk = (0..rank)
        .map(|_| fields.number(size))
        .collect::<Result<_>>()?;
    let index = match fields.u8()? {
        1 if flags & 2 != 0 => ChunkIndexKind::Single(Some((fields.length()?, fields.u32()?))),
        1 => ChunkIndexKind::Single(None),
        2 => ChunkIndexKind::Implicit,
        3 => fields.take(1).map(|_| ChunkIndexKind::Fixed)?,
        4 => fields.take(5).map(|_| ChunkIndexKind::Extensible)?,
        5 => fields.take(6).map(|_| ChunkIndexKind::Tree2)?,
        _ => return Err(wrong("an index of chunks of an unknown kind")),
    };
    let address = fields.address()?;
    let index = ChunkIndex { index, address, wide: false };
    Ok((index, chunk, flags & 1 != 0))
}

impl ChunkIndex {
    /// The places of the chunks that were written, in order.
    ///
    /// # Errors
    /// `Parse` if the index is malformed, or a chunk is not in the file or there twice;
    /// `Unsupported` for an index that is not read.
    pub(super) fn places(
        &self,
        file: &mut Hdf5File<'_>,
        of: &ChunkShape,
        grows: &[bool],
    ) -> Result<Vec<ChunkPlace>> {
        let Some(address) = self.address else {
            return Ok(vec![]);
        };
        let mut found = match self.index {
            ChunkIndexKind::Tree => self.in_tree(file, address, of)?,
            ChunkIndexKind::Tree2 => self.in_tree2(file, address, of)?,
            ChunkIndexKind::Single(stored) => {
                if of.count > 1 {
                    return Err(wrong("a single chunk of a dataset that has several"));
                }
                let (len, mask) = stored.unwrap_or((of.bytes, 0));
                vec![ChunkPlace { number: 0, offset: address, len, mask }]
            }
            ChunkIndexKind::Fixed | ChunkIndexKind::Implicit if grows.contains(&true) => {
                return Err(of_growing());
            }
            ChunkIndexKind::Extensible => self.in_extensible(file, address, of, grows)?,
            ChunkIndexKind::Implicit => {
                // As many as the file has, so that a false number is an error below.
                let most = file.len() / of.bytes.max(1) + 1;
                let place = |number| ChunkPlace {
                    number,
                    offset: address.saturating_add(number * of.bytes),
                    len: of.bytes,
                    mask: 0,
                };
                (0..of.count.min(most)).map(place).collect()
            }
            ChunkIndexKind::Fixed => self.in_fixed(file, address, of)?,
        };
        found.sort_unstable_by_key(|chunk| chunk.number);
        if found.windows(2).any(|two| two[0].number == two[1].number) {
            return Err(wrong("a chunk that is there twice"));
        }
        for chunk in &mut found {
            cap("MAX_HDF5_CHUNK", chunk.len, MAX_CHUNK, "bytes of a chunk")?;
            chunk.offset = file.data(chunk.offset, chunk.len)?;
        }
        Ok(found)
    }

    fn in_tree(
        &self,
        file: &mut Hdf5File<'_>,
        address: u64,
        of: &ChunkShape,
    ) -> Result<Vec<ChunkPlace>> {
        let leaves = btree1::leaves(file, address, &ChunkTree(of.chunk.len()))?;
        let is_between = |at: &[u64]| at.iter().zip(&of.chunk).any(|(at, len)| at % len != 0);
        if leaves.iter().any(|(_, _, at, _)| is_between(at)) {
            return Err(wrong("a chunk that begins inside of another"));
        }
        let place = |(len, mask, at, address): (u64, u32, Vec<u64>, u64)| {
            let number = of.number(at.iter().zip(&of.chunk).map(|(at, len)| at / len));
            // Chunks outside are left of a larger dataset.
            number.map(|number| ChunkPlace { number, offset: address, len, mask })
        };
        Ok(leaves.into_iter().filter_map(place).collect())
    }

    fn in_tree2(
        &self,
        file: &mut Hdf5File<'_>,
        address: u64,
        of: &ChunkShape,
    ) -> Result<Vec<ChunkPlace>> {
        let found = btree2::records(file, address, &[10, 11])?;
        let mut places = vec![];
        for record in found.each() {
            let mut fields = file.fields(record);
            let Some((offset, len, mask)) = self.entry(&mut fields, of, found.kind == 11)? else {
                continue;
            };
            let at = of
                .chunk
                .iter()
                .map(|_| fields.number(8))
                .collect::<Result<Vec<_>>>()?;
            let number = of.number(at.into_iter());
            places.extend(number.map(|number| ChunkPlace { number, offset, len, mask }));
        }
        Ok(places)
    }

    /// The address of a chunk, its length and the filters that were left out; `None` if it was not
    /// written.
    fn entry(
        &self,
        fields: &mut StructureFields<'_>,
        of: &ChunkShape,
        is_filtered: bool,
    ) -> Result<Option<(u64, u64, u32)>> {
        let address = fields.address()?;
        let (len, mask) = match is_filtered {
            true => (fields.number(self.len_size(of))?, fields.u32()?),
            false => (of.bytes, 0),
        };
        Ok(address.map(|address| (address, len, mask)))
    }

    /// Bytes of the stored size of a filtered chunk.
    fn len_size(&self, of: &ChunkShape) -> usize {
        // One byte more than the size needs, for filters may make a chunk larger.
        match self.wide {
            true => 8,
            false => (bytes_of(of.bytes) + 1).min(8),
        }
    }

    /// The chunks of an array that may grow, which counts along the dimension that grows last.
    fn in_extensible(
        &self,
        file: &mut Hdf5File<'_>,
        address: u64,
        of: &ChunkShape,
        grows: &[bool],
    ) -> Result<Vec<ChunkPlace>> {
        let growing = grows.iter().position(|&grows| grows);
        let is_only = grows.iter().filter(|&&grows| grows).count() == 1;
        let growing = growing.filter(|_| is_only).ok_or_else(of_growing)?;
        let found = extensible::entries(file, address, of.count)?;
        let is_filtered = self.check_entries(file, found.client, found.entry, of)?;
        let across = of.count / of.grid[growing].max(1);
        let mut places = vec![];
        for (number, mut fields) in found
            .each(file)
            .take_while(|&(number, _)| number < of.count)
        {
            let Some((offset, len, mask)) = self.entry(&mut fields, of, is_filtered)? else {
                continue;
            };
            let mut at = vec![0; of.grid.len()];
            at[growing] = number / across.max(1);
            let mut rest = number % across.max(1);
            for d in (0..at.len()).rev().filter(|&d| d != growing) {
                (at[d], rest) = (rest % of.grid[d], rest / of.grid[d]);
            }
            let number = of.number(at.into_iter());
            places.extend(number.map(|number| ChunkPlace { number, offset, len, mask }));
        }
        Ok(places)
    }

    /// Whether the entries of an array for `client` are of filtered chunks.
    ///
    /// # Errors
    /// `Parse` if they have another size.
    fn check_entries(
        &self,
        file: &Hdf5File<'_>,
        client: u8,
        entry: u64,
        of: &ChunkShape,
    ) -> Result<bool> {
        let filtered = file.sizes.0 + self.len_size(of) + 4;
        let (is_filtered, len) = match client {
            0 => (false, file.sizes.0),
            1 => (true, filtered),
            _ => return Err(wrong("an array of another kind")),
        };
        match entry == len as u64 {
            true => Ok(is_filtered),
            false => Err(wrong("an array with entries of another size")),
        }
    }

    /// The chunks of an array of fixed length.
    fn in_fixed(
        &self,
        file: &mut Hdf5File<'_>,
        address: u64,
        of: &ChunkShape,
    ) -> Result<Vec<ChunkPlace>> {
        let (o, l) = file.sizes;
        let head = file.structure(address, (8 + l + o) as u64)?;
        let mut fields = file.fields(&head);
        fields.magic(b"FAHD")?;
        let (_, client, entry, page_bits) =
            (fields.u8()?, fields.u8()?, u64::from(fields.u8()?), fields.u8()?);
        let (count, block) = (fields.length()?, fields.address()?);
        let is_filtered = self.check_entries(file, client, entry, of)?;
        if page_bits > 32 {
            return Err(wrong("an array of false sizes"));
        }
        let Some(block) = block else {
            return Ok(vec![]);
        };
        let head = file.structure(block, 6 + o as u64)?;
        file.fields(&head).magic(b"FADB")?;
        let begin = block.saturating_add(6 + o as u64);
        if count != of.count {
            return Err(wrong("an array with another number of chunks"));
        }
        let page = 1u64 << page_bits;
        let mut places = vec![];
        let mut add = |file: &Hdf5File<'_>, first: u64, entries: &[u8]| -> Result<()> {
            for (number, entry_bytes) in (first..).zip(entries.chunks_exact(entry as usize)) {
                let found = self.entry(&mut file.fields(entry_bytes), of, is_filtered)?;
                places.extend(found.map(|(offset, len, mask)| ChunkPlace {
                    number,
                    offset,
                    len,
                    mask,
                }));
            }
            Ok(())
        };
        if count <= page {
            let entries = file.structure(begin, count.saturating_mul(entry))?;
            add(file, 0, &entries)?;
            return Ok(places);
        }
        // A bit for each page that was written, and a checksum behind each page.
        let pages = count.div_ceil(page);
        let bitmap = file.structure(begin, pages.div_ceil(8))?;
        let first_page = begin.saturating_add(pages.div_ceil(8) + 4);
        for number in 0..pages {
            let is_written = bitmap[(number / 8) as usize] >> (7 - number % 8) & 1 != 0;
            if is_written {
                let first = number * page;
                let len = (count - first).min(page) * entry;
                let at = first_page.saturating_add(number.saturating_mul(page * entry + 4));
                let entries = file.structure(at, len)?;
                add(file, first, &entries)?;
            }
        }
        Ok(places)
    }
}

fn of_growing() -> AnamnesisError {
    let what = "chunks of a dataset that may grow in several dimensions; `h5repack` writes it anew";
    AnamnesisError::unsupported("HDF5 dataset", what)
}

/// A tree of chunks of a dataset with so many dimensions. A leaf has the stored length, the filters
/// that were left out, the first element and the address.
struct ChunkTree(usize);

impl TreeKind for ChunkTree {
    const NUMBER: u8 = 1;
    type Leaf = (u64, u32, Vec<u64>, u64);

    fn key_len(&self, _sizes: (usize, usize)) -> usize {
        8 + 8 * (self.0 + 1)
    }

    fn leaf(&self, mut key: StructureFields<'_>, child: u64) -> Result<Self::Leaf> {
        let (len, mask) = (key.u32()?, key.u32()?);
        let at = (0..self.0).map(|_| key.number(8)).collect::<Result<_>>()?;
        Ok((len.into(), mask, at, child))
    }
}
