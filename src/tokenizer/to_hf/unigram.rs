//! The kind `t5`: SentencePiece Unigram, of T5 and of XLM-R.

use super::TokenizerParts;
use super::json::{Decoder, Normalizer, PreTokenizer, SplitPattern, TokenizerJson, TokenizerModel};
use super::keys::{GgufTokenizer, malformed};
use super::special::SpecialTokens;
use super::vocabulary::{GgufTokenType, StripRules, Vocabulary};
use crate::Result;

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// What llama.cpp takes if a file of the kind `t5` does not say (`llama_vocab::impl::load`).
const DEFAULTS: SpecialTokens = SpecialTokens {
    bos: None,
    eos: Some(1),
    unk: Some(2),
    sep: None,
    pad: Some(0),
    cls: None,
    mask: None,
    add_bos: false,
    add_eos: true,
    add_sep: false,
};

/// # Errors
/// `Parse` if metadata is missing, malformed or contradicts itself.
pub(super) fn convert(keys: GgufTokenizer<'_>) -> Result<TokenizerParts> {
    let mut vocabulary = Vocabulary::read(keys)?;
    let mut special = SpecialTokens::read(keys, vocabulary.tokens.len(), DEFAULTS)?;
    // llama.cpp's converter takes tokens from SentencePiece's model, where XLM-R's last one is
    // missing.
    if let Some(mask) = special.mask.map(|id| id as usize)
        && vocabulary.is_filler(mask)
    {
        vocabulary.tokens[mask] = "<mask>".to_owned();
        vocabulary.types[mask] = GgufTokenType::Control;
    }
    vocabulary.mark_control(special.named().map(|(_, id)| id));
    // Only XLM-R's family has both. Its template separates two texts, and its BOS is CLS.
    if special.add_bos && special.add_eos {
        special.add_sep = true;
        special.cls = special.cls.or(special.bos);
    }
    vocabulary.ids()?;
    let scores = vocabulary.scores(keys)?;
    let unk_id = special
        .unk
        .ok_or_else(|| malformed("tokenizer.ggml.unknown_token_id", "it is missing"))?;
    let has_prefix = keys
        .flag("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let prepend_scheme = if has_prefix { "always" } else { "never" };
    let model = TokenizerModel::Unigram {
        unk_id,
        vocab: scored_tokens(&vocabulary, &scores),
        byte_fallback: vocabulary.types.contains(&GgufTokenType::Byte),
    };
    let decoder = Decoder::Metaspace { replacement: '▁', prepend_scheme, split: true };
    let mut json = TokenizerJson::new(model, decoder);
    json.added_tokens = vocabulary.added_tokens(&StripRules::read(keys)?);
    json.normalizer = normalizer(keys)?;
    json.pre_tokenizer =
        Some(PreTokenizer::Metaspace { replacement: '▁', prepend_scheme, split: true });
    json.post_processor = special.template(&vocabulary)?;
    let json = json.text()?;
    Ok(TokenizerParts { json, vocabulary, special, clean_up: false, notes: Vec::new() })
}

/// The model's `vocab`, whose index is the id: fillers can be left out at the end alone.
fn scored_tokens<'a>(vocabulary: &'a Vocabulary, scores: &[f32]) -> Vec<(&'a str, f64)> {
    let end = vocabulary
        .used()
        .last()
        .map_or(0, |(id, _)| id as usize + 1);
    let tokens = vocabulary.tokens.iter().map(String::as_str);
    let scores = scores.iter().map(|&score| f64::from(score));
    tokens.zip(scores).take(end).collect()
}

/// SentencePiece's normalization.
///
/// Source: transformers 4.57 `SpmConverter.normalizer`.
///
/// # Errors
/// `Parse` if a value is of another type.
fn normalizer(keys: GgufTokenizer<'_>) -> Result<Option<Normalizer>> {
    let mut normalizers = Vec::new();
    let map = keys.bytes(CHARSMAP)?.unwrap_or_default();
    if !map.is_empty() {
        normalizers.push(Normalizer::Precompiled { precompiled_charsmap: base64(&map) });
    }
    let key = "tokenizer.ggml.remove_extra_whitespaces";
    if keys.flag(key)?.unwrap_or(false) {
        normalizers.push(Normalizer::Strip { strip_left: false, strip_right: true });
        normalizers
            .push(Normalizer::Replace { pattern: SplitPattern::Regex(" {2,}"), content: "▁" });
    }
    let is_any = !normalizers.is_empty();
    Ok(is_any.then_some(Normalizer::Sequence { normalizers }))
}

/// `bytes` in base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            // A digit of padding bits alone is `=`: of one byte two digits count, of two bytes
            // three.
            let is_padding = digit > three.len();
            let value = bits >> (18 - 6 * digit) & 63;
            out.push(if is_padding {
                '='
            } else {
                char::from(DIGITS[value as usize])
            });
        }
    }
    out
}
