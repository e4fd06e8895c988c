//! Lays out QNAT files: version 1 for NF4 with F32 scales, version 2 for NF4 with quantized scales.
//! (Version 1 could hold quantized scales only beside F32 ones.)
//!
//! The stated offsets are too large by a constant, as those of qlora-rs are.
//!
//! Format: qlora-rs 1.0.5 and 1.3.0 `native.rs`
//! (<https://github.com/tzervas/qlora-rs/blob/a203ca9c735856a9b091fe02328d74cd93d32c29/src/native.rs#L146>).

use std::collections::HashMap;

use super::{OutputLayout, unusable_name};
use crate::{AnamnesisError, Result};

/// One tensor of an output file.
pub(crate) struct QnatOutputTensor<'a> {
    pub name: &'a str,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// Values in a block.
    pub block: usize,
    /// Number of blocks.
    pub blocks: usize,
}

/// Bytes of codes and scales of `blocks` blocks of `block` values. With `double`, the scales are
/// quantized.
pub(crate) fn data_len(block: usize, blocks: usize, double: bool) -> u64 {
    let n = blocks as u64;
    let scales = if double {
        n + 4 * u64::from(n > 0)
    } else {
        4 * n
    };
    block.div_ceil(2) as u64 * n + scales
}

/// Flag of a tensor in version 2: its scales are quantized.
const DOUBLE_QUANT: u32 = 1;

/// Longest name of a tensor, in bytes.
const LONGEST_NAME: usize = 65_535;

/// Values in a block, where their number allows it.
const BLOCK: usize = 64;

/// Values in a block of a tensor of `n` values: 64 if that divides `n`; all of them if `n` is less
/// than 64; else the largest even divisor below 64. `None` if there is no such divisor.
pub(crate) fn block_for(n: usize) -> Option<usize> {
    let fits = |&block: &usize| block > 0 && n.is_multiple_of(block);
    [BLOCK].into_iter().find(fits).or_else(|| {
        if n < BLOCK {
            Some(n.max(1))
        } else {
            (1..BLOCK / 2).rev().map(|i| i * 2).find(fits)
        }
    })
}

/// Lays out `tensors` in their order. `metadata` is that of the model, which has the names of the
/// file that it was converted from. With `double`, the scales of all tensors are quantized, and the
/// file is of version 2.
///
/// # Errors
/// `Unsupported` if a length does not fit the format; `Parse` if the size of the file overflows.
pub(crate) fn layout(
    tensors: &[QnatOutputTensor<'_>],
    metadata: &HashMap<String, String>,
    double: bool,
) -> Result<OutputLayout> {
    let text =
        |key: &str, default: &str| metadata.get(key).map_or(default, String::as_str).to_owned();
    let (name, kind) = (text("qnat.model_name", "qlora-model"), text("qnat.model_type", "qlora"));
    let dtype = ["F32", "F16", "BF16"]
        .iter()
        .position(|d| *d == text("qnat.compute_dtype", "F32"))
        .unwrap_or(0);
    let mut header = b"QNAT".to_vec();
    header.extend(if double { 2u32 } else { 1 }.to_le_bytes());
    header.extend([0; 12]); // flags, and the length of the metadata, which the writer leaves out
    header.extend(to_u32(tensors.len(), "tensors")?.to_le_bytes());
    header.extend([0; 4]);
    put(&name, &mut header)?;
    put(&kind, &mut header)?;
    header.push(dtype as u8);
    let mut places = Vec::new();
    for t in tensors {
        if t.name.len() > LONGEST_NAME {
            let why = "it is longer than 65535 bytes, which is not read back";
            return Err(unusable_name("QNAT", t.name, why));
        }
        put(t.name, &mut header)?;
        header.extend(to_u32(t.shape.len(), "dimensions")?.to_le_bytes());
        t.shape
            .iter()
            .for_each(|&d| header.extend((d as u64).to_le_bytes()));
        header.extend(to_u32(t.block, "values in a block")?.to_le_bytes());
        places.push(header.len());
        header.extend([0; 8]);
        header.extend(to_u32(t.blocks, "blocks")?.to_le_bytes());
        if double {
            header.extend(DOUBLE_QUANT.to_le_bytes());
        }
    }
    // qlora-rs's writer assumes a header that is longer by this, and leaves the two names out of
    // it.
    let excess = if double { 20 } else { 23 };
    let (mut at, mut offsets) = (header.len() as u64, Vec::new());
    for (t, place) in tensors.iter().zip(places) {
        let stated = (at + excess).wrapping_sub((name.len() + kind.len()) as u64);
        header[place..place + 8].copy_from_slice(&stated.to_le_bytes());
        offsets.push(at);
        at = at
            .checked_add(data_len(t.block, t.blocks, double))
            .ok_or_else(|| AnamnesisError::parse("the output's size overflows"))?;
    }
    Ok(OutputLayout::of_header(header, offsets, at))
}

/// `n` as a `u32`; `what` names it for the error.
fn to_u32(n: usize, what: &str) -> Result<u32> {
    u32::try_from(n).map_err(|_| AnamnesisError::unsupported("writing QNAT", format!("{n} {what}")))
}

/// Appends a string: its length in four bytes, and its text.
fn put(text: &str, out: &mut Vec<u8>) -> Result<()> {
    out.extend(to_u32(text.len(), "bytes of a name")?.to_le_bytes());
    out.extend(text.bytes());
    Ok(())
}
