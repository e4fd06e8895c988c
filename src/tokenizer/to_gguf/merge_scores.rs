//! Scores of SentencePiece that stand for the merges of tokenizer.json.
//!
//! llama.cpp's tokenizer `llama` joins any two neighbours whose text is a token, the token of the
//! highest score first. The `tokenizers` library joins the pairs of a list, the first pair first.
//!
//! What lies inside a token's text is joined as if it stood alone, until it is joined with something
//! outside. So the list makes each token of two neighbours that are always the same, whatever other
//! pairs it has for that token, and the rank of that pair is the token's score. The two then differ
//! for one kind of token alone: one whose text the list joins to two neighbours, and not to one.

use std::collections::HashMap;

use super::file::{HfTokenizerFile, MAX_MERGES, TOKENIZER_JSON};
use crate::{AnamnesisError, Result};

/// Steps for each byte of the vocabulary, and how many for nothing. Joining a text takes the square
/// of its length, and tokens are shorter than 64 bytes on average by far.
const STEPS: usize = 64;
const FREE_STEPS: usize = 16 << 20;

/// What the merges of a tokenizer.json amount to.
pub(super) struct MergeScores<'a> {
    score_of: HashMap<&'a str, f32>,
    lowest: f32,
    /// The first token that llama.cpp would join although no merge does, with its two parts.
    pub contradiction: Option<(&'a str, &'a str)>,
}

impl<'a> MergeScores<'a> {
    /// The scores of `json`, whose tokens have `ids`. Tokens for which `is_found_first` are found in
    /// text before any merge.
    ///
    /// # Errors
    /// `Parse` if a merge names a token that the vocabulary does not have, or tokens are so long that
    /// joining them is out of proportion.
    pub(super) fn new(
        json: &'a HfTokenizerFile,
        ids: &HashMap<&'a str, u64>,
        is_found_first: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let merges = Merges::new(json, ids)?;
        let tokens = &json.model.vocab.tokens;
        let total: usize = tokens.iter().map(|(token, _)| token.len()).sum();
        let mut steps = total.saturating_mul(STEPS).saturating_add(FREE_STEPS);
        let mut out = Self {
            score_of: HashMap::with_capacity(tokens.len()),
            lowest: -(merges.runs.len() as f32),
            contradiction: None,
        };
        let mut symbols = Vec::new();
        for (token, _) in tokens {
            let needed = token.len().saturating_mul(token.len());
            steps = steps.checked_sub(needed).ok_or_else(|| {
                let length = token.len();
                let what = "is too long to find how merges make it";
                AnamnesisError::parse(format!("{TOKENIZER_JSON}: a token of {length} bytes {what}"))
            })?;
            let last = merges.join(token, ids, &mut symbols);
            match (symbols.as_slice(), last) {
                ([_], Some(rank)) => {
                    let run = merges.runs.get(rank).copied().unwrap_or_default();
                    out.score_of.insert(token, 0.0 - run as f32);
                }
                ([left, _], _) if out.contradiction.is_none() && !is_found_first(token) => {
                    out.contradiction = token.split_at_checked(left.len);
                }
                _ => {}
            }
        }
        Ok(out)
    }

    /// The score of a token. One that no merge makes has the lowest.
    pub(super) fn of(&self, token: &str) -> f32 {
        self.score_of.get(token).copied().unwrap_or(self.lowest)
    }

    /// Whether merges make `token`.
    pub(super) fn has(&self, token: &str) -> bool {
        self.score_of.contains_key(token)
    }
}

/// A part of a text.
#[derive(Clone, Copy)]
struct Symbol {
    /// Id of the token that it is; `None` if it is none.
    id: Option<u64>,
    /// Its bytes.
    len: usize,
    /// Rank of the merge with the next symbol.
    rank: Option<usize>,
}

/// The merges of a tokenizer.json.
struct Merges {
    /// Ranks of pairs of ids, with the id of what they are joined to. Of equal pairs, the library
    /// takes the last.
    ranks: HashMap<(u64, u64), (usize, u64)>,
    /// Of each rank, the first one from which on all merges make the same token.
    runs: Vec<usize>,
}

impl Merges {
    /// # Errors
    /// `Parse` if a merge names a token that the vocabulary does not have.
    fn new(json: &HfTokenizerFile, ids: &HashMap<&str, u64>) -> Result<Self> {
        let pairs = &json.model.merges.pairs;
        let mut ranks = HashMap::with_capacity(pairs.len());
        let mut runs = Vec::with_capacity(pairs.len());
        let mut joined = String::new();
        let (mut last, mut run) = (None, 0);
        for (rank, (left, right)) in pairs.iter().enumerate() {
            joined.clear();
            joined.extend([left.as_str(), right.as_str()]);
            let find = |token: &str| {
                ids.get(token).copied().ok_or_else(|| {
                    AnamnesisError::parse(format!(
                        "{TOKENIZER_JSON}: `model.merges` number {rank} joins `{left}` and `{right}`, and the vocabulary has no `{token}`"
                    ))
                })
            };
            let token = find(&joined)?;
            ranks.insert((find(left)?, find(right)?), (rank, token));
            if last != Some(token) {
                run = rank;
            }
            last = Some(token);
            runs.push(run);
        }
        Ok(Self { ranks, runs })
    }

    /// Joins `text` that stands alone to `symbols`, and returns the rank of the last merge.
    fn join(
        &self,
        text: &str,
        ids: &HashMap<&str, u64>,
        symbols: &mut Vec<Symbol>,
    ) -> Option<usize> {
        symbols.clear();
        symbols.extend(text.char_indices().map(|(at, c)| {
            let len = c.len_utf8();
            let id = text.get(at..at + len).and_then(|c| ids.get(c)).copied();
            Symbol { id, len, rank: None }
        }));
        for i in 1..symbols.len() {
            self.rank(symbols, i - 1);
        }
        let mut last = None;
        loop {
            let ranked = symbols.iter().enumerate();
            let first = ranked
                .filter_map(|(i, symbol)| Some((symbol.rank?, i)))
                .min();
            let Some((rank, i)) = first else {
                return last;
            };
            last = Some(rank);
            let right = symbols.remove(i + 1);
            if let Some(left) = symbols.get_mut(i) {
                left.id = left
                    .id
                    .zip(right.id)
                    .and_then(|pair| Some(self.ranks.get(&pair)?.1));
                left.len += right.len;
            }
            self.rank(symbols, i);
            if let Some(before) = i.checked_sub(1) {
                self.rank(symbols, before);
            }
        }
    }

    /// Finds the merge of the symbol `i` with the next one.
    fn rank(&self, symbols: &mut [Symbol], i: usize) {
        let id = |i: usize| symbols.get(i).and_then(|symbol| symbol.id);
        let rank = id(i)
            .zip(id(i + 1))
            .and_then(|pair| Some(self.ranks.get(&pair)?.0));
        if let Some(symbol) = symbols.get_mut(i) {
            symbol.rank = rank;
        }
    }
}

// Ranks are exact in F32.
const _: () = assert!(MAX_MERGES < 1 << 24);
