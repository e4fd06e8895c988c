//! The bytes of a pickle, read as far as they are needed: where a pickle ends is known when it is run.

use std::ops::Range;

use crate::containers::parse::read_at::ReadAt;
use crate::limits::{Budget, cap};
use crate::{AnamnesisError, Result};

/// Bytes that are read at once to begin with, and behind a gap, where there may be little before the next one.
const STEP: u64 = 64 << 10;
const STEP_BEHIND_GAP: u64 = 512;

/// Most bytes of pickles that are read.
const MAX_BYTES: u64 = 100 << 20;

/// A run of a file, from its beginning on.
pub(super) struct Input<'a> {
    /// What is not read yet comes from here.
    file: Option<&'a mut dyn ReadAt>,
    /// What it and all that is made of it is charged to.
    pub budget: &'a Budget,
    start: u64,
    len: u64,
    /// Length of the file.
    pub file_len: u64,
    /// What of it this can have been made from: less than its length if it was compressed.
    stored: usize,
    step: u64,
    read: Vec<u8>,
    pub at: usize,
    /// Whether the next byte is not known to be an opcode, for what is before it is unknown or goes beyond the end.
    pub is_lost: bool,
}

impl<'a> Input<'a> {
    /// `len` bytes from `start` on.
    pub(super) fn new(file: &'a mut dyn ReadAt, start: u64, len: u64, budget: &'a Budget) -> Self {
        let (file_len, stored) = (file.len(), usize::MAX);
        let (step, read) = (STEP, Vec::new());
        Self {
            file: Some(file),
            budget,
            start,
            len,
            file_len,
            stored,
            step,
            read,
            at: 0,
            is_lost: false,
        }
    }

    /// Bytes that are all there, and how many of a file they were made from.
    pub(super) fn of_bytes(
        read: Vec<u8>,
        stored: usize,
        file_len: u64,
        budget: &'a Budget,
    ) -> Self {
        let len = read.len() as u64;
        Self {
            file: None,
            budget,
            start: 0,
            len,
            file_len,
            stored,
            step: STEP,
            read,
            at: 0,
            is_lost: false,
        }
    }

    /// Bytes of the file that were read: memory is in proportion to them.
    pub(super) fn paid(&self) -> usize {
        self.at.min(self.stored)
    }

    /// Where the next byte is in the file.
    pub(super) fn position(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Goes on `n` bytes further.
    pub(super) fn skip(&mut self, n: u64) {
        if n == 0 {
            return;
        }
        // What was read stays, for values refer to it; the file goes on behind it. What was read ahead is read again:
        // to move it would take long where there are many gaps.
        let at = self.position() + n;
        self.read.truncate(self.at);
        self.step = STEP_BEHIND_GAP;
        self.len = (self.start + self.len).saturating_sub(at) + self.at as u64;
        self.start = at - self.at as u64;
    }

    fn need(&mut self, n: usize) -> Result<()> {
        let end = (self.at as u64).saturating_add(n as u64);
        if end > self.len {
            self.is_lost = true;
            let (at, len) = (self.at, self.len);
            return Err(AnamnesisError::parse(format!(
                "pickle: it is truncated: {n} bytes at {at} of {len}"
            )));
        }
        cap("MAX_PKL_SIZE", end, MAX_BYTES, "bytes of pickles")?;
        while (self.read.len() as u64) < end {
            let have = self.read.len();
            let step = (self.len - have as u64).min(self.step);
            self.step = (self.step * 2).min(1 << 20);
            self.budget.single(have as u64 + step, "a pickle")?;
            self.budget.grow(step, "a pickle")?;
            self.read.resize(have + step as usize, 0);
            match &mut self.file {
                Some(file) => file.read_at(self.start + have as u64, &mut self.read[have..])?,
                None => return Err(AnamnesisError::parse("pickle: it is truncated")),
            }
        }
        Ok(())
    }

    /// The next `n` bytes, by their place.
    pub(super) fn take(&mut self, n: usize) -> Result<Range<usize>> {
        self.need(n)?;
        self.at += n;
        Ok(self.at - n..self.at)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        self.take(1).map(|range| self.read[range.start])
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        let range = self.take(4)?;
        Ok(self.read[range]
            .iter()
            .rev()
            .fold(0, |n, &b| n << 8 | u32::from(b)))
    }

    /// A length in eight bytes.
    pub(super) fn len8(&mut self) -> Result<usize> {
        let range = self.take(8)?;
        let n = self.read[range]
            .iter()
            .rev()
            .fold(0u64, |n, &b| n << 8 | u64::from(b));
        usize::try_from(n).map_err(|_| AnamnesisError::parse("pickle: a length that is none"))
    }

    /// The next line, without its end.
    pub(super) fn line(&mut self) -> Result<Range<usize>> {
        let start = self.at;
        while self.byte()? != b'\n' {}
        Ok(start..self.at - 1)
    }

    pub(super) fn bytes(&self, range: &Range<usize>) -> &[u8] {
        self.read.get(range.clone()).unwrap_or_default()
    }

    pub(super) fn text(&self, range: &Range<usize>) -> Result<&str> {
        std::str::from_utf8(self.bytes(range))
            .map_err(|_| AnamnesisError::parse("pickle: text that is not UTF-8"))
    }
}
