//! Opcodes that push a constant: numbers, text, bytes. Text and bytes stay in the input's buffer.

use std::ops::Range;

use super::super::value::{Node, StoredRange};
use super::{PickleMachine, wrong};
use crate::Result;

impl PickleMachine<'_> {
    /// Executes an opcode that pushes a constant.
    ///
    /// # Errors
    /// `Parse` if the argument is malformed, or if the opcode is unknown.
    pub(super) fn literal_opcode(&mut self, opcode: u8) -> Result<()> {
        let node = match opcode {
            b'N' => Node::None,
            0x88 => Node::Bool(true),
            0x89 => Node::Bool(false),
            b'J' => Node::Int(i64::from(self.input.u32()? as i32)),
            b'K' => Node::Int(self.input.byte()?.into()),
            b'M' => Node::Int(i64::from(self.input.byte()?) | i64::from(self.input.byte()?) << 8),
            0x8a => {
                let n = self.input.byte()?.into();
                self.long(n)?
            }
            0x8b => {
                let n = self.input.u32()? as usize;
                self.long(n)?
            }
            b'I' | b'L' => self.integer_line(opcode == b'L')?,
            b'F' => self.float_line()?,
            b'G' => {
                let range = self.input.take(8)?;
                let bits = self
                    .input
                    .bytes(&range)
                    .iter()
                    .fold(0, |n, &b| n << 8 | u64::from(b));
                Node::Float(f64::from_bits(bits))
            }
            b'S' => self.quoted_line()?,
            b'V' => self.escaped_line()?,
            b'U' | 0x8c => {
                let n = self.input.byte()?.into();
                Node::Str(self.input.take(n)?)
            }
            b'T' | b'X' => {
                let n = self.input.u32()? as usize;
                self.take_long(n, Node::Str)?
            }
            0x8d => {
                let n = self.input.len_u64()?;
                self.take_long(n, Node::Str)?
            }
            b'C' => {
                let n = self.input.byte()?.into();
                Node::Bytes(self.input.take(n)?)
            }
            b'B' => {
                let n = self.input.u32()? as usize;
                self.take_long(n, Node::Bytes)?
            }
            0x8e | 0x96 => {
                let n = self.input.len_u64()?;
                self.take_long(n, Node::Bytes)?
            }
            _ => {
                // The length of its argument is unknown, so the next opcode cannot be found.
                self.input.is_lost = true;
                return Err(wrong(&format!("opcode {opcode:#04x} at {}", self.input.at - 1)));
            }
        };
        self.push(node)
    }

    /// A two's-complement integer of `n` little-endian bytes. One of more than eight bytes stays as
    /// bytes: it can be a magic number or a key, but no size.
    fn long(&mut self, n: usize) -> Result<Node> {
        let range = self.input.take(n)?;
        let bytes = self.input.bytes(&range);
        if n > 8 {
            return Ok(Node::BigInt(range));
        }
        let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut extended = if negative { [0xff; 8] } else { [0; 8] };
        extended[..n].copy_from_slice(bytes);
        Ok(Node::Int(i64::from_le_bytes(extended)))
    }

    /// Text or bytes of `n` bytes. A lenient run does not keep long ones, which can name no global,
    /// and a run for arrays leaves them in the file.
    fn take_long(&mut self, n: usize, node: fn(Range<usize>) -> Node) -> Result<Node> {
        let range = StoredRange { offset: self.input.position(), len: n as u64 };
        if n <= MAX_KEPT || !(self.lenient || self.leaves_data) || !self.input.pass_over(n)? {
            return Ok(node(self.input.take(n)?));
        }
        Ok(match node(0..0) {
            _ if self.lenient => Node::Opaque,
            Node::Str(_) => Node::StoredText(range),
            _ => Node::Stored(range),
        })
    }

    /// A decimal integer on a line of its own. Protocol 0 writes booleans as `00` and `01`.
    ///
    /// # Errors
    /// `Parse` unless it is written as Python writes it: Python's two unpicklers differ in how they
    /// read others, such as `010`.
    fn integer_line(&mut self, is_long: bool) -> Result<Node> {
        let range = self.input.line()?;
        let line = self.input.bytes(&range);
        let digits = match line.strip_suffix(b"L") {
            Some(digits) if is_long => digits,
            _ => line,
        };
        let magnitude = digits.strip_prefix(b"-").unwrap_or(digits);
        Ok(match digits {
            b"00" if !is_long => Node::Bool(false),
            b"01" if !is_long => Node::Bool(true),
            _ if is_decimal(magnitude) => {
                let digits = range.start..range.start + digits.len();
                match self.input.text(&digits)?.parse() {
                    Ok(n) => Node::Int(n),
                    Err(_) => Node::BigInt(digits),
                }
            }
            // In a lenient run numbers have no part in what is run. Python takes digits of other
            // scripts, too.
            _ if self.lenient
                && (!digits.is_ascii() || python_integer(digits).is_some() || has_base(digits)) =>
            {
                Node::Opaque
            }
            _ => return Err(wrong("a number that is none")),
        })
    }

    /// A float on a line of its own.
    fn float_line(&mut self) -> Result<Node> {
        let range = self.input.line()?;
        let text = self.input.text(&range)?;
        let no_number = || wrong("a number that is none");
        match self.lenient {
            // Python takes underscores between digits.
            true => {
                let plain = text.trim().replace('_', "");
                plain.parse::<f64>().map(|_| Node::Opaque)
            }
            false => text.parse().map(Node::Float),
        }
        .map_err(|_| no_number())
    }

    /// Text in quotes on a line of its own, with the escapes of a literal of Python's.
    fn quoted_line(&mut self) -> Result<Node> {
        let line = self.input.line()?;
        let inner = match self.input.bytes(&line) {
            [b'\'', .., b'\''] | [b'"', .., b'"'] => line.start + 1..line.end - 1,
            _ => return Err(wrong("text without quotes")),
        };
        let bytes = self.input.bytes(&inner);
        if !bytes.contains(&b'\\') {
            return Ok(Node::Str(inner));
        }
        let text = unescaped(bytes).ok_or_else(|| wrong("text with an escape that is none"))?;
        Ok(Node::Str(self.decoded(&text)))
    }

    /// Text on a line of its own: Latin-1 with the escapes `\u` and `\U`.
    fn escaped_line(&mut self) -> Result<Node> {
        let line = self.input.line()?;
        let bytes = self.input.bytes(&line);
        if bytes.is_ascii() && !bytes.contains(&b'\\') {
            return Ok(Node::Str(line));
        }
        match raw_unescaped(bytes) {
            Some(text) => Ok(Node::Str(self.decoded(text.as_bytes()))),
            // Python takes half a surrogate pair.
            None if self.lenient => Ok(Node::Opaque),
            None => Err(wrong("text with an escape that is none")),
        }
    }

    /// Keeps text that is not in the input as it is meant, and returns its range.
    fn decoded(&mut self, text: &[u8]) -> Range<usize> {
        self.values.charge(text.len());
        self.input.add_decoded(text)
    }
}

