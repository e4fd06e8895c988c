//! Containers whose index is at the end are read by position: from a source, or from a stream that can seek.

use std::io::{Read, Seek, SeekFrom};

use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes that can be read at any place.
pub(crate) trait ReadAt {
    /// Their number.
    fn len(&self) -> u64;

    /// Fills `out` from `offset` on; past the end is a `Parse` error.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;
}

impl ReadAt for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        check(offset, out.len(), ReadAt::len(self))?;
        out.copy_from_slice(&self[offset as usize..][..out.len()]);
        Ok(())
    }
}

fn check(offset: u64, n: usize, len: u64) -> Result<()> {
    match offset.checked_add(n as u64).filter(|&end| end <= len) {
        Some(_) => Ok(()),
        None => Err(AnamnesisError::parse(format!(
            "the file is truncated: {n} bytes at {offset} of {len}"
        ))),
    }
}

impl ReadAt for &Source {
    fn len(&self) -> u64 {
        Source::len(self).unwrap_or(0)
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        check(offset, out.len(), ReadAt::len(self))?;
        Source::read_at(self, offset, out)
    }
}

/// A stream that can seek, which is done as seldom as can be.
pub(crate) struct Seeking<R> {
    reader: R,
    len: u64,
    at: u64,
}

impl<R: Read + Seek> Seeking<R> {
    pub(crate) fn new(mut reader: R) -> Result<Self> {
        let len = reader.seek(SeekFrom::End(0))?;
        Ok(Self {
            reader,
            len,
            at: len,
        })
    }
}

impl<R: Read + Seek> ReadAt for Seeking<R> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        check(offset, out.len(), self.len)?;
        if offset != self.at {
            self.reader.seek(SeekFrom::Start(offset))?;
        }
        self.reader.read_exact(out)?;
        self.at = offset + out.len() as u64;
        Ok(())
    }
}
