//! The file: structures at addresses, and the fields of a structure.

use crate::limits::cap;
use crate::parse::window::WindowReader;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes of structures that are read of any file, and for each byte of the file. Structures may refer
/// to each other in circles, and to one many times.
const FREE_BYTES: u64 = 16 << 20;
const BYTES_PER_BYTE: u64 = 8;

/// The same of data: several names may lead to one dataset, and chunks may lie on each other.
const FREE_DATA: u64 = 16 << 20;
const DATA_PER_BYTE: u64 = 16;

/// Longest name of a link or a member.
const MAX_NAME: usize = 4096;

/// What reading a structure costs besides its bytes.
const COST_OF_READ: u64 = 32;

/// Most bytes of a structure.
const MAX_STRUCTURE: u64 = 16 << 20;

/// An HDF5 file, or one that lies in a range of another file.
pub(super) struct Hdf5File<'a> {
    window: WindowReader<'a>,
    /// Offset of the superblock, from which addresses count.
    pub base: u64,
    /// Offset of the end.
    end: u64,
    /// Bytes of an address, and of a length.
    pub sizes: (usize, usize),
    work: u64,
    /// Bytes of data that datasets have.
    data: u64,
}

impl<'a> Hdf5File<'a> {
    /// The file in `start..end` of `source`.
    pub(super) fn new(source: &'a Source, start: u64, end: u64) -> Self {
        let window = WindowReader::new(source);
        let end = end.min(window.len);
        Self { window, base: start, end, sizes: (8, 8), work: 0, data: 0 }
    }

    /// Length of the file from the superblock on.
    pub(super) fn len(&self) -> u64 {
        self.end.saturating_sub(self.base)
    }

    /// The offset in the source of `len` bytes at `address`.
    ///
    /// # Errors
    /// `Parse` if they are not in the file.
    pub(super) fn offset(&self, address: u64, len: u64) -> Result<u64> {
        let start = self.base.checked_add(address);
        let start =
            start.filter(|&start| start.checked_add(len).is_some_and(|end| end <= self.end));
        start.ok_or_else(|| wrong(&format!("{len} bytes at {address}, which are not in the file")))
    }

    /// The offset in the source of data of a dataset.
    ///
    /// # Errors
    /// `Parse` if it is not in the file; `LimitExceeded` if datasets have much more than the file.
    pub(super) fn data(&mut self, address: u64, len: u64) -> Result<u64> {
        let offset = self.offset(address, len)?;
        self.data = self.data.saturating_add(len);
        let most = FREE_DATA.saturating_add(self.len().saturating_mul(DATA_PER_BYTE));
        cap("MAX_HDF5_DATA", self.data, most, "bytes of data, which several datasets share")?;
        Ok(offset)
    }

    /// Counts `bytes` that are kept of a structure more than once.
    ///
    /// # Errors
    /// `LimitExceeded` if more is read than the file has.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<()> {
        self.work = self.work.saturating_add(bytes);
        let most = FREE_BYTES.saturating_add(self.len().saturating_mul(BYTES_PER_BYTE));
        cap("MAX_HDF5_WORK", self.work, most, "bytes of structures, which refer to each other")
    }

    /// The structure of `len` bytes at `address`.
    ///
    /// # Errors
    /// `Parse` if it is not in the file; `LimitExceeded` if it is large, or if more is read than the
    /// file has; `Io`.
    pub(super) fn structure(&mut self, address: u64, len: u64) -> Result<Vec<u8>> {
        let offset = self.offset(address, len)?;
        cap("MAX_HDF5_STRUCTURE", len, MAX_STRUCTURE, "bytes of a structure")?;
        self.charge(len + COST_OF_READ)?;
        self.window.bytes(offset..offset + len).map(<[u8]>::to_vec)
    }

    /// The fields of bytes of this file.
    pub(super) fn fields<'b>(&self, bytes: &'b [u8]) -> StructureFields<'b> {
        StructureFields { rest: bytes, sizes: self.sizes }
    }
}

/// StructureFields one after another. Numbers are little-endian.
#[derive(Debug, Clone, Copy)]
pub(super) struct StructureFields<'b> {
    pub rest: &'b [u8],
    sizes: (usize, usize),
}

impl<'b> StructureFields<'b> {
    pub(super) fn take(&mut self, n: usize) -> Result<&'b [u8]> {
        let found = self.rest.split_at_checked(n);
        let (taken, rest) = found.ok_or_else(|| wrong("a structure that ends early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// A number of at most eight bytes.
    pub(super) fn number(&mut self, bytes: usize) -> Result<u64> {
        let taken = self.take(bytes)?;
        Ok(taken
            .iter()
            .rev()
            .fold(0, |n, &byte| n << 8 | u64::from(byte)))
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        self.take(1).map(|byte| byte[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.number(2).map(|n| n as u16)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.number(4).map(|n| n as u32)
    }

    /// An address; `None` if it is none.
    pub(super) fn address(&mut self) -> Result<Option<u64>> {
        let bytes = self.sizes.0;
        let number = self.number(bytes)?;
        Ok(Some(number).filter(|&number| number != u64::MAX >> (64 - 8 * bytes)))
    }

    /// An address that must be one.
    pub(super) fn some_address(&mut self) -> Result<u64> {
        self.address()?
            .ok_or_else(|| wrong("an address that is missing"))
    }

    pub(super) fn length(&mut self) -> Result<u64> {
        self.number(self.sizes.1)
    }

    /// Checks that the next bytes are `magic`.
    pub(super) fn magic(&mut self, magic: &[u8]) -> Result<()> {
        match self.take(magic.len())? == magic {
            true => Ok(()),
            false => Err(wrong(&format!("no `{}` where one should be", magic.escape_ascii()))),
        }
    }

    /// A text that ends with a zero.
    pub(super) fn text(&mut self) -> Result<&'b str> {
        let end = self
            .rest
            .iter()
            .take(MAX_NAME + 1)
            .position(|&byte| byte == 0);
        let end =
            end.ok_or_else(|| wrong("a name without an end, or one of more than 4096 bytes"))?;
        let text = self.take(end + 1)?;
        utf8(&text[..end])
    }
}

/// Bytes that numbers up to `most` are written with.
pub(super) fn bytes_of(most: u64) -> usize {
    (64 - most.max(1).leading_zeros()).div_ceil(8) as usize
}

pub(super) fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| wrong("a name that is no UTF-8"))
}

pub(super) fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("HDF5: {what}"))
}
