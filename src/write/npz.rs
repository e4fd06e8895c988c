//! Lays out NPZ files: stored members, each an NPY array whose header ends at a multiple of 64
//! bytes.
//!
//! All sizes are in ZIP64 fields, so that the layout does not depend on them. Checksums are entered
//! when the data has been written.
//!
//! Formats: PKWARE APPNOTE 6.3.10; NumPy `numpy/lib/format.py`, version 1.0.

use std::collections::HashSet;

use super::{ChecksumPatch, Framing, OutputEntry, OutputLayout, unusable_name};
use crate::error::InTensor;
use crate::{AnamnesisError, Dtype, Result};

/// NumPy's `descr` of a dtype; for floats that NumPy lacks, that of ml_dtypes. `None` if neither
/// has such a type.
pub(crate) fn descr(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::Bool => "|b1",
        Dtype::U8 => "|u1",
        Dtype::I8 => "|i1",
        Dtype::U16 => "<u2",
        Dtype::I16 => "<i2",
        Dtype::U32 => "<u4",
        Dtype::I32 => "<i4",
        Dtype::U64 => "<u8",
        Dtype::I64 => "<i8",
        Dtype::F16 => "<f2",
        Dtype::F32 => "<f4",
        Dtype::F64 => "<f8",
        Dtype::C64 => "<c8",
        Dtype::BF16 => "<V2",
        Dtype::F8E4M3 => "<V1",
        Dtype::F8E5M2 => "<f1",
        _ => return None,
    })
}

/// The NPY header of an array of `dtype`; `None` if NumPy has no such type.
#[must_use]
pub fn npy_header(dtype: Dtype, shape: &[usize]) -> Option<Vec<u8>> {
    Some(header(descr(dtype)?, shape))
}

/// The NPY header of an array. It is padded with spaces to a multiple of 64 bytes, as NumPy does
/// (`ARRAY_ALIGN`).
fn header(descr: &str, shape: &[usize]) -> Vec<u8> {
    let dims: String = shape.iter().map(|d| format!("{d}, ")).collect();
    let dims = if shape.len() == 1 {
        dims.trim_end()
    } else {
        dims.trim_end_matches(", ")
    };
    let mut text =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}").into_bytes();
    let prefix = if text.len() + 11 + 64 > usize::from(u16::MAX) {
        12
    } else {
        10
    };
    text.resize((text.len() + 1 + prefix).next_multiple_of(64) - prefix - 1, b' ');
    text.push(b'\n');
    let mut header = b"\x93NUMPY".to_vec();
    if prefix == 10 {
        header.extend([1, 0]);
        header.extend((text.len() as u16).to_le_bytes());
    } else {
        header.extend([2, 0]);
        header.extend((text.len() as u32).to_le_bytes());
    }
    header.extend(text);
    header
}

/// General purpose flag: the name is UTF-8.
const UTF8: u16 = 1 << 11;

/// ZIP version 4.5, the first with 64-bit sizes.
const VERSION: u16 = 45;

/// 1 January 1980, the earliest date of the format. A fixed date makes the output reproducible.
const DATE: u16 = 1 << 5 | 1;

/// Longest name of a member that is read back, in bytes.
const LONGEST_MEMBER: usize = 4096;

/// Ending of the names of members.
const ENDING: &str = ".npy";

