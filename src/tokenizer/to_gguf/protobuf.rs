//! The wire format of Protocol Buffers, as far as SentencePiece's files have it.
//!
//! Source: protobuf.dev, "Encoding".

/// Value of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProtoValue<'a> {
    /// Any integer, enumeration or truth value.
    Varint(u64),
    /// A double or a fixed integer.
    Fixed64,
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// A float or a fixed integer, as stored.
    Fixed32([u8; 4]),
}

/// The fields of a message, in the order of the file: numbers with values.
pub(super) struct ProtoFields<'a>(&'a [u8]);

impl<'a> ProtoFields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// A number of at most 64 bits, seven a byte.
    fn varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0u64;
        for i in 0..10 {
            let (byte, rest) = self.0.split_first().ok_or("it ends within a number")?;
            self.0 = rest;
            // Bits beyond 64 in the tenth byte are dropped, as the library does.
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number has more than ten bytes")
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or("it ends within a field")?;
        self.0 = rest;
        Ok(taken)
    }

    fn field(&mut self) -> Result<(u64, ProtoValue<'a>), &'static str> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => ProtoValue::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                ProtoValue::Fixed64
            }
            2 => {
                let n = usize::try_from(self.varint()?).map_err(|_| "it ends within a field")?;
                ProtoValue::Bytes(self.take(n)?)
            }
            5 => ProtoValue::Fixed32(
                self.take(4)?
                    .try_into()
                    .map_err(|_| "it ends within a field")?,
            ),
            _ => return Err("a field has a type that SentencePiece does not use"),
        };
        match tag >> 3 {
            0 => Err("a field has the number 0"),
            number => Ok((number, value)),
        }
    }
}

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
