//! The vocabulary of RWKV, a line for each token with its number, a literal of Python and the number
//! of its bytes: the tokenizer `rwkv` of GGUF.
//!
//! Source: `_set_vocab_rwkv_world` in `conversion/base.py` of llama.cpp.

use serde_json::Value;

use super::keys::{KeyList, TokenTable, TokenType};
use super::special::SpecialVocab;
use super::{MAX_TOKENS, TokenizerFiles};
use crate::model::gguf::GgufMetadataValue;
use crate::model::gguf_keys::CHAT_TEMPLATE;
use crate::{AnamnesisError, Result};

/// Name of the file.
const FILE: &str = "rwkv_vocab_v20230424.txt";
/// The token of two line feeds, which ends a turn.
const END_OF_TURN: u64 = 261;
/// The template that llama.cpp knows by this name.
const TEMPLATE: &str = "rwkv-world";

impl TokenizerFiles<'_> {
    /// Writes the keys of a vocabulary of RWKV.
    ///
    /// # Errors
    /// `Unsupported` if there is no such file; `Parse` with the line that is no token, or whose number
    /// is not the next one; `LimitExceeded`.
    pub(crate) fn write_rwkv(&self, keys: &mut KeyList) -> Result<usize> {
        let what = format!("there is no {FILE} beside the model");
        let missing = || AnamnesisError::unsupported("tokenizer", what);
        let text = self.request.texts.text(FILE)?.ok_or_else(missing)?;
        self.request.texts.charge(text.len() as u64 * 8, FILE)?;
        let count = text.lines().count() + 1;
        let what = format_args!("lines of {FILE}");
        crate::limits::cap("MAX_TOKENS", count as u64, MAX_TOKENS as u64, what)?;
        if count > self.vocab_size {
            let room = self.vocab_size;
            let what = format!("{FILE}: {count} tokens, and `vocab_size` of config.json is {room}");
            return Err(AnamnesisError::parse(what));
        }
        let mut table = TokenTable::padding(self.vocab_size);
        table.set(0, "<s>".to_owned(), TokenType::Control, 0.0);
        for (line, id) in text.lines().zip(1..) {
            let token = token_of(line, id).ok_or_else(|| {
                let what =
                    format!("{FILE}: line {id}: it is no number, literal of Python and length");
                AnamnesisError::parse(what)
            })?;
            table.set(id, as_python(&token), TokenType::Normal, 0.0);
        }
        keys.ggml_text("model", "rwkv");
        let n = table.write(keys, false)?;
        let mut special = SpecialVocab::read(self.request.texts, self.json.as_ref(), None)?;
        for (kind, id) in [("eot", END_OF_TURN), ("bos", 0), ("eos", 0)] {
            special.set_id(kind, &Value::from(id), FILE)?;
            special.replace_id(kind, id);
        }
        special.write(Vec::new(), keys)?;
        if keys.get(CHAT_TEMPLATE).is_none() {
            let template = GgufMetadataValue::String(TEMPLATE.to_owned());
            keys.set(CHAT_TEMPLATE.to_owned(), template);
        }
        Ok(n)
    }
}

/// The bytes of the token in a line, which must have this number.
fn token_of(line: &str, id: usize) -> Option<Vec<u8>> {
    let (number, rest) = line.split_once(' ')?;
    let (literal, length) = rest.rsplit_once(' ')?;
    let token = of_python(literal)?;
    let is_right = number == id.to_string() && length == token.len().to_string();
    is_right.then_some(token)
}

/// The bytes of a literal of Python, of text or of bytes.
fn of_python(literal: &str) -> Option<Vec<u8>> {
    let (is_bytes, quoted) = match literal.strip_prefix('b') {
        Some(quoted) => (true, quoted),
        None => (false, literal),
    };
    let quote = quoted.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let inner = quoted.get(1..)?.strip_suffix(quote)?;
    let mut bytes = Vec::with_capacity(inner.len());
    let mut rest = inner.chars();
    while let Some(c) = rest.next() {
        let escaped = if c == '\\' { rest.next()? } else { c };
        let (c, digits) = match (c == '\\', escaped) {
            (false, c) if c == quote => return None,
            (true, 'n') => ('\n', 0),
            (true, 'r') => ('\r', 0),
            (true, 't') => ('\t', 0),
            (false, c) | (true, c @ ('\\' | '\'' | '"')) => (c, 0),
            (true, 'x') => ('x', 2),
            (true, 'u') if !is_bytes => ('u', 4),
            (true, 'U') if !is_bytes => ('U', 8),
            _ => return None,
        };
        let text: String = rest.by_ref().take(digits).collect();
        let number = match digits {
            0 => u32::from(c),
            _ if text.len() != digits || !text.bytes().all(|b| b.is_ascii_hexdigit()) => {
                return None;
            }
            _ => u32::from_str_radix(&text, 16).ok()?,
        };
        match u8::try_from(number) {
            Ok(byte) if is_bytes => bytes.push(byte),
            _ if is_bytes => return None,
            _ => {
                let c = char::from_u32(number)?;
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
    Some(bytes)
}

/// What Python prints for these bytes, without the quotes.
fn as_python(bytes: &[u8]) -> String {
    let is_double = bytes.contains(&b'\'') && !bytes.contains(&b'"');
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\'' if !is_double => text.push_str("\\'"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}
