//! QNAT, the native format of qlora-rs, versions 1 and 2: 28 bytes of header, names, tensor
//! headers, data.
//!
//! The format's writer computes offsets from a wrong length of the header, so that only their
//! differences are right. With the end of the file they give each tensor's size. In version 1 the
//! size tells which parts a tensor has.
//!
//! Format: qlora-rs 1.0.5 and 1.3.0 `native.rs`
//! (<https://github.com/tzervas/qlora-rs/blob/a203ca9c735856a9b091fe02328d74cd93d32c29/src/native.rs#L278>).

use std::collections::HashSet;
use std::path::Path;

use super::read_at::ReadAt;
use crate::ParsedModel;
use crate::error::InTensor;
use crate::limits::{Budget, cap};
use crate::model::{QnatTensor, TensorInfo};
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, Result};

// Permanent caps, far above real files.
const MAX_TENSORS: u32 = 1_000_000;
const MAX_NAME_LEN: u32 = 65_535;
const MAX_DIMS: u32 = 64;

/// Flag of a tensor in version 2: its scales are quantized.
const DOUBLE_QUANT: u32 = 1;

/// Flag of a tensor in version 2: it has zero points.
const ZERO_POINTS: u32 = 2;

fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("QNAT: {what}"))
}

/// Reads the header sequentially.
struct QnatCursor<'a> {
    file: &'a Source,
    budget: &'a Budget,
    at: u64,
}

impl QnatCursor<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        self.file.read_at_checked(self.at, &mut out)?;
        self.at += N as u64;
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let n = self.u32()?;
        cap("MAX_TENSOR_NAME_LEN", n.into(), MAX_NAME_LEN.into(), "bytes of a name")?;
        self.budget.alloc(n.into(), "a name")?;
        let mut text = vec![0; n as usize];
        self.file.read_at_checked(self.at, &mut text)?;
        self.at += u64::from(n);
        String::from_utf8(text).map_err(|_| wrong("a name is not UTF-8"))
    }
}

impl Source {
    /// Fills `out` from `offset` on; past the end of the file is a `Parse` error.
    fn read_at_checked(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut file = self;
        ReadAt::read_at(&mut file, offset, out)
    }
}

/// A tensor as its header describes it.
struct QnatEntry {
    name: String,
    shape: Vec<usize>,
    /// Values in a block.
    block: usize,
    /// Number of blocks.
    blocks: usize,
    /// Offset as stated; see the module's documentation.
    offset: u64,
    /// Flags; `None` in version 1.
    flags: Option<u32>,
}

/// Reads a file's header. Each tensor becomes one U8 tensor of all its bytes, with a [`QnatTensor`]
/// that says which parts they are.
///
/// # Errors
/// `Parse` if the file is malformed; `Unsupported` for an unknown version; `LimitExceeded`; `Io`.
pub(super) fn read(source: Source, _path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let file_len = source.len().unwrap_or(0);
    let mut cursor = QnatCursor { file: &source, budget, at: 4 };
    let version = cursor.u32()?;
    if !(1..=2).contains(&version) {
        return Err(AnamnesisError::unsupported(
            format!("QNAT version {version}"),
            "versions 1 and 2 are read",
        ));
    }
    let (_flags, _metadata_len) = (cursor.u32()?, cursor.u64()?);
    let count = cursor.u32()?;
    let _reserved = cursor.u32()?;
    cap("MAX_TENSOR_COUNT", count.into(), MAX_TENSORS.into(), "tensors")?;
    budget.items(count.into(), "tensors")?;
    budget.tables(count.into(), 0, file_len)?;
    let (name, kind) = (cursor.text()?, cursor.text()?);
    let [dtype] = cursor.take()?;
    let dtype = *["F32", "F16", "BF16"]
        .get(usize::from(dtype))
        .ok_or_else(|| wrong("its compute dtype is unknown"))?;
    let (mut entries, mut names) = (Vec::new(), HashSet::new());
    for _ in 0..count {
        let entry = read_entry(&mut cursor, version)?;
        if !names.insert(entry.name.clone()) {
            return Err(wrong(format!("{} is listed twice", InTensor(&entry.name))));
        }
        entries.push(entry);
    }
    let data_start = cursor.at;
    let mut contents = ParsedModel::new(Container::Qnat, data_start as usize);
    let keys = ["qnat.model_name", "qnat.model_type", "qnat.compute_dtype"];
    contents.metadata = keys
        .map(str::to_owned)
        .into_iter()
        .zip([name, kind, dtype.to_owned()])
        .collect();
    add_tensors(entries, data_start, file_len, &mut contents)?;
    contents.sources.push(source);
    Ok(contents)
}

