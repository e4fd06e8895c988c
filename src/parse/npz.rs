//! NPZ archives (ZIP files of NPY arrays) and bare NPY files. Stored arrays are read in place,
//! compressed ones as streams.

use std::collections::HashSet;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::npy::{self, NpyHeader};
#[cfg(feature = "pth")]
use super::pth::{ObjectArray, add_arrays};
use super::read_at::ReadAt;
use super::zip::{ZipArchive, ZipMember};
pub use crate::compat::npz::{
    NpzDtype, NpzInspectInfo, NpzTensor, NpzTensorInfo, inspect_npz, inspect_npz_from_reader,
    inspect_npz_from_reader_with_limits, inspect_npz_with_limits, npz_to_safetensors,
    npz_to_safetensors_bytes, parse_npz, parse_npz_bytes, parse_npz_bytes_with_limits,
    parse_npz_with_limits,
};
use crate::limits::Budget;
#[cfg(feature = "pth")]
use crate::model::is_malformed;
use crate::model::{Check, Skipped, TensorInfo};
use crate::source::{Deflated, Source};
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Reads a bare NPY file. The array has no name in it; its tensor is called `tensor`.
pub(super) fn read_npy(
    source: Source,
    _path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let base = source.share();
    let mut file = &base;
    let len = ReadAt::len(&file);
    budget.items(1, "array")?;
    let npy = read_header(&mut file, 0, len, budget)?.0;
    let mut contents = ParsedModel::new(Container::Npy, npy.header_len);
    contents.sources.push(source);
    let place = npy.header_len as u64..len;
    if !add_objects(&mut contents, "", &npy, (&mut file, place), None, budget)? {
        add(&mut contents, "tensor".to_owned(), &npy, len, 0, npy.header_len as u64, None)
            .map_err(|e| e.about("array `tensor`"))?;
    }
    Ok(contents)
}

/// Reads the headers of an archive that must be NPZ from `file`, without a source of data.
///
/// # Errors
/// `Unsupported` if it is another archive; those of [`read_archive`].
pub(crate) fn read_front(file: &mut dyn ReadAt, budget: &Budget) -> Result<ParsedModel> {
    let archive = ZipArchive::read(file, budget)?;
    archive.check_format(Container::Npz)?;
    read_archive(&Source::HeaderOnly, file, &archive, budget)
}

/// Reads the headers of an archive's arrays from `file`, in the order of the directory. `source` is
/// where the tensors' data will be read from.
///
/// # Errors
/// `Parse` if the archive or an array is malformed; `Unsupported`; `LimitExceeded`; `Io`.
pub(super) fn read_archive(
    source: &Source,
    file: &mut dyn ReadAt,
    archive: &ZipArchive,
    budget: &Budget,
) -> Result<ParsedModel> {
    let mut contents = ParsedModel::new(Container::Npz, 0);
    contents.sources.push(source.share());
    let (mut names, mut others) = (HashSet::new(), Vec::new());
    for member in archive.members.iter().filter(|m| !m.name.ends_with('/')) {
        let name = member.name.strip_suffix(".npy").unwrap_or(&member.name);
        if !names.insert(name) {
            return Err(AnamnesisError::parse(format!(
                "array `{name}` is in the archive with and without `.npy`"
            )));
        }
        let is_array = read_member(source, file, (archive, budget), member, name, &mut contents);
        if !is_array.map_err(|e| e.about(format_args!("array `{name}`")))? {
            others.push(member.name.as_str());
        }
    }
    if let [first, ..] = others.as_slice() {
        let n = others.len();
        contents
            .notes
            .push(format!("{n} members of the archive are no arrays, e.g. `{first}`"));
    }
    Ok(contents)
}

/// A compressed member by itself, and how many bytes are stored.
type CompressedMember = (Arc<[Source]>, u64);

