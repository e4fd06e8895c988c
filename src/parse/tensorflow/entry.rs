//! What an index says of all variables, and of one: messages of Protocol Buffers
//! (`tensor_bundle.proto`).

use super::wrong;
use crate::protobuf::{ProtoFields, ProtoValue};
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// Most dimensions of a variable.
const MAX_DIMS: usize = 64;

/// What it says of all.
pub(super) struct BundleHeader {
    pub shards: u64,
}

/// What it says of a variable, or of a part of one.
#[derive(Default)]
pub(super) struct BundleEntry {
    dtype: u64,
    pub shape: Vec<usize>,
    shard: u64,
    pub offset: u64,
    size: u64,
    /// The parts of a variable that lies in several.
    pub slices: Vec<Slice>,
}

/// Where a part begins in each dimension, and how long it is there; `None`: it has all of it.
pub(super) type Slice = Vec<(u64, Option<u64>)>;

/// What the elements of a variable are.
pub(super) enum ElementType {
    Of(Dtype),
    Text,
    /// One that no tensor can hold, by its number.
    Other(u64),
}

/// The fields of a message.
fn fields(message: &[u8]) -> impl Iterator<Item = Result<(u64, ProtoValue<'_>)>> {
    ProtoFields::new(message).map(|field| field.map_err(wrong))
}

impl BundleHeader {
    pub(super) fn read(message: &[u8]) -> Result<Self> {
        let mut shards = 0;
        for field in fields(message) {
            match field? {
                (1, ProtoValue::Varint(n)) => shards = n,
                (2, ProtoValue::Varint(1..)) => {
                    let what = "its numbers have their most significant byte first";
                    return Err(AnamnesisError::unsupported("TensorFlow checkpoint", what));
                }
                _ => {}
            }
        }
        Ok(Self { shards })
    }
}

impl BundleEntry {
    pub(super) fn read(message: &[u8]) -> Result<Self> {
        let mut out = Self::default();
        for field in fields(message) {
            match field? {
                (1, ProtoValue::Varint(dtype)) => out.dtype = dtype,
                (2, ProtoValue::Bytes(shape)) => out.shape = read_shape(shape)?,
                (3, ProtoValue::Varint(shard)) => out.shard = shard,
                (4, ProtoValue::Varint(offset)) => out.offset = offset,
                (5, ProtoValue::Varint(size)) => out.size = size,
                (7, ProtoValue::Bytes(slice)) => out.slices.push(read_slice(slice)?),
                _ => {}
            }
        }
        Ok(out)
    }

    /// Whether `other` has elements of the same type.
    pub(super) fn has_type_of(&self, other: &Self) -> bool {
        self.dtype == other.dtype
    }

    pub(super) fn element_type(&self) -> ElementType {
        ElementType::Of(match self.dtype {
            1 => Dtype::F32,
            2 => Dtype::F64,
            3 => Dtype::I32,
            4 => Dtype::U8,
            5 => Dtype::I16,
            6 => Dtype::I8,
            7 => return ElementType::Text,
            8 => Dtype::C64,
            9 => Dtype::I64,
            10 => Dtype::Bool,
            14 => Dtype::BF16,
            17 => Dtype::U16,
            19 => Dtype::F16,
            22 => Dtype::U32,
            23 => Dtype::U64,
            24 => Dtype::F8E5M2,
            25 => Dtype::F8E4M3,
            other => return ElementType::Other(other),
        })
    }

    /// Which of `files`, of which the first is the index, has the data, of `len` bytes.
    ///
    /// # Errors
    /// `Parse` if it is longer or shorter, or outside of its file.
    pub(super) fn place(&self, len: u64, files: &[Source]) -> Result<usize> {
        if self.size != len {
            let size = self.size;
            return Err(wrong(format!("{size} bytes of data, and its type and shape need {len}")));
        }
        let source = usize::try_from(self.shard)
            .ok()
            .and_then(|shard| shard.checked_add(1));
        let source = source.filter(|&source| source < files.len());
        let source = source.ok_or_else(|| wrong("its data is in a file that is not there"))?;
        let have = files[source].len().unwrap_or(0);
        match self.offset.checked_add(len) {
            Some(end) if end <= have || len == 0 => Ok(source),
            _ => {
                let offset = self.offset;
                Err(wrong(format!("its data is {len} bytes at {offset} of a file of {have}")))
            }
        }
    }
}

fn read_shape(message: &[u8]) -> Result<Vec<usize>> {
    let mut out = Vec::new();
    for field in fields(message) {
        match field? {
            (2, ProtoValue::Bytes(dim)) => {
                let mut size = 0;
                for field in fields(dim) {
                    if let (1, ProtoValue::Varint(n)) = field? {
                        size = n;
                    }
                }
                let size = usize::try_from(size).ok().filter(|&size| size as i64 >= 0);
                out.push(size.ok_or_else(|| wrong("a dimension is negative"))?);
            }
            (3, ProtoValue::Varint(1..)) => return Err(wrong("its rank is not known")),
            _ => {}
        }
    }
    match out.len() > MAX_DIMS {
        true => Err(wrong(format!("it has {} dimensions", out.len()))),
        false => Ok(out),
    }
}

fn read_slice(message: &[u8]) -> Result<Slice> {
    let mut out = Vec::new();
    for field in fields(message) {
        if let (1, ProtoValue::Bytes(extent)) = field? {
            let (mut start, mut len) = (0, None);
            for field in fields(extent) {
                match field? {
                    (1, ProtoValue::Varint(n)) => start = n,
                    (2, ProtoValue::Varint(n)) => len = Some(n),
                    _ => {}
                }
            }
            out.push((start, len));
        }
    }
    Ok(out)
}
