//! BPE of SentencePiece that tokenizer.json alone has, with a token for each byte (Llama 2, Yi,
//! Gemma): the tokenizer `llama` of GGUF with scores that stand for the merges, `gemma4` with merges,
//! or `gpt2` with merges and a pre-tokenizer that works on text.
//!
//! llama.cpp's converter (gguf-py's `LlamaHfVocab`) gives every token the score -1000, and takes the
//! added tokens of the vocabulary for normal ones. llama.cpp then joins what comes first in a text,
//! and cuts the markers of a conversation into letters.

use super::added::AddedTokens;
use super::file::{HfTokenizerFile, TOKENIZER_JSON};
use super::keys::{ADDED_SCORE, KeyList, TokenTable, TokenType, added_token};
use super::merge_scores::MergeScores;
use super::special::SpecialVocab;
use super::text_steps::TextSteps;
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

/// Pre-tokenizers of `gpt2` that work on text whose blanks are `▁`: of encoders, and of other models.
const OF_ENCODERS: &str = "granite-embed-multi-311m";
const OF_MERGES: &str = "sarvam-moe";

/// Writes the keys of a vocabulary with byte tokens.
///
/// # Errors
/// `Parse` if ids are taken twice or are not below `vocab_size` of the config, or a merge makes no
/// token; `Unsupported` if text is decoded in another way.
pub(super) fn write(
    files: &TokenizerFiles<'_>,
    json: &HfTokenizerFile,
    keys: &mut KeyList,
) -> Result<usize> {
    let steps = TextSteps::read(json)?;
    let added = AddedTokens::new(json, &files.config)?;
    let added = &added;
    let scores = MergeScores::new(json, &added.ids, |token| added.get(token).is_some())?;
    let mut table = Table { files, json, added, scores: &scores, left: LeftToMerges::Blanks };
    match files.request.architecture {
        "modern-bert" => return write_merges(&table, OF_ENCODERS, keys),
        architecture if architecture.starts_with("gemma4") => {
            table.left = LeftToMerges::Everything;
            return write_gemma4(&table, keys);
        }
        _ => keys.notes.extend(steps.notes()),
    }
    if let Some((left, right)) = scores.contradiction {
        let what = format!(
            "{TOKENIZER_JSON}: no merge joins `{left}` and `{right}` to the token of that text, and scores cannot say so"
        );
        let has_merges = !json.model.merges.pairs.is_empty();
        if has_merges && !steps.has_prefix && !crosses_lines(json) {
            keys.notes.push(format!(
                "{what}; the merges are written, for a llama.cpp that has the pre-tokenizer `{OF_MERGES}`"
            ));
            return write_merges(&table, OF_MERGES, keys);
        }
        keys.notes.push(format!("{what}; llama.cpp joins them"));
    }
    let table = table.write(|token| scores.of(token))?;
    keys.ggml_text("model", "llama");
    keys.ggml_text("pre", "default");
    let n = table.write(keys, true)?;
    let special = SpecialVocab::read(files.request.texts, Some(json), Some(n))?;
    special.write(Vec::new(), keys)?;
    // llama.cpp takes an absent key for true.
    let is_stated = keys.get("tokenizer.ggml.add_space_prefix").is_some();
    if !steps.has_prefix || is_stated {
        keys.ggml_flag("add_space_prefix", steps.has_prefix);
    }
    Ok(n)
}

/// Whether a merge joins the end of a line to something else: the pre-tokenizers of text cut there.
fn crosses_lines(json: &HfTokenizerFile) -> bool {
    let count = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
    let mut merges = json.model.merges.pairs.iter();
    merges.any(|(left, right)| {
        let ends = count(left) + count(right);
        ends > 0 && ends < left.len() + right.len()
    })
}

/// Writes the keys of `gpt2` with the merges and the pre-tokenizer `pre`.
fn write_merges(table: &Table<'_>, pre: &str, keys: &mut KeyList) -> Result<usize> {
    let request = table.files.request;
    let merges = bpe::merges(request, &table.json.model.merges, &table.added.ids)?;
    keys.ggml_text("model", "gpt2");
    keys.ggml_text("pre", pre);
    let n = table.write(|_| ADDED_SCORE)?.write(keys, false)?;
    let special = SpecialVocab::read(request.texts, Some(table.json), None)?;
    special.write(merges, keys)?;
    Ok(n)
}

