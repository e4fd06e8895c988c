//! Containers, written: a header that is known up front, and positional bodies.

pub(crate) mod atomic;
#[cfg(feature = "gguf")]
pub(crate) mod gguf;
#[cfg(feature = "npz")]
pub(crate) mod npz;
#[cfg(all(feature = "qnat", feature = "lethe"))]
pub(crate) mod qnat;
pub(crate) mod safetensors;
mod target;

pub use self::target::ConvertTarget;
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

/// Everything of a file but the tensors' data, and where that goes.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Bytes that are known up front, with their offsets.
    pub pieces: Vec<(u64, Vec<u8>)>,
    /// Absolute offset of each entry's data.
    pub offsets: Vec<u64>,
    /// Length of the whole file.
    pub file_len: u64,
    /// Where each entry's checksum goes, if the container has such.
    pub patches: Vec<Patch>,
}

/// A CRC-32 that is written when the data is known.
#[derive(Debug, Clone)]
pub(crate) struct Patch {
    /// Offsets in the file.
    pub places: [u64; 2],
    /// Length and sum of what the checksum has before the data.
    pub before: (u64, u32),
}

impl Layout {
    /// A file that is a header and data.
    pub(crate) fn of_header(header: Vec<u8>, offsets: Vec<u64>, file_len: u64) -> Self {
        Self {
            pieces: vec![(0, header)],
            offsets,
            file_len,
            patches: Vec::new(),
        }
    }
}

/// Where the bytes of an output go, from any thread, in any order.
pub(crate) trait Sink: Sync {
    /// Writes all of `bytes` at `offset` of file `file`.
    fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// An output in memory, in one file.
impl Sink for std::sync::Mutex<Vec<u8>> {
    fn write_at(&self, _file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut out = self
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = offset as usize;
        out[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
