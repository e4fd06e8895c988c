//! Blosc 1: chunks in blocks, which are shuffled and compressed each by itself.
//!
//! ```text
//! 1  version, 2       1  version of the compressor
//! 1  flags: 1 shuffled, 2 stored as it is, 4 bits shuffled, 16 not split; from bit 5 on the compressor
//! 1  bytes of an element
//! 4  length, 4  that of a block, 4  that of all this; then the offset of each block, 4 bytes, and the blocks
//! ```
//!
//! A block that is split has a part for each byte of an element. Each part has its length before it, and is stored as it is if that is
//! the length that it decompresses to.
//!
//! Formats: `README_CHUNK_FORMAT.rst` of c-blosc; `lz4_Block_format.md` of LZ4.

use std::io::Read;

use super::chunk_bytes::{broken, unreadable, unshuffled};
use super::zstd_decoder;
use crate::{AnamnesisError, Result};

const HEADER: usize = 16;

/// Parts of a block have at least so many bytes, and a block has at most so many parts.
const SHORTEST_PART: usize = 128;
const MOST_PARTS: usize = 16;

/// What Blosc has made `stored` of, which is `whole` bytes.
///
/// # Errors
/// `Parse` if it is malformed, or not that long; `Unsupported` for compressors that are not read.
pub(super) fn decoded(stored: &[u8], whole: usize) -> Result<Vec<u8>> {
    let malformed = || broken("is no chunk of Blosc");
    let head = stored.get(..HEADER).ok_or_else(malformed)?;
    let size = |at: usize| u32_at(head, at).map(|n| n as usize).ok_or_else(malformed);
    let (flags, element) = (head[2], usize::from(head[3]).max(1));
    let (len, block) = (size(4)?, size(8)?);
    if len != whole {
        return Err(broken(&format!("has {len} bytes in place of {whole}")));
    }
    if flags & 2 != 0 {
        let bytes = stored.get(HEADER..HEADER + len).ok_or_else(malformed)?;
        return Ok(bytes.to_vec());
    }
    // Each part takes a decoder of its own, so that short ones would take long.
    if block < SHORTEST_PART.min(len) || block == 0 {
        return Err(malformed());
    }
    let mut used = HEADER;
    let mut out = Vec::with_capacity(len);
    for number in 0..len.div_ceil(block) {
        let start = u32_at(stored, HEADER + 4 * number).ok_or_else(malformed)? as usize;
        let mut parts = stored.get(start..).ok_or_else(malformed)?;
        let here = block.min(len - out.len());
        let is_split = flags & 16 == 0
            && element <= MOST_PARTS
            && here / element >= SHORTEST_PART
            && here == block;
        let count = if is_split { element } else { 1 };
        let mut bytes = Vec::with_capacity(here);
        for _ in 0..count {
            let part_len = u32_at(parts, 0).ok_or_else(malformed)? as usize;
            let part = parts.get(4..).and_then(|rest| rest.get(..part_len));
            let part = part.ok_or_else(malformed)?;
            parts = &parts[4 + part.len()..];
            used += 4 + part.len();
            match here / count {
                len if len == part.len() => bytes.extend(part),
                len => decompress(flags >> 5, part, len, &mut bytes)?,
            }
        }
        // Parts that share bytes would make much of little.
        if bytes.len() != here || used > stored.len() {
            return Err(malformed());
        }
        out.extend(match flags {
            _ if flags & 1 != 0 => unshuffled(&bytes, element),
            _ if flags & 4 != 0 => bits_unshuffled(bytes, element),
            _ => bytes,
        });
    }
    Ok(out)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Appends the `len` bytes that a compressor has made `part` of.
fn decompress(compressor: u8, part: &[u8], len: usize, out: &mut Vec<u8>) -> Result<()> {
    let end = out.len() + len;
    let read = |mut decoder: Box<dyn Read + '_>, out: &mut Vec<u8>| {
        let read = decoder.by_ref().take(len as u64 + 1).read_to_end(out);
        read.map_err(|error| unreadable(&error))
    };
    match compressor {
        1 => lz4(part, end, out).ok_or_else(|| broken("is not compressed by LZ4"))?,
        3 => drop(read(Box::new(flate2::bufread::ZlibDecoder::new(part)), out)?),
        4 => {
            let decoder = zstd_decoder(part).map_err(|error| unreadable(&error))?;
            read(Box::new(decoder), out)?;
        }
        _ => {
            let what = "a compressor of Blosc besides lz4, zlib and zstd";
            return Err(AnamnesisError::unsupported("Zarr", what));
        }
    }
    match out.len() == end {
        true => Ok(()),
        false => Err(broken("has a block of another length")),
    }
}

/// Appends what LZ4 has made `block` of, until `out` has `end` bytes; `None` if it is malformed.
fn lz4(mut block: &[u8], end: usize, out: &mut Vec<u8>) -> Option<()> {
    let mut take = |n: usize| {
        let (now, rest) = block.split_at_checked(n)?;
        block = rest;
        Some(now)
    };
    // A length of 15 or more goes on in the next bytes, until one is not 255.
    fn long<'b>(n: u8, take: &mut impl FnMut(usize) -> Option<&'b [u8]>) -> Option<usize> {
        let mut len = usize::from(n);
        let mut more = if n == 15 { 255 } else { 0 };
        while more == 255 {
            more = *take(1)?.first()?;
            len = len.checked_add(more.into())?;
        }
        Some(len)
    }
    loop {
        let token = *take(1)?.first()?;
        let literals = long(token >> 4, &mut take)?;
        out.extend(take(literals)?);
        if out.len() >= end {
            return (out.len() == end).then_some(());
        }
        let back = take(2)?;
        let back = usize::from(u16::from_le_bytes([back[0], back[1]]));
        let len = long(token & 15, &mut take)? + 4;
        let from = out.len().checked_sub(back).filter(|_| back > 0)?;
        if len > end - out.len() {
            return None;
        }
        // It may reach into what it makes.
        for at in from..from + len {
            out.push(out[at]);
        }
    }
}

/// Elements of `size` bytes, of which the first bits come first: of eight elements in a byte.
fn bits_unshuffled(bytes: Vec<u8>, size: usize) -> Vec<u8> {
    let count = bytes.len() / size;
    if !count.is_multiple_of(8) || count == 0 {
        return bytes;
    }
    let mut out = bytes.clone();
    out[..count * size].fill(0);
    for (plane, bits) in bytes[..count * size].chunks_exact(count / 8).enumerate() {
        let (byte, bit) = (plane / 8, plane % 8);
        for element in 0..count {
            let is_set = bits[element / 8] >> (element % 8) & 1;
            out[element * size + byte] |= is_set << bit;
        }
    }
    out
}
