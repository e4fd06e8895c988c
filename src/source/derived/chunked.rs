//! [`ChunkedTensor`]: a tensor in chunks, which are rectangles of equal sizes and may be compressed.
//! The first read writes all of it into an unnamed temporary file, chunk by chunk.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::sync::OnceLock;

use super::chunk_bytes::{broken, unreadable, unshuffled};
use crate::limits::cap;
use crate::source::Source;
use crate::source::deflated::RangeReader;
use crate::source::platform::read_exact_at;
use crate::{AnamnesisError, Result};

/// Bytes that are read and written at once.
const PIECE: usize = 64 << 10;

/// What was done to the bytes of a chunk when it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkFilter {
    /// Compressed by zlib.
    Deflate,
    /// The first bytes of all elements of that size lie before the second ones, and so on.
    #[cfg_attr(not(feature = "hdf5"), allow(dead_code))]
    Shuffle(usize),
    /// A checksum lies behind them.
    #[cfg_attr(not(feature = "hdf5"), allow(dead_code))]
    Fletcher32,
    /// Compressed by gzip.
    #[cfg(feature = "zarr")]
    Gzip,
    /// Compressed by Zstandard.
    #[cfg(feature = "zarr")]
    Zstd,
    /// A CRC-32C lies behind them.
    #[cfg(feature = "zarr")]
    Crc32c,
    /// In blocks of Blosc.
    #[cfg(feature = "zarr")]
    Blosc,
}

impl ChunkFilter {
    /// Whether bytes are decoded one after another, without holding them all.
    pub(crate) fn is_stream(self) -> bool {
        match self {
            Self::Deflate => true,
            #[cfg(feature = "zarr")]
            Self::Gzip | Self::Zstd => true,
            _ => false,
        }
    }

    /// What a compressor has made `compressed` of. Only for [streams](Self::is_stream).
    fn decoder<'a>(self, compressed: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            #[cfg(feature = "zarr")]
            Self::Gzip => Box::new(flate2::bufread::GzDecoder::new(compressed)),
            #[cfg(feature = "zarr")]
            Self::Zstd => Box::new(super::zstd_decoder(compressed)?),
            _ => Box::new(flate2::bufread::ZlibDecoder::new(compressed)),
        })
    }
}

/// Most pieces that the chunks of a tensor are written in, besides one for each [`BYTES_OF_RUN`] bytes:
/// rows of a chunk that are short take long.
const FREE_RUNS: u64 = 1 << 20;
const BYTES_OF_RUN: u64 = 64;

/// Checks that writing the chunks of a tensor of `len` bytes takes no longer than its data lets expect.
///
/// # Errors
/// `LimitExceeded` if their rows are too many.
pub(crate) fn check_runs(shape: &[u64], chunk: &[u64], len: u64) -> Result<()> {
    let Some(last) = shape.len().checked_sub(1) else {
        return Ok(());
    };
    let mut first = last;
    while first > 0 && shape[first] == chunk[first] {
        first -= 1;
    }
    let rows = shape[..first]
        .iter()
        .fold(1u64, |n, &size| n.saturating_mul(size));
    let runs = rows.saturating_mul(shape[first].div_ceil(chunk[first]));
    let most = FREE_RUNS.saturating_add(len / BYTES_OF_RUN);
    cap("MAX_CHUNK_ROWS", runs, most, "rows of chunks, which are short")
}

/// Where a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkPlace {
    /// Its number among all chunks, in row-major order.
    pub number: u64,
    pub offset: u64,
    /// Bytes that are stored.
    pub len: u64,
    /// A bit for each filter that was left out.
    pub mask: u32,
}

/// A tensor in chunks.
#[derive(Debug)]
pub(crate) struct ChunkedTensor {
    pub base: Source,
    /// Sizes of the tensor, in elements; it has at least one dimension.
    pub shape: Vec<u64>,
    /// Sizes of a chunk, in elements.
    pub chunk: Vec<u64>,
    /// Bytes of an element.
    pub size: u64,
    /// Those that were written, in order.
    pub chunks: Vec<ChunkPlace>,
    pub filters: Vec<ChunkFilter>,
    /// Whether chunks that reach over the end are not filtered.
    pub keeps_partial: bool,
    /// The element where nothing was written; empty: zeros.
    pub fill: Vec<u8>,
    /// The tensor in a file without a name, or why it could not be made.
    pub spool: OnceLock<std::result::Result<File, (io::ErrorKind, String)>>,
}

impl ChunkedTensor {
    pub(super) fn len(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.size
    }

    /// Whether some chunks were not written.
    #[cfg(feature = "zarr")]
    pub(crate) fn lacks_chunks(&self) -> bool {
        let grid = self.shape.iter().zip(&self.chunk);
        let count = grid.fold(1u64, |n, (len, chunk)| n.saturating_mul(len.div_ceil(*chunk)));
        count != self.chunks.len() as u64
    }

