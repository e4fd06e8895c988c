//! The tokenizer `plamo2` of GGUF as tokenizer.jsonl.

use serde_json::json;

use super::TokenizerParts;
use super::keys::{GgufTokenizer, malformed};
use super::special::SpecialTokens;
use super::vocabulary::{GgufTokenType, SCORES, Vocabulary, same_length};
use crate::Result;

/// # Errors
/// `Parse` if tokens or scores are missing or malformed.
pub(super) fn convert(keys: GgufTokenizer<'_>) -> Result<TokenizerParts> {
    let vocabulary = Vocabulary::read(keys)?;
    let scores = keys
        .scores(SCORES)?
        .ok_or_else(|| malformed(SCORES, "it is missing"))?;
    same_length(SCORES, scores.len(), vocabulary.tokens.len())?;
    let special = SpecialTokens::read(keys, vocabulary.tokens.len(), SpecialTokens::default())?;
    let is_unused = |kind: &GgufTokenType| *kind == GgufTokenType::Unused;
    let used = vocabulary.types.iter().rposition(|kind| !is_unused(kind));
    let mut json = String::new();
    let tokens = vocabulary.tokens.iter().zip(&vocabulary.types).zip(scores);
    for ((token, kind), score) in tokens.take(used.map_or(0, |last| last + 1)) {
        let kind = match kind {
            GgufTokenType::Unknown => "UNKNOWN",
            GgufTokenType::Control => "CONTROL",
            GgufTokenType::Byte => "BYTE",
            _ => "NORMAL",
        };
        json.push_str(&json!([token, score, kind]).to_string());
        json.push('\n');
    }
    let note = "the code of PLaMo's tokenizer, which transformers needs, is that of the original";
    let notes = vec![note.to_owned()];
    Ok(TokenizerParts { json, vocabulary, special, clean_up: false, notes })
}
