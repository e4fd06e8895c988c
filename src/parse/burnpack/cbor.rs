//! Values of CBOR with definite lengths, one after another.
//!
//! Format: [RFC 8949](https://www.rfc-editor.org/rfc/rfc8949).

use std::ops::Range;

use crate::limits::cap;
use crate::parse::window::WindowReader;
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Longest text, in bytes.
const MAX_TEXT: u64 = 65_535;

/// Deepest nesting of what is passed over.
const MAX_DEPTH: usize = 16;

/// The beginning of a value. What has a length lies behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CborKind {
    Number(u64),
    /// A negative number, a float, a truth value or null, whose bytes are passed over.
    Other,
    Bytes(u64),
    Text(u64),
    /// Values.
    List(u64),
    /// Keys with their values.
    Map(u64),
}

/// Reads values from a part of a file.
pub(super) struct CborReader<'a> {
    window: WindowReader<'a>,
    /// Offset of the next byte.
    at: u64,
    end: u64,
}

impl<'a> CborReader<'a> {
    pub(super) fn new(source: &'a Source, range: Range<u64>) -> Self {
        Self { window: WindowReader::new(source), at: range.start, end: range.end }
    }

    /// The beginning of the next value. Bytes, items and keys are within the part, as far as its
    /// length tells.
    ///
    /// # Errors
    /// `Parse` if it is none, or longer than the part; `Io`.
    pub(super) fn next(&mut self) -> Result<CborKind> {
        let first = self.bytes(1)? as u8;
        let number = match first & 0x1f {
            n @ 0..=23 => u64::from(n),
            n @ 24..=27 => self.bytes(1 << (n - 24))?,
            _ => return Err(self.wrong("a value of no definite length")),
        };
        let item = match first >> 5 {
            0 => CborKind::Number(number),
            2 => CborKind::Bytes(number),
            3 => CborKind::Text(number),
            4 => CborKind::List(number),
            5 => CborKind::Map(number),
            6 => return Err(self.wrong("a value with a tag")),
            _ => CborKind::Other,
        };
        // An item takes a byte at least, so that a false number is found before it is counted to.
        let least = match item {
            CborKind::Bytes(len) | CborKind::Text(len) | CborKind::List(len) => len,
            CborKind::Map(len) => len.saturating_mul(2),
            CborKind::Number(_) | CborKind::Other => 0,
        };
        match least <= self.end - self.at {
            true => Ok(item),
            false => Err(self.wrong("a value that is longer than the description")),
        }
    }

    /// How many keys the next value, a map, has.
    pub(super) fn map(&mut self) -> Result<u64> {
        match self.next()? {
            CborKind::Map(len) => Ok(len),
            _ => Err(self.wrong("no map where there is to be one")),
        }
    }

    /// Begins a list of `len` items.
    pub(super) fn list(&mut self, len: u64) -> Result<()> {
        match self.next()? == CborKind::List(len) {
            true => Ok(()),
            false => Err(self.wrong(&format!("no list of {len} items where there is to be one"))),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        match self.next()? {
            CborKind::Number(number) => Ok(number),
            _ => Err(self.wrong("no number where there is to be one")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String> {
        match self.next()? {
            CborKind::Text(len) => self.text_of(len),
            _ => Err(self.wrong("no text where there is to be one")),
        }
    }

    /// The text of `len` bytes that has begun.
    pub(super) fn text_of(&mut self, len: u64) -> Result<String> {
        cap("MAX_BURNPACK_TEXT", len, MAX_TEXT, "bytes of a text")?;
        let end = self.at + len;
        let text = std::str::from_utf8(self.window.bytes(self.at..end)?).map(str::to_owned);
        self.at = end;
        text.map_err(|_| self.wrong("a text that is no UTF-8"))
    }

    /// Passes over the next value.
    pub(super) fn pass(&mut self) -> Result<()> {
        self.pass_at(0)
    }

    fn pass_at(&mut self, depth: usize) -> Result<()> {
        cap("MAX_BURNPACK_DEPTH", depth as u64, MAX_DEPTH as u64, "values inside of each other")?;
        let items = match self.next()? {
            CborKind::Bytes(len) | CborKind::Text(len) => {
                self.at += len;
                0
            }
            CborKind::List(len) => len,
            CborKind::Map(len) => 2 * len,
            CborKind::Number(_) | CborKind::Other => 0,
        };
        (0..items).try_for_each(|_| self.pass_at(depth + 1))
    }

    /// Fails if something is left.
    pub(super) fn end(&self) -> Result<()> {
        match self.at == self.end {
            true => Ok(()),
            false => Err(self.wrong("something behind its end")),
        }
    }

    /// A big-endian number of `len` bytes.
    fn bytes(&mut self, len: u64) -> Result<u64> {
        if len > self.end - self.at {
            return Err(self.wrong("an end in the middle of a value"));
        }
        let stored = self.window.bytes(self.at..self.at + len)?;
        let number = stored.iter().fold(0, |n, &byte| n << 8 | u64::from(byte));
        self.at += len;
        Ok(number)
    }

    pub(super) fn wrong(&self, what: &str) -> AnamnesisError {
        AnamnesisError::parse(format!("the description has {what} (before byte {})", self.at))
    }
}
