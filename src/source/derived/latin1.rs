//! [`Latin1Text`]: bytes that a file has as text: UTF-8, each character of which is a byte (Latin-1).

use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes between two places that are noted. Reading begins at one of them.
const STEP: u64 = 1 << 16;

/// Bytes of the file that are read at once.
const WINDOW: usize = 16 << 10;

/// The bytes that some ranges of a file are the text of, one after another.
#[derive(Debug)]
pub(crate) struct Latin1Text {
    base: Source,
    /// Offset and length of each range.
    ranges: Vec<(u64, u64)>,
    len: u64,
    /// The range and the place in it of each byte whose number is a multiple of [`STEP`].
    marks: Vec<(usize, u64)>,
}

/// Fills a slice with the bytes of a file from an offset on.
type ReadFile<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

impl Latin1Text {
    /// Reads the text once, to count its characters and to note some places.
    ///
    /// # Errors
    /// `Parse` if it is not UTF-8, or a character is no byte; those of `read`.
    pub(crate) fn new(
        base: Source,
        ranges: Vec<(u64, u64)>,
        read: &mut ReadFile<'_>,
    ) -> Result<Self> {
        let mut text = Self { base, ranges, len: 0, marks: vec![] };
        let (mut len, mut marks) = (0u64, vec![]);
        text.decode((0, 0), read, |place, _| {
            if len.is_multiple_of(STEP) {
                marks.push(place);
            }
            len += 1;
            true
        })?;
        (text.len, text.marks) = (len, marks);
        Ok(text)
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn base(&self) -> &Source {
        &self.base
    }

    /// Fills `out` with the bytes from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return Err(AnamnesisError::parse("tensor data past the end"));
        }
        let Some(&mark) = self
            .marks
            .get((offset / STEP) as usize)
            .filter(|_| !out.is_empty())
        else {
            return Ok(());
        };
        let (mut skip, mut rest) = (offset % STEP, out.iter_mut());
        let mut next = rest.next();
        let mut read = |at: u64, out: &mut [u8]| self.base.read_at(at, out);
        self.decode(mark, &mut read, |_, byte| {
            if skip > 0 {
                skip -= 1;
            } else if let Some(out) = next.take() {
                *out = byte;
                next = rest.next();
            }
            next.is_some()
        })
    }

    /// Passes each byte from `place` on to `put` with its place, as long as it returns `true`.
    fn decode(
        &self,
        (first, start): (usize, u64),
        read: &mut ReadFile<'_>,
        mut put: impl FnMut((usize, u64), u8) -> bool,
    ) -> Result<()> {
        let wrong = || AnamnesisError::parse("its data are text that stands for no bytes");
        let mut window = vec![0; WINDOW];
        for (number, &(offset, len)) in self.ranges.iter().enumerate().skip(first) {
            let mut at = if number == first { start } else { 0 };
            while at < len {
                let n = (len - at).min(WINDOW as u64) as usize;
                read(offset + at, &mut window[..n])?;
                let mut used = 0;
                while used < n {
                    let (byte, size) = match window[used..n] {
                        [byte @ ..0x80, ..] => (byte, 1),
                        [lead @ 0xc2..=0xc3, next @ 0x80..=0xbf, ..] => {
                            (lead << 6 | next & 0x3f, 2)
                        }
                        // A character that goes on in the next window.
                        [0xc2..=0xc3] if at + (n as u64) < len => break,
                        _ => return Err(wrong()),
                    };
                    if !put((number, at + used as u64), byte) {
                        return Ok(());
                    }
                    used += size;
                }
                at += used as u64;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn bytes_at_every_place() {
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i * 7 % 256) as u8).collect();
        let text: String = bytes.iter().map(|&byte| char::from(byte)).collect();
        // A character of two bytes may lie on the end of a window.
        for shift in [0, 1] {
            let file = [&b"x".repeat(shift)[..], text.as_bytes()].concat();
            let source = Source::Bytes(Arc::new(file));
            let first: usize = bytes[..1000]
                .iter()
                .map(|b| 1 + usize::from(*b > 127))
                .sum();
            let (first, all) = (first as u64, text.len() as u64);
            let ranges = vec![(shift as u64, first), (shift as u64 + first, all - first)];
            let base = source.share();
            let mut read = |at: u64, out: &mut [u8]| source.read_at(at, out);
            let text = Latin1Text::new(base, ranges, &mut read).unwrap();
            assert_eq!(text.len(), bytes.len() as u64);
            for (at, n) in [(0, 200_000), (999, 2), (65_535, 2), (131_072, 9), (199_999, 1), (5, 0)]
            {
                let mut out = vec![0; n];
                text.read_at(at as u64, &mut out).unwrap();
                assert!(out == bytes[at..at + n], "{at}");
            }
            assert!(text.read_at(200_000, &mut [0]).is_err());
        }
    }

    #[test]
    fn text_that_is_no_bytes() {
        for text in [&b"\xc4\x80"[..], b"\xff", b"\xc2", b"\xc2a", b"\x80", b"\xc1\x81"] {
            let source = Source::Bytes(Arc::new(text.to_vec()));
            let ranges = vec![(0, text.len() as u64)];
            let mut read = |at: u64, out: &mut [u8]| source.read_at(at, out);
            assert!(Latin1Text::new(source.share(), ranges, &mut read).is_err(), "{text:?}");
        }
    }
}