fn read_entry(cursor: &mut QnatCursor<'_>, version: u32) -> Result<QnatEntry> {
    let name = cursor.text()?;
    let rank = cursor.u32()?;
    cap(
        "MAX_TENSOR_DIMS",
        rank.into(),
        MAX_DIMS.into(),
        format_args!("dimensions of tensor `{name}`"),
    )?;
    let dims = (0..rank)
        .map(|_| cursor.u64())
        .collect::<Result<Vec<_>>>()?;
    let shape: Option<Vec<usize>> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    let (block, offset, blocks) = (cursor.u32()? as usize, cursor.u64()?, cursor.u32()? as usize);
    let flags = if version == 2 {
        Some(cursor.u32()?)
    } else {
        None
    };
    // Times four: the tensor's size in F32 must not overflow either.
    let values = shape
        .as_ref()
        .and_then(|shape| shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)));
    let fits =
        values.is_some_and(|n| n.checked_mul(4).is_some() && block.checked_mul(blocks) == Some(n));
    match shape.filter(|_| fits) {
        Some(shape) => Ok(QnatEntry { name, shape, block, blocks, offset, flags }),
        None => Err(wrong(format!(
            "{} {dims:?}: {blocks} blocks of {block} are not its values",
            InTensor(&name)
        ))),
    }
}

/// Finds each tensor's bytes and parts, and adds it to `contents`. A tensor ends where the next one
/// begins, the last one at the end of the file.
fn add_tensors(
    entries: Vec<QnatEntry>,
    data_start: u64,
    file_len: u64,
    contents: &mut ParsedModel,
) -> Result<()> {
    let base = entries.first().map_or(0, |e| e.offset);
    let ends: Vec<Option<u64>> = entries
        .iter()
        .skip(1)
        .map(|e| e.offset.checked_sub(base))
        .collect();
    let data_len = file_len.checked_sub(data_start);
    for (entry, end) in entries.into_iter().zip(ends.into_iter().chain([data_len])) {
        let start = entry.offset.checked_sub(base);
        let size = start
            .zip(end)
            .and_then(|(start, end)| end.checked_sub(start))
            .filter(|_| end <= data_len);
        let (Some(start), Some(size)) = (start, size) else {
            return Err(wrong(format!(
                "{}: its data lies past the end of the file",
                InTensor(&entry.name)
            )));
        };
        let what = |size: u64| {
            wrong(format!(
                "{}: {size} bytes are no whole number of its parts",
                InTensor(&entry.name)
            ))
        };
        let parts = parts(&entry, size).ok_or_else(|| what(size))?;
        contents.tensors.push(TensorInfo::plain(
            entry.name,
            (Dtype::U8, [size as usize]),
            (0, data_start + start, size),
        ));
        contents
            .qnat
            .push(QnatTensor { shape: entry.shape, ..parts });
    }
    if contents.tensors.is_empty() && data_len != Some(0) {
        return Err(wrong("there is data that no tensor owns"));
    }
    Ok(())
}

/// Offsets of the parts of a tensor of `size` bytes, relative to its beginning. `None` if no
/// combination of parts has this size. The codes come first. Version 2 has either F32 scales or
/// quantized ones, then zero points. Version 1 has F32 scales in any case, then zero points, then
/// quantized scales.
fn parts(entry: &QnatEntry, size: u64) -> Option<QnatTensor> {
    let &QnatEntry { block, blocks, flags, .. } = entry;
    let n = blocks as u64;
    // Two codes to a byte; a block begins at a whole byte.
    let codes = block.div_ceil(2) as u64 * n;
    let rest = size.checked_sub(codes)?;
    // Quantized scales have one F32 factor in all, unless there are no blocks.
    let one = u64::from(n > 0);
    let (double, zeros) = match flags {
        Some(flags) => (flags & DOUBLE_QUANT != 0, flags & ZERO_POINTS != 0),
        // The sizes of the four combinations differ where there are blocks, so that the first that
        // fits is the one.
        None => [(false, false), (false, true), (true, false), (true, true)]
            .into_iter()
            .find(|&(double, zeros)| {
                let double = if double { n + 4 * one } else { 0 };
                rest == 4 * n + double + if zeros { 4 * n } else { 0 }
            })?,
    };
    let (scales, zero_points, len) = match (flags.is_some(), double) {
        (true, true) => (codes, codes + n + 4 * one, n + 4 * one),
        (true, false) => (codes, codes + 4 * n, 4 * n),
        (false, true) => {
            (codes + 4 * n + if zeros { 4 * n } else { 0 }, codes + 4 * n, 5 * n + 4 * one)
        }
        (false, false) => (codes, codes + 4 * n, 4 * n),
    };
    let zero_points = zeros.then_some(zero_points);
    (rest == len + if zeros { 4 * n } else { 0 }).then_some(QnatTensor {
        shape: Vec::new(),
        block,
        blocks,
        scales_offset: scales,
        has_scale_codes: double,
        zero_points_offset: zero_points,
    })
}
