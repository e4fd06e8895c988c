//! Values of MessagePack, one after another.
//!
//! Format: [MessagePack](https://github.com/msgpack/msgpack/blob/master/spec.md).

use super::StoredArray;
use crate::limits::cap;
use crate::parse::window::WindowReader;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// Longest key, in bytes.
const MAX_KEY: u64 = 4096;

/// Most dimensions of an array; NumPy has the same limit.
const MAX_DIMS: u64 = 64;

/// The beginning of a value. What has a length lies behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    Nil,
    Bool(bool),
    /// A number; `None` is one that is negative.
    Int(Option<u64>),
    Float,
    Text(u64),
    Bytes(u64),
    /// Values.
    Array(u64),
    /// Keys with their values.
    Map(u64),
    /// The type, and the length.
    Ext(i8, u64),
}

/// Reads values from a file.
pub(super) struct ValueReader<'a> {
    window: WindowReader<'a>,
    /// Offset of the next byte.
    pub at: u64,
    /// Length of the file.
    pub len: u64,
}

impl<'a> ValueReader<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        let window = WindowReader::new(source);
        Self { len: window.len, window, at: 0 }
    }

    /// The beginning of the next value. The items of a list or a map are in the file, as far as its
    /// length tells.
    ///
    /// # Errors
    /// `Parse` if it is none, or longer than the file; `Io`.
    pub(super) fn next(&mut self) -> Result<ValueKind> {
        let start = self.at;
        let first = self.number(1)? as u8;
        let kind = match first {
            0x00..=0x7f => ValueKind::Int(Some(first.into())),
            0x80..=0x8f => ValueKind::Map((first & 0x0f).into()),
            0x90..=0x9f => ValueKind::Array((first & 0x0f).into()),
            0xa0..=0xbf => ValueKind::Text((first & 0x1f).into()),
            0xc0 => ValueKind::Nil,
            0xc2 | 0xc3 => ValueKind::Bool(first == 0xc3),
            0xc4..=0xc6 => ValueKind::Bytes(self.number(1 << (first - 0xc4))?),
            0xc7..=0xc9 => {
                let len = self.number(1 << (first - 0xc7))?;
                ValueKind::Ext(self.number(1)? as i8, len)
            }
            0xca | 0xcb => {
                self.skip(4 << (first - 0xca))?;
                ValueKind::Float
            }
            0xcc..=0xcf => ValueKind::Int(Some(self.number(1 << (first - 0xcc))?)),
            0xd0..=0xd3 => {
                let bytes = 1 << (first - 0xd0);
                let number = self.number(bytes)?;
                ValueKind::Int(Some(number).filter(|number| number >> (8 * bytes - 1) == 0))
            }
            0xd4..=0xd8 => ValueKind::Ext(self.number(1)? as i8, 1 << (first - 0xd4)),
            0xd9..=0xdb => ValueKind::Text(self.number(1 << (first - 0xd9))?),
            0xdc | 0xdd => ValueKind::Array(self.number(2 << (first - 0xdc))?),
            0xde | 0xdf => ValueKind::Map(self.number(2 << (first - 0xde))?),
            0xe0..=0xff => ValueKind::Int(None),
            0xc1 => return Err(wrong("byte 0xc1, which begins no value", start)),
        };
        // An item takes a byte at least, so that a false number is found before it is counted to.
        let least = match kind {
            ValueKind::Text(len)
            | ValueKind::Bytes(len)
            | ValueKind::Array(len)
            | ValueKind::Ext(_, len) => len,
            ValueKind::Map(len) => len.saturating_mul(2),
            _ => 0,
        };
        match self.at.checked_add(least) {
            Some(end) if end <= self.len => Ok(kind),
            _ => Err(wrong("a value that is longer than the file", start)),
        }
    }

    /// Passes over `n` bytes.
    ///
    /// # Errors
    /// `Parse` if the file has fewer.
    pub(super) fn skip(&mut self, n: u64) -> Result<()> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.len);
        self.at = end.ok_or_else(|| wrong("a value that is longer than the file", self.at))?;
        Ok(())
    }

    /// A key of a map, as text.
    ///
    /// # Errors
    /// `Parse` if it is neither text nor a number; `LimitExceeded` if it is long; `Io`.
    pub(super) fn key(&mut self) -> Result<String> {
        let start = self.at;
        match self.next()? {
            ValueKind::Text(len) => self.text(len),
            ValueKind::Int(Some(number)) => Ok(number.to_string()),
            _ => Err(wrong("a key that is no text", start)),
        }
    }

    /// The array of an ext value of `len` bytes: `[shape, name of the dtype, bytes]`.
    ///
    /// # Errors
    /// `Parse` if it is none, or if the bytes do not fit the shape.
    pub(super) fn array(&mut self, len: u64) -> Result<StoredArray> {
        let start = self.at;
        let end = start + len;
        let other = || wrong("an array that is not as Flax writes it", start);
        let (ValueKind::Array(3), ValueKind::Array(rank)) = (self.next()?, self.next()?) else {
            return Err(other());
        };
        cap("MAX_MSGPACK_DIMS", rank, MAX_DIMS, "dimensions of an array")?;
        let shape = (0..rank).map(|_| self.size()).collect::<Result<Vec<_>>>()?;
        let ValueKind::Text(name) = self.next()? else {
            return Err(other());
        };
        let name = self.text(name)?;
        let ValueKind::Bytes(bytes) = self.next()? else {
            return Err(other());
        };
        let offset = self.at;
        self.skip(bytes)?;
        if self.at != end {
            return Err(other());
        }
        let dtype = Dtype::from_numpy(&name).ok_or(name);
        if let Ok(dtype) = dtype
            && dtype.byte_len(&shape) != usize::try_from(bytes).ok()
        {
            let what = format!("its data of {bytes} bytes are not {dtype} {shape:?}");
            return Err(AnamnesisError::parse(what));
        }
        Ok(StoredArray { dtype, shape, offset, len: bytes })
    }

    /// A size of a dimension.
    ///
    /// # Errors
    /// `Parse` if it is none.
    pub(super) fn size(&mut self) -> Result<usize> {
        let start = self.at;
        match self.next()? {
            ValueKind::Int(Some(number)) => usize::try_from(number).ok(),
            _ => None,
        }
        .ok_or_else(|| wrong("a size that is none", start))
    }

    fn text(&mut self, len: u64) -> Result<String> {
        cap("MAX_MSGPACK_KEY", len, MAX_KEY, "bytes of a key")?;
        let start = self.at;
        let text = std::str::from_utf8(self.window.bytes(start..start + len)?).map(str::to_owned);
        self.at += len;
        text.map_err(|_| wrong("a text that is no UTF-8", start))
    }

    /// A big-endian number of `bytes` bytes.
    fn number(&mut self, bytes: u64) -> Result<u64> {
        let range = self.at..self.at + bytes;
        let stored = self.window.bytes(range)?;
        let number = stored.iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        self.at += bytes;
        Ok(number)
    }
}

pub(super) fn wrong(what: &str, at: u64) -> AnamnesisError {
    AnamnesisError::parse(format!("MessagePack: {what} (at byte {at})"))
}
