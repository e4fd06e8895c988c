//! Positional reads from a stream that can seek, such as a remote file.

use std::io::{Read, Seek, SeekFrom};

use super::{ReadAt, check_range};
use crate::Result;

/// [`ReadAt`] over a stream that can seek. Adjacent reads do not seek: a remote stream may begin a new request at each.
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
        check_range(offset, out.len(), self.len)?;
        if offset != self.at {
            self.reader.seek(SeekFrom::Start(offset))?;
        }
        self.reader.read_exact(out)?;
        self.at = offset + out.len() as u64;
        Ok(())
    }
}
