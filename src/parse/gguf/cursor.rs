//! [`GgufCursor`]: reads the header's bytes sequentially, in few steps, and never past the end of
//! the header. A remote reader is thus asked for no tensor data.

use std::io::Read;

use crate::limits::{Budget, cap};
use crate::model::gguf::GgufEncoding;
use crate::{AnamnesisError, Result};

/// Most bytes of one read. The buffer grows by this at a time, so that a false length in the file
/// costs no more.
const MAX_READ: u64 = 8 << 20;

/// Largest header that is read, in bytes. The largest tokenizers take some 40 MiB.
const MAX_HEADER_BYTES: u64 = 256 << 20;

/// Longest string of the metadata, in bytes.
const MAX_STRING_LEN: u64 = 16 << 20;

/// Reads the header and keeps all bytes that it has read.
pub(super) struct GgufCursor<'b, R> {
    reader: R,
    budget: &'b Budget,
    /// Length of the file; `None` if only a stream is given.
    file_len: Option<u64>,
    /// The bytes that have been read.
    pub bytes: Vec<u8>,
    /// Index of the next byte in `bytes`.
    pub at: usize,
    pub encoding: GgufEncoding,
    /// Least number of header bytes behind the item that is being read: each announced key and
    /// tensor takes a minimum. Reading this many bytes ahead never reaches the tensors' data.
    pub pending: u64,
}

impl<'b, R: Read> GgufCursor<'b, R> {
    pub(super) fn new(reader: R, file_len: Option<u64>, budget: &'b Budget) -> Self {
        Self {
            reader,
            budget,
            file_len,
            bytes: Vec::new(),
            at: 0,
            encoding: GgufEncoding::WRITTEN,
            pending: 0,
        }
    }

    /// Reads until the next `n` bytes are in the buffer.
    ///
    /// # Errors
    /// `Parse` if the file is known to end before; `LimitExceeded`; `Io`, also if the stream ends.
    fn fill(&mut self, n: u64) -> Result<()> {
        let end = (self.at as u64).saturating_add(n);
        if self.file_len.is_some_and(|len| end > len) {
            return Err(AnamnesisError::parse(format!(
                "the header is truncated: {n} bytes at {} of {}",
                self.at,
                self.file_len.unwrap_or(0)
            )));
        }
        cap("MAX_GGUF_HEADER_BYTES", end, MAX_HEADER_BYTES, "bytes of header")?;
        self.budget.single(n, "a part of the header")?;
        while (self.bytes.len() as u64) < end {
            let missing = end - self.bytes.len() as u64;
            let step = missing.saturating_add(self.pending).min(MAX_READ);
            let left = self
                .file_len
                .map_or(step, |len| step.min(len - self.bytes.len() as u64));
            self.budget.grow(left, "the header")?;
            let start = self.bytes.len();
            self.bytes.resize(start + left as usize, 0);
            self.reader.read_exact(&mut self.bytes[start..])?;
        }
        Ok(())
    }

    /// Consumes the next `n` bytes.
    pub(super) fn take(&mut self, n: usize) -> Result<&[u8]> {
        self.fill(n as u64)?;
        self.at += n;
        Ok(&self.bytes[self.at - n..self.at])
    }

    fn number(&mut self, size: usize) -> Result<u64> {
        let encoding = self.encoding;
        Ok(encoding.number(self.take(size)?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.number(4).map(|n| n as u32)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.number(8)
    }

    /// Consumes a length, count or dimension, of four or eight bytes by the version.
    pub(super) fn len(&mut self) -> Result<u64> {
        self.number(self.encoding.len_bytes())
    }

    /// Consumes a string and returns its bytes, which need not be UTF-8.
    pub(super) fn string(&mut self) -> Result<&[u8]> {
        let n = self.len()?;
        cap("MAX_STRING_LEN", n, MAX_STRING_LEN, "bytes of a string")?;
        self.take(n as usize)
    }

    /// Consumes the name of a key or tensor: a string that must be UTF-8, of at most 65535 bytes.
    /// `limit` is the name of that limit for errors.
    pub(super) fn name(&mut self, limit: &'static str) -> Result<String> {
        const MAX_NAME_LEN: usize = 65535;
        let name = self.string()?;
        cap(limit, name.len() as u64, MAX_NAME_LEN as u64, "bytes of a name")?;
        let text = std::str::from_utf8(name);
        text.map(str::to_owned).map_err(|_| {
            let shown = String::from_utf8_lossy(name).into_owned();
            AnamnesisError::parse(format!("the name `{shown}` is not UTF-8"))
        })
    }
}
