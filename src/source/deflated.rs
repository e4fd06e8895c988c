//! A compressed member of an archive. It is read from its beginning on, through a small buffer; whoever wants to
//! read it elsewhere makes it lie in a temporary file first.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::sync::OnceLock;

use flate2::bufread::DeflateDecoder;

use super::{Source, read_exact_at};
use crate::{AnamnesisError, Result};

/// Bytes of compressed data that are read at once.
const BUFFER: usize = 64 << 10;

/// A deflated run of bytes.
#[derive(Debug)]
pub(crate) struct Deflated {
    pub base: Source,
    /// Where the compressed bytes are in `base`, and how many.
    pub start: u64,
    pub stored_len: u64,
    /// Bytes after decompression.
    pub len: u64,
    /// Their CRC-32.
    pub crc: u32,
    /// The bytes in a file that has no name, once someone wanted them out of order; or why that failed.
    pub spool: OnceLock<std::result::Result<File, (io::ErrorKind, String)>>,
}

impl Deflated {
    /// The decompressed bytes as a stream that ends in an error unless length and checksum are right.
    pub(crate) fn stream(&self) -> impl Read {
        let compressed = CompressedReader {
            source: &self.base,
            at: self.start,
            left: self.stored_len,
        };
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

    fn make_spool(&self) -> io::Result<File> {
        let mut file = tempfile::tempfile()?;
        io::copy(&mut self.stream(), &mut file)?;
        file.flush()?;
        Ok(file)
    }
}

/// The compressed bytes as a stream.
struct CompressedReader<'a> {
    source: &'a Source,
    at: u64,
    left: u64,
}

impl Read for CompressedReader<'_> {
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

/// A stream of known length and checksum.
struct CheckedReader<R> {
    decoder: R,
    crc: crc32fast::Hasher,
    left: u64,
    expected: u32,
}

impl<R: Read> Read for CheckedReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let wrong = |what: &str| {
            Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a compressed member {what}"),
            ))
        };
        if out.is_empty() {
            return Ok(0);
        }
        let n = (out.len() as u64).min(self.left) as usize;
        let n = self.decoder.read(&mut out[..n])?;
        self.crc.update(&out[..n]);
        self.left -= n as u64;
        if n == 0 && self.left > 0 {
            return wrong("is shorter than its archive says");
        }
        if self.left == 0 && n > 0 {
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
