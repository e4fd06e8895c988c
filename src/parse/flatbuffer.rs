//! [`FlatBuffer`]: tables and vectors of a FlatBuffer in a file. Each offset is checked before it is
//! followed. Nothing is followed by itself, so that the work is that of its reader.
//!
//! Format: [FlatBuffers internals](https://flatbuffers.dev/internals/).

use std::ops::Range;

use super::window::WindowReader;
use crate::limits::cap;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes of the file that are read at once: tables lie anywhere.
const STEP: u64 = 256;

/// Longest text, in bytes. Converters join the names of operators that they fuse.
const MAX_TEXT: u64 = 64 << 10;

/// Bytes of vectors that may be read besides four times the file's length. Vectors may overlap, and
/// tables share them.
const FREE_VECTOR_BYTES: u64 = 1 << 20;

/// A FlatBuffer in a range of a file.
pub(super) struct FlatBuffer<'a> {
    window: WindowReader<'a>,
    range: Range<u64>,
    /// Bytes of vectors that were read.
    vector_bytes: u64,
}

/// A table. Its fields are found by a table of offsets, which several may share. The length there is not
/// that of each: the builder for Python shares what has equal offsets.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlatTable {
    at: u64,
    offsets_at: u64,
    offsets_len: u64,
}

/// A vector of `len` elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlatVector {
    pub at: u64,
    pub len: u64,
}

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("FlatBuffer: {what}"))
}

impl<'a> FlatBuffer<'a> {
    /// The FlatBuffer in `range` of `file`.
    pub(super) fn new(file: &'a Source, range: Range<u64>) -> Self {
        Self { window: WindowReader::with_step(file, STEP), range, vector_bytes: 0 }
    }

    /// Its offset in the file, and its length.
    #[cfg(feature = "tflite")]
    pub(super) fn place(&self) -> (u64, u64) {
        (self.range.start, self.range.end.saturating_sub(self.range.start))
    }

    /// The `N` bytes at `at`.
    fn array<const N: usize>(&mut self, at: u64) -> Result<[u8; N]> {
        let end = at
            .checked_add(N as u64)
            .filter(|&end| end <= self.range.end);
        let end = end.ok_or_else(|| wrong("an offset leads out of it"))?;
        let bytes = self.window.bytes(at..end)?;
        Ok(*bytes.first_chunk().unwrap_or(&[0; N]))
    }

    /// What the offset at `at` leads to.
    fn target(&mut self, at: u64) -> Result<u64> {
        let offset = u32::from_le_bytes(self.array(at)?);
        Ok(at + u64::from(offset))
    }

    /// The outermost table.
    pub(super) fn root(&mut self) -> Result<FlatTable> {
        let at = self.target(self.range.start)?;
        self.table(at)
    }

    fn table(&mut self, at: u64) -> Result<FlatTable> {
        let back = i64::from(i32::from_le_bytes(self.array(at)?));
        let offsets_at = at
            .checked_add_signed(-back)
            .filter(|&at| at >= self.range.start);
        let offsets_at = offsets_at.ok_or_else(|| wrong("a table begins before it"))?;
        let offsets_len = u64::from(u16::from_le_bytes(self.array(offsets_at)?));
        if offsets_len < 4 || offsets_at + offsets_len > self.range.end {
            return Err(wrong("a table is truncated"));
        }
        Ok(FlatTable { at, offsets_at, offsets_len })
    }

