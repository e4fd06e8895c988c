//! Containers, written: a header that is known up front, and positional bodies.

pub(crate) mod atomic;
pub(crate) mod safetensors;

use crate::Result;

/// Where the bytes of an output go, from any thread, in any order.
pub(crate) trait Sink: Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// An output in memory.
impl Sink for std::sync::Mutex<Vec<u8>> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut out = self.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = offset as usize;
        out[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}
