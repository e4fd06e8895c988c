//! A table of ranks as tiktoken has it: a line for each token, its bytes in Base64 and its rank. It
//! says nothing of merges, special tokens or how text is cut.
//!
//! Source: `load_tiktoken_bpe` of tiktoken; the merges are those of `QwenModel.bpe` in
//! `conversion/qwen.py` of llama.cpp.

use std::collections::HashMap;

use super::unigram::base64;
use crate::{AnamnesisError, Result};

/// Most bytes of a token. The longest published ones are runs of some hundred blanks.
const MAX_TOKEN_BYTES: usize = 1024;

/// Most characters of a line: a token in Base64, a blank and a number.
const MAX_LINE: usize = MAX_TOKEN_BYTES.div_ceil(3) * 4 + 24;

/// Most pairs of bytes within tokens, each of which may be looked at once. Published tables have
/// ten million.
const MAX_PAIRS: u64 = 1 << 28;

/// Tokens by rank.
pub(super) struct RankTable {
    /// Name of the file.
    pub file: &'static str,
    /// The bytes of all tokens, one behind another.
    bytes: Vec<u8>,
    /// Where each token ends.
    ends: Vec<usize>,
}

/// Ranks by token.
pub(super) type Ranks<'a> = HashMap<&'a [u8], u32>;

impl RankTable {
    /// Reads the lines of `file`, of which there may be `most`. Without `has_ranks` their numbers
    /// do not count: the class of the tokenizer counts lines.
    ///
    /// # Errors
    /// `Parse` with the line that is no token with its rank, or whose rank is not the next one;
    /// `LimitExceeded` if a line is too long.
    pub(super) fn parse(
        file: &'static str,
        content: &[u8],
        most: usize,
        has_ranks: bool,
    ) -> Result<Self> {
        let mut out = Self { file, bytes: Vec::new(), ends: Vec::new() };
        let lines = content.strip_suffix(b"\n").unwrap_or(content);
        for (rank, line) in lines.split(|byte| *byte == b'\n').enumerate() {
            let number = rank + 1;
            crate::limits::cap(
                "MAX_LINE",
                line.len() as u64,
                MAX_LINE as u64,
                format_args!("bytes in line {number} of {file}"),
            )?;
            if rank >= most {
                return Err(
                    out.malformed(number, format_args!("`vocab_size` of config.json is {most}"))
                );
            }
            let Some((token, found)) = token_of(line) else {
                return Err(out.malformed(number, "it is no token in Base64 with its rank"));
            };
            if has_ranks && found != rank as u64 {
                let what = format!("the rank is {found}, and the next one is {rank}");
                return Err(out.malformed(number, what));
            }
            out.bytes.extend(token);
            out.ends.push(out.bytes.len());
        }
        Ok(out)
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The tokens in the order of their ranks.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        let places = starts.zip(&self.ends);
        places.map(|(start, end)| self.bytes.get(*start..*end).unwrap_or_default())
    }

    /// The rank of each token.
    ///
    /// # Errors
    /// `Parse` with the lines of a token that is there twice.
    pub(super) fn ranks(&self) -> Result<Ranks<'_>> {
        let mut ranks = HashMap::with_capacity(self.len());
        for (rank, token) in (0u32..).zip(self.tokens()) {
            if let Some(other) = ranks.insert(token, rank) {
                let what = format!("the token is in line {}, too", u64::from(other) + 1);
                return Err(self.malformed(rank as usize + 1, what));
            }
        }
        Ok(ranks)
    }

    /// The pairs of tokens that are merged last to a token, in the order of the tokens. Tokens that
    /// merging does not lead to have none.
    ///
    /// # Errors
    /// `LimitExceeded` if tokens are so long that looking for their parts would take longer than
    /// reading them.
    pub(super) fn merges<'a>(&'a self, ranks: &Ranks<'_>) -> Result<Vec<(&'a [u8], &'a [u8])>> {
        let mut out = Vec::new();
        let mut pairs = 0u64;
        let mut parts = Parts::default();
        for (rank, token) in (0u32..).zip(self.tokens()) {
            pairs = pairs.saturating_add((token.len() as u64).saturating_pow(2));
            crate::limits::cap(
                "MAX_PAIRS",
                pairs,
                MAX_PAIRS,
                format_args!("pairs of bytes in tokens of {}", self.file),
            )?;
            if token.len() > 1 {
                let halves = parts.last_merge(ranks, token, rank);
                out.extend(halves.and_then(|at| token.split_at_checked(at)));
            }
        }
        Ok(out)
    }

    fn malformed(&self, line: usize, what: impl std::fmt::Display) -> AnamnesisError {
        AnamnesisError::parse(format!("{}: line {line}: {what}", self.file))
    }
}

/// Whether `content` begins with a line of such a table.
pub(super) fn is_rank_table(content: &[u8]) -> bool {
    let line = content.split(|byte| *byte == b'\n').next();
    line.is_some_and(|line| line.len() <= MAX_LINE && token_of(line).is_some())
}

/// The bytes of the token in `line`, and its rank.
fn token_of(line: &[u8]) -> Option<(Vec<u8>, u64)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let (token, rank) = (fields.next()?, fields.next()?);
    let is_number = rank.bytes().all(|digit| digit.is_ascii_digit());
    let token = base64(token).filter(|token| !token.is_empty() && is_number)?;
    match fields.next() {
        None => Some((token, rank.parse().ok()?)),
        Some(_) => None,
    }
}

/// A token while its bytes are merged.
#[derive(Default)]
struct Parts {
    /// Where each part begins, and the rank of what it makes with the next part.
    parts: Vec<(usize, Option<u32>)>,
}

impl Parts {
    /// Where the last merge to `token`, of the rank `own`, cuts it: its bytes are merged as in a
    /// text, by ranks below its own. `None` if more or fewer than two parts are left.
    fn last_merge(&mut self, ranks: &Ranks<'_>, token: &[u8], own: u32) -> Option<usize> {
        let rank_of = |start: usize, end: usize| ranks.get(token.get(start..end)?).copied();
        self.parts.clear();
        self.parts
            .extend((0..token.len()).map(|at| (at, rank_of(at, at + 2))));
        loop {
            // Of equal ranks the first pair is merged.
            let pairs = self.parts.iter().enumerate();
            let pairs = pairs.filter_map(|(i, (_, rank))| Some(((*rank)?, i)));
            let Some((_, i)) = pairs.min().filter(|(rank, _)| *rank < own) else {
                break;
            };
            self.parts.remove(i + 1);
            for i in [i.checked_sub(1), Some(i)].into_iter().flatten() {
                let end = self.parts.get(i + 2).map_or(token.len(), |part| part.0);
                let has_next = i + 1 < self.parts.len();
                if let Some(part) = self.parts.get_mut(i) {
                    part.1 = rank_of(part.0, end).filter(|_| has_next);
                }
            }
        }
        match self.parts.as_slice() {
            [_, (at, _)] => Some(*at),
            _ => None,
        }
    }
}
