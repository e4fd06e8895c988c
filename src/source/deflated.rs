//! [`Deflated`]: a compressed member of a ZIP archive. It is read as a stream, through a small
//! buffer. The first positional read decompresses all of it into an unnamed temporary file, from
//! which later ones are served.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::sync::OnceLock;

use flate2::bufread::DeflateDecoder;

use super::Source;
use super::platform::read_exact_at;
use crate::{AnamnesisError, Result};

/// Size of the buffer for compressed data, in bytes.
const BUFFER: usize = 64 << 10;

/// A deflated range of another source.
#[derive(Debug)]
pub(crate) struct Deflated {
    pub base: Source,
    /// Offset of the compressed bytes in `base`.
    pub start: u64,
    /// Number of compressed bytes.
    pub stored_len: u64,
    /// Number of bytes after decompression, as the archive's directory declares it.
    pub len: u64,
    /// CRC-32 of the decompressed bytes.
    pub crc: u32,
    /// The decompressed bytes in an unnamed temporary file, made at the first positional read; or
    /// why making it failed. `io::Error` cannot be cloned, so its kind and text are kept.
    pub spool: OnceLock<std::result::Result<File, (io::ErrorKind, String)>>,
}

impl Deflated {
    /// Number of bytes after decompression.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Path of the archive, if it is a file.
    pub(super) fn path(&self) -> Option<&Path> {
        self.base.path()
    }

    /// Compares the archive with its state when it was opened.
    pub(super) fn require_unchanged(&self) -> Result<()> {
        self.base.require_unchanged()
    }

    /// Returns the decompressed bytes as a stream. It ends in an `InvalidData` error unless length
    /// and CRC-32 are those of the archive's directory.
    pub(crate) fn stream(&self) -> impl Read {
        let compressed = RangeReader { source: &self.base, at: self.start, left: self.stored_len };
        CheckedReader {
            decoder: DeflateDecoder::new(BufReader::with_capacity(BUFFER, compressed)),
            crc: crc32fast::Hasher::new(),
            left: self.len,
            expected: self.crc,
        }
    }

    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let spool = self
            .spool
            .get_or_init(|| self.make_spool().map_err(|e| (e.kind(), e.to_string())));
        match spool {
            Ok(file) => read_exact_at(file, offset, out).map_err(Into::into),
            Err((kind, what)) => Err(io::Error::new(*kind, what.clone()).into()),
        }
    }

    /// Decompresses the member into an unnamed file, which the system removes when the process ends
    /// in any way.
    fn make_spool(&self) -> io::Result<File> {
        let mut file = tempfile::tempfile()?;
        io::copy(&mut self.stream(), &mut file)?;
        file.flush()?;
        Ok(file)
    }
}

/// `Read` over a range of a source.
pub(super) struct RangeReader<'a> {
    pub source: &'a Source,
    /// Offset of the next byte.
    pub at: u64,
    /// Bytes that are not read yet.
    pub left: u64,
}

impl Read for RangeReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = (out.len() as u64).min(self.left) as usize;
        self.source
            .read_at(self.at, &mut out[..n])
            .map_err(|error| match error {
                AnamnesisError::Io(error) => error,
                other => io::Error::other(other.to_string()),
            })?;
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

/// `Read` that compares the length and the CRC-32 of `decoder` with what is expected, at the end of
/// the stream.
struct CheckedReader<R> {
    decoder: R,
    crc: crc32fast::Hasher,
    left: u64,
    expected: u32,
}

impl<R: Read> Read for CheckedReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let wrong = |what: &str| {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("a compressed member {what}")))
        };
        if out.is_empty() {
            return Ok(0);
        }
        // Never more than the declared length: a decompression bomb stops here.
        let n = (out.len() as u64).min(self.left) as usize;
        let n = self.decoder.read(&mut out[..n])?;
        self.crc.update(&out[..n]);
        self.left -= n as u64;
        if n == 0 && self.left > 0 {
            return wrong("is shorter than its archive says");
        }
        // The last piece is handed out only after the checks. Of a member of no bytes there is
        // none, and the end has them.
        if self.left == 0 {
            if self.decoder.read(&mut [0])? > 0 {
                return wrong("is longer than its archive says");
            }
            if self.crc.clone().finalize() != self.expected {
                return wrong("has the wrong checksum");
            }
        }
        Ok(n)
    }
}
