//! [`Vocabulary`]: tokens of a GGUF file with their types, and how they become those of
//! `tokenizer.json`.

use std::collections::HashMap;

use super::json::{AddedToken, IdByText};
use super::keys::{GgufTokenizer, malformed};
use crate::model::gguf_keys::{ARCHITECTURE, PRE_TOKENIZER, TOKENS};
use crate::{AnamnesisError, Result};

const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";

/// Type of a token. Source: llama.cpp `llama.h`, `enum llama_token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GgufTokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl GgufTokenType {
    /// The type of number `n`. Zero means that the file does not say.
    fn new(n: i64) -> Option<Self> {
        Some(match n {
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// The tokens of a GGUF file. The index is the id.
pub(super) struct Vocabulary {
    pub tokens: Vec<String>,
    pub types: Vec<GgufTokenType>,
    /// Whether the file says the types.
    has_types: bool,
}

impl Vocabulary {
    /// # Errors
    /// `Parse` if the tokens are missing or none, or the types are unknown or fewer or more than
    /// the tokens.
    pub(super) fn read(keys: GgufTokenizer<'_>) -> Result<Self> {
        let mut tokens = keys
            .texts(TOKENS)?
            .ok_or_else(|| malformed(TOKENS, "it is missing"))?;
        if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
            let count = tokens.len();
            return Err(malformed(TOKENS, format_args!("it has {count} tokens")));
        }
        // llama.cpp gives these names too (`llama_vocab::impl::load`), for texts are unique.
        for (id, token) in tokens.iter_mut().enumerate().filter(|(_, t)| t.is_empty()) {
            *token = format!("[EMPTY_{id}]");
        }
        let numbers = keys.types(TYPES)?;
        let types = match &numbers {
            None => vec![GgufTokenType::Normal; tokens.len()],
            Some(numbers) => {
                same_length(TYPES, numbers.len(), tokens.len())?;
                let each = numbers.iter().enumerate().map(|(id, &n)| {
                    GgufTokenType::new(n).ok_or_else(|| {
                        malformed(TYPES, format_args!("token {id} has the unknown type {n}"))
                    })
                });
                each.collect::<Result<_>>()?
            }
        };
        Ok(Self { tokens, types, has_types: numbers.is_some() })
    }

    /// The scores, one a token.
    ///
    /// # Errors
    /// `Parse` if they are missing, not finite, or fewer or more than the tokens.
    pub(super) fn scores(&self, keys: GgufTokenizer<'_>) -> Result<Vec<f32>> {
        let scores = keys
            .scores(SCORES)?
            .ok_or_else(|| malformed(SCORES, "it is missing"))?;
        same_length(SCORES, scores.len(), self.tokens.len())?;
        Ok(scores)
    }

    /// Makes `ids` control tokens, if the file has no types at all or a converter made the token
    /// up. transformers does the same with the tokens that `tokenizer_config.json` names.
    pub(super) fn mark_control(&mut self, ids: impl Iterator<Item = u32>) {
        for id in ids.map(|id| id as usize) {
            if !self.has_types || self.is_filler(id) {
                self.types[id] = GgufTokenType::Control;
            }
        }
    }

    /// Whether the token was made up by a converter for a row of the embedding that no token of the
    /// tokenizer has.
    pub(super) fn is_filler(&self, id: usize) -> bool {
        // Converters of other times gave them other types: 2 (Phi-3), 4 (Qwen2), 5. Ids of XLM-R
        // moved after the names were given.
        let number = self.tokens[id]
            .strip_prefix("[PAD")
            .and_then(|rest| rest.strip_suffix(']'))
            .and_then(|digits| digits.parse::<usize>().ok());
        match self.types[id] {
            GgufTokenType::Unused => number.is_some(),
            GgufTokenType::Unknown | GgufTokenType::UserDefined => number == Some(id),
            _ => false,
        }
    }

    /// Whether the token is one of `added_tokens`, and whether it is `special` there.
    fn added(&self, id: usize) -> Option<bool> {
        match self.types[id] {
            _ if self.is_filler(id) => None,
            GgufTokenType::Control | GgufTokenType::Unknown => Some(true),
            GgufTokenType::UserDefined => Some(false),
            _ => None,
        }
    }

    /// The tokens that are not fillers, with their ids, in the order of ids.
    pub(super) fn used(&self) -> impl Iterator<Item = (u32, &str)> {
        let all = self.tokens.iter().enumerate();
        all.filter(|(id, _)| !self.is_filler(*id))
            .map(|(id, token)| (id as u32, token.as_str()))
    }

    /// Ids by text, without fillers.
    ///
    /// # Errors
    /// `Parse` if two tokens have one text: `tokenizer.json` is a map by text.
    pub(super) fn ids(&self) -> Result<HashMap<&str, u32>> {
        let mut ids = HashMap::with_capacity(self.tokens.len());
        for (id, token) in self.used() {
            if let Some(first) = ids.insert(token, id) {
                let what = format!("tokens {first} and {id} are both `{token}`");
                return Err(malformed(TOKENS, what));
            }
        }
        Ok(ids)
    }

    /// The model's `vocab`: every token, but for added tokens at the end that get their ids by
    /// counting.
    ///
    /// The `tokenizers` crate ignores the id of an added token that the model does not have, and
    /// gives it the next free one. So tokens may be left out of the model only if there is no gap
    /// before them. Tokens below `needed` stay.
    pub(super) fn model_vocab(&self, needed: u32) -> IdByText<'_> {
        let mut vocab: Vec<_> = self.used().map(|(id, token)| (token, id)).collect();
        let added_only = vocab
            .iter()
            .rev()
            .take_while(|(_, id)| *id >= needed && self.added(*id as usize).is_some())
            .count();
        let in_model = vocab.len() - added_only;
        let is_gapless = vocab
            .iter()
            .enumerate()
            .all(|(i, (_, id))| i == *id as usize);
        if is_gapless && in_model > 0 {
            vocab.truncate(in_model);
        }
        IdByText(vocab)
    }

    /// `added_tokens`, in the order of ids.
    pub(super) fn added_tokens(&self, strip: &StripRules) -> Vec<AddedToken<'_>> {
        let added = |(id, content)| {
            let special = self.added(id as usize)?;
            Some(AddedToken {
                id,
                content,
                single_word: false,
                lstrip: strip.left.is_some_and(|mask| mask == content),
                rstrip: strip.is_phi3 && !matches!(content, "<unk>" | "<s>" | "<|endoftext|>"),
                normalized: false,
                special,
            })
        };
        self.used().filter_map(added).collect()
    }
}

