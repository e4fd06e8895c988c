//! tokenizer.json of the `tokenizers` library, read into typed tables: files have some 30 MB, of
//! which nearly all is the vocabulary and the merges.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::MAX_TOKENS;
use crate::config::Texts;
use crate::config::unique_json::parse_embedded;
use crate::limits::FREE_JSON_BYTES;
use crate::{AnamnesisError, Result};

/// Name of the file.
pub(super) const TOKENIZER_JSON: &str = "tokenizer.json";

/// Most merges. Gemma has 580,000.
pub(super) const MAX_MERGES: usize = 1 << 23;

/// A tokenizer.json.
pub(crate) struct HfTokenizerFile {
    /// Name of the file with the vocabulary.
    pub name: &'static str,
    pub model: TokenizerJsonModel,
    pub added_tokens: Vec<HfAddedToken>,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub post_processor: Value,
    pub decoder: Value,
}

/// `model` of tokenizer.json: fields of all its types.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct TokenizerJsonModel {
    /// `BPE`, `Unigram`, `WordPiece` or `WordLevel`; old files have none.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub ignore_merges: bool,
    #[serde(default)]
    pub unk_id: Option<u64>,
    #[serde(default)]
    pub unk_token: Option<String>,
    #[serde(default)]
    pub continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub vocab: HfVocabulary,
    #[serde(default)]
    pub merges: HfMerges,
}

/// A token that is found in text before the model works.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct HfAddedToken {
    #[serde(default)]
    pub id: u64,
    pub content: String,
    #[serde(default)]
    pub special: bool,
    #[serde(default)]
    pub normalized: bool,
}

/// `model.vocab`: ids by token, or tokens with their scores in the order of their ids.
#[derive(Debug, Default)]
pub(crate) struct HfVocabulary {
    pub tokens: Vec<(String, u64)>,
    /// Scores of a `Unigram` model, one for each token; else empty.
    pub scores: Vec<f64>,
}

/// `model.merges`, each as `left right`.
#[derive(Debug, Default)]
pub(crate) struct HfMerges {
    pub pairs: Vec<(String, String)>,
    /// Whether the file has each merge as one text instead of two.
    pub are_texts: bool,
}

impl HfTokenizerFile {
    /// Reads tokenizer.json; `None` if there is none.
    ///
    /// # Errors
    /// `Parse` with the place if it is malformed; `LimitExceeded` if it has too many tokens or
    /// merges.
    pub(super) fn read(texts: &Texts) -> Result<Option<Self>> {
        let Some(bytes) = texts.read(TOKENIZER_JSON)? else {
            return Ok(None);
        };
        // Tokens and merges take more memory than their text: each is a string of its own.
        texts.charge(bytes.len() as u64 * 4, "the tables of tokenizer.json")?;
        let parsed: RawFile = serde_json::from_slice(&bytes)
            .map_err(|e| AnamnesisError::parse(format!("{TOKENIZER_JSON}: {e}")))?;
        let small = |key: &str, raw: Option<&RawValue>| -> Result<Value> {
            let Some(raw) = raw else {
                return Ok(Value::Null);
            };
            parse_embedded(raw.get().as_bytes(), &mut FREE_JSON_BYTES.clone())
                .map_err(|e| AnamnesisError::parse(format!("{TOKENIZER_JSON}: `{key}`: {e}")))
        };
        Ok(Some(Self {
            name: TOKENIZER_JSON,
            normalizer: small("normalizer", parsed.normalizer)?,
            pre_tokenizer: small("pre_tokenizer", parsed.pre_tokenizer)?,
            post_processor: small("post_processor", parsed.post_processor)?,
            decoder: small("decoder", parsed.decoder)?,
            model: parsed.model,
            added_tokens: parsed.added_tokens.unwrap_or_default(),
        }))
    }
}

