//! Added tokens as transformers has them after loading (`PreTrainedTokenizerFast.__init__`): those
//! of tokenizer.json, then those of tokenizer_config.json, then the special tokens that neither
//! lists.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::file::{HfAddedToken, HfTokenizerFile, TOKENIZER_JSON};
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Result};

/// Name of the file.
pub(super) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Names of special tokens in tokenizer_config.json, in the order in which transformers adds them.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Special tokens of tokenizer classes where tokenizer_config.json has none, in the order of
/// [`SPECIAL_TOKENS`]; empty if the class has none (transformers 4.57, `tokenization_*_fast.py`).
const CLASS_DEFAULTS: &[(&[&str], [&str; 7])] = &[
    (&["LlamaTokenizer", "CodeLlamaTokenizer"], ["<s>", "</s>", "<unk>", "", "", "", ""]),
    (&["GemmaTokenizer"], ["<bos>", "<eos>", "<unk>", "", "<pad>", "", ""]),
    (&["CohereTokenizer"], ["<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "", "", "", ""]),
    (
        &["GPT2Tokenizer", "GPTNeoXTokenizer", "CodeGenTokenizer"],
        [END_OF_TEXT, END_OF_TEXT, END_OF_TEXT, "", "", "", ""],
    ),
    (&["Qwen2Tokenizer"], ["", END_OF_TEXT, END_OF_TEXT, "", END_OF_TEXT, "", ""]),
    (&["BloomTokenizer"], ["<s>", "</s>", "<unk>", "", "<pad>", "", ""]),
    (
        &["BertTokenizer", "DistilBertTokenizer"],
        ["", "", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"],
    ),
    (&["MPNetTokenizer"], ["<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>"]),
    (
        &["RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"],
        ["<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"],
    ),
    (&["T5Tokenizer"], ["", "</s>", "<unk>", "", "<pad>", "", ""]),
];

/// The special token that ends texts in tokenizers which are made like GPT-2's.
const END_OF_TEXT: &str = "<|endoftext|>";

/// A whole vocabulary: the model's tokens and the added ones, by id.
pub(super) struct AddedTokens<'a> {
    /// Ids of the model's tokens.
    pub ids: HashMap<&'a str, u64>,
    /// Added tokens in the order in which they were added. Their ids are those that the library
    /// gives them.
    pub tokens: Vec<HfAddedToken>,
    index: HashMap<String, usize>,
    /// Texts of all special tokens.
    pub special: HashSet<String>,
    /// The largest id of an added token.
    last: Option<u64>,
}

impl<'a> AddedTokens<'a> {
    /// The tokens of `file` and of `config`, the object in tokenizer_config.json.
    ///
    /// # Errors
    /// `Parse` if two tokens have one id, or if an added token's id is not the one that the library
    /// gives it.
    pub(super) fn new(file: &'a HfTokenizerFile, config: &Map<String, Value>) -> Result<Self> {
        let mut ids = HashMap::with_capacity(file.model.vocab.tokens.len());
        for (token, id) in &file.model.vocab.tokens {
            if ids
                .insert(token.as_str(), *id)
                .is_some_and(|other| other != *id)
            {
                return Err(AnamnesisError::parse(format!(
                    "{}: the vocabulary has `{token}` twice",
                    file.name
                )));
            }
        }
        let mut out = Self {
            ids,
            tokens: Vec::new(),
            index: HashMap::new(),
            special: HashSet::new(),
            last: None,
        };
        for (i, token) in file.added_tokens.iter().enumerate() {
            if token.content.is_empty() {
                return Err(AnamnesisError::parse(format!(
                    "{TOKENIZER_JSON}: `added_tokens[{i}]` has no text"
                )));
            }
            let id = out.add(token.clone());
            // The library ignores what is stated of a token that the model has.
            if id != token.id && !out.ids.contains_key(token.content.as_str()) {
                return Err(AnamnesisError::parse(format!(
                    "{TOKENIZER_JSON}: `added_tokens[{i}]` (`{}`) has the id {}, and the `tokenizers` library gives it {id}",
                    token.content, token.id
                )));
            }
        }
        out.add_configured(file, config)?;
        Ok(out)
    }

    /// Adds the tokens of tokenizer_config.json. One that is there already gets the flags that it
    /// has here.
    fn add_configured(
        &mut self,
        file: &HfTokenizerFile,
        config: &Map<String, Value>,
    ) -> Result<()> {
        let special = special_tokens(config);
        self.special = special
            .iter()
            .map(|(token, _)| token.content.clone())
            .collect();
        // The library's tokens are listed again if the config lists none.
        let listed = match config.get("added_tokens_decoder") {
            Some(_) => listed_in(config)?,
            None => file.added_tokens.clone(),
        };
        let listed: Vec<_> = listed
            .into_iter()
            .map(|token| HfAddedToken {
                special: token.special || self.special.contains(&token.content),
                ..token
            })
            .collect();
        let known: HashSet<String> = listed.iter().map(|token| token.content.clone()).collect();
        for token in listed {
            self.add(token);
        }
        for (token, has_flags) in special {
            // A token that is named by its text alone keeps the flags that it has.
            if !known.contains(&token.content) && (has_flags || self.get(&token.content).is_none())
            {
                self.add(token);
            }
        }
        Ok(())
    }

    /// The added token of text `content`.
    pub(super) fn get(&self, content: &str) -> Option<&HfAddedToken> {
        self.index.get(content).and_then(|&i| self.tokens.get(i))
    }

    /// Adds a token, or replaces the flags of the one with its text; returns its id. A token that
    /// the model has keeps the model's id, and any other gets the next free one.
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
        token.id = match self.ids.get(token.content.as_str()) {
            Some(id) => *id,
            None => self
                .last
                .map_or(model, |last| model.max(last.saturating_add(1))),
        };
        let id = token.id;
        self.last = self.last.max(Some(id));
        self.index.insert(token.content.clone(), self.tokens.len());
        self.tokens.push(token);
        id
    }
}

/// The text of a special token in tokenizer_config.json: a text, or an object with it.
pub(super) fn content(entry: &Value) -> Option<&str> {
    entry.as_str().or_else(|| entry.get("content")?.as_str())
}

/// The text of the special token that tokenizer_config.json calls `key`, or that of its class.
pub(super) fn named(config: &Map<String, Value>, key: &str) -> Option<String> {
    let default = || {
        let i = SPECIAL_TOKENS.iter().position(|known| *known == key)?;
        let (_, tokens) = class_defaults(config)?;
        tokens.get(i).map(|text| (*text).to_owned())
    };
    let text = match config.get(key) {
        Some(entry) => content(entry).map(str::to_owned),
        None => default(),
    };
    text.filter(|text| !text.is_empty())
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
        // Special tokens are not normalized unless the flag says so (`AddedToken.__init__` of the
        // library).
        normalized: flag("normalized").unwrap_or(!special && entry.is_object()),
    })
}

