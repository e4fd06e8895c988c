//! [`MessageReader`]: the fields of messages of Protocol Buffers in a file, one after another. What a
//! reader does not ask for is skipped, however long it is.

use std::ops::Range;

use super::window::WindowReader;
use crate::limits::cap;
use crate::protobuf::{FieldHead, FieldKind, MAX_HEAD};
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Longest text that is read, in bytes.
const MAX_TEXT: u64 = 1 << 20;

/// A field of a message in a file.
#[derive(Debug, Clone)]
pub(super) struct FieldAt {
    pub number: u64,
    pub kind: FieldKind,
    /// Where its content is. That of a varint is in `kind`.
    pub content: Range<u64>,
}

impl FieldAt {
    /// The content, if it is a text, a message or packed numbers.
    pub(super) fn bytes(&self) -> Option<Range<u64>> {
        matches!(self.kind, FieldKind::Bytes(_)).then(|| self.content.clone())
    }

    /// The number, if the field is a varint.
    pub(super) fn varint(&self) -> Option<u64> {
        match self.kind {
            FieldKind::Varint(value) => Some(value),
            _ => None,
        }
    }
}

/// Reads fields of a file through a small window.
pub(super) struct MessageReader<'a> {
    window: WindowReader<'a>,
    /// Length of the file.
    pub len: u64,
}

impl<'a> MessageReader<'a> {
    pub(super) fn new(file: &'a Source) -> Self {
        let window = WindowReader::new(file);
        Self { len: window.len, window }
    }

    /// The next field of the message whose rest is `rest`, which is moved behind it; `None` at its
    /// end.
    ///
    /// # Errors
    /// `Parse` if the field is malformed, or longer than the message; `Io`.
    pub(super) fn next(&mut self, rest: &mut Range<u64>) -> Result<Option<FieldAt>> {
        if rest.is_empty() {
            return Ok(None);
        }
        let at = rest.start;
        let wrong = |what: &str| AnamnesisError::parse(format!("{what} (at byte {at})"));
        let left = (rest.end - at).min(MAX_HEAD as u64);
        let head = FieldHead::read(self.bytes(at..at + left)?).map_err(wrong)?;
        let content = head.content(at, rest.end).map_err(wrong)?;
        rest.start = content.end;
        Ok(Some(FieldAt { number: head.number, kind: head.kind, content }))
    }

    /// The bytes of `range`, which is in the file and short.
    pub(super) fn bytes(&mut self, range: Range<u64>) -> Result<&[u8]> {
        self.window.bytes(range)
    }

    /// Field 1 and field 2 of the message in `rest`, which is an entry of a map: a text, and a text or a
    /// number.
    ///
    /// # Errors
    /// Those of [`next`](Self::next) and [`text`](Self::text).
    pub(super) fn entry(&mut self, mut rest: Range<u64>) -> Result<(String, String)> {
        let (mut key, mut value) = (String::new(), String::new());
        while let Some(field) = self.next(&mut rest)? {
            match (field.number, field.bytes(), field.varint()) {
                (1, Some(text), _) => key = self.text(text)?,
                (2, Some(text), _) => value = self.text(text)?,
                (2, _, Some(number)) => value = number.to_string(),
                _ => {}
            }
        }
        Ok((key, value))
    }

    /// The text in `range`.
    ///
    /// # Errors
    /// `Parse` if it is no UTF-8; `LimitExceeded` if it is long; `Io`.
    pub(super) fn text(&mut self, range: Range<u64>) -> Result<String> {
        cap("MAX_TEXT_BYTES", range.end - range.start, MAX_TEXT, "bytes of a name or a text")?;
        let at = range.start;
        let text = std::str::from_utf8(self.bytes(range)?);
        text.map(str::to_owned)
            .map_err(|_| AnamnesisError::parse(format!("a name is no UTF-8 (at byte {at})")))
    }
}
