//! [`WindowReader`]: short pieces of a file, read through a small window.

use std::ops::Range;

use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes of the file that are read at once where pieces follow each other.
#[cfg_attr(
    not(any(feature = "gguf", feature = "hdf5", feature = "msgpack", feature = "onnx")),
    allow(dead_code)
)]
const WINDOW: u64 = 8 << 10;

/// A file that is read in short pieces, mostly one after another.
pub(super) struct WindowReader<'a> {
    file: &'a Source,
    window: Vec<u8>,
    window_at: u64,
    /// Bytes of the file that are read at once.
    step: u64,
    /// Length of the file.
    pub len: u64,
}

impl<'a> WindowReader<'a> {
    #[cfg_attr(
        not(any(feature = "gguf", feature = "hdf5", feature = "msgpack", feature = "onnx")),
        allow(dead_code)
    )]
    pub(super) fn new(file: &'a Source) -> Self {
        Self::with_step(file, WINDOW)
    }

    /// Reads `step` bytes at once, or more where a piece is longer.
    pub(super) fn with_step(file: &'a Source, step: u64) -> Self {
        Self { file, window: Vec::new(), window_at: 0, step, len: file.len().unwrap_or(0) }
    }

    /// The bytes of `range`, which is short.
    ///
    /// # Errors
    /// `Parse` if it is not in the file; `Io`.
    pub(super) fn bytes(&mut self, range: Range<u64>) -> Result<&[u8]> {
        let has =
            self.window_at <= range.start && range.end <= self.window_at + self.window.len() as u64;
        if !has {
            if range.end > self.len || range.start > range.end {
                return Err(AnamnesisError::parse("the file is truncated"));
            }
            let want = (range.end - range.start).max(self.step);
            let n = want.min(self.len - range.start);
            self.window.resize(n as usize, 0);
            self.file.read_at(range.start, &mut self.window)?;
            self.window_at = range.start;
        }
        let found = (range.start - self.window_at) as usize..(range.end - self.window_at) as usize;
        let found = self.window.get(found);
        found.ok_or_else(|| AnamnesisError::parse("the file is truncated"))
    }
}
