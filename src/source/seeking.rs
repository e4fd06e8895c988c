//! [`Seeking`]: positional reads from a stream that can seek, such as a remote file.

use std::io::{self, Read, Seek, SeekFrom};

/// A stream that threads can share behind a lock.
pub(crate) trait ReadSeek: Read + Seek + Send {}

impl<R: Read + Seek + Send> ReadSeek for R {}

/// A stream that can seek, with its length. Adjacent reads do not seek: a remote stream may begin a
/// new request at each.
pub(crate) struct Seeking<R> {
    reader: R,
    len: u64,
    /// Where the stream stands; `None` after a read that failed.
    at: Option<u64>,
}

impl<R: Read + Seek> Seeking<R> {
    pub(crate) fn new(mut reader: R) -> io::Result<Self> {
        let len = reader.seek(SeekFrom::End(0))?;
        Ok(Self { reader, len, at: Some(len) })
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` with the bytes from `offset` on.
    pub(crate) fn read_at(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        // A stream whose read fails stands anywhere, so that the next read must seek in any case.
        if self.at.take() != Some(offset) {
            self.reader.seek(SeekFrom::Start(offset))?;
        }
        self.reader.read_exact(out)?;
        self.at = Some(offset + out.len() as u64);
        Ok(())
    }
}

impl<R> std::fmt::Debug for Seeking<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seeking")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