/// Adds a member if it is an array, and says whether it is. A member that is not named like an
/// array may be anything else; one that is must be an array.
fn read_member(
    source: &Source,
    file: &mut dyn ReadAt,
    (archive, budget): (&ZipArchive, &Budget),
    member: &ZipMember,
    name: &str,
    contents: &mut ParsedModel,
) -> Result<bool> {
    let start = archive.read_data_start(file, member)?;
    // Of a compressed array, the beginning is decompressed, as far as a header can reach.
    let mut head = Vec::new();
    if member.deflated {
        let mut stored = vec![0; member.stored_len.min(HEAD_BYTES) as usize];
        file.read_at(start, &mut stored)?;
        head = inflate_head(&stored);
    }
    if !member.name.ends_with(".npy") {
        let mut magic = [0; 6];
        match member.deflated {
            true => magic.iter_mut().zip(&head).for_each(|(m, &b)| *m = b),
            false if member.len >= 6 => file.read_at(start, &mut magic)?,
            false => {}
        }
        if magic != *b"\x93NUMPY" {
            return Ok(false);
        }
    }
    if member.deflated {
        let npy = read_header(&mut head.as_slice(), 0, head.len() as u64, budget)?.0;
        contents.header_size += npy.header_len;
        if npy.header_len as u64 > member.len {
            return Err(AnamnesisError::parse("its header is longer than it is"));
        }
        let deflated = || deflated_source(source, member, start);
        let (all, offset): (Arc<[Source]>, _) = ([deflated()].into(), npy.header_len as u64);
        let (place, part) = (offset..member.len, Some((all.clone(), member.stored_len)));
        // Where only headers are read, there is nothing to decompress.
        if source.len().is_some()
            && add_objects(contents, name, &npy, (&mut &all[0], place), part, budget)?
        {
            return Ok(true);
        }
        contents.sources.push(deflated());
        let index = contents.sources.len() - 1;
        add(contents, name.to_owned(), &npy, member.len, index, offset, None)?;
    } else {
        let (npy, header) = read_header(file, start, member.len, budget)?;
        contents.header_size += npy.header_len;
        let before = (header.len() as u64, crc32fast::hash(&header));
        let (start, len) = (start + before.0, member.len - before.0);
        if add_objects(contents, name, &npy, (file, start..start + len), None, budget)? {
            return Ok(true);
        }
        add(
            contents,
            name.to_owned(),
            &npy,
            member.len,
            0,
            start,
            Some(Box::new(Check { crc: member.crc, start, len, before })),
        )?;
    }
    Ok(true)
}

/// Bytes that are decompressed for a header, and compressed bytes that are read for it. Headers
/// have at most 10 000 bytes, and deflate stores incompressible data with little overhead.
const HEAD_BYTES: u64 = 16 << 10;

/// Decompresses the beginning of a member, up to [`HEAD_BYTES`]. Errors are ignored: the member's
/// stream reports them when it is read as a whole.
fn inflate_head(stored: &[u8]) -> Vec<u8> {
    let mut out = vec![0; HEAD_BYTES as usize];
    let mut decoder = flate2::bufread::DeflateDecoder::new(stored);
    let mut n = 0;
    while n < out.len() {
        match decoder.read(&mut out[n..]) {
            Ok(0) | Err(_) => break,
            Ok(more) => n += more,
        }
    }
    out.truncate(n);
    out
}

/// The source of a compressed member's decompressed bytes.
fn deflated_source(source: &Source, member: &ZipMember, start: u64) -> Source {
    let ZipMember { stored_len, len, crc, .. } = *member;
    Source::Deflated(Box::new(Deflated {
        base: source.share(),
        start,
        stored_len,
        len,
        crc,
        spool: OnceLock::new(),
    }))
}

/// Reads the header of an array that takes `len` bytes from `start` on. Returns it parsed and as
/// bytes.
fn read_header(
    file: &mut dyn ReadAt,
    start: u64,
    len: u64,
    budget: &Budget,
) -> Result<(NpyHeader, Vec<u8>)> {
    let mut header = vec![0; len.min(npy::FIRST_READ as u64) as usize];
    file.read_at(start, &mut header)?;
    let header_len = npy::header_len(&header)?;
    if header_len as u64 > len {
        return Err(AnamnesisError::parse(format!(
            "its header of {header_len} bytes is longer than it is"
        )));
    }
    budget.alloc(header_len as u64, "an NPY header")?;
    let have = header.len().min(header_len);
    header.resize(header_len, 0);
    file.read_at(start + have as u64, &mut header[have..])?;
    Ok((npy::parse(&header)?, header))
}

