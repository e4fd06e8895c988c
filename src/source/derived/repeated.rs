//! [`RepeatedField`]: a repeated field of numbers in a message of Protocol Buffers, as the elements of
//! a tensor. The numbers may be packed, one by one, or both by turns.

use std::ops::Range;

use crate::protobuf::{FieldHead, FieldKind, MAX_HEAD, varint};
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// How numbers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberKind {
    /// Seven bits a byte. An element has the lowest bits of its number.
    Varint,
    /// As elements have them.
    Fixed,
}

/// Numbers between two places that are noted. Reading begins at one of them.
const STEP: u64 = 4096;

/// Bytes of the file that are read at once.
const WINDOW: usize = 16 << 10;

/// The numbers of a field, as elements of a fixed size.
#[derive(Debug)]
pub(crate) struct RepeatedField {
    base: Source,
    place: FieldPlace,
    /// Elements of the tensor.
    count: u64,
    /// Where each number is whose place among them is a multiple of [`STEP`].
    marks: Vec<NumberPlace>,
}

/// Where a repeated field is in a source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldPlace {
    /// The bytes of the message.
    pub start: u64,
    pub end: u64,
    /// The field's number in it.
    pub number: u64,
    pub kind: NumberKind,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub width: usize,
}

/// A place in a message: a field begins there, or a number of packed ones.
#[derive(Debug, Clone, Copy)]
struct NumberPlace {
    at: u64,
    /// Where the packed numbers end; 0 between fields.
    packed_end: u64,
}

impl RepeatedField {
    /// Reads the message once, to count the numbers and to note some places.
    ///
    /// # Errors
    /// `Parse` if the message is malformed, or a number does not fit into an element; `Io`.
    pub(crate) fn new(base: Source, place: FieldPlace) -> Result<Self> {
        let (mut count, mut marks) = (0u64, Vec::new());
        let mut numbers = Numbers::new(&base, place, None);
        loop {
            if count.is_multiple_of(STEP) {
                marks.push(numbers.place);
            }
            let Some(number) = numbers.next()? else {
                break;
            };
            if !place.fits(number) {
                return Err(AnamnesisError::parse(format!(
                    "number {count} of its data, {}, does not fit into an element of {} bits",
                    number as i64,
                    8 * place.width
                )));
            }
            count += 1;
        }
        Ok(Self { place, count, marks, base })
    }

    /// Number of elements.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn len(&self) -> u64 {
        self.count * self.place.width as u64
    }

    pub(super) fn base(&self) -> &Source {
        &self.base
    }

    /// Fills `out` with the elements' bytes from `offset` on.
    pub(super) fn read_at(&self, offset: u64, mut out: &mut [u8]) -> Result<()> {
        let changed = || AnamnesisError::parse("tensor data past the end");
        let width = self.place.width as u64;
        let (first, mut skip) = (offset / width, (offset % width) as usize);
        let mark = self.marks.get((first / STEP) as usize);
        let mut numbers = Numbers::new(&self.base, self.place, mark.copied());
        for _ in 0..first % STEP {
            numbers.next()?;
        }
        while !out.is_empty() {
            let bytes = numbers.next()?.ok_or_else(changed)?.to_le_bytes();
            let element = &bytes[skip..self.place.width];
            let n = element.len().min(out.len());
            let (now, rest) = out.split_at_mut(n);
            now.copy_from_slice(&element[..n]);
            (out, skip) = (rest, 0);
        }
        Ok(())
    }
}

impl FieldPlace {
    /// Whether an element has room for `number`, signed or unsigned.
    fn fits(&self, number: u64) -> bool {
        let bits = 8 * self.width as u32;
        bits >= 64 || number >> bits == 0 || (number as i64) >> (bits - 1) == -1
    }
}