/// The row of [`CLASS_DEFAULTS`] of the tokenizer class in tokenizer_config.json.
fn class_defaults(
    config: &Map<String, Value>,
) -> Option<&'static (&'static [&'static str], [&'static str; 7])> {
    let class = config.get("tokenizer_class").and_then(Value::as_str)?;
    let class = class.strip_suffix("Fast").unwrap_or(class);
    let mut rows = CLASS_DEFAULTS.iter();
    rows.find(|(names, _)| names.contains(&class))
}

/// The special tokens of tokenizer_config.json, or of its tokenizer class, each once, and whether
/// they have flags there.
fn special_tokens(config: &Map<String, Value>) -> Vec<(HfAddedToken, bool)> {
    let defaults = class_defaults(config);
    let (mut out, mut known) = (Vec::new(), HashSet::new());
    let mut push = |entry: &Value| {
        if let Some(token) = token_of(entry).filter(|token| !token.content.is_empty())
            && known.insert(token.content.clone())
        {
            out.push((HfAddedToken { special: true, ..token }, entry.is_object()));
        }
    };
    for (i, key) in SPECIAL_TOKENS.iter().enumerate() {
        match config.get(*key) {
            Some(entry) => push(entry),
            None => {
                let token = defaults.and_then(|(_, tokens)| tokens.get(i));
                push(&Value::from(*token.unwrap_or(&"")));
            }
        }
    }
    let more = config
        .get("additional_special_tokens")
        .and_then(Value::as_array);
    more.into_iter().flatten().for_each(&mut push);
    let extra = config
        .get("extra_special_tokens")
        .and_then(Value::as_object);
    extra
        .into_iter()
        .flatten()
        .for_each(|(_, entry)| push(entry));
    out
}

/// The tokens of `added_tokens_decoder` in tokenizer_config.json, with their ids there, in the
/// order of these.
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
    sort_by_key(&mut out, |token| token.id);
    Ok(out)
}
