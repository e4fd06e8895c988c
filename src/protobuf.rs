//! The wire format of Protocol Buffers: messages in memory, and the heads of fields for readers of
//! files that skip what they do not need.
//!
//! Source: protobuf.dev, "Encoding".

use std::ops::Range;

/// Value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "models"), allow(dead_code))]
pub(crate) enum ProtoValue<'a> {
    /// Any integer, enumeration or truth value.
    Varint(u64),
    /// A double or a fixed integer.
    Fixed64,
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// A float or a fixed integer, as stored.
    Fixed32([u8; 4]),
}

/// What a field begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldHead {
    pub number: u64,
    pub kind: FieldKind,
    /// Bytes before the content. The content of a varint is part of the head.
    pub len: usize,
}

/// The type of a field, with what its head says of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Varint(u64),
    Fixed64,
    /// A text, a message, or packed numbers: how many bytes they have.
    Bytes(u64),
    Fixed32,
}

/// Most bytes of the head of a field: two numbers.
pub(crate) const MAX_HEAD: usize = 20;

impl FieldHead {
    /// The head that `bytes` begins with.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, &'static str> {
        let (tag, len) = varint(bytes)?;
        let rest = &bytes[len..];
        let (kind, more) = match tag & 7 {
            0 => varint(rest).map(|(value, n)| (FieldKind::Varint(value), n))?,
            1 => (FieldKind::Fixed64, 0),
            2 => varint(rest).map(|(value, n)| (FieldKind::Bytes(value), n))?,
            5 => (FieldKind::Fixed32, 0),
            _ => return Err("a field has a type that is no longer used"),
        };
        match tag >> 3 {
            0 => Err("a field has the number 0"),
            number => Ok(Self { number, kind, len: len + more }),
        }
    }

    /// Where the content is, of a field that begins at `at` of a message that ends at `end`.
    ///
    /// # Errors
    /// It goes on behind the message.
    pub(crate) fn content(&self, at: u64, end: u64) -> Result<Range<u64>, &'static str> {
        let start = at + self.len as u64;
        let behind = start
            .checked_add(self.content_len())
            .filter(|&behind| behind <= end);
        Ok(start..behind.ok_or("it ends within a field")?)
    }

    /// Bytes of the content behind the head.
    pub(crate) fn content_len(&self) -> u64 {
        match self.kind {
            FieldKind::Varint(_) => 0,
            FieldKind::Fixed64 => 8,
            FieldKind::Bytes(n) => n,
            FieldKind::Fixed32 => 4,
        }
    }
}

/// A number of at most 64 bits, seven a byte, at the beginning of `bytes`, and how many bytes it has.
///
/// # Errors
/// It does not end, or has too many bytes.
pub(crate) fn varint(bytes: &[u8]) -> Result<(u64, usize), &'static str> {
    let mut value = 0u64;
    for i in 0..10 {
        let byte = *bytes.get(i).ok_or("it ends within a number")?;
        // Bits beyond 64 in the tenth byte are dropped, as the library does.
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok((value, i + 1));
        }
    }
    Err("a number has more than ten bytes")
}

/// The fields of a message, in the order of the file: numbers with values.
#[cfg_attr(not(feature = "models"), allow(dead_code))]
pub(crate) struct ProtoFields<'a>(&'a [u8]);

#[cfg_attr(not(feature = "models"), allow(dead_code))]
impl<'a> ProtoFields<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn field(&mut self) -> Result<(u64, ProtoValue<'a>), &'static str> {
        let head = FieldHead::read(self.0)?;
        let end = head.content(0, self.0.len() as u64)?.end;
        let (field, rest) = self.0.split_at(end as usize);
        let content = &field[head.len..];
        self.0 = rest;
        let value = match head.kind {
            FieldKind::Varint(value) => ProtoValue::Varint(value),
            FieldKind::Fixed64 => ProtoValue::Fixed64,
            FieldKind::Bytes(_) => ProtoValue::Bytes(content),
            FieldKind::Fixed32 => {
                ProtoValue::Fixed32(content.try_into().map_err(|_| "it ends within a field")?)
            }
        };
        Ok((head.number, value))
    }
}

#[cfg_attr(not(feature = "models"), allow(dead_code))]
impl<'a> Iterator for ProtoFields<'a> {
    type Item = Result<(u64, ProtoValue<'a>), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_bounded_by_the_message() {
        let read = |bytes: &[u8]| {
            let fields: Result<Vec<_>, _> = ProtoFields::new(bytes)
                .map(|f| f.map(|(n, v)| format!("{n} {v:?}")))
                .collect();
            fields
        };
        assert_eq!(
            read(b"\x0a\x02ab\x15\x00\x00\x80\x3f\x18\x96\x01").unwrap(),
            ["1 Bytes([97, 98])", "2 Fixed32([0, 0, 128, 63])", "3 Varint(150)"]
        );
        for (bytes, part) in [
            (&b"\x0a\x03ab"[..], "within a field"),
            (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "within a field"),
            (b"\x18\x96", "within a number"),
            (b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "more than ten bytes"),
            (b"\x15\x00", "within a field"),
            (b"\x0b", "a type"),
            (b"\x02\x00", "number 0"),
        ] {
            let error = read(bytes).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
