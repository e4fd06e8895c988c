//! [`ReadAt`]: positional reads from memory, from a source, or from a stream that can seek.
//! Containers with their index at the end are read through it.

use std::io::{Read, Seek};

use crate::source::{Seeking, Source};
use crate::{AnamnesisError, Result};

/// Bytes that can be read at any position.
pub(crate) trait ReadAt {
    /// Number of bytes.
    fn len(&self) -> u64;

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// `Parse` if the range exceeds the file, which is truncated then; `Io`.
    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()>;
}

impl ReadAt for &[u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        check_range(offset, out.len(), ReadAt::len(self))?;
        out.copy_from_slice(&self[offset as usize..][..out.len()]);
        Ok(())
    }
}

/// Checks that `n` bytes from `offset` on are within a file of `len` bytes.
fn check_range(offset: u64, n: usize, len: u64) -> Result<()> {
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
        check_range(offset, out.len(), ReadAt::len(self))?;
        Source::read_at(self, offset, out)
    }
}

/// A part of a file, read as if it were a file of its own.
#[cfg(feature = "pth")]
pub(crate) struct FileWindow<'a> {
    pub file: &'a mut dyn ReadAt,
    pub start: u64,
    pub len: u64,
}

#[cfg(feature = "pth")]
impl ReadAt for FileWindow<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        check_range(offset, out.len(), self.len)?;
        let at = self.start.checked_add(offset);
        let at = at.ok_or_else(|| AnamnesisError::parse("an offset that overflows"))?;
        self.file.read_at(at, out)
    }
}

impl<R: Read + Seek> ReadAt for Seeking<R> {
    fn len(&self) -> u64 {
        Seeking::len(self)
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        check_range(offset, out.len(), Seeking::len(self))?;
        Seeking::read_at(self, offset, out).map_err(Into::into)
    }
}
