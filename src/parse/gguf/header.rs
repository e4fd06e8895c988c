//! The GGUF header: counts, metadata, and a description of each tensor.
//!
//! Format and rules: ggml `gguf.h`; `gguf.cpp`, `gguf_init_from_reader`.

use std::collections::HashMap;
use std::io::Read;

use super::cursor::GgufCursor;
use crate::error::InTensor;
use crate::limits::{Budget, cap};
use crate::model::gguf::{
    ARRAY, DEFAULT_ALIGNMENT, GgufMetadata, MAX_ALIGNMENT, STRING, fixed_size,
};
use crate::model::gguf_keys::ALIGNMENT;
use crate::{AnamnesisError, Dtype, Result};

// Permanent caps, far above real files. The longest arrays are those of tokenizers, with
// hundreds of thousands of elements.
const MAX_TENSOR_COUNT: u64 = 1_000_000;
const MAX_KV_COUNT: u64 = 1_000_000;
const MAX_ARRAY_LEN: u64 = 16_000_000;
pub(crate) const MAX_ARRAY_DEPTH: usize = 4;
const MAX_TENSOR_DIMS: u32 = 8;

/// A parsed GGUF header.
#[derive(Debug, Clone)]
pub(crate) struct GgufHeader {
    pub version: u32,
    pub big_endian: bool,
    /// Alignment of the tensors' offsets in bytes: a power of two.
    pub alignment: u32,
    pub metadata: GgufMetadata,
    /// The tensors in the order of the header.
    pub tensors: Vec<GgufTensorEntry>,
    /// Offset in the file behind the descriptions of the tensors.
    pub end: u64,
    /// Offset in the file of the first byte of tensor data.
    pub data_start: u64,
}

/// One tensor as the header describes it.
#[derive(Debug, Clone)]
pub(crate) struct GgufTensorEntry {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first; the file has the reverse order.
    pub shape: Vec<usize>,
    /// Offset from the beginning of the file.
    pub offset: u64,
    /// Length of the data in bytes; `None` if the type is unknown.
    pub len: Option<u64>,
}

/// Reads a header from `reader`, and no byte behind it. `file_len` is the length of the file, if it
/// is known.
///
/// # Errors
/// `Parse` if the header is malformed; `Unsupported` for an unknown version; `LimitExceeded`; `Io`.
pub(crate) fn read<R: Read>(
    reader: R,
    file_len: Option<u64>,
    budget: &Budget,
) -> Result<GgufHeader> {
    let mut cursor = GgufCursor::new(reader, file_len, budget);
    let (version, tensors, keys) = read_counts(&mut cursor)?;
    budget.items(tensors + keys, "tensors and keys")?;
    if let Some(len) = file_len {
        budget.tables(tensors, keys, len)?;
    }
    let mut metadata = GgufMetadata::new(cursor.encoding);
    // The least that is left to read. A key takes a length, a character, a type and a byte of
    // value; a tensor takes a length, a rank, a type and an offset.
    let len = cursor.encoding.len_bytes() as u64;
    let (least_entry, least_tensor) = (len + 6, len + 16);
    for i in 0..keys {
        cursor.pending = (keys - i - 1) * least_entry + tensors * least_tensor;
        read_entry(&mut cursor, &mut metadata)?;
    }
    let metadata_end = cursor.at;
    let mut entries: Vec<GgufTensorEntry> = Vec::new();
    let mut names = HashMap::new();
    for i in 0..tensors {
        cursor.pending = (tensors - i - 1) * least_tensor;
        let entry = read_tensor(&mut cursor)?;
        if names.insert(entry.name.clone(), ()).is_some() {
            return Err(AnamnesisError::parse(format!(
                "{} is listed twice",
                InTensor(&entry.name)
            )));
        }
        entries.push(entry);
    }
    let end = cursor.at as u64;
    // The metadata keeps the bytes, of which only its own are needed.
    let mut bytes = std::mem::take(&mut cursor.bytes);
    bytes.truncate(metadata_end);
    bytes.shrink_to_fit();
    metadata.set_bytes(bytes);
    let alignment = alignment(&metadata)?;
    let data_start = end.next_multiple_of(alignment.into());
    for entry in &mut entries {
        if !entry.offset.is_multiple_of(alignment.into()) {
            let what = format!(
                "its offset {} is not a multiple of the alignment, {alignment}",
                entry.offset
            );
            return Err(AnamnesisError::parse(format!("{}: {what}", InTensor(&entry.name))));
        }
        entry.offset = entry
            .offset
            .checked_add(data_start)
            .ok_or_else(|| past_the_end(&entry.name))?;
    }
    Ok(GgufHeader {
        version,
        big_endian: cursor.encoding.big_endian,
        alignment,
        metadata,
        tensors: entries,
        end,
        data_start,
    })
}

