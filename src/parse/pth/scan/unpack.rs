//! Compressed streams, unpacked into memory within bounds.

use std::io::{self, BufReader, Read};

use super::Scanner;
use super::content::{HEAD, Item};
use super::kinds::{self, ContentKind};
use crate::parse::read_at::ReadAt;
use crate::{AnamnesisError, Result};

/// Most bytes of one stream that are unpacked.
const MAX_UNPACKED: u64 = 64 << 20;

/// Most bytes that are unpacked of one file in all.
const MAX_UNPACKED_IN_ALL: u64 = 1 << 30;

/// How a stream is compressed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Method {
    Deflate,
    Gzip,
    Zlib,
}

impl Scanner<'_> {
    /// Looks into a compressed file, which is a stream to its end.
    pub(super) fn compressed(
        &mut self,
        file: &mut dyn ReadAt,
        kind: ContentKind,
        item: &Item<'_>,
    ) -> Result<()> {
        let method = match kind {
            ContentKind::Gzip => Method::Gzip,
            _ => Method::Zlib,
        };
        let len = file.len();
        // The name of the content, for names tell what programs do with it.
        let name = match item.name.rsplit_once('.') {
            Some((name, "gz" | "z" | "Z" | "gzip" | "zlib")) => name,
            _ => item.name,
        };
        let inner = Item { depth: item.depth + 1, ..Item { name, ..item.clone() } };
        self.packed(file, (0, len), method, &inner)
    }

    /// Looks into the stream of `len` bytes from `start` on, whose content is `item`.
    pub(super) fn packed(
        &mut self,
        file: &mut dyn ReadAt,
        (start, len): (u64, u64),
        method: Method,
        item: &Item<'_>,
    ) -> Result<()> {
        let mut limit = HEAD;
        loop {
            if self.unpacked > MAX_UNPACKED_IN_ALL {
                let what = "compressed, and not looked into: too much of the file is";
                self.remark(what, item);
                return Ok(());
            }
            self.budget.single(limit, "unpacked content")?;
            let stream = Stream { file: &mut *file, at: start, left: len };
            let (bytes, end) = unpack(stream, method, limit);
            self.unpacked += bytes.len() as u64;
            self.budget.grow(bytes.len() as u64, "unpacked content")?;
            let is_whole = (bytes.len() as u64) < limit;
            if !is_whole
                && limit < MAX_UNPACKED
                && (needs_more(&bytes, item) || self.goes_on(&bytes))
            {
                limit = MAX_UNPACKED;
                continue;
            }
            match end {
                Err(Failure::Read(AnamnesisError::Io(e))) => return Err(AnamnesisError::Io(e)),
                // What no stream begins like is none.
                Err(_) if bytes.is_empty() && matches!(method, Method::Zlib) => {
                    self.remark("content of an unknown kind, not looked into", item);
                    return Ok(());
                }
                Err(Failure::Read(error)) => {
                    self.tolerate(Err::<(), _>(error), "a compressed stream", item)?;
                }
                Err(Failure::Stream(what)) => {
                    self.remark(format!("a compressed stream is damaged: {what}"), item);
                }
                Ok(()) => {}
            }
            let item = Item { is_cut: !is_whole, ..item.clone() };
            return self.content(&mut bytes.as_slice(), &item);
        }
    }
}

/// Whether the beginning of content does not tell what is in it.
fn needs_more(head: &[u8], item: &Item<'_>) -> bool {
    let is_container = matches!(
        kinds::kind_of(head),
        ContentKind::Pickle
            | ContentKind::Zip
            | ContentKind::Tar
            | ContentKind::Gzip
            | ContentKind::Zlib
    );
    is_container || kinds::is_unpickled(item.name) || kinds::may_be_pickled_array(head)
}

/// Why a stream ended before its end.
enum Failure {
    /// It could not be read.
    Read(AnamnesisError),
    /// It is no such stream.
    Stream(io::Error),
}

/// At most `limit` bytes of the content, and why there are no more.
fn unpack(
    stream: Stream<'_>,
    method: Method,
    limit: u64,
) -> (Vec<u8>, std::result::Result<(), Failure>) {
    let mut out = Vec::new();
    let stream = BufReader::new(stream);
    let read = match method {
        Method::Deflate => flate2::bufread::DeflateDecoder::new(stream)
            .take(limit)
            .read_to_end(&mut out),
        Method::Gzip => flate2::bufread::MultiGzDecoder::new(stream)
            .take(limit)
            .read_to_end(&mut out),
        Method::Zlib => flate2::bufread::ZlibDecoder::new(stream)
            .take(limit)
            .read_to_end(&mut out),
    };
    let end = match read {
        Ok(_) => Ok(()),
        Err(error) => match error.downcast::<AnamnesisError>() {
            Ok(error) => Err(Failure::Read(error)),
            Err(error) => Err(Failure::Stream(error)),
        },
    };
    (out, end)
}

/// The bytes of a compressed stream.
struct Stream<'a> {
    file: &'a mut dyn ReadAt,
    at: u64,
    left: u64,
}

impl Read for Stream<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = (out.len() as u64).min(self.left) as usize;
        self.file
            .read_at(self.at, &mut out[..n])
            .map_err(io::Error::other)?;
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}
