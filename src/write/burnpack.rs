//! Lays out Burnpack files: a description of the tensors in CBOR, in the order of their names, and their data at multiples of 256
//! bytes.
//!
//! Format: `burn-pack` 0.23, `base.rs` and `writer.rs`.

use super::{OutputEntry, OutputLayout, no_such_type, unusable_name};
use crate::dtype::burn::burn_name;
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Dtype, Result};

/// The magic and the version.
const HEAD: &[u8; 6] = b"NRUB\x01\0";

/// Bytes before the description.
const PREFIX: u64 = 10;

/// Alignment in bytes of the data of each tensor.
const ALIGN: u64 = 256;

/// Most tensors, longest description and longest name that are read back.
const MOST_TENSORS: usize = 100_000;
const LONGEST_DESCRIPTION: u64 = 100 << 20;
const LONGEST_NAME: usize = 65_535;

/// Whether Burn has a type for the elements of `dtype`.
pub(crate) fn holds(dtype: Dtype) -> bool {
    dtype == Dtype::Bool || burn_name(dtype).is_some()
}

/// Lays out `entries` in their order.
///
/// # Errors
/// `Unsupported` if Burn has no such dtype, or for more than it reads; `Parse` if the size of the file overflows.
pub(crate) fn layout(entries: &[OutputEntry<'_>]) -> Result<OutputLayout> {
    let mut starts = Vec::with_capacity(entries.len());
    let mut end = 0u64;
    for e in entries {
        let start = end.checked_next_multiple_of(ALIGN).ok_or_else(overflow)?;
        starts.push(start);
        end = start.checked_add(e.len).ok_or_else(overflow)?;
    }
    let description = description(entries, &starts)?;
    let len = description.len() as u64;
    if entries.len() > MOST_TENSORS || len > LONGEST_DESCRIPTION {
        let what = format!(
            "{} tensors with a description of {len} bytes, and Burn reads {MOST_TENSORS} and {LONGEST_DESCRIPTION}; --to safetensors holds them",
            entries.len()
        );
        return Err(AnamnesisError::unsupported("writing Burnpack", what));
    }
    let mut header = HEAD.to_vec();
    header.extend((len as u32).to_le_bytes());
    header.extend(description);
    let data = (PREFIX + len).next_multiple_of(ALIGN);
    header.resize(data as usize, 0);
    let offsets = starts.iter().map(|start| data + start).collect();
    let file_len = data.checked_add(end).ok_or_else(overflow)?;
    Ok(OutputLayout::of_header(header, offsets, file_len))
}

fn overflow() -> AnamnesisError {
    AnamnesisError::parse("the output's size overflows")
}

/// The description of `entries`, whose data begins at `starts`.
fn description(entries: &[OutputEntry<'_>], starts: &[u64]) -> Result<Vec<u8>> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    sort_by_key(&mut order, |&i| entries[i].name);
    let mut out = vec![];
    head(&mut out, MAP, 1);
    text(&mut out, "tensors");
    head(&mut out, MAP, entries.len() as u64);
    for i in order {
        let (e, start) = (&entries[i], starts[i]);
        if e.name.len() > LONGEST_NAME {
            let why = "it is longer than 65535 bytes, which is not read back";
            return Err(unusable_name("Burnpack", e.name, why));
        }
        text(&mut out, e.name);
        head(&mut out, MAP, 3);
        text(&mut out, "dtype");
        match burn_name(e.dtype) {
            Some(name) => text(&mut out, name),
            None if e.dtype == Dtype::Bool => {
                head(&mut out, MAP, 1);
                text(&mut out, "Bool");
                text(&mut out, "Native");
            }
            None => return Err(no_such_type("Burnpack", "Burn", e)),
        }
        text(&mut out, "shape");
        head(&mut out, LIST, e.shape.len() as u64);
        e.shape
            .iter()
            .for_each(|&size| head(&mut out, NUMBER, size as u64));
        text(&mut out, "data_offsets");
        head(&mut out, LIST, 2);
        head(&mut out, NUMBER, start);
        head(&mut out, NUMBER, start + e.len);
    }
    Ok(out)
}

/// Major types of CBOR.
const NUMBER: u8 = 0;
const TEXT: u8 = 3;
const LIST: u8 = 4;
const MAP: u8 = 5;

/// Appends the beginning of a value of CBOR: a number, or a length.
fn head(out: &mut Vec<u8>, major: u8, number: u64) {
    let major = major << 5;
    let bytes = number.to_be_bytes();
    match number {
        0..=23 => out.push(major | number as u8),
        24..=0xff => out.extend([major | 24, bytes[7]]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend(&bytes[6..]);
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend(&bytes[4..]);
        }
        _ => {
            out.push(major | 27);
            out.extend(bytes);
        }
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    head(out, TEXT, text.len() as u64);
    out.extend(text.as_bytes());
}
