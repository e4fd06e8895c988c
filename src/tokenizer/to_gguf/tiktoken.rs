//! Vocabularies that are a table of tiktoken's ranks, with a class in Python for everything else
//! (Kimi K2, Hunyuan): the tokenizer `gpt2` of GGUF. What the class does is known here by its name
//! and the regex in its source.
//!
//! Source: `set_vocab` of `DeepseekV2Model` in `conversion/deepseek.py` and of `HunYuanMoEModel` in
//! `conversion/hunyuan.py` of llama.cpp; `tokenization_kimi.py` and `tokenization_hy.py` beside the
//! models.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::TokenizerFiles;
use super::added::{TOKENIZER_CONFIG, listed_in};
use super::bpe::byte_alphabet;
use super::file::{HfTokenizerFile, TOKENIZER_JSON};
use super::keys::{KeyList, TokenTable, TokenType};
use super::ranks::{RankTable, is_rank_table};
use super::special::SpecialVocab;
use crate::model::gguf::GgufMetadataValue;
use crate::tokenizer::pre;
use crate::{AnamnesisError, Result};

/// A class of tokenizers.
struct TiktokenClass {
    /// The class in Python.
    name: &'static str,
    /// Name of the file with the ranks.
    file: &'static str,
    /// Files of published models with the class, without `.py`.
    modules: &'static [&'static str],
    /// `model_type` of models whose class this is where tokenizer_config.json does not say where
    /// its source is.
    model_types: &'static [&'static str],
    /// GGUF architecture of these models.
    architecture: &'static str,
    /// Name in `tokenizer.ggml.pre` for the class's regex.
    pre: &'static str,
    /// Parts of the regex. A source with all of them has the regex.
    regex: &'static [&'static str],
    special: SpecialRule,
    /// Whether the numbers in the file are the ranks. Otherwise the class counts lines.
    has_ranks: bool,
    /// Whether the converter takes the ranks although there is a tokenizer.json.
    comes_first: bool,
    /// The token that begins a text, whatever config.json says.
    bos: Option<&'static str>,
}

/// The tokens behind those of the table.
enum SpecialRule {
    /// Number of reserved tokens. `added_tokens_decoder` in tokenizer_config.json names them; those
    /// without a name are named by id.
    Reserved(usize),
    /// Names of the first tokens, and the number of `<|extra_0|>`, `<|extra_1|>`, … behind them.
    Fixed(&'static [&'static str], usize),
}

const CLASSES: &[TiktokenClass] = &[
    TiktokenClass {
        name: "TikTokenTokenizer",
        file: "tiktoken.model",
        modules: &["tokenization_kimi", "tokenization_moonshot"],
        model_types: &["kimi_k2", "kimi_k25"],
        architecture: "deepseek2",
        pre: "kimi-k2",
        regex: &[
            r"[\p{Han}]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
        ],
        special: SpecialRule::Reserved(256),
        has_ranks: true,
        comes_first: false,
        bos: None,
    },
    TiktokenClass {
        name: "HYTokenizer",
        file: "hy.tiktoken",
        modules: &["tokenization_hy"],
        model_types: &["hunyuan_v1_moe"],
        architecture: "hunyuan-moe",
        pre: "hunyuan",
        regex: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|",
            r"[^\r\n\p{L}\p{N}]?\p{L}+|",
            r"\p{N}|",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*|",
            r"\s*[\r\n]+|",
            r"\s+(?!\S)|",
        ],
        special: SpecialRule::Fixed(
            &["<|endoftext|>", "<|startoftext|>", BOS_OF_HUNYUAN, "<|eos|>", "<|pad|>"],
            205,
        ),
        has_ranks: false,
        comes_first: true,
        bos: Some(BOS_OF_HUNYUAN),
    },
];

/// The token that begins a text of Hunyuan. Published configs say 1, which is a byte.
pub(super) const BOS_OF_HUNYUAN: &str = "<|bos|>";

/// A file that is a table of ranks in some models, and of SentencePiece in others.
const EITHER: &str = "tokenizer.model";

/// A vocabulary of ranks.
pub(super) struct TiktokenVocabulary {
    class: &'static TiktokenClass,
    table: RankTable,
    /// Texts of the tokens behind the table's.
    special: Vec<String>,
}

impl TiktokenVocabulary {
    /// Reads the table and what goes with it; `None` if there is none, or one of no known class
    /// beside a tokenizer.json.
    ///
    /// # Errors
    /// `Unsupported` if the class of the tokenizer is not known, or its source has another regex;
    /// `Parse` if the table is malformed or contradicts config.json or tokenizer.json;
    /// `LimitExceeded`.
    pub(super) fn read(files: &TokenizerFiles<'_>) -> Result<Option<Self>> {
        let texts = files.request.texts;
        let (name, module) = class_names(files);
        let is_known = |class: &&TiktokenClass| {
            let names = [name, module.map(|(_, name)| name)];
            names.contains(&Some(class.name)) && class.architecture == files.request.architecture
        };
        let Some(class) = CLASSES.iter().find(is_known) else {
            return refuse_unknown(files, name).map(|()| None);
        };
        let Some(content) = texts.read(class.file)? else {
            return refuse_unknown(files, name).map(|()| None);
        };
        require_regex(files, class, module.map(|(module, _)| module))?;
        // A token takes seven bytes or more in the file, and a text, merges and an entry in a map
        // here.
        texts.charge((content.len() as u64).saturating_mul(24), class.file)?;
        let table = RankTable::parse(class.file, &content, files.vocab_size, class.has_ranks)?;
        let special = class.special.tokens(files, &table)?;
        let out = Self { class, table, special };
        if let Some(json) = &files.json {
            out.check(json)?;
        }
        Ok(Some(out))
    }