/// Fails if NumPy would not find an array under its name, or a program that extracts the archive
/// would write a file outside of its directory.
///
/// # Errors
/// `Unsupported` that names the tensor.
pub(crate) fn check_names(entries: &[OutputEntry<'_>]) -> Result<()> {
    let names: HashSet<&str> = entries.iter().map(|e| e.name).collect();
    let flaw = |name: &str| {
        if name.contains('\0') {
            return Some("Python ends the name of a member at a NUL");
        }
        if name.contains('\\') {
            return Some("on Windows, Python reads a backslash in the name of a member as a slash");
        }
        let has_drive = name.as_bytes().get(1) == Some(&b':');
        if name.starts_with('/') || has_drive || name.split('/').any(|part| part == "..") {
            return Some("the member would be extracted outside of its directory");
        }
        if name.len() + ENDING.len() > LONGEST_MEMBER {
            return Some("its name is too long");
        }
        // `NpzFile` looks for a member of the name itself before it appends the ending.
        let shorter = name.strip_suffix(ENDING)?;
        let is_shadowed = names.contains(shorter);
        is_shadowed.then_some("NumPy would find the array without `.npy` in its name in its place")
    };
    let mut flaws = entries.iter().filter_map(|e| Some((e, flaw(e.name)?)));
    match flaws.next() {
        Some((e, why)) => Err(unusable_name("NPZ", e.name, why)),
        None => Ok(()),
    }
}

/// Lays out `entries` in their order, each as a member `NAME.npy`.
///
/// # Errors
/// `Unsupported` if NumPy has no such dtype, and for a name that [`check_names`] refuses; `Parse` if the size of
/// the file overflows.
pub(crate) fn layout(entries: &[OutputEntry<'_>]) -> Result<OutputLayout> {
    check_names(entries)?;
    let (mut pieces, mut offsets, mut patches) = (Vec::new(), Vec::new(), Vec::new());
    let (mut directory, mut crc_places) = (Vec::new(), Vec::new());
    let mut at = 0u64;
    let overflow = || AnamnesisError::parse("the output's size overflows");
    for e in entries {
        let Some(descr) = descr(e.dtype) else {
            let what = format!("{}: NumPy has no type {}", InTensor(&e.name), e.dtype);
            return Err(AnamnesisError::unsupported("writing NPZ", what));
        };
        let npy = header(descr, e.shape);
        let name = format!("{}{ENDING}", e.name);
        let Ok(name_len) = u16::try_from(name.len()) else {
            return Err(AnamnesisError::unsupported(
                "writing NPZ",
                format!("{}: its name is too long", InTensor(&e.name)),
            ));
        };
        let size = e.len.checked_add(npy.len() as u64).ok_or_else(overflow)?;
        let mut local = b"PK\x03\x04".to_vec();
        put(
            &mut local,
            &[VERSION, UTF8, 0, 0, DATE, 0, 0, 0xffff, 0xffff, 0xffff, 0xffff, name_len, 20],
        );
        local.extend(name.as_bytes());
        put(&mut local, &[1, 16]);
        local.extend([size.to_le_bytes(), size.to_le_bytes()].concat());
        directory.extend(b"PK\x01\x02");
        put(&mut directory, &[VERSION, VERSION, UTF8, 0, 0, DATE]);
        crc_places.push(directory.len() as u64);
        put(
            &mut directory,
            &[0, 0, 0xffff, 0xffff, 0xffff, 0xffff, name_len, 28, 0, 0, 0, 0, 0, 0xffff, 0xffff],
        );
        directory.extend(name.as_bytes());
        put(&mut directory, &[1, 24]);
        directory.extend([size.to_le_bytes(), size.to_le_bytes(), at.to_le_bytes()].concat());
        patches.push(ChecksumPatch {
            places: [at + 14, 0],
            before: (npy.len() as u64, crc32fast::hash(&npy)),
        });
        local.extend(npy);
        let data = at + local.len() as u64;
        offsets.push(data);
        pieces.push((at, local));
        at = data.checked_add(e.len).ok_or_else(overflow)?;
    }
    for (patch, place) in patches.iter_mut().zip(crc_places) {
        patch.places[1] = at + place;
    }
    let end = end_records(entries.len() as u64, directory.len() as u64, at);
    directory.extend(end);
    let file_len = at
        .checked_add(directory.len() as u64)
        .ok_or_else(overflow)?;
    pieces.push((at, directory));
    Ok(OutputLayout { framing: Framing::Pieces(pieces), offsets, file_len, patches })
}

/// The end records: ZIP64, its locator, and the plain one, whose fields all point to the 64-bit
/// record. The directory has `entries` members and `len` bytes, and begins at offset `at`.
fn end_records(entries: u64, len: u64, at: u64) -> Vec<u8> {
    let mut out = b"PK\x06\x06".to_vec();
    out.extend(44u64.to_le_bytes());
    put(&mut out, &[VERSION, VERSION, 0, 0, 0, 0]);
    out.extend([entries, entries, len, at].map(u64::to_le_bytes).concat());
    out.extend(b"PK\x06\x07\0\0\0\0");
    out.extend((at + len).to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend(b"PK\x05\x06");
    put(&mut out, &[0, 0, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0]);
    out
}

/// Appends 16-bit fields. A 32-bit field takes two words, the low one first.
fn put(out: &mut Vec<u8>, words: &[u16]) {
    words.iter().for_each(|word| out.extend(word.to_le_bytes()));
}
