//! Heaps: the fractal heap of a group with many links, and the global heap of text of any length.

use super::file::{Hdf5File, StructureFields, bytes_of, wrong};
use crate::{AnamnesisError, Result};

/// A fractal heap: blocks in rows, of which the sizes double.
pub(super) struct FractalHeap {
    /// Columns of a row.
    width: u64,
    /// Size of the blocks of the first two rows, and the largest of a block with objects.
    start: u64,
    largest: u64,
    /// Bytes of a place, and of a length.
    offset_size: usize,
    len_size: usize,
    root: Option<u64>,
    /// Rows of the root; 0 if it is a block with objects.
    rows: u64,
}

impl FractalHeap {
    pub(super) fn read(file: &mut Hdf5File<'_>, address: u64) -> Result<Self> {
        let (o, l) = file.sizes;
        let head = file.structure(address, (22 + 12 * l + 3 * o) as u64)?;
        let mut fields = file.fields(&head);
        fields.magic(b"FRHP")?;
        fields.take(3)?;
        let filters = fields.u16()?;
        fields.take(1)?;
        let managed = u64::from(fields.u32()?);
        // Huge objects, free space, and numbers of objects.
        fields.take(l + o + l + o + 4 * l + 4 * l)?;
        let width = u64::from(fields.u16()?);
        let (start, largest, bits) = (fields.length()?, fields.length()?, fields.u16()?);
        fields.take(2)?;
        let (root, rows) = (fields.address()?, u64::from(fields.u16()?));
        if filters != 0 {
            let what = "its heap is compressed";
            return Err(AnamnesisError::unsupported("HDF5 group", what));
        }
        let is_power = |n: u64| n.is_power_of_two();
        if !is_power(start)
            || !is_power(largest)
            || start > largest
            || !is_power(width)
            || bits > 64
        {
            return Err(wrong("a heap of false sizes"));
        }
        let offset_size = usize::from(bits).div_ceil(8);
        let len_size = bytes_of(largest).min(bytes_of(managed));
        Ok(Self { width, start, largest, offset_size, len_size, root, rows })
    }

    /// The object with the id `id`.
    ///
    /// # Errors
    /// `Parse` if it is not there; `Unsupported` if it lies outside of the blocks.
    pub(super) fn object(&self, file: &mut Hdf5File<'_>, id: &[u8]) -> Result<Vec<u8>> {
        let mut fields = file.fields(id);
        if fields.u8()? & 0xf0 != 0 {
            return Err(AnamnesisError::unsupported("HDF5 group", "a link outside of its heap"));
        }
        let (offset, len) = (fields.number(self.offset_size)?, fields.number(self.len_size)?);
        let (block, at) = self.block(file, offset)?;
        file.structure(block.saturating_add(at), len)
    }

    /// The block with the place `offset`, and where in it the place is.
    fn block(&self, file: &mut Hdf5File<'_>, mut offset: u64) -> Result<(u64, u64)> {
        let outside = || wrong("a place outside of its heap");
        let (mut block, mut rows) = (self.root.ok_or_else(outside)?, self.rows);
        // A block of blocks has fewer rows than the one above it.
        while rows > 0 {
            let (row, column, inside, size) = self.cell(offset, rows).ok_or_else(outside)?;
            let number = row * self.width + column;
            // Behind the magic, the version, the heap's address and the block's place.
            let o = file.sizes.0 as u64;
            let at = 5 + o + self.offset_size as u64 + number * o;
            let head = file.structure(block, 5)?;
            file.fields(&head).magic(b"FHIB")?;
            let child = file.structure(block.saturating_add(at), o)?;
            block = file.fields(&child).some_address()?;
            offset = inside;
            let below = self.rows_of(size);
            if size > self.largest && below >= rows {
                return Err(outside());
            }
            rows = if size > self.largest { below } else { 0 };
        }
        Ok((block, offset))
    }

    /// Row and column of the block with the place `offset`, where it is in it, and the block's size.
    fn cell(&self, offset: u64, rows: u64) -> Option<(u64, u64, u64, u64)> {
        let (mut begin, mut size) = (0u64, self.start);
        for row in 0..rows {
            if row > 1 {
                size = size.checked_mul(2)?;
            }
            let len = size.checked_mul(self.width)?;
            if offset - begin < len {
                let inside = offset - begin;
                return Some((row, inside / size, inside % size, size));
            }
            begin = begin.checked_add(len)?;
        }
        None
    }

    /// Rows of a block of blocks that has the place of `size` bytes.
    fn rows_of(&self, size: u64) -> u64 {
        let first = self.start.saturating_mul(self.width);
        u64::from(size.checked_div(first).unwrap_or(0).max(1).ilog2()) + 1
    }
}

/// Text of any length: its length, and the place in the global heap.
pub(super) fn variable_text(
    file: &mut Hdf5File<'_>,
    mut place: StructureFields<'_>,
) -> Result<Vec<u8>> {
    let (len, heap, number) = (place.u32()?, place.address()?, place.u32()?);
    let Some(heap) = heap.filter(|_| len > 0) else {
        return Ok(vec![]);
    };
    let head_len = 8 + file.sizes.1 as u64;
    let head = file.structure(heap, head_len)?;
    let mut fields = file.fields(&head);
    fields.magic(b"GCOL")?;
    fields.take(4)?;
    let size = fields.length()?;
    let objects = file.structure(heap.saturating_add(head_len), size.saturating_sub(head_len))?;
    let mut fields = file.fields(&objects);
    while fields.rest.len() >= head_len as usize {
        let this = u32::from(fields.u16()?);
        fields.take(6)?;
        let size =
            usize::try_from(fields.length()?).map_err(|_| wrong("an object of a false size"))?;
        if this == 0 {
            break;
        }
        let object = fields.take(size)?;
        if this == number {
            return Ok(object.get(..len as usize).unwrap_or(object).to_vec());
        }
        let padding = (8 - size % 8) % 8;
        fields.take(padding)?;
    }
    Err(wrong("text that is not in its heap"))
}