/// Longest text or bytes that are kept in any case.
const MAX_KEPT: usize = 64 << 10;

/// The digits of a decimal integer with its sign, as Python's `int` reads them: with whitespace
/// around it and underscores between digits.
pub(super) fn python_integer(line: &[u8]) -> Option<String> {
    let is_space = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
    let start = line.iter().position(|b| !is_space(b))?;
    let end = line.iter().rposition(|b| !is_space(b))? + 1;
    let (sign, digits) = match &line[start..end] {
        [b'-', digits @ ..] => ("-", digits),
        [b'+', digits @ ..] | digits => ("", digits),
    };
    let is_number = digits
        .split(|&b| b == b'_')
        .all(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit));
    let text: String = digits
        .iter()
        .filter(|&&b| b != b'_')
        .map(|&b| char::from(b))
        .collect();
    is_number.then(|| sign.to_owned() + &text)
}

/// Whether text begins as a number of another base does.
fn has_base(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let digits = line
        .strip_prefix(b"-")
        .or_else(|| line.strip_prefix(b"+"))
        .unwrap_or(line);
    matches!(digits, [b'0', b'x' | b'X' | b'o' | b'O' | b'b' | b'B', ..])
}

/// Whether the digits are those of a decimal number without zeros before it.
fn is_decimal(digits: &[u8]) -> bool {
    let is_first = |&first: &u8| first != b'0' || digits.len() == 1;
    digits.first().is_some_and(is_first) && digits.iter().all(u8::is_ascii_digit)
}

