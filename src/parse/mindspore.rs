//! Checkpoints of MindSpore: a message of Protocol Buffers.
//!
//! ```text
//! Checkpoint  1: Value …; behind the message perhaps `crc_num` and ten bytes: its CRC-32, big-endian
//! Value       1: name, 2: Tensor
//! Tensor      1: size …, 2: name of the type, 3: bytes
//! ```
//!
//! A large tensor is several values of one name, which follow each other: all have the sizes of the whole, and
//! each some of its bytes. Texts and numbers beside the parameters are values, too.
//!
//! Format: MindSpore `mindspore/train/serialization.py` and `checkpoint.proto`.

use std::collections::HashSet;
use std::ops::Range;

use super::message::{FieldAt, MessageReader};
use crate::error::InTensor;
use crate::limits::{Budget, cap};
use crate::model::{Check, Skipped, TensorInfo};
use crate::source::{Pieced, Source};
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// What is before the checksum, and the bytes of both.
const CRC_MARK: &[u8] = b"crc_num";
const CRC_BYTES: u64 = 17;

/// Most sizes of a tensor.
const MAX_DIMS: u64 = 64;

/// Most values of one tensor: MindSpore cuts at 512 MiB.
const MAX_PIECES: u64 = 1 << 16;

/// The dtype that MindSpore calls `name`.
fn from_name(name: &str) -> Option<Dtype> {
    Some(match name {
        "Bool" => Dtype::Bool,
        "Int8" => Dtype::I8,
        "UInt8" => Dtype::U8,
        "Int16" => Dtype::I16,
        "UInt16" => Dtype::U16,
        "Int32" => Dtype::I32,
        "UInt32" => Dtype::U32,
        "Int64" => Dtype::I64,
        "UInt64" => Dtype::U64,
        "Float16" => Dtype::F16,
        "BFloat16" => Dtype::BF16,
        "Float32" => Dtype::F32,
        "Float64" => Dtype::F64,
        _ => return None,
    })
}

/// The type of a value that is a text.
const TEXT: &str = "str";

/// A value of a checkpoint.
struct MindSporeValue {
    name: String,
    kind: String,
    shape: Vec<usize>,
    content: Range<u64>,
}

/// Reads names, types and sizes; the tensors' bytes are passed over.
///
/// # Errors
/// `Parse` if the file is malformed, or a tensor's bytes do not fit its shape; `Unsupported` for tables of
/// `MapParameter`; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, budget: &Budget) -> Result<ParsedModel> {
    let mut contents = ParsedModel::new(Container::MindSpore, 0);
    contents.sources.push(source.share());
    let mut reader = MessageReader::new(source);
    let len = reader.len;
    budget.tables(0, 0, len)?;
    let (mut rest, crc) = without_crc(&mut reader)?;
    let check = crc.map(|crc| Check { crc, start: 0, len: rest.end, before: (0, 0) });
    let (mut names, mut group) = (HashSet::new(), Vec::<MindSporeValue>::new());
    while let Some(field) = reader.next(&mut rest)? {
        let (1, Some(value)) = (field.number, field.bytes()) else {
            return Err(wrong(&field, "a field that is no value"));
        };
        let value = read_value(&mut reader, value)?;
        budget.items(1, "values")?;
        budget.tables(1, 0, 0)?;
        if group.first().is_some_and(|first| first.name != value.name) {
            add(&mut contents, &group, check.as_ref())?;
            group.clear();
        }
        if group.is_empty() && !names.insert(value.name.clone()) {
            return Err(AnamnesisError::parse(format!("two tensors are called `{}`", value.name)));
        }
        group.push(value);
        cap("MAX_MINDSPORE_PIECES", group.len() as u64, MAX_PIECES, "pieces of a tensor")?;
    }
    add(&mut contents, &group, check.as_ref())?;
    if contents.tensors.is_empty() && contents.skipped.is_empty() {
        return Err(AnamnesisError::parse("the file holds no tensors"));
    }
    let stored: u64 = contents.tensors.iter().map(|t| t.len).sum();
    contents.header_size = len.saturating_sub(stored) as usize;
    Ok(contents)
}

fn wrong(field: &FieldAt, what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!(
        "{what} (field {} before byte {})",
        field.number, field.content.end
    ))
}

/// Where the message is, and its checksum if it has one.
fn without_crc(reader: &mut MessageReader<'_>) -> Result<(Range<u64>, Option<u32>)> {
    let len = reader.len;
    let Some(end) = len.checked_sub(CRC_BYTES) else {
        return Ok((0..len, None));
    };
    let Some(number) = reader.bytes(end..len)?.strip_prefix(CRC_MARK) else {
        return Ok((0..len, None));
    };
    let crc = number
        .strip_prefix(&[0; 6])
        .and_then(|crc| crc.first_chunk());
    let crc = crc.ok_or_else(|| AnamnesisError::parse("its checksum is no CRC-32"))?;
    Ok((0..end, Some(u32::from_be_bytes(*crc))))
}