pub(crate) fn past_the_end(name: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("{}: its data lies past the end of the file", InTensor(&name)))
}

/// Reads magic, version, and the numbers of tensors and keys. Sets the cursor's encoding.
fn read_counts<R: Read>(cursor: &mut GgufCursor<'_, R>) -> Result<(u32, u64, u64)> {
    // A version and two counts follow, of four bytes each in version 1, and longer in versions 2
    // and 3.
    cursor.pending = 12;
    if cursor.take(4)? != b"GGUF" {
        return Err(AnamnesisError::parse("not a GGUF file"));
    }
    cursor.pending = 8;
    let mut version = cursor.u32()?;
    // Only a small number in the other byte order has its low half clear (llama.cpp tells
    // big-endian files like this).
    if version & 0xffff == 0 {
        cursor.encoding.big_endian = true;
        version = version.swap_bytes();
    }
    if !(1..=3).contains(&version) {
        return Err(AnamnesisError::unsupported(
            format!("GGUF version {version}"),
            "versions 1 to 3 are read",
        ));
    }
    cursor.encoding.has_64_bit_lengths = version > 1;
    cursor.pending = cursor.encoding.len_bytes() as u64;
    let tensors = cursor.len()?;
    cursor.pending = 0;
    let keys = cursor.len()?;
    cap("MAX_TENSOR_COUNT", tensors, MAX_TENSOR_COUNT, "tensors")?;
    cap("MAX_KV_COUNT", keys, MAX_KV_COUNT, "metadata keys")?;
    Ok((version, tensors, keys))
}

/// Reads one key with its value. The value is checked, and `metadata` gets the range of its bytes.
fn read_entry<R: Read>(cursor: &mut GgufCursor<'_, R>, metadata: &mut GgufMetadata) -> Result<()> {
    let key = cursor.name("MAX_GGUF_KEY_LEN")?;
    if key.is_empty() {
        return Err(AnamnesisError::parse("a metadata key is empty"));
    }
    let named = |error: AnamnesisError| error.about(format_args!("metadata `{key}`"));
    let type_id = cursor.u32().map_err(named)?;
    let start = cursor.at;
    skip_value(cursor, type_id).map_err(named)?;
    let end = cursor.at;
    if !metadata.add(key.clone(), type_id, start, end) {
        return Err(AnamnesisError::parse(format!("metadata `{key}` is listed twice")));
    }
    Ok(())
}

/// Passes over a value of type `type_id`, and checks that all of its bytes are there.
fn skip_value<R: Read>(cursor: &mut GgufCursor<'_, R>, type_id: u32) -> Result<()> {
    match type_id {
        STRING => cursor.string().map(drop),
        ARRAY => skip_array(cursor, 1),
        _ => {
            let size = fixed_size(type_id).ok_or_else(|| unknown_type(type_id))?;
            cursor.take(size).map(drop)
        }
    }
}

fn unknown_type(type_id: u32) -> AnamnesisError {
    AnamnesisError::parse(format!("values of type {type_id} are unknown"))
}

