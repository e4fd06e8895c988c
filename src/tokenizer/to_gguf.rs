//! From tokenizer files to the keys `tokenizer.*` of a GGUF file.
//!
//! The kind of a tokenizer follows from its files: `gpt2` is byte-level BPE, `llama` SentencePiece,
//! `bert` WordPiece and `t5` Unigram. What the converter's classes of architectures add to that is
//! in [`rules`].

mod added;
mod bpe;
mod bpe_with_bytes;
mod file;
mod keys;
mod merge_scores;
mod plamo;
mod post_processor;
mod ranks;
mod rules;
mod rwkv;
mod sentencepiece;
mod sentencepiece_model;
mod special;
mod tekken;
mod template;
mod text_steps;
mod tiktoken;
mod unigram;
mod vocab_merges;
mod word_piece;

use serde_json::{Map, Value};

use self::added::TOKENIZER_CONFIG;
use self::file::{HfTokenizerFile, TOKENIZER_JSON};
pub(crate) use self::keys::{KeyList, TokenTable, TokenType};
pub(crate) use self::rules::{AddedStyle, KeyRule, TokenizerRules};
pub(crate) use self::sentencepiece_model::SentencePieceModel;
pub(crate) use self::special::SpecialVocab;
use self::tiktoken::TiktokenVocabulary;
use crate::config::Texts;
use crate::model::gguf::GgufMetadataValue;
use crate::model::gguf_keys::PRE_TOKENIZER;
use crate::{AnamnesisError, Result};

/// What is known of a model besides its tokenizer files.
pub(crate) struct TokenizerRequest<'a> {
    /// The files beside the model.
    pub texts: &'a Texts,
    /// config.json, of a multimodal model with its text config merged over the root.
    pub config: &'a Value,
    /// `vocab_size` of the config.
    pub vocab_size: usize,
    /// Name in `tokenizer.ggml.pre` that the caller chose.
    pub pre: Option<&'a str>,
    /// GGUF architecture: `llama`, `qwen2`, ….
    pub architecture: &'a str,
    /// What the converter has of the class's tokenizer alone.
    pub rules: &'a TokenizerRules,
    /// Whether rows of the embedding behind the tokens are left out.
    pub cuts_embedding: bool,
}

/// The metadata keys of a tokenizer.
#[derive(Debug)]
pub(crate) struct TokenizerKeys {
    /// Keys with values, in the order in which llama.cpp's converter writes them.
    pub keys: Vec<(String, GgufMetadataValue)>,
    /// Rows that the token embedding must have.
    pub tokens: usize,
    /// What a user should know of the tokenizer.
    pub notes: Vec<String>,
}

/// A model's tokenizer files, read.
pub(crate) struct TokenizerFiles<'a> {
    pub request: &'a TokenizerRequest<'a>,
    /// tokenizer.json, or what transformers makes of vocab.json and merges.txt.
    pub json: Option<HfTokenizerFile>,
    /// The object in tokenizer_config.json; empty if there is none.
    config: Map<String, Value>,
    /// Number of tokens that the model has room for.
    vocab_size: usize,
}

/// Most tokens of a vocabulary. The largest published ones have a quarter of a million.
const MAX_TOKENS: usize = 1 << 22;

/// Reads a model's tokenizer files.
///
/// # Errors
/// `Parse` with the file and field if a file is malformed or contradicts another; `Unsupported` if
/// llama.cpp has no such tokenizer; `LimitExceeded`; `Io`.
pub(crate) fn to_gguf(request: &TokenizerRequest<'_>) -> Result<TokenizerKeys> {
    let config = match request.texts.json(TOKENIZER_CONFIG)? {
        Some(Value::Object(config)) => config,
        None => Map::new(),
        Some(_) => {
            return Err(AnamnesisError::parse(format!("{TOKENIZER_CONFIG} is no object")));
        }
    };
    let vocab_size = request.rules.padded(request.config, request.vocab_size);
    let what = "tokens (`vocab_size` of config.json)";
    crate::limits::cap("MAX_TOKENS", vocab_size as u64, MAX_TOKENS as u64, what)?;
    // Every id without a token becomes a text of its own.
    request
        .texts
        .charge(vocab_size as u64 * 64, "the tokens of the tokenizer")?;
    let mut files =
        TokenizerFiles { json: HfTokenizerFile::read(request.texts)?, request, config, vocab_size };
    let mut keys = KeyList::default();
    KeyRule::write_all(request.rules.before, &files, None, &mut keys)?;
    let tokens = files.write(&mut keys)?;
    // A name that has no effect would look as if it had one.
    let pre = keys
        .get(PRE_TOKENIZER)
        .and_then(GgufMetadataValue::as_string);
    if let Some(wanted) = request.pre.filter(|wanted| Some(*wanted) != pre) {
        return Err(AnamnesisError::usage(format!(
            "--tokenizer-pre: {wanted}: the tokenizer is not of bytes, and has no pre-tokenizer to choose"
        )));
    }
    KeyRule::write_all(request.rules.after, &files, None, &mut keys)?;
    Ok(TokenizerKeys { keys: keys.entries, tokens, notes: keys.notes })
}

impl TokenizerFiles<'_> {
    /// Writes the keys of the tokenizer's kind, and returns the number of tokens.
    fn write(&mut self, keys: &mut KeyList) -> Result<usize> {
        if let Some(write) = self.request.rules.own {
            return write(self, keys);
        }
        if self.json.is_none()
            && let Some(n) = tekken::write(self, keys)?
        {
            return Ok(n);
        }
        let ranks = TiktokenVocabulary::read(self)?;
        if let Some(ranks) = ranks.filter(|ranks| ranks.comes_first() || self.json.is_none()) {
            return ranks.write(self, keys);
        }
        let model = SentencePieceModel::read(self)?;
        if model.is_none() && self.json.is_none() {
            self.json = vocab_merges::read(self)?;
        }
        let kind = self.json.as_ref().map(HfTokenizerFile::kind).transpose()?;
        match (model, &self.json, kind) {
            (Some(model), _, None | Some("BPE" | "Unigram")) if unigram::is_for(self, &model) => {
                unigram::write_model(self, &model, keys)
            }
            (Some(model), _, None | Some("BPE" | "Unigram")) => {
                sentencepiece::write(self, &model, keys)
            }
            (None, Some(json), Some("BPE")) if json.is_byte_level() => bpe::write(self, json, keys),
            (None, Some(json), Some("BPE")) if json.model.byte_fallback => {
                bpe_with_bytes::write(self, json, keys)
            }
            (None, Some(json), Some("WordPiece")) => word_piece::write(self, json, keys),
            (None, Some(json), Some("Unigram")) => unigram::write(self, json, keys),
            (None, None, _) => Err(AnamnesisError::unsupported(
                "tokenizer",
                "there is neither tokenizer.json nor tokenizer.model nor tekken.json nor vocab.json with merges.txt beside the model",
            )),
            (Some(_), _, Some(kind)) => Err(AnamnesisError::parse(format!(
                "tokenizer.model is of SentencePiece, and {TOKENIZER_JSON} of the kind {kind}"
            ))),
            (None, _, kind) => Err(AnamnesisError::unsupported(
                format!("tokenizer {}", kind.unwrap_or_default()),
                format!(
                    "{TOKENIZER_JSON}: llama.cpp's converter writes BPE of bytes or with `byte_fallback`, WordPiece and Unigram"
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests;