/// # Errors
/// `Parse` if an array does not have an element for each token.
pub(super) fn same_length(key: &str, found: usize, tokens: usize) -> Result<()> {
    if found == tokens {
        return Ok(());
    }
    let what = format!("it has {found} elements, and `{TOKENS}` has {tokens}");
    Err(malformed(key, what))
}

/// Which added tokens take blanks beside them along. A GGUF file does not say; llama.cpp goes by
/// names, too (`llama_vocab::impl::load`, "Handle per token attributes").
pub(super) struct StripRules {
    /// The token that takes the blanks to its left.
    left: Option<&'static str>,
    is_phi3: bool,
}

impl StripRules {
    /// # Errors
    /// `Parse` if a name is no string.
    pub(super) fn read(keys: GgufTokenizer<'_>) -> Result<Self> {
        let text = |key: &str| Ok::<_, AnamnesisError>(keys.text(key)?.unwrap_or_default());
        let (pre, architecture) = (text(PRE_TOKENIZER)?, text(ARCHITECTURE)?);
        let name = text("general.name")?.to_lowercase();
        let has_any = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
        let jina = has_any(&pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"]);
        // XLM-R's tokenizers are of the kind `t5`; T5 has no such token.
        let is_unigram = text("tokenizer.ggml.model")? == "t5";
        let left =
            if jina || is_unigram || has_any(&architecture, &["nomic-bert-moe", "jina-bert-v3"]) {
                Some("<mask>")
            } else if has_any(&name, &["modern-bert"]) {
                Some("[MASK]")
            } else {
                None
            };
        let is_phi3 = left.is_none() && has_any(&name, &["phi-3", "phi3"]);
        Ok(Self { left, is_phi3 })
    }
}