/// The bytes that a literal of Python's stands for (`codecs.escape_decode`); `None` if an escape is
/// incomplete.
fn unescaped(line: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            out.push(*first);
            continue;
        }
        let (&escape, tail) = rest.split_first()?;
        rest = tail;
        match escape {
            b'\\' | b'\'' | b'"' => out.push(escape),
            b'a' => out.push(7),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'0'..=b'7' => {
                let more = rest
                    .iter()
                    .take(2)
                    .take_while(|b| matches!(b, b'0'..=b'7'))
                    .count();
                let digits = std::iter::once(escape).chain(rest[..more].iter().copied());
                out.push(digits.fold(0u32, |n, b| n << 3 | u32::from(b - b'0')) as u8);
                rest = &rest[more..];
            }
            b'x' => {
                out.push(hexadecimal(rest, 2)? as u8);
                rest = &rest[2..];
            }
            // An escape that Python does not know stays as it is.
            _ => out.extend([b'\\', escape]),
        }
    }
    Some(out)
}

/// The text of Python's codec `raw-unicode-escape`; `None` if an escape is incomplete, or is half a
/// surrogate pair.
fn raw_unescaped(line: &[u8]) -> Option<String> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let [first, tail @ ..] = rest {
        let digits = match tail.first() {
            Some(b'u') if *first == b'\\' => 4,
            Some(b'U') if *first == b'\\' => 8,
            // A backslash behind another one begins no escape.
            Some(b'\\') if *first == b'\\' => {
                out.push_str("\\\\");
                rest = &tail[1..];
                continue;
            }
            _ => {
                out.push(char::from(*first));
                rest = tail;
                continue;
            }
        };
        out.push(char::from_u32(hexadecimal(&tail[1..], digits)?)?);
        rest = &tail[1 + digits..];
    }
    Some(out)
}

/// The number that the first `n` bytes are the hexadecimal digits of.
fn hexadecimal(bytes: &[u8], n: usize) -> Option<u32> {
    let digits = bytes.get(..n)?;
    digits.iter().try_fold(0u32, |all, &b| {
        let digit = char::from(b).to_digit(16)?;
        all.checked_mul(16)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values are those of `int`, `codecs.escape_decode` and `raw-unicode-escape` of Python 3.11.
    #[test]
    fn lines_are_read_as_python_reads_them() {
        let number = |text: &str| python_integer(text.as_bytes());
        assert_eq!(number("1_0").as_deref(), Some("10"));
        assert_eq!(number(" +7\r").as_deref(), Some("7"));
        assert_eq!(number("-1").as_deref(), Some("-1"));
        for none in ["", "_1", "1_", "1__0", "0x1", "1 0", "a"] {
            assert_eq!(number(none), None, "{none}");
        }
        assert_eq!(unescaped(b"po\\x73\\151x\\q\\\\").as_deref(), Some(&b"posix\\q\\"[..]));
        assert_eq!(unescaped(b"\\x7"), None);
        assert_eq!(raw_unescaped(b"\\u006fs\xe9\\\\u0061").as_deref(), Some("os\u{e9}\\\\u0061"));
        assert_eq!(raw_unescaped(b"\\U0001f600s").as_deref(), Some("\u{1f600}s"));
        for none in [&b"\\ud800"[..], b"\\U00110000", b"\\U0001f60"] {
            assert_eq!(raw_unescaped(none), None);
        }
        assert!(is_decimal(b"0") && is_decimal(b"10") && !is_decimal(b"010") && !is_decimal(b""));
    }
}