/// Adds what an array of objects holds, whose pickle is at `place` of `file`, which may be a
/// compressed member. Says whether it did: a pickle of anything but arrays in dicts and lists is
/// left to [`add`].
///
/// # Errors
/// `Parse` if the member is malformed; `LimitExceeded`; `Io`.
#[cfg(feature = "pth")]
fn add_objects(
    contents: &mut ParsedModel,
    name: &str,
    npy: &NpyHeader,
    (file, place): (&mut dyn ReadAt, Range<u64>),
    member: Option<CompressedMember>,
    budget: &Budget,
) -> Result<bool> {
    let is_deflated = member.is_some();
    // A member lies in a temporary file, of which there are none on WebAssembly.
    if !npy.holds_objects() || is_deflated && cfg!(target_family = "wasm") {
        return Ok(false);
    }
    let had = (contents.tensors.len(), contents.skipped.len(), contents.sources.len());
    let array = ObjectArray { name, is_scalar: npy.shape.is_empty(), member };
    let added = add_arrays(file, place, &array, contents, budget);
    match added {
        Ok(header) if contents.tensors.len() > had.0 => {
            contents.header_size += header;
            let what = "an array of objects, which is a pickle: no code in it is run";
            contents.notes.push(match name {
                "" => what.to_owned(),
                name => format!("array `{name}`: {what}"),
            });
            return Ok(true);
        }
        Err(AnamnesisError::Io(e))
            if is_malformed(&e) || is_deflated && e.kind() == std::io::ErrorKind::UnexpectedEof =>
        {
            return Err(AnamnesisError::parse(e.to_string()));
        }
        Err(error @ (AnamnesisError::LimitExceeded { .. } | AnamnesisError::Io(_))) => {
            return Err(error);
        }
        _ => {}
    }
    contents.tensors.truncate(had.0);
    contents.skipped.truncate(had.1);
    contents.sources.truncate(had.2);
    Ok(false)
}

/// Arrays of objects are read by the reader of pickles.
#[cfg(not(feature = "pth"))]
fn add_objects(
    _contents: &mut ParsedModel,
    _name: &str,
    _npy: &NpyHeader,
    _place: (&mut dyn ReadAt, Range<u64>),
    _member: Option<CompressedMember>,
    _budget: &Budget,
) -> Result<bool> {
    Ok(false)
}

/// Adds an array of `len` bytes, header included, whose data is at `offset` of source number
/// `source`. One that no tensor can hold goes to `skipped`. Errors do not name the array: the
/// caller does, for all errors of a member.
///
/// # Errors
/// `Parse` if the data has another length than the header says.
fn add(
    contents: &mut ParsedModel,
    name: String,
    npy: &NpyHeader,
    len: u64,
    source: usize,
    offset: u64,
    check: Option<Box<Check>>,
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
    let Some(data) = npy.data_len() else {
        let (dtype, shape) = (elements.dtype, &npy.shape);
        let what = format!("its size overflows ({dtype} {shape:?})");
        return Err(AnamnesisError::parse(what));
    };
    let data = data as u64;
    if data != have {
        let (dtype, shape) = (elements.dtype, &npy.shape);
        let what = format!("{have} bytes of data where its header says {data} ({dtype} {shape:?})");
        return Err(AnamnesisError::parse(what));
    }
    contents.tensors.push(TensorInfo {
        name: name.into(),
        dtype: elements.dtype,
        shape: npy.shape.as_slice().into(),
        source,
        offset,
        len: data,
        strides: npy.strides().map(|strides| Box::new(strides.into())),
        big_endian: elements.big_endian,
        check,
    });
    Ok(())
}
