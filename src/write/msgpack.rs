//! Lays out Flax's MessagePack: dicts inside of each other, whose leaves are arrays, as `flax.serialization.msgpack_serialize` writes
//! them. The keys are the parts of the tensors' names between dots; maps and arrays are in the order of their keys.
//!
//! Formats: Flax `flax/serialization.py`; [MessagePack](https://github.com/msgpack/msgpack/blob/master/spec.md).

use super::{Framing, OutputEntry, OutputLayout, no_such_type, unusable_name};
use crate::error::InTensor;
use crate::sort::sort_by;
use crate::{AnamnesisError, Dtype, Result};

/// Type of the ext values that arrays are.
const ARRAY: u8 = 1;

/// Most maps inside of each other that are read back.
const DEEPEST: usize = 63;

/// Longest key that is read back, in bytes.
const LONGEST_KEY: usize = 4096;

/// The key by which Flax knows an array in pieces.
const CHUNKED: &str = "__msgpack_chunked_array__";

/// Whether Flax has a type for the elements of `dtype`.
pub(crate) fn holds(dtype: Dtype) -> bool {
    dtype.numpy_name().is_some()
}

/// Lays out `entries` in the order of their keys.
///
/// # Errors
/// `Unsupported` if Flax has no such dtype, if a name cannot be keys of dicts, or if a tensor is longer than 4 GiB; `Parse` if the size
/// of the file overflows.
pub(crate) fn layout(entries: &[OutputEntry<'_>]) -> Result<OutputLayout> {
    for e in entries {
        if let Some(why) = flaw(e.name) {
            return Err(unusable_name("MessagePack", e.name, why));
        }
    }
    let mut order: Vec<usize> = (0..entries.len()).collect();
    sort_by(&mut order, |&a, &b| keys(entries[a].name).cmp(keys(entries[b].name)));
    let mut tree = TreeLayout { entries, pieces: vec![], offsets: vec![0; entries.len()], at: 0 };
    let mut open = vec![];
    tree.map(&order, 0, &mut open)?;
    let (mut pieces, file_len) = (tree.pieces, tree.at + open.len() as u64);
    if !open.is_empty() {
        pieces.push((tree.at, open));
    }
    let framing = Framing::Pieces(pieces);
    Ok(OutputLayout { framing, offsets: tree.offsets, file_len, patches: vec![] })
}

fn keys(name: &str) -> std::str::Split<'_, char> {
    name.split('.')
}

/// Why no reader would find a tensor of this name.
fn flaw(name: &str) -> Option<&'static str> {
    // The keys are joined by dots, and an empty first key leaves nothing to join.
    if name.is_empty() || name.starts_with('.') {
        return Some("its first key would be empty");
    }
    if keys(name).count() > DEEPEST {
        return Some("it has more dots than dicts are read inside of each other");
    }
    if keys(name).any(|key| key.len() > LONGEST_KEY) {
        return Some("a part between dots is longer than 4096 bytes");
    }
    let is_mark = keys(name).any(|key| key == CHUNKED);
    is_mark.then_some("Flax takes a dict with such a key for an array in pieces")
}

/// The file, as far as it is laid out.
struct TreeLayout<'a> {
    entries: &'a [OutputEntry<'a>],
    pieces: Vec<(u64, Vec<u8>)>,
    offsets: Vec<u64>,
    /// Where the next piece begins: behind the data of the last array.
    at: u64,
}

impl TreeLayout<'_> {
    /// Lays out the map of the entries `range`, which have `depth` keys in common. `open` are bytes that stand before it, and then
    /// those behind the last array.
    fn map(&mut self, range: &[usize], depth: usize, open: &mut Vec<u8>) -> Result<()> {
        let entries = self.entries;
        let key = |i: usize| keys(entries[i].name).nth(depth).unwrap_or_default();
        let items: Vec<&[usize]> = range.chunk_by(|&a, &b| key(a) == key(b)).collect();
        head(open, (0x80, 15), (0xde, 2), items.len() as u64);
        for item in items {
            let first = &entries[item[0]];
            text(open, key(item[0]));
            if keys(first.name).count() > depth + 1 {
                self.map(item, depth + 1, open)?;
                continue;
            }
            if let Some(&other) = item.get(1) {
                let why = format!(
                    "it would be an array and the dict with `{}` in one",
                    entries[other].name
                );
                return Err(unusable_name("MessagePack", first.name, &why));
            }
            array(open, first)?;
            let data = self.at + open.len() as u64;
            self.offsets[item[0]] = data;
            self.pieces.push((self.at, std::mem::take(open)));
            self.at = data.checked_add(first.len).ok_or_else(overflow)?;
        }
        Ok(())
    }
}

fn overflow() -> AnamnesisError {
    AnamnesisError::parse("the output's size overflows")
}

/// All of an array but its data, which follows.
fn array(out: &mut Vec<u8>, e: &OutputEntry<'_>) -> Result<()> {
    let Some(dtype) = e.dtype.numpy_name() else {
        return Err(no_such_type("MessagePack", "Flax", e));
    };
    let mut inner = vec![0x93];
    head(&mut inner, (0x90, 15), (0xdc, 2), e.shape.len() as u64);
    e.shape
        .iter()
        .for_each(|&size| number(&mut inner, size as u64));
    text(&mut inner, dtype);
    head(&mut inner, (0, 0), (0xc4, 1), e.len);
    let len = e.len.saturating_add(inner.len() as u64);
    if len > u32::MAX.into() {
        let what = "MessagePack has no array of more than 4 GiB; --out-dtype bf16 --cast makes it smaller, and --to safetensors holds it";
        let what = format!("{}: {what}", InTensor(&e.name));
        return Err(AnamnesisError::unsupported("writing MessagePack", what));
    }
    match len {
        1 | 2 | 4 | 8 | 16 => out.push(0xd4 + len.ilog2() as u8),
        _ => head(out, (0, 0), (0xc7, 1), len),
    }
    out.push(ARRAY);
    out.extend(inner);
    Ok(())
}

/// Appends a text, which has less than 4 GiB.
fn text(out: &mut Vec<u8>, text: &str) {
    let len = text.len() as u64;
    match len {
        32..=0xff => out.extend([0xd9, len as u8]),
        _ => head(out, (0xa0, 31), (0xda, 2), len),
    }
    out.extend(text.as_bytes());
}

/// Appends the beginning of a value with a length: `short` is the byte of lengths up to a number, `long` that of a length of so many
/// bytes, after which come those of twice as many.
fn head(out: &mut Vec<u8>, short: (u8, u64), long: (u8, u32), len: u64) {
    if len <= short.1 && short.1 > 0 {
        out.push(short.0 | len as u8);
        return;
    }
    let (mut first, mut bytes) = long;
    while bytes < 4 && len >> (8 * bytes) > 0 {
        (first, bytes) = (first + 1, 2 * bytes);
    }
    out.push(first);
    out.extend(&(len as u32).to_be_bytes()[4 - bytes as usize..]);
}

fn number(out: &mut Vec<u8>, number: u64) {
    match number {
        0..=0x7f => out.push(number as u8),
        0x80..=0xffff_ffff => head(out, (0, 0), (0xcc, 1), number),
        _ => {
            out.push(0xcf);
            out.extend(number.to_be_bytes());
        }
    }
}
