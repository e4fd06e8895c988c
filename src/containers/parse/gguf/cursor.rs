//! The header's bytes, read in few and sequential steps, never past the header's end.

use std::io::Read;

use crate::containers::model::gguf::Layout;
use crate::limits::{Budget, cap};
use crate::{AnamnesisError, Result};

/// Bytes that are read at once, at most: a lie about a length costs no more.
const STEP: u64 = 1 << 20;

/// Largest header that is read. The largest tokenizers take some 40 MiB.
const MAX_HEADER_BYTES: u64 = 256 << 20;

/// Longest string, in bytes.
const MAX_STRING_LEN: u64 = 16 << 20;

/// A reader of the header, which keeps what it has read.
pub(super) struct Cursor<'b, R> {
    reader: R,
    budget: &'b Budget,
    /// Length of the file, where it is known.
    file_len: Option<u64>,
    pub bytes: Vec<u8>,
    pub at: usize,
    pub layout: Layout,
    /// Bytes that the header must have beyond the item that is being read, by what is known so far. That much
    /// can be read ahead without touching the data.
    pub pending: u64,
}

impl<'b, R: Read> Cursor<'b, R> {
    pub(super) fn new(reader: R, file_len: Option<u64>, budget: &'b Budget) -> Self {
        Self {
            reader,
            budget,
            file_len,
            bytes: Vec::new(),
            at: 0,
            layout: Layout::WRITTEN,
            pending: 0,
        }
    }

    /// Makes sure that the next `n` bytes have been read.
    pub(super) fn need(&mut self, n: u64) -> Result<()> {
        let end = (self.at as u64).saturating_add(n);
        if self.file_len.is_some_and(|len| end > len) {
            return Err(AnamnesisError::parse(format!(
                "the header is truncated: {n} bytes at {} of {}",
                self.at,
                self.file_len.unwrap_or(0)
            )));
        }
        cap(
            "MAX_GGUF_HEADER_BYTES",
            end,
            MAX_HEADER_BYTES,
            "bytes of header",
        )?;
        self.budget.single(n, "a part of the header")?;
        while (self.bytes.len() as u64) < end {
            let missing = end - self.bytes.len() as u64;
            let step = missing.saturating_add(self.pending).min(STEP);
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

    /// The next `n` bytes.
    pub(super) fn take(&mut self, n: usize) -> Result<&[u8]> {
        self.need(n as u64)?;
        self.at += n;
        Ok(&self.bytes[self.at - n..self.at])
    }

    fn number(&mut self, size: usize) -> Result<u64> {
        let layout = self.layout;
        Ok(layout.number(self.take(size)?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.number(4).map(|n| n as u32)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.number(8)
    }

    /// A length, count or dimension.
    pub(super) fn len(&mut self) -> Result<u64> {
        self.number(self.layout.len_bytes())
    }

    /// Passes over a string; its bytes.
    pub(super) fn string(&mut self) -> Result<&[u8]> {
        let n = self.len()?;
        cap("MAX_STRING_LEN", n, MAX_STRING_LEN, "bytes of a string")?;
        self.take(n as usize)
    }

    /// A name: a string that must be UTF-8 and at most 65535 bytes.
    pub(super) fn name(&mut self, limit: &'static str) -> Result<String> {
        const MAX_NAME_LEN: usize = 65535;
        let name = self.string()?;
        cap(
            limit,
            name.len() as u64,
            MAX_NAME_LEN as u64,
            "bytes of a name",
        )?;
        let text = std::str::from_utf8(name);
        text.map(str::to_owned).map_err(|_| {
            let shown = String::from_utf8_lossy(name).into_owned();
            AnamnesisError::parse(format!("the name `{shown}` is not UTF-8"))
        })
    }
}
