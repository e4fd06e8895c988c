//! The tokenizer `rwkv` of GGUF as the vocabulary of RWKV: tokens are literals of Python without their
//! quotes there.

use super::TokenizerParts;
use super::keys::{GgufTokenizer, malformed};
use super::special::SpecialTokens;
use super::vocabulary::{GgufTokenType, Vocabulary};
use crate::Result;
use crate::model::gguf_keys::TOKENS;

/// # Errors
/// `Parse` if tokens are missing, malformed or no such literals.
pub(super) fn convert(keys: GgufTokenizer<'_>) -> Result<TokenizerParts> {
    let vocabulary = Vocabulary::read(keys)?;
    let special = SpecialTokens::read(keys, vocabulary.tokens.len(), SpecialTokens::default())?;
    let is_unused = |kind: &GgufTokenType| *kind == GgufTokenType::Unused;
    let used = vocabulary
        .types
        .iter()
        .rposition(|kind| !is_unused(kind))
        .unwrap_or(0);
    let mut json = String::new();
    for (id, token) in vocabulary.tokens.iter().enumerate().take(used + 1).skip(1) {
        let wrong = || malformed(TOKENS, format_args!("token {id} is no literal of Python"));
        let (length, is_double) = length_of(token).ok_or_else(wrong)?;
        let quote = if is_double { '"' } else { '\'' };
        json.push_str(&format!("{id} b{quote}{token}{quote} {length}\n"));
    }
    let note = "the code of RWKV's tokenizer, which transformers needs, is that of the original";
    let notes = vec![note.to_owned()];
    Ok(TokenizerParts { json, vocabulary, special, clean_up: false, notes })
}

/// The number of bytes that a literal stands for, and whether its quotes are double ones.
fn length_of(token: &str) -> Option<(usize, bool)> {
    let (mut length, mut single, mut double) = (0, false, false);
    let mut rest = token.chars();
    while let Some(c) = rest.next() {
        length += 1;
        match c {
            '\'' => single = true,
            '"' => double = true,
            '\\' => match rest.next()? {
                'n' | 'r' | 't' | '\\' | '\'' | '"' => {}
                'x' => {
                    let digits = [rest.next()?, rest.next()?];
                    digits.iter().all(char::is_ascii_hexdigit).then_some(())?;
                }
                _ => return None,
            },
            ' '..='~' => {}
            _ => return None,
        }
    }
    (!single || !double).then_some((length, single))
}
