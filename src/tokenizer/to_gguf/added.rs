//! Added tokens as transformers has them after loading (`PreTrainedTokenizerFast.__init__`): those of tokenizer.json, then
//! those of tokenizer_config.json, then the special tokens that neither lists.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::file::{HfAddedToken, HfTokenizerFile, TOKENIZER_JSON};
use crate::{AnamnesisError, Result};

/// Name of the file.
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Names of special tokens in tokenizer_config.json, in the order in which transformers adds them.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Special tokens of tokenizer classes where tokenizer_config.json has none, in the order of [`SPECIAL_TOKENS`]; empty if
/// the class has none (transformers 4.57, `tokenization_*_fast.py`).
const CLASS_DEFAULTS: &[(&str, [&str; 7])] = &[
    ("LlamaTokenizer", ["<s>", "</s>", "<unk>", "", "", "", ""]),
    (
        "CodeLlamaTokenizer",
        ["<s>", "</s>", "<unk>", "", "", "", ""],
    ),
    (
        "GemmaTokenizer",
        ["<bos>", "<eos>", "<unk>", "", "<pad>", "", ""],
    ),
    (
        "CohereTokenizer",
        [
            "<BOS_TOKEN>",
            "<|END_OF_TURN_TOKEN|>",
            "<UNK>",
            "",
            "",
            "",
            "",
        ],
    ),
    (
        "GPT2Tokenizer",
        [
            "<|endoftext|>",
            "<|endoftext|>",
            "<|endoftext|>",
            "",
            "",
            "",
            "",
        ],
    ),
    (
        "GPTNeoXTokenizer",
        [
            "<|endoftext|>",
            "<|endoftext|>",
            "<|endoftext|>",
            "",
            "",
            "",
            "",
        ],
    ),
    (
        "CodeGenTokenizer",
        [
            "<|endoftext|>",
            "<|endoftext|>",
            "<|endoftext|>",
            "",
            "",
            "",
            "",
        ],
    ),
    (
        "Qwen2Tokenizer",
        [
            "",
            "<|endoftext|>",
            "<|endoftext|>",
            "",
            "<|endoftext|>",
            "",
            "",
        ],
    ),
    (
        "BloomTokenizer",
        ["<s>", "</s>", "<unk>", "", "<pad>", "", ""],
    ),
    (
        "BertTokenizer",
        ["", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"],
    ),
    (
        "DistilBertTokenizer",
        ["", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"],
    ),
    (
        "MPNetTokenizer",
        ["<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>"],
    ),
    (
        "RobertaTokenizer",
        ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"],
    ),
    (
        "XLMRobertaTokenizer",
        ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"],
    ),
    (
        "CamembertTokenizer",
        ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"],
    ),
    ("T5Tokenizer", ["", "</s>", "<unk>", "", "<pad>", "", ""]),
];

/// A whole vocabulary: the model's tokens and the added ones, by id.
pub(super) struct AddedTokens<'a> {
    /// Ids of the model's tokens.
    pub ids: HashMap<&'a str, u64>,
    /// Added tokens in the order in which they were added. Their ids are those that the library gives them.
    pub tokens: Vec<HfAddedToken>,
    index: HashMap<String, usize>,
    /// Texts of all special tokens.
    pub special: Vec<String>,
}

impl<'a> AddedTokens<'a> {
    /// The tokens of `file` and of `config`, the object in tokenizer_config.json.
    ///
    /// # Errors
    /// `Parse` if two tokens have one id, or if an added token's id is not the one that the library gives it.
    pub(super) fn new(file: &'a HfTokenizerFile, config: &Map<String, Value>) -> Result<Self> {
        let mut ids = HashMap::with_capacity(file.model.vocab.tokens.len());
        for (token, id) in &file.model.vocab.tokens {
            if ids
                .insert(token.as_str(), *id)
                .is_some_and(|other| other != *id)
            {
                return Err(AnamnesisError::parse(format!(
                    "{TOKENIZER_JSON}: `model.vocab` has `{token}` twice"
                )));
            }
        }
        let special = special_tokens(config);
        let mut out = Self {
            ids,
            tokens: Vec::new(),
            index: HashMap::new(),
            special: Vec::new(),
        };
        for (i, token) in file.added_tokens.iter().enumerate() {
            if token.content.is_empty() {
                return Err(AnamnesisError::parse(format!(
                    "{TOKENIZER_JSON}: `added_tokens[{i}]` has no text"
                )));
            }
            let id = out.add(token.clone());
            if id != token.id {
                return Err(AnamnesisError::parse(format!(
                    "{TOKENIZER_JSON}: `added_tokens[{i}]` (`{}`) has the id {}, and the `tokenizers` library gives it {id}",
                    token.content, token.id
                )));
            }
        }
        for mut token in listed_in(config)? {
            token.special |= special.iter().any(|known| known.content == token.content);
            out.add(token);
        }
        for token in &special {
            if !out.index.contains_key(&token.content) {
                out.add(token.clone());
            }
            out.special.push(token.content.clone());
        }
        Ok(out)
    }

    /// The added token of text `content`.
    pub(super) fn get(&self, content: &str) -> Option<&HfAddedToken> {
        self.index.get(content).and_then(|&i| self.tokens.get(i))
    }

    /// Adds a token, or replaces the flags of the one with its text; returns its id. A token that the model has keeps the
    /// model's id, and any other gets the next free one.
    fn add(&mut self, mut token: HfAddedToken) -> u64 {
        if let Some(known) = self
            .index
            .get(&token.content)
            .and_then(|&i| self.tokens.get_mut(i))
        {
            token.id = known.id;
            *known = token;
            return known.id;
        }
        let model = self.ids.len() as u64;
        let last = self.tokens.iter().map(|token| token.id).max();
        token.id = match self.ids.get(token.content.as_str()) {
            Some(id) => *id,
            None => last.map_or(model, |last| model.max(last.saturating_add(1))),
        };
        let id = token.id;
        self.index.insert(token.content.clone(), self.tokens.len());
        self.tokens.push(token);
        id
    }
}

/// The text of a special token in tokenizer_config.json: a text, or an object with it.
pub(super) fn content(entry: &Value) -> Option<&str> {
    entry.as_str().or_else(|| entry.get("content")?.as_str())
}

/// An added token as tokenizer_config.json has it.
fn token_of(entry: &Value) -> Option<HfAddedToken> {
    let content = content(entry)?;
    let flag = |key: &str| entry.get(key).and_then(Value::as_bool);
    let special = flag("special").unwrap_or(false);
    Some(HfAddedToken {
        id: 0,
        content: content.to_owned(),
        special,
        // `HfAddedToken.__init__` of the library: special tokens are not normalized unless the flag says so.
        normalized: flag("normalized").unwrap_or(!special && entry.is_object()),
    })
}

/// The special tokens of tokenizer_config.json, or of its tokenizer class, each once.
fn special_tokens(config: &Map<String, Value>) -> Vec<HfAddedToken> {
    let class = config
        .get("tokenizer_class")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let class = class.strip_suffix("Fast").unwrap_or(class);
    let defaults = CLASS_DEFAULTS.iter().find(|(name, _)| *name == class);
    let mut out: Vec<HfAddedToken> = Vec::new();
    let mut push = |token: Option<HfAddedToken>| {
        if let Some(token) = token.filter(|t| !t.content.is_empty())
            && out.iter().all(|known| known.content != token.content)
        {
            out.push(HfAddedToken {
                special: true,
                ..token
            });
        }
    };
    for (i, key) in SPECIAL_TOKENS.iter().enumerate() {
        push(match config.get(*key) {
            Some(entry) => token_of(entry),
            None => defaults
                .and_then(|(_, tokens)| tokens.get(i))
                .and_then(|token| token_of(&Value::from(*token))),
        });
    }
    let more = config
        .get("additional_special_tokens")
        .and_then(Value::as_array);
    more.into_iter()
        .flatten()
        .for_each(|entry| push(token_of(entry)));
    let extra = config
        .get("extra_special_tokens")
        .and_then(Value::as_object);
    extra
        .into_iter()
        .flatten()
        .for_each(|(_, entry)| push(token_of(entry)));
    out
}

/// The tokens of `added_tokens_decoder` in tokenizer_config.json, with their ids there, in the order of these.
///
/// # Errors
/// `Parse` if an id is no number or an entry has no text.
pub(super) fn listed_in(config: &Map<String, Value>) -> Result<Vec<HfAddedToken>> {
    let Some(Value::Object(entries)) = config.get("added_tokens_decoder") else {
        return Ok(Vec::new());
    };
    let mut out = Vec::with_capacity(entries.len());
    for (id, entry) in entries {
        let token = token_of(entry).zip(id.parse::<u64>().ok());
        let Some((token, id)) = token else {
            return Err(AnamnesisError::parse(format!(
                "{TOKENIZER_CONFIG}: `added_tokens_decoder.{id}` is not a number with a token"
            )));
        };
        out.push(HfAddedToken { id, ..token });
    }
    out.sort_by_key(|token| token.id);
    Ok(out)
}
