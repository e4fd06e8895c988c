//! The keys that a tokenizer becomes, and the table of its tokens.

use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// Metadata keys in the order in which they are first set, as gguf-py's writer keeps them.
#[derive(Debug, Default)]
pub(crate) struct KeyList {
    pub entries: Vec<(String, GgufMetadataValue)>,
    /// What the keys cannot say of the tokenizer.
    pub notes: Vec<String>,
}

impl KeyList {
    /// Sets `tokenizer.ggml.{name}`; a key that is there keeps its place.
    pub(super) fn ggml(&mut self, name: &str, value: GgufMetadataValue) {
        self.set(format!("tokenizer.ggml.{name}"), value);
    }

    /// Sets `tokenizer.ggml.{name}` to a text.
    pub(crate) fn ggml_text(&mut self, name: &str, text: &str) {
        self.ggml(name, GgufMetadataValue::String(text.to_owned()));
    }

    /// Sets `tokenizer.ggml.{name}` to a number.
    pub(crate) fn ggml_number(&mut self, name: &str, number: u32) {
        self.ggml(name, GgufMetadataValue::U32(number));
    }

    /// Sets `tokenizer.ggml.{name}` to a truth value.
    pub(crate) fn ggml_flag(&mut self, name: &str, flag: bool) {
        self.ggml(name, GgufMetadataValue::Bool(flag));
    }

    /// Sets `tokenizer.ggml.{name}` to an array; an empty one is not written.
    pub(crate) fn ggml_array(&mut self, name: &str, array: GgufMetadataArray) {
        if !array.is_empty() {
            self.ggml(name, GgufMetadataValue::Array(Box::new(array)));
        }
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&GgufMetadataValue> {
        let found = self.entries.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value)
    }

    /// Whether the tokenizer is one of SentencePiece.
    pub(crate) fn is_sentencepiece(&self) -> bool {
        let model = self.get("tokenizer.ggml.model");
        model.and_then(GgufMetadataValue::as_string) == Some("llama")
    }

    /// Sets `key`; one that is there keeps its place.
    pub(super) fn set(&mut self, key: String, value: GgufMetadataValue) {
        match self.entries.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => self.entries.push((key, value)),
        }
    }
}

/// What a token is (llama.cpp's `llama_token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// The tokens by id.
#[derive(Debug)]
pub(crate) struct TokenTable {
    pub tokens: Vec<String>,
    pub types: Vec<TokenType>,
    pub scores: Vec<f32>,
}

/// Score of ids without a token in a vocabulary with scores.
const PADDING_SCORE: f32 = -10000.0;

/// Score of added tokens in a vocabulary with scores.
pub(super) const ADDED_SCORE: f32 = -1000.0;

impl TokenTable {
    /// A table of `n` ids without tokens: `[PAD0]`, `[PAD1]`, ….
    pub(super) fn padding(n: usize) -> Self {
        Self {
            tokens: (0..n).map(|id| format!("[PAD{id}]")).collect(),
            types: vec![TokenType::Unused; n],
            scores: vec![PADDING_SCORE; n],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Sets the token of `id`, which must be in the table.
    pub(crate) fn set(&mut self, id: usize, token: String, kind: TokenType, score: f32) {
        if let (Some(t), Some(k), Some(s)) =
            (self.tokens.get_mut(id), self.types.get_mut(id), self.scores.get_mut(id))
        {
            (*t, *k, *s) = (token, kind, score);
        }
    }

    /// Appends `tokens`, `scores` if `with_scores`, and `token_type` to `keys`, and returns the
    /// number of tokens.
    ///
    /// # Errors
    /// `Parse` if there is no token.
    pub(super) fn write(self, keys: &mut KeyList, with_scores: bool) -> Result<usize> {
        let n = self.len();
        if n == 0 {
            return Err(AnamnesisError::parse("the tokenizer has no tokens"));
        }
        keys.ggml_array("tokens", GgufMetadataArray::String(self.tokens));
        if with_scores {
            keys.ggml_array("scores", GgufMetadataArray::F32(self.scores));
        }
        let types = self.types.into_iter().map(|kind| kind as i32).collect();
        keys.ggml_array("token_type", GgufMetadataArray::I32(types));
        Ok(n)
    }
}

/// Whether an added token that is not marked as special looks like a control token: some models
/// mark them wrongly (`does_token_look_special` of llama.cpp's converter).
pub(super) fn looks_special(token: &str) -> bool {
    let between = |start: &str, end: &str| token.starts_with(start) && token.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&token)
        || between("<|", "|>")
        || between("<｜", "｜>")
        || between("<unused", ">")
}

/// The type and text of an added token: control tokens keep their text, others have blanks for
/// SentencePiece's `▁`.
pub(super) fn added_token(content: &str, is_special: bool) -> (String, TokenType) {
    if is_special || looks_special(content) {
        (content.to_owned(), TokenType::Control)
    } else {
        (content.replace('▁', " "), TokenType::UserDefined)
    }
}