    /// Whether the ranks are written although there is a tokenizer.json.
    pub(super) fn comes_first(&self) -> bool {
        self.class.comes_first
    }

    /// Writes the keys, and returns the number of tokens.
    ///
    /// # Errors
    /// `Parse` if the table has a token twice; those of reading special tokens.
    pub(super) fn write(&self, files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<usize> {
        let alphabet = byte_alphabet();
        let ranks = self.table.ranks()?;
        let merges = self.table.merges(&ranks)?;
        let merges = merges.into_iter();
        let merges = merges.map(|(a, b)| format!("{} {}", alphabet.text(a), alphabet.text(b)));
        let mut tokens = TokenTable::padding(files.vocab_size);
        // Of a text that both have the class knows the special token alone.
        let special: HashSet<&str> = self.special.iter().map(String::as_str).collect();
        for (id, token) in self.table.tokens().enumerate() {
            let text = alphabet.text(token);
            if !special.contains(text.as_str()) {
                tokens.set(id, text, TokenType::Normal, 0.0);
            }
        }
        for (id, token) in (self.table.len()..).zip(&self.special) {
            tokens.set(id, token.clone(), TokenType::Control, 0.0);
        }
        keys.ggml_text("model", "gpt2");
        let pre = match files.request.pre {
            Some(name) => pre::require(name)?,
            None => self.class.pre,
        };
        keys.ggml_text("pre", pre);
        let n = tokens.write(keys, false)?;
        let special = SpecialVocab::read(files.request.texts, files.json.as_ref(), None)?;
        special.write(merges.collect(), keys)?;
        let bos = self
            .special
            .iter()
            .position(|t| Some(&**t) == self.class.bos);
        if let Some(id) = bos.and_then(|bos| u32::try_from(self.table.len() + bos).ok()) {
            keys.ggml("bos_token_id", GgufMetadataValue::U32(id));
        }
        Ok(n)
    }

    /// Fails if tokenizer.json has other tokens.
    fn check(&self, json: &HfTokenizerFile) -> Result<()> {
        let file = self.class.file;
        let disagree = |id: usize, token: &str| {
            let what = format!("{TOKENIZER_JSON} and {file} disagree about token {id}, `{token}`");
            Err(AnamnesisError::parse(what))
        };
        let vocab = json.model.vocab.tokens.iter();
        let added = json.added_tokens.iter();
        let all = vocab.map(|(token, id)| (token, *id));
        let all = all.chain(added.map(|token| (&token.content, token.id)));
        let ids: HashMap<&str, u64> = all.map(|(token, id)| (token.as_str(), id)).collect();
        let alphabet = byte_alphabet();
        for (id, token) in self.table.tokens().enumerate() {
            let text = alphabet.text(token);
            let is_special = || self.special.contains(&text);
            if ids.get(text.as_str()) != Some(&(id as u64)) && !is_special() {
                return disagree(id, &text);
            }
        }
        // Few files list the tokens that are only reserved.
        let ends = self.table.len() + self.special.len();
        for (token, id) in ids {
            let id = usize::try_from(id).unwrap_or(usize::MAX);
            let special = id.checked_sub(self.table.len());
            if let Some(special) = special.filter(|_| id < ends)
                && self.special.get(special).is_none_or(|text| text != token)
            {
                return disagree(id, token);
            }
        }
        Ok(())
    }
}

impl SpecialRule {
    /// The tokens behind those of `table`, by id.
    fn tokens(&self, files: &TokenizerFiles<'_>, table: &RankTable) -> Result<Vec<String>> {
        let (base, file) = (table.len(), table.file);
        let room = files.vocab_size.saturating_sub(base);
        match self {
            Self::Reserved(most) => {
                let listed = listed_in(&files.config)?;
                if let Some(token) = listed.iter().find(|token| token.id < base as u64) {
                    return Err(AnamnesisError::parse(format!(
                        "{TOKENIZER_CONFIG}: `added_tokens_decoder` has `{}` with the id {}, which is a token of {file}",
                        token.content, token.id
                    )));
                }
                // Versions of the class have one or two more; which, only their source tells.
                require_size(files, table, room <= *most, *most)?;
                let texts = listed.into_iter().map(|token| (token.id, token.content));
                let mut texts: HashMap<u64, String> = texts.collect();
                let text = |id: usize| {
                    let reserved = || format!("<|reserved_token_{id}|>");
                    texts.remove(&(id as u64)).unwrap_or_else(reserved)
                };
                let out: Vec<_> = (base..base.saturating_add(room)).map(text).collect();
                let mut known = HashSet::new();
                match out.iter().find(|token| !known.insert(token.as_str())) {
                    Some(token) => Err(AnamnesisError::parse(format!(
                        "{TOKENIZER_CONFIG}: `added_tokens_decoder` has `{token}` twice"
                    ))),
                    None => Ok(out),
                }
            }
            Self::Fixed(names, extra) => {
                let all = names.len() + extra;
                require_size(files, table, room == all, all)?;
                let names = names.iter().map(|name| (*name).to_owned());
                Ok(names
                    .chain((0..*extra).map(|i| format!("<|extra_{i}|>")))
                    .collect())
            }
        }
    }
}

/// Fails unless `fits`: whether the model has room for the tokens of `table` and `special` others.
fn require_size(
    files: &TokenizerFiles<'_>,
    table: &RankTable,
    fits: bool,
    special: usize,
) -> Result<()> {
    if fits {
        return Ok(());
    }
    Err(AnamnesisError::parse(format!(
        "{}: it has {} tokens, which are {} with {special} special ones, and `vocab_size` of config.json is {}",
        table.file,
        table.len(),
        table.len() + special,
        files.vocab_size
    )))
}

/// The class in tokenizer_config.json, and the file without `.py` and the class in `auto_map`
/// there.
fn class_names<'a>(files: &'a TokenizerFiles<'_>) -> (Option<&'a str>, Option<(&'a str, &'a str)>) {
    let name = files.config.get("tokenizer_class").and_then(Value::as_str);
    let entry = files
        .config
        .get("auto_map")
        .map(|map| map.get("AutoTokenizer").unwrap_or(map));
    // Either the class, or the slow and the fast one.
    let entry = entry.and_then(|entry| entry.as_str().or_else(|| entry.get(0)?.as_str()));
    // The source may be in another repository.
    let entry = entry.map(|entry| entry.rsplit_once("--").map_or(entry, |(_, entry)| entry));
    (name, entry.and_then(|entry| entry.rsplit_once('.')))
}