    pub(super) fn base(&self) -> &Source {
        &self.base
    }

    /// Fills `out` with the tensor's bytes from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let make = || {
            self.make_spool().map_err(|error| match error {
                AnamnesisError::Io(error) => (error.kind(), error.to_string()),
                other => (io::ErrorKind::InvalidData, other.to_string()),
            })
        };
        match self.spool.get_or_init(make) {
            Ok(file) => read_exact_at(file, offset, out).map_err(Into::into),
            Err((kind, what)) => Err(io::Error::new(*kind, what.clone()).into()),
        }
    }

    fn make_spool(&self) -> Result<File> {
        let mut file = tempfile::tempfile()?;
        let is_zero = self.fill.iter().all(|&byte| byte == 0);
        match is_zero {
            true => file.set_len(self.len())?,
            false => self.write_fill(&mut file)?,
        }
        for chunk in &self.chunks {
            match self.stream(chunk)? {
                Some(mut bytes) => self.write_chunk(&mut file, chunk.number, &mut *bytes)?,
                None => {
                    let bytes = self.decode(chunk)?;
                    self.write_chunk(&mut file, chunk.number, &mut bytes.as_slice())?;
                }
            }
        }
        Ok(file)
    }

    /// The bytes of a chunk one after another, if its filters allow it.
    fn stream(&self, chunk: &ChunkPlace) -> Result<Option<Box<dyn Read + '_>>> {
        if chunk.mask != 0 || self.keeps_partial {
            return Ok(None);
        }
        let stored = RangeReader { source: &self.base, at: chunk.offset, left: chunk.len };
        let decoded: Box<dyn Read> = match self.filters.as_slice() {
            [] => Box::new(stored),
            [only] if only.is_stream() => {
                let decoder = only.decoder(BufReader::with_capacity(PIECE, stored));
                decoder.map_err(|error| unreadable(&error))?
            }
            _ => return Ok(None),
        };
        Ok(Some(decoded))
    }

    fn write_fill(&self, file: &mut File) -> Result<()> {
        let piece = self.fill.repeat(((64 << 10) / self.fill.len()).max(1));
        let mut left = self.len();
        while left > 0 {
            let n = left.min(piece.len() as u64) as usize;
            file.write_all(&piece[..n])?;
            left -= n as u64;
        }
        Ok(())
    }

    /// First element of a chunk in each dimension.
    fn start_of(&self, mut number: u64) -> Vec<u64> {
        let mut start = vec![0; self.shape.len()];
        for (d, at) in start.iter_mut().enumerate().rev() {
            let count = self.shape[d].div_ceil(self.chunk[d]).max(1);
            (*at, number) = (number % count * self.chunk[d], number / count);
        }
        start
    }

    /// The bytes of a chunk, as its elements have them.
    fn decode(&self, chunk: &ChunkPlace) -> Result<Vec<u8>> {
        let whole = (self.chunk.iter().product::<u64>() * self.size) as usize;
        let mut bytes = vec![0; chunk.len as usize];
        self.base.read_at(chunk.offset, &mut bytes)?;
        let start = self.start_of(chunk.number);
        let is_partial = (0..start.len()).any(|d| start[d] + self.chunk[d] > self.shape[d]);
        if !(is_partial && self.keeps_partial) {
            for (number, filter) in self.filters.iter().enumerate().rev() {
                if chunk.mask >> number.min(31) & 1 == 0 {
                    bytes = undo(*filter, bytes, whole)?;
                }
            }
        }
        match bytes.len() == whole {
            true => Ok(bytes),
            false => Err(broken(&format!("has {} bytes in place of {whole}", bytes.len()))),
        }
    }

    /// Writes the elements of a chunk, which `bytes` has one after another, to their places. What lies over the end is dropped.
    ///
    /// # Errors
    /// `Parse` if there are fewer or more than a chunk has; `Io`.
    fn write_chunk(&self, file: &mut File, number: u64, bytes: &mut dyn Read) -> Result<()> {
        let (start, rank) = (self.start_of(number), self.shape.len());
        let kept: Vec<u64> = (0..rank)
            .map(|d| self.chunk[d].min(self.shape[d] - start[d]))
            .collect();
        // Dimensions whose elements follow each other in the chunk and in the tensor.
        let is_whole = |d: usize| kept[d] == self.shape[d] && kept[d] == self.chunk[d];
        let mut first = rank - 1;
        while first > 0 && is_whole(first) {
            first -= 1;
        }
        let inner = self.chunk[first + 1..].iter().product::<u64>() * self.size;
        let (run, row) = (kept[first] * inner, self.chunk[first] * inner);
        let mut piece = vec![0; row.min(PIECE as u64) as usize];
        let mut index = vec![0u64; first];
        loop {
            let mut to = 0;
            for (d, first) in start.iter().enumerate() {
                to = to * self.shape[d] + first + index.get(d).copied().unwrap_or(0);
            }
            let is_kept = index.iter().zip(&kept).all(|(at, kept)| at < kept);
            let end = if is_kept { run } else { 0 };
            file.seek(SeekFrom::Start(to * self.size))?;
            let mut done = 0;
            while done < row {
                let n = (row - done).min(piece.len() as u64);
                let piece = &mut piece[..n as usize];
                bytes
                    .read_exact(piece)
                    .map_err(|error| unreadable(&error))?;
                let n_kept = end.saturating_sub(done).min(n);
                file.write_all(&piece[..n_kept as usize])?;
                done += n;
            }
            // The next row.
            let next = (0..first).rev().find(|&d| index[d] + 1 < self.chunk[d]);
            let Some(next) = next else {
                break;
            };
            index[next] += 1;
            index[next + 1..].fill(0);
        }
        match bytes.read(&mut [0]).map_err(|error| unreadable(&error))? {
            0 => Ok(()),
            _ => Err(broken("has more bytes than it should have")),
        }
    }
}

