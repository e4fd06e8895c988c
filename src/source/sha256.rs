//! SHA-256 of files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{AnamnesisError, Result};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// The SHA-256 of bytes that are passed in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileHasher(Sha256);

impl FileHasher {
    /// A hasher of no bytes yet.
    ///
    /// # Errors
    /// None; a build without the feature `check` has no SHA-256.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self::default())
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum in hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        let sum = self.0.finalize();
        sum.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The SHA-256 of the file at `path` in hexadecimal digits. `buffer` is used to read; `on_read`
/// gets the number of bytes after each read, and its error ends the work.
///
/// # Errors
/// `Io` if the file cannot be read; the error of `on_read`.
pub(crate) fn sha256_of_file(
    path: &Path,
    buffer: &mut Vec<u8>,
    on_read: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<String> {
    let error = |e: std::io::Error| AnamnesisError::io_at(path, &e);
    let (mut file, mut hasher) = (File::open(path).map_err(error)?, FileHasher::new()?);
    buffer.resize(PIECE_BYTES, 0);
    loop {
        match file.read(buffer).map_err(error)? {
            0 => return Ok(hasher.finish()),
            n => {
                hasher.update(&buffer[..n]);
                on_read(n as u64)?;
            }
        }
    }
}
