//! NPZ archives and bare NPY files. Stored arrays are read in place, compressed ones as streams.

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

/// Reads a bare array, named after its file.
pub(super) fn read_npy(source: Source, path: Option<&Path>) -> Result<Contents> {
    let mut file = &source;
    let len = ReadAt::len(&file);
    let npy = read_header(&mut |at, out| file.read_at(at, out), len)?;
    let stem = path.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
    let name = stem.filter(|stem| !stem.is_empty()).unwrap_or_else(|| "array".to_owned());
    let mut contents = Contents::new(npy.header_len);
    add(&mut contents, name, &npy, len, 0, npy.header_len as u64, None)?;
    contents.sources.push(source);
    Ok(contents)
}

/// Reads an archive's arrays, in the order of its directory.
pub(super) fn read_archive(source: Source, archive: &Archive) -> Result<Contents> {
    let mut contents = Contents::new(0);
    let mut file = &source;
    let mut more = Vec::new();
    for member in archive.members.iter().filter(|m| m.name.ends_with(".npy")) {
        let name = member.name[..member.name.len() - 4].to_owned();
        let start = archive.data_start(&mut file, member)?;
        let named = |e: AnamnesisError| e.about(format_args!("array `{name}`"));
        let (npy, place) = if member.deflated {
            let deflated = deflated(&source, member, start);
            let npy = header_of_stream(&deflated).map_err(named)?;
            more.push(Source::Deflated(Box::new(deflated)));
            (npy, (more.len(), 0))
        } else {
            (read_header(&mut |at, out| file.read_at(start + at, out), member.len).map_err(named)?, (0, start))
        };
        contents.header_size += npy.header_len;
        let check = match member.deflated {
            true => None, // done by the stream
            false => {
                let mut header = vec![0; npy.header_len];
                file.read_at(start, &mut header)?;
                let crc_before = crc32fast::hash(&header);
                Some(Check { crc: member.crc, before: header.len() as u64, crc_before })
            }
        };
        let offset = place.1 + npy.header_len as u64;
        add(&mut contents, name, &npy, member.len, place.0, offset, check)?;
    }
    contents.sources.push(source);
    contents.sources.append(&mut more);
    Ok(contents)
}

fn deflated(source: &Source, member: &Member, start: u64) -> Deflated {
    let Member { stored_len, len, crc, .. } = *member;
    Deflated { base: source.share(), start, stored_len, len, crc, spool: OnceLock::new() }
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

fn header_of_stream(member: &Deflated) -> Result<Npy> {
    let (mut stream, mut at) = (member.stream(), 0);
    read_header(
        &mut |from, out| {
            debug_assert_eq!(from, at);
            at += out.len() as u64;
            stream.read_exact(out).map_err(|e| match e.kind() {
                std::io::ErrorKind::InvalidData
                | std::io::ErrorKind::InvalidInput
                | std::io::ErrorKind::UnexpectedEof => AnamnesisError::parse(e.to_string()),
                _ => AnamnesisError::Io(e),
            })
        },
        member.len,
    )
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
