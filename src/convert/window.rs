//! [`OutputWindow`]: a run of an output's bytes in memory, as the sink of the jobs that make them.

use std::sync::{Mutex, PoisonError};

use crate::Result;
use crate::write::Sink;

/// Consecutive bytes of one output file. Jobs make whole tiles; what they write outside of the
/// window is left out.
pub(super) struct OutputWindow<'a> {
    /// Offset of the first byte in the file.
    start: u64,
    bytes: Mutex<&'a mut [u8]>,
}

impl<'a> OutputWindow<'a> {
    /// The bytes of a file from offset `start` on, as many as `bytes` has.
    pub(super) fn new(start: u64, bytes: &'a mut [u8]) -> Self {
        Self { start, bytes: Mutex::new(bytes) }
    }
}

impl Sink for OutputWindow<'_> {
    fn write_at(&self, _file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut out = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let first = offset.max(self.start);
        let end = (offset + bytes.len() as u64).min(self.start + out.len() as u64);
        if first < end {
            let from = (first - offset) as usize..(end - offset) as usize;
            let to = (first - self.start) as usize..(end - self.start) as usize;
            out[to].copy_from_slice(&bytes[from]);
        }
        Ok(())
    }
}
