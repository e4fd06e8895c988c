//! BPE of SentencePiece that tokenizer.json alone has, with a token for each byte (Llama 2, Yi,
//! Gemma): the tokenizer `llama` of GGUF without scores, or `gemma4` with merges (gguf-py's
//! `LlamaHfVocab`).

use serde_json::Value;

use super::added::AddedTokens;
use super::file::{HfTokenizerFile, TOKENIZER_JSON};
use super::keys::{ADDED_SCORE, KeyList, TokenTable, TokenType};
use super::special::SpecialVocab;
use super::{TokenizerFiles, bpe};
use crate::{AnamnesisError, Result};

/// Tokens of Gemma 4 that are shown: what parses a conversation reads them.
const VISIBLE: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Writes the keys of a vocabulary with byte tokens.
///
/// # Errors
/// `Parse` if ids leave gaps or are more than `vocab_size` of the config; `Unsupported` if text is
/// decoded in another way.
pub(super) fn write(
    files: &TokenizerFiles<'_>,
    json: &HfTokenizerFile,
    keys: &mut KeyList,
) -> Result<usize> {
    if json.decoder.get("type").and_then(Value::as_str) != Some("Sequence") {
        return Err(AnamnesisError::unsupported(
            "tokenizer BPE with byte_fallback",
            format!(
                "{TOKENIZER_JSON}: llama.cpp's converter needs a `decoder` of the type Sequence"
            ),
        ));
    }
    let added = AddedTokens::new(json, &files.config)?;
    let is_gemma4 = files.request.architecture.starts_with("gemma4");
    let mut table = table(files, json, &added)?;
    if is_gemma4 {
        for (token, kind) in table.tokens.iter().zip(&mut table.types) {
            if VISIBLE.contains(&token.as_str()) {
                *kind = TokenType::UserDefined;
            }
        }
        keys.ggml_text("model", "gemma4");
        let merges = bpe::merges(files.request, &json.model.merges, &added.ids)?;
        let n = table.write(keys, true)?;
        SpecialVocab::read(files.request.texts, Some(json), None)?.write(merges, keys)?;
        keys.ggml_flag("add_space_prefix", false);
        keys.ggml_flag("add_bos_token", true);
        return Ok(n);
    }
    keys.ggml_text("model", "llama");
    keys.ggml_text("pre", "default");
    let n = table.write(keys, true)?;
    let special = SpecialVocab::read(files.request.texts, Some(json), Some(n))?;
    special.write(Vec::new(), keys)?;
    Ok(n)
}

/// The model's tokens, then the added ones that it does not have.
fn table(
    files: &TokenizerFiles<'_>,
    json: &HfTokenizerFile,
    added: &AddedTokens<'_>,
) -> Result<TokenTable> {
    let (base, room) = (json.model.vocab.tokens.len(), files.vocab_size);
    let mut more: Vec<_> = added
        .tokens
        .iter()
        .filter(|token| token.id >= base as u64)
        .collect();
    more.sort_by_key(|token| token.id);
    let n = base + more.len();
    if n > room {
        return Err(AnamnesisError::parse(format!(
            "{TOKENIZER_JSON}: it has {n} tokens, and `vocab_size` of config.json is {room}"
        )));
    }
    let mut table = TokenTable::padding(n);
    let mut is_taken = vec![false; n];
    let own = json
        .model
        .vocab
        .tokens
        .iter()
        .map(|(token, id)| (token.as_str(), *id));
    let all = own.chain(more.iter().map(|token| (token.content.as_str(), token.id)));
    for (token, id) in all {
        let place = usize::try_from(id).ok();
        let Some((place, taken)) = place.and_then(|i| Some((i, is_taken.get_mut(i)?))) else {
            return Err(AnamnesisError::parse(format!(
                "{TOKENIZER_JSON}: the id of `{token}` is {id}, and there are {n} tokens"
            )));
        };
        if std::mem::replace(taken, true) {
            return Err(AnamnesisError::parse(format!(
                "{TOKENIZER_JSON}: `{token}` has the id {id}, which another token has, too"
            )));
        }
        let kind = match token {
            _ if place < base && is_byte(token) => TokenType::Byte,
            _ if added.special.contains(token) => TokenType::Control,
            _ if place < base => TokenType::Normal,
            _ => TokenType::UserDefined,
        };
        table.set(place, token.to_owned(), kind, ADDED_SCORE);
    }
    Ok(table)
}

/// Whether a token is `<0x` with two hexadecimal digits and `>`.
fn is_byte(token: &str) -> bool {
    let digits = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}
