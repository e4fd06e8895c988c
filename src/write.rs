//! Containers, written: a header that is known up front, and positional bodies.

pub(crate) mod atomic;
#[cfg(feature = "gguf")]
pub(crate) mod gguf;
pub(crate) mod safetensors;

use crate::{Dtype, Result};

/// One tensor to be written.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// Bytes of its data.
    pub len: u64,
}

/// A header, and where it puts each tensor.
#[derive(Debug)]
pub(crate) struct Layout {
    pub header: Vec<u8>,
    /// Absolute offset of each entry's data.
    pub offsets: Vec<u64>,
    /// Length of the whole file.
    pub file_len: u64,
}

/// Where the bytes of an output go, from any thread, in any order.
pub(crate) trait Sink: Sync {
    /// Writes all of `bytes` at `offset` of file `file`.
    fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// An output in memory, in one file.
impl Sink for std::sync::Mutex<Vec<u8>> {
    fn write_at(&self, _file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut out = self.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = offset as usize;
        out[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
