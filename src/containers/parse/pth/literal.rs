//! Opcodes that push a constant: numbers, text, bytes. Text and bytes stay in the input's buffer.

use std::ops::Range;

use super::pickle::{PickleMachine, wrong};
use super::value::Node;
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
            b'I' | b'L' => self.integer_line()?,
            b'F' => {
                let range = self.input.line()?;
                Node::Float(
                    self.input
                        .text(&range)?
                        .parse()
                        .map_err(|_| wrong("a number that is none"))?,
                )
            }
            b'G' => {
                let range = self.input.take(8)?;
                let bits = self
                    .input
                    .bytes(&range)
                    .iter()
                    .fold(0, |n, &b| n << 8 | u64::from(b));
                Node::Float(f64::from_bits(bits))
            }
            b'S' => Node::Str(unquoted(self.input.line()?)?),
            b'V' => Node::Str(self.input.line()?),
            b'U' | 0x8c => {
                let n = self.input.byte()?.into();
                Node::Str(self.input.take(n)?)
            }
            b'T' | b'X' => {
                let n = self.input.u32()? as usize;
                Node::Str(self.input.take(n)?)
            }
            0x8d => {
                let n = self.input.len_u64()?;
                Node::Str(self.input.take(n)?)
            }
            b'C' => {
                let n = self.input.byte()?.into();
                Node::Bytes(self.input.take(n)?)
            }
            b'B' => {
                let n = self.input.u32()? as usize;
                Node::Bytes(self.input.take(n)?)
            }
            0x8e | 0x96 => {
                let n = self.input.len_u64()?;
                Node::Bytes(self.input.take(n)?)
            }
            _ => {
                // The length of its argument is unknown, so the next opcode cannot be found.
                self.input.is_lost = true;
                return Err(wrong(&format!(
                    "opcode {opcode:#04x} at {}",
                    self.input.at - 1
                )));
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

    /// A decimal integer on a line of its own. Protocol 0 writes booleans as `00` and `01`.
    fn integer_line(&mut self) -> Result<Node> {
        let range = self.input.line()?;
        let text = self.input.text(&range)?;
        Ok(match text.trim_end_matches('L') {
            "00" => Node::Bool(false),
            "01" => Node::Bool(true),
            digits => match digits.parse() {
                Ok(n) => Node::Int(n),
                Err(_)
                    if digits
                        .trim_start_matches('-')
                        .bytes()
                        .all(|b| b.is_ascii_digit()) =>
                {
                    Node::BigInt(range)
                }
                Err(_) => return Err(wrong("a number that is none")),
            },
        })
    }
}

/// The range between the quotes of a line. Escapes stay undecoded: names of tensors are not written
/// in this form.
fn unquoted(line: Range<usize>) -> Result<Range<usize>> {
    if line.len() < 2 {
        Err(wrong("text without quotes"))
    } else {
        Ok(line.start + 1..line.end - 1)
    }
}
