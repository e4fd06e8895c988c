//! NPZ archives and bare NPY files. Stored arrays are read in place, compressed ones as streams.

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use super::Contents;
use super::npy::{self, Npy};
use super::read_at::ReadAt;
use super::zip::{Archive, Member};
use crate::model::{Check, Skipped, TensorInfo};
use crate::source::{Deflated, Source};
use crate::{AnamnesisError, Result};

/// Whether an archive's members are arrays.
pub(super) fn is_npz(archive: &Archive) -> bool {
    archive.members.iter().any(|m| m.name.ends_with(".npy"))
}

/// Reads a bare array, which has no name.
pub(super) fn read_npy(source: Source, _path: Option<&Path>) -> Result<Contents> {
    let len = source.len().unwrap_or(0);
    let npy = read_header(&mut |at, out| (&source).read_at(at, out), len)?;
    let mut contents = Contents::new(npy.header_len);
    add(&mut contents, "tensor".to_owned(), &npy, len, 0, npy.header_len as u64, None)?;
    contents.sources.push(source);
    Ok(contents)
}

/// Reads an archive's arrays, in the order of its directory.
pub(super) fn read_archive(source: Source, archive: &Archive) -> Result<Contents> {
    let mut contents = Contents::new(0);
    contents.sources.push(source.share());
    let (mut names, mut others) = (HashSet::new(), Vec::new());
    for member in archive.members.iter().filter(|m| !m.name.ends_with('/')) {
        let name = member.name.strip_suffix(".npy").unwrap_or(&member.name);
        if !names.insert(name) {
            return Err(AnamnesisError::parse(format!("array `{name}` is in the archive with and without `.npy`")));
        }
        if !read_member(&source, archive, member, name, &mut contents)
            .map_err(|e| e.about(format_args!("array `{name}`")))?
        {
            others.push(member.name.as_str());
        }
    }
    if let [first, ..] = others.as_slice() {
        let n = others.len();
        contents.notes.push(format!("{n} members of the archive are no arrays, e.g. `{first}`"));
    }
    Ok(contents)
}

/// Adds a member if it is an array. One that is not named like an array need not be one.
fn read_member(
    source: &Source,
    archive: &Archive,
    member: &Member,
    name: &str,
    contents: &mut Contents,
) -> Result<bool> {
    let mut file = source;
    let start = archive.data_start(&mut file, member)?;
    let place = if member.deflated { deflated(source, member, start) } else { source.share() };
    let base = if member.deflated { 0 } else { start };
    let mut stream = if let Source::Deflated(member) = &place { Some(member.stream()) } else { None };
    let mut read = |at: u64, out: &mut [u8]| match &mut stream {
        // Headers are read from the beginning on, without going back.
        Some(stream) => stream.read_exact(out).map_err(malformed),
        None => file.read_at(start + at, out),
    };
    if !member.name.ends_with(".npy") {
        let mut magic = [0; 6];
        if member.len < 6 || member.deflated {
            return Ok(false);
        }
        read(0, &mut magic)?;
        if magic != *b"\x93NUMPY" {
            return Ok(false);
        }
    }
    let npy = read_header(&mut read, member.len)?;
    drop(stream);
    contents.header_size += npy.header_len;
    let mut check = None;
    if !member.deflated {
        let mut header = vec![0; npy.header_len];
        file.read_at(start, &mut header)?;
        let (start, len) = (start + npy.header_len as u64, member.len - npy.header_len as u64);
        let before = (header.len() as u64, crc32fast::hash(&header));
        check = Some(Check { crc: member.crc, start, len, before });
    }
    let index = if member.deflated { contents.sources.len() } else { 0 };
    if member.deflated {
        contents.sources.push(place);
    }
    add(contents, name.to_owned(), &npy, member.len, index, base + npy.header_len as u64, check)?;
    Ok(true)
}

/// An error of a decompressor is about the data.
fn malformed(e: std::io::Error) -> AnamnesisError {
    use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    match e.kind() {
        InvalidData | InvalidInput | UnexpectedEof => AnamnesisError::parse(e.to_string()),
        _ => AnamnesisError::Io(e),
    }
}

fn deflated(source: &Source, member: &Member, start: u64) -> Source {
    let Member { stored_len, len, crc, .. } = *member;
    Source::Deflated(Box::new(Deflated { base: source.share(), start, stored_len, len, crc, spool: OnceLock::new() }))
}

/// Reads the header of an array of `len` bytes.
fn read_header(read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>, len: u64) -> Result<Npy> {
    let mut header = vec![0; len.min(npy::FIRST as u64) as usize];
    read(0, &mut header)?;
    let header_len = npy::header_len(&header)?;
    if header_len as u64 > len {
        return Err(AnamnesisError::parse(format!("its header of {header_len} bytes is longer than it is")));
    }
    let have = header.len().min(header_len);
    header.resize(header_len, 0);
    read(have as u64, &mut header[have..])?;
    npy::parse(&header)
}

/// Adds an array of `len` bytes, header included, whose data is at `offset` of source `source`.
fn add(
    contents: &mut Contents,
    name: String,
    npy: &Npy,
    len: u64,
    source: usize,
    offset: u64,
    check: Option<Check>,
) -> Result<()> {
    let elements = match &npy.kind {
        Ok(elements) => *elements,
        Err(what) => {
            contents.skipped.push(Skipped { name, what: what.clone() });
            return Ok(());
        }
    };
    if npy.is_guess() {
        let what = "one-byte elements of ml_dtypes, which has several such types: read as F8_E4M3";
        contents.notes.push(format!("array `{name}`: {what}"));
    }
    let have = len - npy.header_len as u64;
    let data = npy.data_len().unwrap_or(usize::MAX) as u64;
    if data != have {
        let (dtype, shape) = (elements.dtype, &npy.shape);
        let what = format!("array `{name}` ({dtype} {shape:?}): {have} bytes of data where its header says {data}");
        return Err(AnamnesisError::parse(what));
    }
    contents.tensors.push(TensorInfo {
        name,
        dtype: elements.dtype,
        shape: npy.shape.clone(),
        source,
        offset,
        len: data,
        strides: npy.strides(),
        big_endian: elements.big_endian,
        check,
    });
    Ok(())
}
