//! WordPiece (BERT): the tokenizer `bert` of GGUF.

use serde_json::Value;

use super::added::AddedTokens;
use super::file::{HfTokenizerFile, TOKENIZER_JSON};
use super::keys::{KeyList, TokenType};
use super::special::SpecialVocab;
use super::{TokenizerFiles, TokenizerRequest, bpe};
use crate::{AnamnesisError, Result};

/// Names in `tokenizer.ggml.pre` of WordPiece. llama.cpp does the same for each.
const NAMES: [&str; 3] = ["bert-bge", "bert-bge-large", "jina-v2-en"];

/// Writes the keys of a WordPiece vocabulary. A word's first piece has a `▁`, and the others have
/// lost their `##`.
///
/// # Errors
/// `Unsupported` if pieces that continue a word begin with anything but `##`; else as
/// [`bpe::token_table`].
pub(super) fn write(
    files: &TokenizerFiles<'_>,
    json: &HfTokenizerFile,
    keys: &mut KeyList,
) -> Result<usize> {
    if let Some(prefix) = json
        .model
        .continuing_subword_prefix
        .as_ref()
        .filter(|p| *p != "##")
    {
        return Err(AnamnesisError::unsupported(
            "tokenizer WordPiece",
            format!(
                "{TOKENIZER_JSON}: `model.continuing_subword_prefix` is `{prefix}`; llama.cpp has `##`"
            ),
        ));
    }
    require_bert(json)?;
    let added = AddedTokens::new(json, &files.config)?;
    let mut table = bpe::token_table(json, &added, &files.config, files.vocab_size)?;
    for (token, kind) in table.tokens.iter_mut().zip(&table.types) {
        if *kind != TokenType::Control {
            *token = match token.strip_prefix("##") {
                Some(rest) => rest.to_owned(),
                None => format!("▁{token}"),
            };
        }
    }
    files.write_token_types(keys);
    keys.ggml_text("model", "bert");
    keys.ggml_text("pre", name(files.request)?);
    let n = table.write(keys, false)?;
    let special = SpecialVocab::read(files.request.texts, Some(json), Some(n))?;
    special.write(Vec::new(), keys)?;
    Ok(n)
}

/// Fails if texts are cut otherwise than llama.cpp does: at blanks, and around punctuation and
/// Chinese characters.
fn require_bert(json: &HfTokenizerFile) -> Result<()> {
    let kind = json.pre_tokenizer.get("type").and_then(Value::as_str);
    let what = match kind {
        Some(kind) if kind != "BertPreTokenizer" => format!("`pre_tokenizer` is {kind}"),
        _ => {
            let is_off = |flag: &&&str| json.normalizer.get(**flag) == Some(&Value::Bool(false));
            match ["handle_chinese_chars", "clean_text"].iter().find(is_off) {
                Some(flag) => format!("`normalizer.{flag}` is false"),
                None => return Ok(()),
            }
        }
    };
    Err(AnamnesisError::unsupported(
        "tokenizer WordPiece",
        format!("{TOKENIZER_JSON}: {what}; llama.cpp cuts texts as BERT does"),
    ))
}

fn name(request: &TokenizerRequest<'_>) -> Result<&'static str> {
    match request.pre {
        Some(wanted) => NAMES
            .into_iter()
            .find(|name| *name == wanted)
            .ok_or_else(|| {
                AnamnesisError::unsupported(
                    format!("pre-tokenizer {wanted}"),
                    format!("WordPiece has {}", NAMES.join(", ")),
                )
            }),
        None if request.architecture == "jina-bert-v2" => Ok("jina-v2-en"),
        // Chinese BERT, of which BGE's large model is the one that the converter knows.
        None if request.vocab_size == 21128 => Ok("bert-bge-large"),
        None => Ok("bert-bge"),
    }
}
