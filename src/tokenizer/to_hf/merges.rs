//! Merges of BPE: those of the file, or those that follow from the scores of SentencePiece.

use std::collections::{HashMap, HashSet};

use super::keys::{GgufTokenizer, malformed};
use super::vocabulary::{GgufTokenType, Vocabulary};
use crate::Result;
use crate::model::gguf_keys::TOKENS;
use crate::sort::sort_by;

pub(super) const MERGES: &str = "tokenizer.ggml.merges";

/// Bytes of tokens that may be looked at for each byte of a token, and how many for nothing.
/// SentencePiece's tokens are shorter than 64 bytes on average by far; without a bound, time and
/// output would grow with the square of a length.
const LOOKS: usize = 64;
const FREE_LOOKS: usize = 16 << 20;

/// Two texts: tokens that are merged into one.
type Pair<'a> = (&'a str, &'a str);

/// Pairs of tokens that are merged into one, the first before the others.
pub(super) struct Merges<'a> {
    pub pairs: Vec<Pair<'a>>,
    /// Above the ids of all tokens that are in the pairs or made of them. The model must have these
    /// tokens.
    pub ids_end: u32,
}

/// The merges as they are in the file: two tokens with a blank between them.
///
/// # Errors
/// `Parse` if there are none.
pub(super) fn stored_merges(keys: GgufTokenizer<'_>) -> Result<Vec<String>> {
    keys.texts(MERGES)?
        .ok_or_else(|| malformed(MERGES, "it is missing"))
}

/// The pairs of `stored`. Of equal ones the first stays, as in llama.cpp; the `tokenizers` crate
/// would take the last.
///
/// # Errors
/// `Parse` if one has no blank, or if `ids` lacks one of the tokens or what they are merged into.
/// The `tokenizers` crate refuses such a file as well.
pub(super) fn parse_merges<'a>(
    stored: &'a [String],
    ids: &HashMap<&str, u32>,
) -> Result<Merges<'a>> {
    let wrong = |i: usize, what: String| {
        let text = &stored[i];
        malformed(MERGES, format_args!("merge {i}, `{text}`, {what}"))
    };
    let mut pairs = Vec::with_capacity(stored.len());
    let mut ids_end = 0;
    let mut seen = HashSet::with_capacity(stored.len());
    let mut merged = String::new();
    for (i, text) in stored.iter().enumerate() {
        let (left, right) = halves(text).ok_or_else(|| wrong(i, "is not two tokens".to_owned()))?;
        merged.clear();
        merged.extend([left, right]);
        let id = |token: &str| {
            let unknown = || wrong(i, format!("needs the token `{token}`, which is not there"));
            ids.get(token).copied().ok_or_else(unknown)
        };
        let parts = (id(left)?, id(right)?);
        ids_end = ids_end.max(id(&merged)?.max(parts.0).max(parts.1) + 1);
        if seen.insert(parts) {
            pairs.push((left, right));
        }
    }
    Ok(Merges { pairs, ids_end })
}

/// Splits at the first blank that is not the first character, as llama.cpp does.
fn halves(text: &str) -> Option<Pair<'_>> {
    let first = text.chars().next()?.len_utf8();
    let at = first + text[first..].find(' ')?;
    let (left, right) = (&text[..at], &text[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

/// A token as two others.
struct TokenSplit {
    priority: f64,
    left_chars: u32,
    right_chars: u32,
    token: u32,
    /// Bytes of the left half.
    at: u32,
}

/// The merges that SentencePiece's scores amount to: every split of every token into two tokens,
/// those of the highest score first.
///
/// Source: transformers 4.57 `convert_slow_tokenizer.generate_merges`.
///
/// # Errors
/// `Parse` if tokens are so long that the number of splits is out of proportion.
pub(super) fn merges_by_priority<'a>(
    vocabulary: &'a Vocabulary,
    ids: &HashMap<&str, u32>,
    priorities: &[f64],
) -> Result<Merges<'a>> {
    let total: usize = vocabulary.tokens.iter().map(String::len).sum();
    let mut looks = total.saturating_mul(LOOKS).saturating_add(FREE_LOOKS);
    let mut splits = Vec::new();
    let mut of_token = Vec::new();
    let mut ids_end = 0;
    for (id, token) in vocabulary.used() {
        let needed = token.len().saturating_mul(token.len());
        looks = looks.checked_sub(needed).ok_or_else(|| {
            let length = token.len();
            malformed(
                TOKENS,
                format_args!("token {id}, of {length} bytes, is too long to find its merges"),
            )
        })?;
        let chars = token.chars().count();
        for (left_chars, (at, _)) in token.char_indices().enumerate().skip(1) {
            let halves = (ids.get(&token[..at]), ids.get(&token[at..]));
            if let (Some(&left), Some(&right)) = halves {
                let split = TokenSplit {
                    priority: priorities[id as usize],
                    left_chars: left_chars as u32,
                    right_chars: (chars - left_chars) as u32,
                    token: id,
                    at: at as u32,
                };
                ids_end = ids_end.max(id.max(left).max(right) + 1);
                of_token.push(((left, right), split));
            }
        }
        of_token.sort_by_key(|(ids, _)| *ids);
        splits.extend(of_token.drain(..).map(|(_, split)| split));
    }
    // The sort is stable, and so is Python's in descending order.
    sort_by(&mut splits, |a, b| {
        let chars = |split: &TokenSplit| (split.left_chars, split.right_chars);
        let by_priority = b.priority.total_cmp(&a.priority);
        by_priority.then_with(|| chars(b).cmp(&chars(a)))
    });
    let pair =
        |split: TokenSplit| vocabulary.tokens[split.token as usize].split_at(split.at as usize);
    let pairs = splits.into_iter().map(pair).collect();
    Ok(Merges { pairs, ids_end })
}

/// What merges come first: tokens of the highest score. The second value says that the scores are
/// the same for all tokens, so that the order of ids stands in for them. `has_prefix` is whether a
/// blank is put before each text.
pub(super) fn priorities(
    vocabulary: &Vocabulary,
    scores: &[f32],
    has_prefix: bool,
) -> (Vec<f64>, bool) {
    let typed = || vocabulary.types.iter().zip(scores);
    let mut normal = typed()
        .filter(|(kind, _)| **kind == GgufTokenType::Normal)
        .map(|(_, score)| *score);
    // llama.cpp's converter has no scores if there is no `tokenizer.model`, and writes -1000 for
    // each. SentencePiece gives ids in the order of scores.
    let first = normal.next();
    let are_equal = first.is_some() && normal.all(|score| Some(score) == first);
    // In Llama 2 and Mistral 7B, whose tokenizers put a blank before each text, runs of blanks have
    // low ids and the score -1e9. Yi and InternLM 2, which do not, have the order of ids
    // throughout.
    let is_late = |token: &str| has_prefix && token != "▁" && token.chars().all(|c| c == '▁');
    let priority = |(id, (kind, score)): (usize, (&GgufTokenType, &f32))| match kind {
        // SentencePiece finds these before it merges anything, whatever their score.
        GgufTokenType::UserDefined => f64::INFINITY,
        _ if are_equal && is_late(&vocabulary.tokens[id]) => f64::NEG_INFINITY,
        _ if are_equal => -(id as f64),
        _ => f64::from(*score),
    };
    (typed().enumerate().map(priority).collect(), are_equal)
}