/// Passes over an array at nesting level `depth`. The level is bounded, and so is the recursion.
fn skip_array<R: Read>(cursor: &mut GgufCursor<'_, R>, depth: usize) -> Result<()> {
    cap("MAX_ARRAY_DEPTH", depth as u64, MAX_ARRAY_DEPTH as u64, "levels of arrays")?;
    let type_id = cursor.u32()?;
    let n = cursor.len()?;
    cap("MAX_ARRAY_LEN", n, MAX_ARRAY_LEN, "elements of an array")?;
    let pending_after = cursor.pending;
    match type_id {
        STRING | ARRAY => {
            let least = cursor.encoding.len_bytes() as u64 + if type_id == ARRAY { 4 } else { 0 };
            for i in 0..n {
                cursor.pending = pending_after + (n - i - 1) * least;
                if type_id == STRING {
                    cursor.string().map(drop)?;
                } else {
                    skip_array(cursor, depth + 1)?;
                }
            }
            cursor.pending = pending_after;
        }
        _ => {
            let size = fixed_size(type_id).ok_or_else(|| unknown_type(type_id))?;
            // No overflow: `n` is at most MAX_ARRAY_LEN, and `size` at most 8.
            cursor.take(n as usize * size)?;
        }
    }
    Ok(())
}

/// Reads the description of one tensor. Its offset is relative to the beginning of the data.
fn read_tensor<R: Read>(cursor: &mut GgufCursor<'_, R>) -> Result<GgufTensorEntry> {
    let name = cursor.name("MAX_TENSOR_NAME_LEN")?;
    let wrong = |what: String| AnamnesisError::parse(format!("{}: {what}", InTensor(&name)));
    let rank = cursor.u32()?;
    cap("MAX_TENSOR_DIMS", rank.into(), MAX_TENSOR_DIMS.into(), "dimensions")
        .map_err(|error| error.in_tensor(&name))?;
    let mut shape = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        let dim = cursor.len()?;
        shape.push(usize::try_from(dim).map_err(|_| wrong(format!("a dimension of {dim}")))?);
    }
    shape.reverse();
    let dtype = Dtype::from_ggml(cursor.u32()?);
    let offset = cursor.u64()?;
    let overflows = || wrong(format!("its shape {shape:?} overflows"));
    // Empty dimensions count as one here, so that the product of the others fits in any order of
    // multiplication.
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d.max(1)))
        .ok_or_else(overflows)?;
    let len = match (dtype, dtype.byte_len(&shape)) {
        (Dtype::UnknownGgml(_), _) => None,
        (_, Some(len)) => Some(len as u64),
        _ if !shape
            .last()
            .unwrap_or(&1)
            .is_multiple_of(dtype.block_size()) =>
        {
            let (row, block) = (shape.last().unwrap_or(&1), dtype.block_size());
            return Err(wrong(format!(
                "rows of {row} values where {dtype} stores {block} together"
            )));
        }
        _ => return Err(overflows()),
    };
    Ok(GgufTensorEntry { name, dtype, shape, offset, len })
}

/// The alignment that the metadata declares.
///
/// # Errors
/// `Parse` if it is no `u32` or no power of two; `LimitExceeded` if it is larger than
/// [`MAX_ALIGNMENT`].
fn alignment(metadata: &GgufMetadata) -> Result<u32> {
    let Some(value) = metadata.get(ALIGNMENT) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value.as_u32() {
        Some(alignment) if alignment.is_power_of_two() => {
            cap("MAX_ALIGNMENT", alignment.into(), MAX_ALIGNMENT.into(), "bytes of alignment")
                .map(|()| alignment)
        }
        Some(alignment) => {
            Err(AnamnesisError::parse(format!("the alignment {alignment} is not a power of two")))
        }
        None => Err(AnamnesisError::parse(format!(
            "general.alignment is a u32, not {}",
            value.type_name()
        ))),
    }
}
