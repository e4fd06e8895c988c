//! Large arrays, which Flax stores in pieces.

use super::StoredArray;
use super::value::{ValueKind, ValueReader, wrong};
use crate::limits::cap;
use crate::source::{Pieced, Source};
use crate::{AnamnesisError, Dtype, Result};

/// Most pieces of an array: Flax cuts pieces of 1 GiB.
const MAX_CHUNKS: u64 = 1 << 16;

/// Most dimensions of an array.
const MAX_DIMS: u64 = 64;

/// An array in pieces of one dimension.
pub(super) struct ChunkedArray {
    shape: Vec<usize>,
    chunks: Vec<StoredArray>,
}

impl ChunkedArray {
    /// Reads the rest of a map of `entries` behind the first key, which is that of large arrays.
    ///
    /// # Errors
    /// `Parse` if it is not as Flax writes it; `LimitExceeded`; `Io`.
    pub(super) fn read(reader: &mut ValueReader<'_>, entries: u64) -> Result<Self> {
        let start = reader.at;
        let other = || wrong("a large array that is not as Flax writes it", start);
        if entries != 3 || reader.next()? != ValueKind::Bool(true) || reader.key()? != "shape" {
            return Err(other());
        }
        let rank = list(reader, MAX_DIMS)?.ok_or_else(other)?;
        let mut shape = vec![];
        for number in 0..rank.items {
            rank.check_key(reader, number)?;
            shape.push(reader.size()?);
        }
        if reader.key()? != "chunks" {
            return Err(other());
        }
        let count = list(reader, MAX_CHUNKS)?.ok_or_else(other)?;
        let mut chunks = vec![];
        for number in 0..count.items {
            count.check_key(reader, number)?;
            match reader.next()? {
                ValueKind::Ext(1, len) => chunks.push(reader.array(len)?),
                _ => return Err(other()),
            }
        }
        Ok(Self { shape, chunks })
    }

    pub(super) fn pieces(&self) -> u64 {
        self.chunks.len() as u64
    }

    /// The source of the array's bytes, which are in `base`, and the array in it.
    ///
    /// # Errors
    /// `Parse` if the pieces are of several types, or do not fit the shape.
    pub(super) fn join(self, base: Source) -> Result<(Source, StoredArray)> {
        let Self { shape, chunks } = self;
        let wrong = |what: &str| AnamnesisError::parse(format!("its pieces {what}"));
        let dtype = chunks.first().and_then(|chunk| chunk.dtype.as_ref().ok());
        let dtype: Dtype = *dtype.ok_or_else(|| wrong("are of a type that is not read"))?;
        let mut len = 0;
        for chunk in &chunks {
            if chunk.dtype != Ok(dtype) || chunk.shape.len() != 1 {
                return Err(wrong("do not fit together"));
            }
            len += chunk.len;
        }
        if dtype.byte_len(&shape).map(|bytes| bytes as u64) != Some(len) || len == 0 {
            return Err(wrong(&format!("have {len} bytes, which are not {dtype} {shape:?}")));
        }
        let pieced = Pieced::joined(base, chunks.iter().map(|chunk| (chunk.offset, chunk.len)))?;
        let array = StoredArray { dtype: Ok(dtype), shape, offset: 0, len };
        Ok((Source::Pieced(Box::new(pieced)), array))
    }
}

/// A list, or a map with the numbers of the items as keys.
struct List {
    items: u64,
    has_keys: bool,
}

impl List {
    /// Passes over the key of item `number`, if it has one.
    fn check_key(&self, reader: &mut ValueReader<'_>, number: u64) -> Result<()> {
        let start = reader.at;
        match !self.has_keys || reader.key()? == number.to_string() {
            true => Ok(()),
            false => Err(wrong("items of a large array in another order", start)),
        }
    }
}

/// The list that begins at the position; `None` if it is another value.
fn list(reader: &mut ValueReader<'_>, most: u64) -> Result<Option<List>> {
    let (items, has_keys) = match reader.next()? {
        ValueKind::Array(items) => (items, false),
        ValueKind::Map(items) => (items, true),
        _ => return Ok(None),
    };
    cap("MAX_MSGPACK_ITEMS", items, most, "items of a large array")?;
    Ok(Some(List { items, has_keys }))
}
