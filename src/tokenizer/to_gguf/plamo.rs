//! tokenizer.jsonl of PLaMo 2 and 3, a line for each token with its score and kind: the tokenizer
//! `plamo2` of GGUF.
//!
//! Source: `_set_vocab_plamo` in `conversion/base.py` of llama.cpp.

use serde_json::Value;

use super::added::{TOKENIZER_CONFIG, content};
use super::keys::{KeyList, TokenTable, TokenType};
use super::template::ChatTemplates;
use super::{MAX_TOKENS, TokenizerFiles};
use crate::{AnamnesisError, Result};

/// Name of the file.
const FILE: &str = "tokenizer.jsonl";
/// Score of ids without a token.
const PADDING_SCORE: f32 = -1000.0;
/// The token `<|plamo:op|>`, which ends a turn.
const END_OF_TURN: u32 = 4;
/// Fields of tokenizer_config.json, and the keys of their ids.
const SPECIAL: [(&str, &str); 5] = [
    ("bos_token", "bos_token_id"),
    ("eos_token", "eos_token_id"),
    ("pad_token", "padding_token_id"),
    ("sep_token", "seperator_token_id"),
    ("unk_token", "unknown_token_id"),
];

impl TokenizerFiles<'_> {
    /// Writes the keys of a tokenizer of PLaMo, and those of its chat template if the class has it.
    ///
    /// # Errors
    /// `Unsupported` if there is no such file; `Parse` with the line that is no token;
    /// `LimitExceeded`.
    pub(crate) fn write_plamo(&self, keys: &mut KeyList, has_template: bool) -> Result<usize> {
        let what = "there is no tokenizer.jsonl beside the model";
        let missing = || AnamnesisError::unsupported("tokenizer", what);
        let text = self.request.texts.text(FILE)?.ok_or_else(missing)?;
        self.request.texts.charge(text.len() as u64 * 8, FILE)?;
        let lines = || text.lines().filter(|line| !line.trim().is_empty());
        let count = lines().count().max(self.vocab_size);
        let what = format_args!("lines of {FILE}");
        crate::limits::cap("MAX_TOKENS", count as u64, MAX_TOKENS as u64, what)?;
        let mut table = TokenTable::padding(count);
        for (id, line) in lines().enumerate() {
            let wrong = || {
                let what =
                    format!("{FILE}: line {}: it is no token with its score and kind", id + 1);
                AnamnesisError::parse(what)
            };
            let row: Value = serde_json::from_str(line).map_err(|_| wrong())?;
            let token = row[0].as_str().ok_or_else(wrong)?;
            let score = row[1].as_f64().ok_or_else(wrong)?;
            table.set(id, token.to_owned(), kind_of(token, row[2].as_str()), score as f32);
        }
        let first = lines().count();
        for id in first..count {
            let text = format!("[PAD{}]", id - first + 1);
            table.set(id, text, TokenType::Unused, PADDING_SCORE);
        }
        let id_of = |text: &str| table.tokens.iter().position(|token| token == text);
        let mut ids = Vec::new();
        for (field, key) in SPECIAL {
            let Some(text) = self.config.get(field).and_then(content) else {
                continue;
            };
            let id = id_of(text).and_then(|id| u32::try_from(id).ok());
            let id = id.ok_or_else(|| {
                AnamnesisError::parse(format!(
                    "{TOKENIZER_CONFIG}: {field}: {FILE} has no `{text}`"
                ))
            })?;
            ids.push((key, id));
        }
        keys.ggml_text("model", "plamo2");
        keys.ggml_text("pre", "default");
        let n = table.write(keys, true)?;
        ids.into_iter()
            .for_each(|(key, id)| keys.ggml_number(key, id));
        keys.ggml_number("eot_token_id", END_OF_TURN);
        keys.ggml_flag("add_space_prefix", false);
        if has_template {
            ChatTemplates::read(self.request.texts, &self.config)?.write(keys);
        }
        Ok(n)
    }
}

fn kind_of(token: &str, kind: Option<&str>) -> TokenType {
    match kind {
        Some("UNKNOWN") => TokenType::Unknown,
        Some("CONTROL") => TokenType::Control,
        Some("BYTE") => TokenType::Byte,
        _ if token.starts_with("<|plamo:") && token.ends_with("|>") => TokenType::Control,
        _ => TokenType::Normal,
    }
}