/// Fails if there is a table of ranks and nothing that says more: how text is cut would be a guess.
fn refuse_unknown(files: &TokenizerFiles<'_>, name: Option<&str>) -> Result<()> {
    if files.json.is_some() {
        return Ok(());
    }
    let texts = files.request.texts;
    let names = CLASSES.iter().map(|class| class.file);
    let mut file = names
        .chain(["qwen.tiktoken"])
        .find(|file| texts.exists(file));
    if file.is_none()
        && texts
            .read(EITHER)?
            .is_some_and(|content| is_rank_table(&content))
    {
        file = Some(EITHER);
    }
    let Some(file) = file else {
        return Ok(());
    };
    let known = CLASSES.iter().map(|class| {
        let TiktokenClass { name, file, architecture, .. } = class;
        format!("{name} of {architecture} with {file}")
    });
    Err(AnamnesisError::unsupported(
        format!("tokenizer {}", name.unwrap_or("of ranks")),
        format!(
            "{file}: it is a table of tiktoken's ranks, which says neither how text is cut nor which tokens are special; \
             known from {TOKENIZER_CONFIG} are {}",
            known.collect::<Vec<_>>().join(", ")
        ),
    ))
}

/// Fails if it is not known that `class` has its regex in this model.
fn require_regex(
    files: &TokenizerFiles<'_>,
    class: &TiktokenClass,
    module: Option<&str>,
) -> Result<()> {
    if files.request.pre.is_some() {
        return Ok(());
    }
    let source = match module {
        Some(module) => files.request.texts.text(&format!("{module}.py"))?,
        None => None,
    };
    let model_type = files
        .request
        .config
        .get("model_type")
        .and_then(Value::as_str);
    let what = match (source, module) {
        (Some(source), _) => {
            let lines = source
                .lines()
                .filter(|line| !line.trim_start().starts_with('#'));
            let lines: Vec<_> = lines.collect();
            let has = |part: &&str| lines.iter().any(|line| line.contains(*part));
            match class.regex.iter().find(|part| !has(part)) {
                None => return Ok(()),
                Some(part) => format!("{}.py lacks `{part}`", module.unwrap_or_default()),
            }
        }
        (None, Some(module)) if class.modules.contains(&module) => return Ok(()),
        (None, Some(module)) => format!("there is no {module}.py"),
        (None, None) if model_type.is_some_and(|found| class.model_types.contains(&found)) => {
            return Ok(());
        }
        (None, None) => "there is no `auto_map`".to_owned(),
    };
    Err(AnamnesisError::unsupported(
        format!("tokenizer {}", class.name),
        format!(
            "{TOKENIZER_CONFIG}: how it cuts text is not known: {what}; `--tokenizer-pre {}` says that it does as llama.cpp's {}",
            class.pre, class.pre
        ),
    ))
}
