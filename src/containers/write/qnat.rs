//! QNAT, written: version 1, plain NF4 (codes and F32 scales), or version 2 with double-quantized scales, which
//! version 1 has only beside plain ones; with the offsets that qlora-rs's writer states, which are too large by a
//! constant.
//!
//! Format: qlora-rs 1.0.5 and 1.3.0 `native.rs`
//! (<https://github.com/tzervas/qlora-rs/blob/a203ca9c735856a9b091fe02328d74cd93d32c29/src/native.rs#L146>).

use std::collections::HashMap;

use super::Layout;
use crate::{AnamnesisError, Result};

/// A tensor to be written.
pub(crate) struct Tensor<'a> {
    pub name: &'a str,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    pub block: usize,
    pub blocks: usize,
}

/// Bytes of the codes and scales of so many blocks; `double`: the scales are quantized too.
pub(crate) fn data_len(block: usize, blocks: usize, double: bool) -> u64 {
    let n = blocks as u64;
    let scales = if double {
        n + 4 * u64::from(n > 0)
    } else {
        4 * n
    };
    block.div_ceil(2) as u64 * n + scales
}

/// The flag of a tensor whose scales are quantized.
const DOUBLE_QUANT: u32 = 1;

/// The usual number of values in a block.
const BLOCK: usize = 64;

/// The block for a tensor of `n` values: 64, or else the largest even divisor below, or else all of few values.
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

/// Lays out `tensors` in their order. `metadata`: what an earlier conversion kept of names. `double`: in version 2, with
/// the scales of all quantized too.
pub(crate) fn layout(
    tensors: &[Tensor<'_>],
    metadata: &HashMap<String, String>,
    double: bool,
) -> Result<Layout> {
    let text =
        |key: &str, default: &str| metadata.get(key).map_or(default, String::as_str).to_owned();
    let (name, kind) = (
        text("qnat.model_name", "qlora-model"),
        text("qnat.model_type", "qlora"),
    );
    let dtype = ["F32", "F16", "BF16"]
        .iter()
        .position(|d| *d == text("qnat.compute_dtype", "F32"))
        .unwrap_or(0);
    let mut header = b"QNAT".to_vec();
    header.extend(if double { 2u32 } else { 1 }.to_le_bytes());
    header.extend([0; 12]); // flags, and the length of the metadata, which the writer leaves out
    header.extend(small(tensors.len(), "tensors")?.to_le_bytes());
    header.extend([0; 4]);
    put(&name, &mut header)?;
    put(&kind, &mut header)?;
    header.push(dtype as u8);
    let mut places = Vec::new();
    for t in tensors {
        put(t.name, &mut header)?;
        header.extend(small(t.shape.len(), "dimensions")?.to_le_bytes());
        t.shape
            .iter()
            .for_each(|&d| header.extend((d as u64).to_le_bytes()));
        header.extend(small(t.block, "values in a block")?.to_le_bytes());
        places.push(header.len());
        header.extend([0; 8]);
        header.extend(small(t.blocks, "blocks")?.to_le_bytes());
        if double {
            header.extend(DOUBLE_QUANT.to_le_bytes());
        }
    }
    // What the writer takes the header to be longer by, but for the names.
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
    Ok(Layout::of_header(header, offsets, at))
}

fn small(n: usize, what: &str) -> Result<u32> {
    u32::try_from(n).map_err(|_| AnamnesisError::unsupported("writing QNAT", format!("{n} {what}")))
}

fn put(text: &str, out: &mut Vec<u8>) -> Result<()> {
    out.extend(small(text.len(), "bytes of a name")?.to_le_bytes());
    out.extend(text.bytes());
    Ok(())
}
