//! Lays out NPZ files: stored members, each an NPY array whose header ends at a multiple of 64
//! bytes.
//!
//! Format: NumPy `numpy/lib/format.py`, version 1.0.

use std::collections::HashSet;

use super::zip::{ArchiveLayout, StoredMember};
use super::{OutputEntry, OutputLayout, unusable_name};
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
    let mut archive = ArchiveLayout::default();
    for e in entries {
        let Some(head) = npy_header(e.dtype, e.shape) else {
            let what = format!("{}: NumPy has no type {}", InTensor(&e.name), e.dtype);
            return Err(AnamnesisError::unsupported("writing NPZ", what));
        };
        let name = format!("{}{ENDING}", e.name);
        archive.add(StoredMember { name, head, data: Some(e.len) }, 1)?;
    }
    archive.finish()
}