/// What a filter has made `bytes` of. `whole` is the length of a chunk.
fn undo(filter: ChunkFilter, mut bytes: Vec<u8>, whole: usize) -> Result<Vec<u8>> {
    match filter {
        stream if stream.is_stream() => {
            // Room for a checksum, and a byte to notice what is longer.
            let mut out = Vec::new();
            let decoder = stream.decoder(bytes.as_slice());
            let read = decoder.and_then(|decoder| {
                let most = whole as u64 + 5;
                decoder.take(most).read_to_end(&mut out)
            });
            read.map_err(|error| unreadable(&error))?;
            Ok(out)
        }
        ChunkFilter::Shuffle(size) => Ok(unshuffled(&bytes, size)),
        ChunkFilter::Fletcher32 => {
            let stored = bytes.split_off(bytes.len().saturating_sub(4));
            match fletcher32(&bytes).to_le_bytes() == *stored {
                true => Ok(bytes),
                false => Err(broken("has the wrong checksum")),
            }
        }
        #[cfg(feature = "zarr")]
        ChunkFilter::Crc32c => {
            let stored = bytes.split_off(bytes.len().saturating_sub(4));
            match crate::crc32c::crc32c(&bytes).to_le_bytes() == *stored {
                true => Ok(bytes),
                false => Err(broken("has the wrong checksum")),
            }
        }
        #[cfg(feature = "zarr")]
        ChunkFilter::Blosc => super::blosc::decoded(&bytes, whole),
        // What decodes in a stream is above.
        _ => Ok(bytes),
    }
}

/// The checksum that HDF5 computes over numbers of two bytes, the most significant first.
fn fletcher32(bytes: &[u8]) -> u32 {
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut low, mut high) = (0u32, 0u32);
    for block in bytes.chunks(720) {
        for two in block.chunks(2) {
            let second = two.get(1).copied().unwrap_or(0);
            low += u32::from(two[0]) << 8 | u32::from(second);
            high += low;
        }
        (low, high) = (fold(low), fold(high));
    }
    fold(high) << 16 | fold(low)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn chunks_that_reach_over_the_end() {
        // Chunks of two rows and three columns of a matrix of three rows and four columns.
        let chunk = |number, offset| ChunkPlace { number, offset, len: 6, mask: 0 };
        let stored: Vec<u8> = vec![1, 2, 3, 5, 6, 7, 4, 0, 0, 8, 0, 0, 9, 10, 11, 0, 0, 0];
        let tensor = ChunkedTensor {
            base: Source::Bytes(Arc::new(stored)),
            shape: vec![3, 4],
            chunk: vec![2, 3],
            size: 1,
            chunks: vec![chunk(0, 0), chunk(1, 6), chunk(2, 12)],
            filters: vec![],
            keeps_partial: false,
            fill: vec![77],
            spool: OnceLock::new(),
        };
        let mut out = [0; 12];
        tensor.read_at(0, &mut out).unwrap();
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 77]);
        assert!(tensor.read_at(11, &mut [0; 2]).is_err());
    }

    #[test]
    fn filters() {
        assert_eq!(unshuffled(&[1, 3, 5, 2, 4, 6, 7], 2), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(unshuffled(&[1, 2], 0), [1, 2]);
        // Values of H5_checksum_fletcher32.
        assert_eq!(fletcher32(&[]), 0);
        assert_eq!(fletcher32(&[1, 2, 3]), 0x0504_0402);
    }
}