    /// Where field number `id` of `table` is; `None` if the table lacks it.
    fn find(&mut self, table: &FlatTable, id: u64) -> Result<Option<u64>> {
        let entry = 4 + 2 * id;
        if entry + 2 > table.offsets_len {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(self.array(table.offsets_at + entry)?);
        Ok((offset > 0).then(|| table.at + u64::from(offset)))
    }

    /// Where the `N` bytes of a number are, which is field `id`.
    #[cfg(feature = "executorch")]
    pub(super) fn number_place<const N: usize>(
        &mut self,
        table: &FlatTable,
        id: u64,
    ) -> Result<Option<u64>> {
        let at = self.find(table, id)?;
        at.map(|at| self.array::<N>(at).map(|_| at)).transpose()
    }

    /// The bytes of a number, which is field `id`.
    pub(super) fn number<const N: usize>(
        &mut self,
        table: &FlatTable,
        id: u64,
    ) -> Result<Option<[u8; N]>> {
        let at = self.find(table, id)?;
        at.map(|at| self.array(at)).transpose()
    }

    /// A number of one byte, which is 0 if the table lacks it.
    pub(super) fn byte(&mut self, table: &FlatTable, id: u64) -> Result<u8> {
        Ok(self.number(table, id)?.map_or(0, u8::from_le_bytes))
    }

    /// A number of four bytes, which is 0 if the table lacks it.
    pub(super) fn int(&mut self, table: &FlatTable, id: u64) -> Result<i32> {
        Ok(self.number(table, id)?.map_or(0, i32::from_le_bytes))
    }

    /// The table that is field `id`.
    pub(super) fn child(&mut self, table: &FlatTable, id: u64) -> Result<Option<FlatTable>> {
        let Some(at) = self.find(table, id)? else {
            return Ok(None);
        };
        let at = self.target(at)?;
        self.table(at).map(Some)
    }

    /// The vector that is field `id`, with elements of `width` bytes. Empty if the table lacks it.
    pub(super) fn vector(&mut self, table: &FlatTable, id: u64, width: u64) -> Result<FlatVector> {
        let Some(at) = self.find(table, id)? else {
            return Ok(FlatVector { at: self.range.start, len: 0 });
        };
        let at = self.target(at)?;
        let len = u64::from(u32::from_le_bytes(self.array(at)?));
        let at = at + 4;
        match len.checked_mul(width).and_then(|n| at.checked_add(n)) {
            Some(end) if end <= self.range.end => Ok(FlatVector { at, len }),
            _ => Err(wrong("a vector is truncated")),
        }
    }

    /// The text that is field `id`. Empty if the table lacks it.
    pub(super) fn text(&mut self, table: &FlatTable, id: u64) -> Result<String> {
        let FlatVector { at, len } = self.vector(table, id, 1)?;
        cap("FLATBUFFER_MAX_TEXT_BYTES", len, MAX_TEXT, "bytes of a text")?;
        let text = self.window.bytes(at..at + len)?;
        let text = std::str::from_utf8(text).map_err(|_| wrong("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// Table number `i` of `vector`.
    pub(super) fn item(&mut self, vector: FlatVector, i: u64) -> Result<FlatTable> {
        if i >= vector.len {
            return Err(wrong("an index is past the end of its vector"));
        }
        let at = self.target(vector.at + 4 * i)?;
        self.table(at)
    }

    /// The numbers of `vector`, of `N` bytes each.
    ///
    /// # Errors
    /// Those of reading; `LimitExceeded` if vectors overlap so that all have far more bytes than the
    /// file.
    pub(super) fn numbers<const N: usize>(&mut self, vector: FlatVector) -> Result<Vec<[u8; N]>> {
        let len = vector.len * N as u64;
        self.vector_bytes = self.vector_bytes.saturating_add(len);
        let most = self.window.len.saturating_mul(4) + FREE_VECTOR_BYTES;
        cap("FLATBUFFER_MAX_VECTOR_BYTES", self.vector_bytes, most, "bytes of vectors")?;
        let mut out = Vec::with_capacity(vector.len as usize);
        let mut at = vector.at;
        while at < vector.at + len {
            let piece = (vector.at + len - at).min(PIECE);
            out.extend(self.window.bytes(at..at + piece)?.as_chunks().0);
            at += piece;
        }
        Ok(out)
    }
}

/// Bytes of a vector that are read at once: whole numbers.
const PIECE: u64 = 8 << 10;