fn read_value(reader: &mut MessageReader<'_>, mut rest: Range<u64>) -> Result<MindSporeValue> {
    let (mut name, mut tensor) = (None, None);
    while let Some(field) = reader.next(&mut rest)? {
        let is_new = match (field.number, field.bytes()) {
            (1, Some(text)) => name.replace(reader.text(text)?).is_none(),
            (2, Some(message)) => tensor.replace(message).is_none(),
            (3, Some(_)) => {
                let what = "a table of `MapParameter`; export it in MindSpore to tensors of keys and values";
                return Err(AnamnesisError::unsupported("MindSpore", what));
            }
            _ => false,
        };
        if !is_new {
            return Err(wrong(&field, "a value that is not as MindSpore writes it"));
        }
    }
    let (Some(name), Some(tensor)) = (name, tensor) else {
        return Err(AnamnesisError::parse(format!(
            "a value without a name or a tensor (before byte {})",
            rest.end
        )));
    };
    read_tensor(reader, tensor)
        .map(|(shape, kind, content)| MindSporeValue { name: name.clone(), kind, shape, content })
        .map_err(|error| error.in_tensor(&name))
}

type TensorFields = (Vec<usize>, String, Range<u64>);

fn read_tensor(reader: &mut MessageReader<'_>, mut rest: Range<u64>) -> Result<TensorFields> {
    let (mut shape, mut kind, mut content) = (vec![], None, None);
    while let Some(field) = reader.next(&mut rest)? {
        let is_new = match (field.number, field.varint(), field.bytes()) {
            (1, Some(size), _) => {
                let size = i64::try_from(size)
                    .ok()
                    .and_then(|size| usize::try_from(size).ok());
                shape.push(size.ok_or_else(|| wrong(&field, "a size that is none"))?);
                cap("MAX_MINDSPORE_DIMS", shape.len() as u64, MAX_DIMS, "dimensions of a tensor")?;
                true
            }
            (2, _, Some(text)) => kind.replace(reader.text(text)?).is_none(),
            (3, _, Some(bytes)) => content.replace(bytes).is_none(),
            _ => false,
        };
        if !is_new {
            return Err(wrong(&field, "a tensor that is not as MindSpore writes it"));
        }
    }
    match (kind, content) {
        (Some(kind), Some(content)) => Ok((shape, kind, content)),
        _ => Err(AnamnesisError::parse("its type or its bytes are missing")),
    }
}

/// Adds the tensor that `values`, all of one name, are the pieces of.
fn add(contents: &mut ParsedModel, values: &[MindSporeValue], check: Option<&Check>) -> Result<()> {
    let Some(first) = values.first() else {
        return Ok(());
    };
    let fits = |value: &MindSporeValue| value.kind == first.kind && value.shape == first.shape;
    let about = |what: String| AnamnesisError::parse(format!("{}: {what}", InTensor(&first.name)));
    if !values.iter().all(fits) {
        return Err(about("its pieces do not fit together".to_owned()));
    }
    if first.kind == TEXT {
        return Ok(());
    }
    let Some(dtype) = from_name(&first.kind) else {
        let (name, what) = (first.name.clone(), format!("array of {} of MindSpore", first.kind));
        contents.skipped.push(Skipped { name, what });
        return Ok(());
    };
    let len: u64 = values
        .iter()
        .map(|value| value.content.end - value.content.start)
        .sum();
    // Numbers beside the parameters have one size of 0.
    let is_number = first.shape == [0] && dtype.byte_len(&[]).map(|n| n as u64) == Some(len);
    let shape = if is_number {
        vec![]
    } else {
        first.shape.clone()
    };
    if dtype.byte_len(&shape).map(|n| n as u64) != Some(len) {
        return Err(about(format!("{len} bytes are not {dtype} {shape:?}")));
    }
    let (mut source, mut offset, mut check) = (0, first.content.start, check.cloned());
    if values.len() > 1 && len > 0 {
        let pieces = values
            .iter()
            .map(|v| (v.content.start, v.content.end - v.content.start));
        let pieced = Pieced::joined(contents.sources[0].share(), pieces)?;
        // Other tensors have the checksum, which is that of the file.
        (source, offset, check) = (contents.sources.len(), 0, None);
        contents.sources.push(Source::Pieced(Box::new(pieced)));
    }
    contents.tensors.push(TensorInfo {
        check: check.map(Box::new),
        ..TensorInfo::plain(first.name.as_str(), (dtype, shape), (source, offset, len))
    });
    Ok(())
}
