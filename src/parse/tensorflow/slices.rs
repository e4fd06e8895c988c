//! Variables in parts: each part has an entry of its own, whose key is made of the variable's name and
//! of where the part lies.
//!
//! Keys: `EncodeTensorNameSlice` of `saved_tensor_slice_util.cc`, `ordered_code.cc`.

use std::sync::Arc;

use super::entry::{BundleEntry, Slice};
use super::{Entries, wrong};
use crate::source::{Pieced, Source, TensorPiece};
use crate::{Dtype, Result};

/// The variable `name`, whose parts `entry` lists.
///
/// # Errors
/// `Parse` if a part is missing, or has another type or shape; as [`Pieced::new`].
pub(super) fn join(
    name: &str,
    entry: &BundleEntry,
    dtype: Dtype,
    entries: &Entries,
    files: &Arc<[Source]>,
) -> Result<Pieced> {
    let width = dtype.byte_size() as u64;
    let mut shape: Vec<u64> = entry.shape.iter().map(|&dim| dim as u64).collect();
    let in_bytes = |dims: &mut Vec<u64>| match dims.last_mut() {
        Some(last) => *last = last.saturating_mul(width),
        None => dims.push(width),
    };
    let mut sorted: Vec<&Slice> = entry.slices.iter().collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(wrong("it has a part twice"));
    }
    let mut pieces = Vec::with_capacity(entry.slices.len());
    for slice in &entry.slices {
        if slice.len() != shape.len() {
            return Err(wrong("a part has another number of dimensions"));
        }
        let part = entries.get(&key(name, slice));
        let part = part.ok_or_else(|| wrong(format!("the part at {slice:?} is missing")))?;
        let part = BundleEntry::read(part)?;
        let mut start: Vec<u64> = slice.iter().map(|(start, _)| *start).collect();
        let sizes = slice
            .iter()
            .zip(&shape)
            .map(|((_, len), &dim)| len.unwrap_or(dim));
        let mut sizes: Vec<u64> = sizes.collect();
        let is_same = part
            .shape
            .iter()
            .map(|&dim| dim as u64)
            .eq(sizes.iter().copied());
        let len = dtype
            .byte_len(&part.shape)
            .filter(|_| is_same && part.has_type_of(entry));
        let len = len.ok_or_else(|| wrong(format!("the part at {slice:?} has another shape")))?;
        let source = part.place(len as u64, files)?;
        if len == 0 {
            continue;
        }
        in_bytes(&mut sizes);
        match start.last_mut() {
            Some(last) => *last = last.saturating_mul(width),
            None => start.push(0),
        }
        pieces.push(TensorPiece { start, sizes, source, offset: part.offset, check: None });
    }
    in_bytes(&mut shape);
    if shape.contains(&0) {
        return Err(wrong("it has parts and no values"));
    }
    Pieced::new(files.clone(), shape, pieces)
}

/// The key of a part.
fn key(name: &str, slice: &Slice) -> Vec<u8> {
    let mut out = Vec::new();
    unsigned(&mut out, 0);
    for byte in name.bytes() {
        match byte {
            0 => out.extend([0, 0xff]),
            0xff => out.extend([0xff, 0]),
            _ => out.push(byte),
        }
    }
    out.extend([0, 1]);
    unsigned(&mut out, slice.len() as u64);
    for &(start, len) in slice {
        signed(&mut out, start as i64);
        // All of a dimension is -1 long.
        signed(&mut out, len.map_or(-1, |len| len as i64));
    }
    out
}

/// How many bytes a number has, and these, the most significant one first.
fn unsigned(out: &mut Vec<u8>, n: u64) {
    let bytes = n.to_be_bytes();
    let zeros = n.leading_zeros() as usize / 8;
    out.push((bytes.len() - zeros) as u8);
    out.extend(&bytes[zeros..]);
}

/// A number whose first bits say how many bytes it has: as many ones as bytes, or zeros if it is
/// negative.
fn signed(out: &mut Vec<u8>, n: i64) {
    let magnitude = if n < 0 { !n } else { n } as u64;
    let bits = 64 - magnitude.leading_zeros() as usize;
    // For each byte a bit says that there is one, and one bit is the sign: ten bytes at most.
    let len = bits / 7 + 1;
    let mut bytes = [if n < 0 { 0xff } else { 0 }; 10];
    bytes[2..].copy_from_slice(&n.to_be_bytes());
    let ones = (u16::MAX << (16 - len)).to_be_bytes();
    let start = bytes.len() - len;
    for (byte, ones) in bytes[start..].iter_mut().zip(ones) {
        *byte ^= ones;
    }
    out.extend(&bytes[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of `tf.compat.v1.train.Saver`.
    #[test]
    fn keys_of_parts() {
        let part = |start, len| key("part", &vec![(start, Some(len)), (0, Some(4))]);
        assert_eq!(part(0, 4), b"\0part\0\x01\x01\x02\x80\x84\x80\x84");
        assert_eq!(part(7, 3), b"\0part\0\x01\x01\x02\x87\x83\x80\x84");
    }

    #[test]
    fn numbers_of_all_sizes() {
        let coded = |n: i64| {
            let mut out = Vec::new();
            signed(&mut out, n);
            out
        };
        assert_eq!(coded(-1), [0x7f]);
        assert_eq!(coded(63), [0xbf]);
        assert_eq!(coded(64), [0xc0, 0x40]);
        assert_eq!(coded(i64::MAX), [255, 0xc0, 0x7f, 255, 255, 255, 255, 255, 255, 255]);
        let numbers = (0..63)
            .flat_map(|bit| [1 << bit, (1 << bit) - 1])
            .chain([i64::MAX]);
        let mut numbers: Vec<i64> = numbers.flat_map(|n: i64| [n, !n]).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert!(numbers.iter().map(|&n| coded(n)).is_sorted_by(|a, b| a < b));
    }
}
