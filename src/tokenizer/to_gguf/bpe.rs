//! Byte-level BPE (Llama 3, Qwen, DeepSeek, gpt-oss, …): the tokenizer `gpt2` of GGUF.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::added::AddedTokens;
use super::file::{HfMerges, HfTokenizerFile, TOKENIZER_JSON};
use super::keys::{KeyList, TokenTable, TokenType, added_token};
use super::special::SpecialVocab;
use super::{TokenizerFiles, TokenizerRequest};
use crate::tokenizer::pre::{self, PreTokenizerFacts};
use crate::{AnamnesisError, Result};

/// Writes the keys of a byte-level vocabulary.
///
/// # Errors
/// Those of [`token_table`], [`pre_name`] and [`merges`].
pub(super) fn write(
    files: &TokenizerFiles<'_>,
    json: &HfTokenizerFile,
    keys: &mut KeyList,
) -> Result<usize> {
    let suffix = json.model.end_of_word_suffix.as_deref().unwrap_or_default();
    let prefix = json
        .model
        .continuing_subword_prefix
        .as_deref()
        .unwrap_or_default();
    for (key, text) in [("end_of_word_suffix", suffix), ("continuing_subword_prefix", prefix)] {
        if !text.is_empty() {
            return Err(AnamnesisError::unsupported(
                "tokenizer BPE",
                format!(
                    "{TOKENIZER_JSON}: `model.{key}` is `{text}`, which llama.cpp does not have"
                ),
            ));
        }
    }
    let added = AddedTokens::new(json, &files.config)?;
    let table = token_table(json, &added, &files.config, files.vocab_size)?;
    let merges = merges(files.request, &json.model.merges, &added.ids)?;
    keys.ggml_text("model", "gpt2");
    keys.ggml_text("pre", pre_name(files.request, json, &added)?);
    let n = table.write(keys, false)?;
    let mut special = SpecialVocab::read(files.request.texts, Some(json), None)?;
    files.request.rules.add_by_text(&added, &mut special)?;
    special.write(merges, keys)?;
    Ok(n)
}

/// The tokens of a vocabulary without scores, `n` of them (`get_vocab_base` of llama.cpp's
/// converter).
///
/// # Errors
/// `Parse` if two tokens have one id, or an id is `n` or more.
pub(super) fn token_table(
    file: &HfTokenizerFile,
    added: &AddedTokens<'_>,
    config: &Map<String, Value>,
    n: usize,
) -> Result<TokenTable> {
    let mut table = TokenTable::padding(n);
    let mut is_taken = vec![false; n];
    let mut take = |token: &str, id: u64| -> Result<usize> {
        let place = usize::try_from(id).ok();
        let Some((place, taken)) = place.and_then(|i| Some((i, is_taken.get_mut(i)?))) else {
            return Err(AnamnesisError::parse(format!(
                "{}: the id of `{token}` is {id}, and `vocab_size` of config.json is {n}",
                file.name
            )));
        };
        if std::mem::replace(taken, true) {
            return Err(AnamnesisError::parse(format!(
                "{}: `{token}` has the id {id}, which another token has, too",
                file.name
            )));
        }
        Ok(place)
    };
    for (token, id) in &file.model.vocab.tokens {
        if added.get(token).is_none() {
            let id = take(token, *id)?;
            table.set(id, token.clone(), TokenType::Normal, 0.0);
        }
    }
    let cleans = config.get("clean_up_tokenization_spaces") == Some(&Value::Bool(true));
    let is_byte_level = file.decoder.get("type").and_then(Value::as_str) == Some("ByteLevel");
    for token in &added.tokens {
        let id = take(&token.content, token.id)?;
        // llama.cpp finds these tokens in text as it is, so the converter passes them through the
        // decoder.
        let mut content = token.content.clone();
        if !token.normalized {
            if is_byte_level {
                content = decode_byte_level(&content);
            }
            if cleans {
                content = clean_up(&content);
            }
        }
        let (content, kind) = added_token(&content, token.special);
        table.set(id, content, kind, 0.0);
    }
    Ok(table)
}

/// Name in `tokenizer.ggml.pre` for a byte-level vocabulary.
///
/// # Errors
/// `Unsupported` if llama.cpp has no pre-tokenizer that does the same, or does not normalize text
/// so.
pub(super) fn pre_name(
    request: &TokenizerRequest<'_>,
    file: &HfTokenizerFile,
    added: &AddedTokens<'_>,
) -> Result<&'static str> {
    if let Some(name) = request.pre {
        return pre::require(name);
    }
    require_known_normalizer(&file.normalizer, 0)?;
    pre::choose(&PreTokenizerFacts {
        steps: &pre::steps(&file.pre_tokenizer),
        ignore_merges: file.model.ignore_merges,
        architecture: request.architecture,
        has_token: &|token| added.get(token).is_some() || added.ids.contains_key(token),
    })
}