/// Reads the numbers of a field one after another.
struct Numbers<'a> {
    source: &'a Source,
    field: FieldPlace,
    place: NumberPlace,
    /// Bytes of the message, from the position on.
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> Numbers<'a> {
    /// From `place` on, or from the beginning of the message.
    fn new(source: &'a Source, field: FieldPlace, place: Option<NumberPlace>) -> Self {
        let place = place.unwrap_or(NumberPlace { at: field.start, packed_end: 0 });
        Self { source, field, place, window: Vec::new(), window_at: 0 }
    }

    /// The next number; `None` at the end of the message.
    fn next(&mut self) -> Result<Option<u64>> {
        while self.place.packed_end == 0 {
            if self.place.at >= self.field.end {
                return Ok(None);
            }
            if let Some(number) = self.next_field()? {
                return Ok(Some(number));
            }
        }
        let number = self.number(self.place.packed_end)?;
        if self.place.at == self.place.packed_end {
            self.place.packed_end = 0;
        }
        Ok(Some(number))
    }

    /// Passes over a field, or to the first of its packed numbers. A field that is one number is
    /// returned.
    fn next_field(&mut self) -> Result<Option<u64>> {
        let head = FieldHead::read(self.bytes(MAX_HEAD, self.field.end)?).map_err(malformed)?;
        let content = head.content(self.place.at, self.field.end);
        let Range { start, end } = content.map_err(malformed)?;
        self.place.at = start;
        let is_ours = head.number == self.field.number;
        match (head.kind, self.field.kind) {
            (FieldKind::Varint(number), NumberKind::Varint) if is_ours => return Ok(Some(number)),
            (FieldKind::Bytes(1..), _) if is_ours => {
                self.place.packed_end = end;
                return Ok(None);
            }
            (FieldKind::Fixed32 | FieldKind::Fixed64, NumberKind::Fixed)
                if is_ours && end - start == self.field.width as u64 =>
            {
                return self.number(end).map(Some);
            }
            _ => self.place.at = end,
        }
        Ok(None)
    }

    /// The number at the place, which ends before `end`.
    fn number(&mut self, end: u64) -> Result<u64> {
        let (kind, width) = (self.field.kind, self.field.width);
        let bytes = self.bytes(10, end)?;
        let (number, len) = match kind {
            NumberKind::Varint => varint(bytes).map_err(malformed)?,
            NumberKind::Fixed => {
                let stored = bytes.get(..width);
                let stored = stored.ok_or_else(|| malformed("it ends within a number"))?;
                let mut number = [0; 8];
                number[..width].copy_from_slice(stored);
                (u64::from_le_bytes(number), width)
            }
        };
        self.place.at += len as u64;
        Ok(number)
    }

    /// At least `n` bytes from the place on, or those that are left before `end`.
    fn bytes(&mut self, n: usize, end: u64) -> Result<&[u8]> {
        let n = (end - self.place.at).min(n as u64) as usize;
        let has = |window: &[u8], at: u64| {
            let skipped = usize::try_from(self.place.at.checked_sub(at)?).ok()?;
            (skipped.checked_add(n)? <= window.len()).then_some(skipped)
        };
        let skipped = match has(&self.window, self.window_at) {
            Some(skipped) => skipped,
            None => {
                let left = self.field.end - self.place.at;
                self.window.resize(left.min(WINDOW as u64) as usize, 0);
                self.source.read_at(self.place.at, &mut self.window)?;
                self.window_at = self.place.at;
                0
            }
        };
        let last = (end - self.window_at).min(self.window.len() as u64) as usize;
        Ok(&self.window[skipped..last])
    }
}

fn malformed(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("its message is malformed: {what}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn varints(numbers: &[i64]) -> Vec<u8> {
        let mut out = Vec::new();
        for &number in numbers {
            let mut rest = number as u64;
            while rest > 127 {
                out.push(rest as u8 | 128);
                rest >>= 7;
            }
            out.push(rest as u8);
        }
        out
    }

    fn field(message: Vec<u8>, width: usize) -> Result<RepeatedField> {
        let end = message.len() as u64;
        let place = FieldPlace { start: 0, end, number: 5, kind: NumberKind::Varint, width };
        RepeatedField::new(Source::Bytes(Arc::new(message)), place)
    }

    #[test]
    fn packed_and_single_numbers_at_every_place() {
        let numbers: Vec<i64> = (0..10_000).map(|i| i * 37 % 300 - 100).collect();
        // Another field, packed numbers, a single one, another field, packed ones.
        let mut message = vec![0x12, 2, 0x28, 0x28];
        for packed in [&numbers[..7000], &numbers[7001..]] {
            let bytes = varints(packed);
            message.push(0x2a);
            message.extend(varints(&[bytes.len() as i64]));
            message.extend(bytes);
            if packed.len() == 7000 {
                message.push(0x28);
                message.extend(varints(&numbers[7000..7001]));
                message.extend([0x4a, 1, 0, 0x2a, 0]);
            }
        }
        let field = field(message, 2).unwrap();
        let expected: Vec<u8> = numbers
            .iter()
            .flat_map(|&n| (n as i16).to_le_bytes())
            .collect();
        assert_eq!((field.count(), field.len()), (10_000, 20_000));
        for (at, n) in [(0, 20_000), (1, 3), (8190, 10), (8192, 4), (13_998, 6), (19_999, 1)] {
            let mut out = vec![0; n];
            field.read_at(at as u64, &mut out).unwrap();
            assert_eq!(out, &expected[at..at + n], "{at}");
        }
        assert!(field.read_at(20_000, &mut [0]).is_err());
    }

    #[test]
    fn numbers_that_do_not_fit() {
        let message = |number| {
            let bytes = varints(&[number]);
            [&[0x2a, bytes.len() as u8], &bytes[..]].concat()
        };
        for (number, width, fits) in [
            (255, 1, true),
            (-128, 1, true),
            (256, 1, false),
            (-129, 1, false),
            (65_535, 2, true),
            (i64::MIN, 8, true),
        ] {
            assert_eq!(field(message(number), width).is_ok(), fits, "{number}");
        }
        for broken in [&[0x2a, 2, 0x80][..], &[0x2a, 1, 0x80], &[0x2a], &[0x2a, 1, 0x80, 0x28, 1]] {
            assert!(field(broken.to_vec(), 4).is_err(), "{broken:?}");
        }
    }
}
