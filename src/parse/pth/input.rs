//! [`PickleInput`]: the bytes of a pickle, read on demand. A pickle has no length field; it ends
//! where its last opcode is.

use std::ops::Range;

use crate::limits::{Budget, cap};
use crate::parse::read_at::ReadAt;
use crate::{AnamnesisError, Result};

/// Bytes of the first read. Each further read is twice as long, up to 1 MiB.
const FIRST_READ: u64 = 64 << 10;

/// Bytes of the first read behind a gap. Between two storages of a legacy file there are only eight
/// bytes.
const FIRST_READ_AFTER_GAP: u64 = 512;

/// Where ranges of decoded text begin: no input is as long.
const DECODED: usize = usize::MAX / 2;

/// Most bytes of pickles that are read of one file.
const MAX_BYTES: u64 = 100 << 20;

/// The bytes of one or several pickles of a file, in one buffer. The gaps between pickles, which
/// are storages, are left out of it. Values refer to text and bytes by their range in this buffer,
/// so what was read stays.
pub(super) struct PickleInput<'a> {
    /// The file that further bytes are read from; `None` if all bytes are in `read`.
    file: Option<&'a mut dyn ReadAt>,
    /// The account that the bytes, and the values made from them, are charged to.
    pub budget: &'a Budget,
    /// Offset in the file of the byte at index 0 of `read`, as if there had been no gap.
    start: u64,
    /// Length of the pickles without gaps, as far as it is known: the buffer never gets longer.
    len: u64,
    pub file_len: u64,
    /// Bytes of the file that `read` was decompressed from; `usize::MAX` if it was not compressed.
    pub stored: usize,
    /// Bytes of the next read.
    step: u64,
    read: Vec<u8>,
    /// Text that is written with escapes, as it is meant. Its ranges begin at [`DECODED`].
    decoded: Vec<u8>,
    /// Index of the next byte in `read`.
    pub at: usize,
    /// Whether the next byte may be no opcode: the argument before it is of an unknown length or
    /// truncated.
    pub is_lost: bool,
    /// Whether bytes were wanted behind the end.
    pub is_truncated: bool,
    /// Offset in the file of the end of the last frame; 0 if there was none.
    frame_end: u64,
    /// Index in `read` and offset in the file of the beginning, and of what follows each long literal
    /// that was passed over.
    passed: Vec<(usize, u64)>,
}

impl<'a> PickleInput<'a> {
    /// Input from `len` bytes of `file` from offset `start` on.
    pub(super) fn new(file: &'a mut dyn ReadAt, start: u64, len: u64, budget: &'a Budget) -> Self {
        let (file_len, stored) = (file.len(), usize::MAX);
        let (step, read) = (FIRST_READ, Vec::new());
        Self {
            file: Some(file),
            budget,
            start,
            len,
            file_len,
            stored,
            step,
            read,
            decoded: Vec::new(),
            at: 0,
            is_lost: false,
            is_truncated: false,
            frame_end: 0,
            passed: vec![(0, start)],
        }
    }