impl HfTokenizerFile {
    /// The type of the model. Old files do not say it, and only Unigram lists its tokens.
    ///
    /// # Errors
    /// `Parse` if the file has no vocabulary.
    pub(super) fn kind(&self) -> Result<&str> {
        let model = &self.model;
        if model.vocab.tokens.is_empty() {
            return Err(AnamnesisError::parse(format!("{TOKENIZER_JSON}: `model.vocab` is empty")));
        }
        Ok(match &model.kind {
            Some(kind) => kind,
            None if !model.vocab.scores.is_empty() => "Unigram",
            None if !model.merges.pairs.is_empty() => "BPE",
            None => "WordPiece",
        })
    }

    /// Whether tokens are spelt in GPT-2's byte alphabet.
    pub(super) fn is_byte_level(&self) -> bool {
        let is = |step: &Value| step.get("type").and_then(Value::as_str) == Some("ByteLevel");
        let inner = self.decoder.get("decoders").and_then(Value::as_array);
        is(&self.decoder) || inner.is_some_and(|inner| inner.iter().any(is))
    }
}

#[derive(Deserialize)]
struct RawFile<'a> {
    model: TokenizerJsonModel,
    #[serde(default)]
    added_tokens: Option<Vec<HfAddedToken>>,
    #[serde(borrow, default)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow, default)]
    decoder: Option<&'a RawValue>,
}

impl<'de> Deserialize<'de> for HfVocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(HfVocabularyVisitor)
    }
}

struct HfVocabularyVisitor;

impl<'de> Visitor<'de> for HfVocabularyVisitor {
    type Value = HfVocabulary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary: ids by token, or a list of tokens with scores")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<HfVocabulary, A::Error> {
        let mut tokens = Vec::new();
        while let Some(entry) = map.next_entry::<String, u64>()? {
            within(tokens.len(), MAX_TOKENS, "tokens")?;
            tokens.push(entry);
        }
        Ok(HfVocabulary { tokens, scores: Vec::new() })
    }

    fn visit_seq<A: SeqAccess<'de>>(
        self,
        mut seq: A,
    ) -> std::result::Result<HfVocabulary, A::Error> {
        let mut out = HfVocabulary::default();
        while let Some((token, score)) = seq.next_element::<(String, f64)>()? {
            within(out.scores.len(), MAX_TOKENS, "tokens")?;
            out.tokens.push((token, out.scores.len() as u64));
            out.scores.push(score);
        }
        Ok(out)
    }
}

impl<'de> Deserialize<'de> for HfMerges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_seq(HfMergesVisitor)
    }
}

struct HfMergesVisitor;

/// A merge as a file has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawMerge<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Pair(String, String),
}

impl<'de> Visitor<'de> for HfMergesVisitor {
    type Value = HfMerges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<HfMerges, A::Error> {
        let mut out = HfMerges::default();
        while let Some(merge) = seq.next_element::<RawMerge<'_>>()? {
            let i = out.pairs.len();
            within(i, MAX_MERGES, "merges")?;
            let is_text = matches!(merge, RawMerge::Text(_));
            if i > 0 && is_text != out.are_texts {
                let message = format!("`model.merges[{i}]` is not of the form of those before it");
                return Err(A::Error::custom(message));
            }
            out.are_texts = is_text;
            let pair = match merge {
                RawMerge::Pair(left, right) => Some((left, right)),
                RawMerge::Text(text) => text
                    .split_once(' ')
                    .filter(|(_, right)| !right.contains(' '))
                    .map(|(left, right)| (left.to_owned(), right.to_owned())),
            };
            match pair {
                Some(pair) if !pair.0.is_empty() && !pair.1.is_empty() => out.pairs.push(pair),
                _ => {
                    let message = format!("`model.merges[{i}]` is not two tokens");
                    return Err(A::Error::custom(message));
                }
            }
        }
        Ok(out)
    }
}

/// Checks that another item may follow `n` items.
fn within<E: Error>(n: usize, max: usize, what: &str) -> std::result::Result<(), E> {
    if n < max {
        return Ok(());
    }
    Err(E::custom(format!("more than {max} {what}")))
}