/// llama.cpp normalizes the text of no byte-level vocabulary, apart from the flags in
/// `tokenizer.ggml.normalizer`. NFC makes no difference for nearly all text, and its converter lets
/// it pass.
fn require_known_normalizer(normalizer: &Value, depth: usize) -> Result<()> {
    let kind = normalizer
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match kind {
        _ if normalizer.is_null() => Ok(()),
        "NFC" | "Lowercase" | "StripAccents" => Ok(()),
        "Sequence" if depth < 8 => {
            let inner = normalizer.get("normalizers").and_then(Value::as_array);
            let mut inner = inner.into_iter().flatten();
            inner.try_for_each(|normalizer| require_known_normalizer(normalizer, depth + 1))
        }
        other => Err(AnamnesisError::unsupported(
            format!("normalizer {other}"),
            format!(
                "{TOKENIZER_JSON}: llama.cpp does not normalize text so; `--tokenizer-pre NAME` ignores the normalizer"
            ),
        )),
    }
}

/// HfMerges as `tokenizer.ggml.merges` has them, from tokenizer.json or else from merges.txt.
///
/// # Errors
/// `Parse` if there are none, or one names a token that is not in the vocabulary.
pub(super) fn merges(
    request: &TokenizerRequest<'_>,
    merges: &HfMerges,
    ids: &HashMap<&str, u64>,
) -> Result<Vec<String>> {
    let from_text;
    let (pairs, place) = if merges.pairs.is_empty() {
        from_text = merges_txt(request)?;
        (&from_text, "merges.txt: line")
    } else {
        (&merges.pairs, "tokenizer.json: `model.merges` number")
    };
    let mut out = Vec::with_capacity(pairs.len());
    let mut joined = String::new();
    for (i, (left, right)) in pairs.iter().enumerate() {
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if let Some(missing) = [left, right, &joined]
            .into_iter()
            .find(|token| !ids.contains_key(token.as_str()))
        {
            return Err(AnamnesisError::parse(format!(
                "{place} {i} joins `{left}` and `{right}`, and the vocabulary has no `{missing}`"
            )));
        }
        // The separator is a blank, so a blank in a token is written as the byte alphabet does.
        out.push(format!("{} {}", left.replace(' ', "Ġ"), right.replace(' ', "Ġ")));
    }
    if out.is_empty() {
        return Err(AnamnesisError::parse(
            "tokenizer.json: `model.merges` is empty, and there is no merges.txt",
        ));
    }
    Ok(out)
}

/// The merges of merges.txt, one a line after a comment.
fn merges_txt(request: &TokenizerRequest<'_>) -> Result<Vec<(String, String)>> {
    let text = request.texts.text("merges.txt")?.unwrap_or_default();
    let mut lines = text.lines().enumerate().peekable();
    lines.next_if(|(_, line)| line.trim().starts_with('#'));
    let mut out = Vec::new();
    for (i, line) in lines {
        let mut parts = line.split_whitespace();
        match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => {}
            (Some(left), Some(right), None) => out.push((left.to_owned(), right.to_owned())),
            _ => {
                let line = i + 1;
                return Err(AnamnesisError::parse(format!(
                    "merges.txt: line {line} is not two tokens"
                )));
            }
        }
    }
    Ok(out)
}

/// Text of a token in the byte alphabet, as the `ByteLevel` decoder gives it; a text with other
/// characters is unchanged.
fn decode_byte_level(token: &str) -> String {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    match bytes {
        Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        None => token.to_owned(),
    }
}

/// The byte of a character of GPT-2's byte alphabet: printable Latin-1 stands for itself, and the
/// other bytes follow one another from U+0100 on.
fn byte_of(c: char) -> Option<u8> {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(c);
    if code < 0x100 {
        return printable(code).then_some(code as u8);
    }
    let nth = usize::try_from(code - 0x100).ok()?;
    (0..=255u8).filter(|b| !printable(u32::from(*b))).nth(nth)
}

/// Characters of GPT-2's byte alphabet, by byte.
pub(super) struct ByteAlphabet(Vec<char>);

/// GPT-2's byte alphabet.
pub(super) fn byte_alphabet() -> ByteAlphabet {
    let mut chars = vec!['\0'; 256];
    for c in (0..0x150).filter_map(char::from_u32) {
        if let Some(place) = byte_of(c).and_then(|byte| chars.get_mut(usize::from(byte))) {
            *place = c;
        }
    }
    ByteAlphabet(chars)
}

impl ByteAlphabet {
    /// Text of a token's bytes.
    pub(super) fn text(&self, bytes: &[u8]) -> String {
        bytes
            .iter()
            .filter_map(|byte| self.0.get(usize::from(*byte)))
            .collect()
    }
}

/// `clean_up_tokenization` of transformers: blanks before English punctuation and contractions are
/// dropped.
fn clean_up(text: &str) -> String {
    const REPLACED: [(&str, &str); 10] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    REPLACED
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_holds_each_byte_once() {
        let mut of: Vec<_> = (0..0x150)
            .filter_map(char::from_u32)
            .filter_map(byte_of)
            .collect();
        of.sort_unstable();
        assert_eq!(of, (0..=255).collect::<Vec<u8>>());
        assert_eq!(decode_byte_level("ĠĊa"), " \na");
        assert_eq!(decode_byte_level("<｜User｜>"), "<｜User｜>");
        let all: Vec<u8> = (0..=255).collect();
        let text = byte_alphabet().text(&all);
        assert_eq!(text.chars().filter_map(byte_of).collect::<Vec<_>>(), all);
        // One byte of two: the library replaces it.
        assert_eq!(decode_byte_level("Ã"), "\u{fffd}");
        assert_eq!(clean_up("a , b don 't 's"), "a, b don 't's");
    }
}