    /// Input from a pickle in memory, which was made from `stored` bytes of a file of `file_len`
    /// bytes.
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
            step: FIRST_READ,
            read,
            decoded: Vec::new(),
            at: 0,
            is_lost: false,
            is_truncated: false,
            frame_end: 0,
            passed: Vec::new(),
        }
    }

    /// Sets where in the file the bytes of an input in memory are: data in it can be read there.
    pub(super) fn set_offset(&mut self, start: u64) {
        self.passed = vec![(0, start)];
    }

    /// Bytes of the file that have been consumed: values may take memory in proportion to them. Of
    /// a compressed pickle at most its stored bytes count, so that compression is no way to a
    /// larger allowance.
    pub(super) fn bytes_consumed(&self) -> usize {
        self.at.min(self.stored)
    }

    /// Offset of the next byte in the file.
    pub(super) fn position(&self) -> u64 {
        self.start + self.at as u64
    }

    /// Begins a frame of `n` bytes at the next byte.
    pub(super) fn begin_frame(&mut self, n: u64) {
        self.frame_end = self.position().saturating_add(n);
    }

    /// Forgets the last frame, as each call of `pickle.load` does.
    pub(super) fn forget_frame(&mut self) {
        self.frame_end = 0;
    }

    /// Whether what was read from offset `start` on lies partly in the last frame. Python's unpickler
    /// in Python refuses that; the one in C drops the rest of the frame if it lies in its buffer.
    pub(super) fn reaches_over_frame(&self, start: u64) -> bool {
        start < self.frame_end && self.frame_end < self.position()
    }

    /// Whether the byte at offset `start` lies in the last frame.
    pub(super) fn is_in_frame(&self, start: u64) -> bool {
        start < self.frame_end
    }

    /// Whether the last frame goes on behind what was read, and ends in the input. Python's unpicklers
    /// have read it as a whole, so that the pickle after this one begins behind it.
    pub(super) fn is_left_in_frame(&self) -> bool {
        let behind = self.frame_end.saturating_sub(self.position());
        (1..=self.len.saturating_sub(self.at as u64)).contains(&behind)
    }

    /// Leaves a gap of `n` bytes.
    pub(super) fn skip(&mut self, n: u64) {
        if n == 0 {
            return;
        }
        // Consumed bytes stay, because values refer to them, and the file goes on behind them in
        // the buffer. Bytes that were read ahead are dropped and read again: moving them would be
        // quadratic where there are many gaps.
        let at = self.position() + n;
        self.read.truncate(self.at);
        self.step = FIRST_READ_AFTER_GAP;
        self.len = (self.start + self.len).saturating_sub(at) + self.at as u64;
        self.start = at - self.at as u64;
    }

    /// Reads until the next `n` bytes are in the buffer.
    ///
    /// # Errors
    /// `Parse` if the input ends before; `LimitExceeded`; `Io`. A false length in the file costs
    /// one read at most: the end of the input is checked first, and the buffer grows with the bytes
    /// that arrive.
    fn fill(&mut self, n: usize) -> Result<()> {
        let end = (self.at as u64).saturating_add(n as u64);
        if end > self.len {
            (self.is_lost, self.is_truncated) = (true, true);
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

    /// Consumes the next `n` bytes and returns their range in the buffer.
    pub(super) fn take(&mut self, n: usize) -> Result<Range<usize>> {
        self.fill(n)?;
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

    pub(super) fn u64(&mut self) -> Result<u64> {
        let range = self.take(8)?;
        Ok(self.read[range]
            .iter()
            .rev()
            .fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    /// Consumes a length of eight bytes.
    pub(super) fn len_u64(&mut self) -> Result<usize> {
        usize::try_from(self.u64()?)
            .map_err(|_| AnamnesisError::parse("pickle: a length that is none"))
    }

    /// Consumes a line and returns its range without the line feed.
    pub(super) fn line(&mut self) -> Result<Range<usize>> {
        let start = self.at;
        while self.byte()? != b'\n' {}
        Ok(start..self.at - 1)
    }

    /// The bytes of a range that [`take`](Self::take) or [`line`](Self::line) returned.
    pub(super) fn bytes(&self, range: &Range<usize>) -> &[u8] {
        let bytes = match range.start.checked_sub(DECODED) {
            Some(start) => self.decoded.get(start..range.end - DECODED),
            None => self.read.get(range.clone()),
        };
        bytes.unwrap_or_default()
    }

    /// Offset in the file of a range, if it is there as it is in the buffer. There must have been no
    /// gaps but those that [`pass_over`](Self::pass_over) has left.
    pub(super) fn file_offset(&self, range: &Range<usize>) -> Option<u64> {
        let is_read = !self.passed.is_empty() && range.end <= self.read.len();
        let before = self.passed.partition_point(|&(at, _)| at <= range.start);
        let start = before.checked_sub(1).map_or(0, |last| self.passed[last].1);
        is_read.then_some(start + range.start as u64)
    }

    /// Fills `out` with bytes of the file that are not in the buffer.
    ///
    /// # Errors
    /// `Parse` if there is no file behind the buffer; `Io`.
    pub(super) fn read_file(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        match &mut self.file {
            Some(file) => file.read_at(offset, out),
            None => {
                let at = self
                    .passed
                    .first()
                    .and_then(|&(_, start)| offset.checked_sub(start));
                let start = at.and_then(|at| usize::try_from(at).ok());
                let bytes = start.and_then(|start| self.read.get(start..)?.get(..out.len()));
                let bytes =
                    bytes.ok_or_else(|| AnamnesisError::parse("pickle: it is truncated"))?;
                out.copy_from_slice(bytes);
                Ok(())
            }
        }
    }

    /// Keeps text that is not among the bytes of the input, and returns its range.
    pub(super) fn add_decoded(&mut self, text: &[u8]) -> Range<usize> {
        let start = DECODED + self.decoded.len();
        self.decoded.extend_from_slice(text);
        start..start + text.len()
    }

    /// Passes over the next `n` bytes without keeping them, unless the input is in memory as a whole.
    ///
    /// # Errors
    /// `Parse` if the input ends before.
    pub(super) fn pass_over(&mut self, n: usize) -> Result<bool> {
        let end = (self.at as u64).saturating_add(n as u64);
        if self.file.is_none() || end <= self.read.len() as u64 {
            return Ok(false);
        }
        if end > self.len {
            return self.fill(n).map(|()| false);
        }
        self.skip(n as u64);
        self.passed.push((self.at, self.start));
        Ok(true)
    }

    /// Whether all bytes have been consumed.
    pub(super) fn is_at_end(&self) -> bool {
        self.at as u64 >= self.len
    }

    pub(super) fn text(&self, range: &Range<usize>) -> Result<&str> {
        std::str::from_utf8(self.bytes(range))
            .map_err(|_| AnamnesisError::parse("pickle: text that is not UTF-8"))
    }
}