/// Writes the keys of Gemma 4, whose merges llama.cpp has.
fn write_gemma4(table: &Table<'_>, keys: &mut KeyList) -> Result<usize> {
    let request = table.files.request;
    let mut tokens = table.write(|_| ADDED_SCORE)?;
    for (token, kind) in tokens.tokens.iter().zip(&mut tokens.types) {
        if VISIBLE.contains(&token.as_str()) {
            *kind = TokenType::UserDefined;
        }
    }
    keys.ggml_text("model", "gemma4");
    let merges = bpe::merges(request, &table.json.model.merges, &table.added.ids)?;
    let n = tokens.write(keys, true)?;
    let special = SpecialVocab::read(request.texts, Some(table.json), None)?;
    special.write(merges, keys)?;
    keys.ggml_flag("add_space_prefix", false);
    keys.ggml_flag("add_bos_token", true);
    Ok(n)
}

/// Which added tokens, of those that are not special and that merges make as well, are left to the
/// merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftToMerges {
    /// Runs of blanks. The library finds them in no text before the merges, for a text has blanks
    /// where they have `▁`.
    Blanks,
    Everything,
}

/// What the tokens of a table are made of.
struct Table<'a> {
    files: &'a TokenizerFiles<'a>,
    json: &'a HfTokenizerFile,
    added: &'a AddedTokens<'a>,
    scores: &'a MergeScores<'a>,
    left: LeftToMerges,
}

impl Table<'_> {
    /// The model's tokens, then the added ones that it does not have.
    fn write(&self, score: impl Fn(&str) -> f32) -> Result<TokenTable> {
        let vocab = &self.json.model.vocab.tokens;
        let more = self.added.tokens.iter();
        let more = more.map(|token| (&token.content, token.id));
        let more = more.filter(|(token, _)| !self.added.ids.contains_key(token.as_str()));
        let all = vocab.iter().map(|(token, id)| (token, *id)).chain(more);
        let n = self.length(all.clone().map(|(_, id)| id).max().unwrap_or(0))?;
        let mut table = TokenTable::padding(n);
        let mut is_taken = vec![false; n];
        for (token, id) in all {
            let place = usize::try_from(id).unwrap_or(usize::MAX);
            match is_taken.get_mut(place) {
                Some(taken) if !*taken => *taken = true,
                _ => {
                    return Err(AnamnesisError::parse(format!(
                        "{TOKENIZER_JSON}: `{token}` has the id {id}, which another token has, too"
                    )));
                }
            }
            let (text, kind) = self.typed(token);
            table.set(place, text, kind, score(token));
        }
        Ok(table)
    }

    /// How many tokens there are if the last id is `last`: as many as the config says, but for a
    /// model whose embedding is cut.
    fn length(&self, last: u64) -> Result<usize> {
        let room = self.files.vocab_size;
        match usize::try_from(last) {
            Ok(last) if last < room && self.files.request.cuts_embedding => Ok(last + 1),
            Ok(last) if last < room => Ok(room),
            _ => Err(AnamnesisError::parse(format!(
                "{TOKENIZER_JSON}: the last id of its tokens is {last}, and `vocab_size` of config.json is {room}"
            ))),
        }
    }

    /// The text of a token in llama.cpp, and its type.
    fn typed(&self, token: &str) -> (String, TokenType) {
        let kind = match self.added.get(token) {
            Some(added) => {
                let is_special = added.special || self.added.special.contains(token);
                let (text, kind) = added_token(token, is_special);
                let is_merged = self.scores.has(token) || token.chars().nth(1).is_none();
                let is_left = match self.left {
                    LeftToMerges::Blanks => text != token,
                    LeftToMerges::Everything => true,
                };
                if kind == TokenType::Control || !is_merged || !is_left {
                    return (text, kind);
                }
                TokenType::Normal
            }
            None if is_byte(token) => TokenType::Byte,
            None if self.json.model.unk_token.as_deref() == Some(token) => TokenType::Unknown,
            None => TokenType::Normal,
        };
        (token.to_owned(), kind)
    }
}

/// Whether a token is `<0x` with two hexadecimal digits and `>`.
fn is_byte(token: &str) -> bool {
    let digits = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}
