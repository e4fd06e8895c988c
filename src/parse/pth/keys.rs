//! Keys of dicts: their names, as Python's `str` writes them, and which of them are equal.

use super::pickle::PickleMachine;
use super::value::{Node, NodeId};
use crate::{AnamnesisError, Result};

/// Longest name of a key that is a tuple, in bytes.
const MAX_TUPLE_KEY: usize = 4096;

/// The name of a dict's key, as Python's `str` writes it.
///
/// # Errors
/// `Parse` if the key has no name of bounded length.
pub(super) fn key_name(key: NodeId, machine: &PickleMachine<'_>, depth: usize) -> Result<String> {
    Ok(match machine.values.node(key) {
        Node::Str(range) if depth > 0 => quoted(machine.input.text(range)?),
        Node::Str(range) => machine.input.text(range)?.to_owned(),
        Node::Bytes(range) => format!("b'{}'", machine.input.bytes(range).escape_ascii()),
        &Node::Encoded(text) => match machine.values.node(text) {
            Node::Str(range) => format!("b'{}'", machine.input.bytes(range).escape_ascii()),
            _ => return Err(AnamnesisError::parse("pickle: a dict whose key is no name")),
        },
        Node::Int(n) => n.to_string(),
        Node::Float(x) => float_name(*x),
        Node::Bool(b) => if *b { "True" } else { "False" }.to_owned(),
        Node::None => "None".to_owned(),
        Node::Tuple(items) if depth < 4 => {
            let mut text = "(".to_owned();
            for (i, &id) in items.iter().enumerate() {
                text += if i == 0 { "" } else { ", " };
                text += &key_name(id, machine, depth + 1)?;
                if text.len() > MAX_TUPLE_KEY {
                    return Err(AnamnesisError::parse("pickle: a dict whose key is no name"));
                }
            }
            text + if items.len() == 1 { ",)" } else { ")" }
        }
        _ => return Err(AnamnesisError::parse("pickle: a dict whose key is no name")),
    })
}

/// The integer that a key of a dict is equal to.
pub(super) fn number_of(key: &Node) -> Option<i64> {
    match *key {
        Node::Int(n) => Some(n),
        Node::Bool(b) => Some(b.into()),
        Node::Float(x) if x as i64 as f64 == x => Some(x as i64),
        _ => None,
    }
}

/// A text as Python writes it in a tuple. Characters other than control characters stay.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            '\\' => out += "\\\\",
            c if c == quote => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\x{:02x}", c as u32),
            c => out.push(c),
        }
    }
    out + &quote.to_string()
}

/// A float as Python writes it: exponents have a sign and two digits.
fn float_name(x: f64) -> String {
    let text = format!("{x:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text.replace("NaN", "nan"),
    }
}
