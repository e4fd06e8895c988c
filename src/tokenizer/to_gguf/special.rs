//! Special tokens, what begins and ends a text, templates and the normalizer, from tokenizer.json,
//! tokenizer_config.json, config.json and templates, as gguf-py's `SpecialVocab` reads them.

use serde_json::{Map, Value};

use super::added::{TOKENIZER_CONFIG, content};
use super::file::HfTokenizerFile;
use super::keys::KeyList;
use super::post_processor::{SpecialKinds, SpecialReader};
use super::template::ChatTemplates;
use crate::config::Texts;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::{AnamnesisError, Result};

/// Name of the file.
const CONFIG: &str = "config.json";

/// Kinds of special tokens that are looked for, in this order.
const KINDS: [&str; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];

/// Keys of special tokens' ids. gguf-py has none for `cls`. The misspelling is the format's.
const ID_KEYS: &[(&str, &str)] = &[
    ("bos", "bos_token_id"),
    ("eos", "eos_token_id"),
    ("unk", "unknown_token_id"),
    ("sep", "seperator_token_id"),
    ("pad", "padding_token_id"),
    ("mask", "mask_token_id"),
    ("eot", "eot_token_id"),
    ("eom", "eom_token_id"),
];

/// Keys of what is added to a text.
const ADD_KEYS: &[(&str, &str)] =
    &[("bos", "add_bos_token"), ("eos", "add_eos_token"), ("sep", "add_sep_token")];

/// What the files say besides the vocabulary.
#[derive(Debug, Default)]
pub(crate) struct SpecialVocab {
    kinds: SpecialKinds,
    /// Ids by kind, in the order in which they were found.
    pub ids: Vec<(&'static str, u64)>,
    templates: ChatTemplates,
    lowercase: Option<Value>,
    strip_accents: Option<Value>,
    /// Number of tokens; ids beyond it do not count.
    n_tokens: Option<usize>,
}

impl SpecialVocab {
    /// Reads the files. With `n_tokens`, ids beyond it are left out, and refused otherwise only by
    /// llama.cpp.
    ///
    /// # Errors
    /// `Parse` if a file is malformed, or an id is negative.
    pub(super) fn read(
        texts: &Texts,
        file: Option<&HfTokenizerFile>,
        n_tokens: Option<usize>,
    ) -> Result<Self> {
        Self::read_kinds(texts, file, n_tokens, &KINDS)
    }

    /// [`read`](Self::read) for other kinds of special tokens.
    pub(super) fn read_kinds(
        texts: &Texts,
        file: Option<&HfTokenizerFile>,
        n_tokens: Option<usize>,
        kinds: &[&'static str],
    ) -> Result<Self> {
        let kinds = SpecialKinds { looked_for: kinds.to_vec(), ..SpecialKinds::default() };
        let mut out = Self { kinds, n_tokens, ..Self::default() };
        let config = match texts.json(TOKENIZER_CONFIG)? {
            Some(Value::Object(config)) => config,
            _ => Map::new(),
        };
        out.read_tokenizer(texts, file, config)?;
        out.read_config(texts)?;
        Ok(out)
    }

    /// Sets the id of a kind, unless it has one.
    ///
    /// # Errors
    /// `Parse` if the id is negative.
    pub(super) fn set_id(&mut self, kind: &'static str, id: &Value, place: &str) -> Result<()> {
        if let Some(id) = id.as_i64().filter(|id| *id < 0) {
            return Err(AnamnesisError::parse(format!(
                "{place}: the id of the {kind} token is {id}"
            )));
        }
        let known = self.ids.iter().any(|(other, _)| *other == kind);
        let within = |id: &u64| self.n_tokens.is_none_or(|n| *id < n as u64);
        // A list of ids (several EOS tokens) has no place in a GGUF file.
        if let Some(id) = id.as_u64().filter(within)
            && !known
        {
            self.ids.push((kind, id));
        }
        Ok(())
    }

    /// The id of a kind.
    pub(super) fn id(&self, kind: &str) -> Option<u64> {
        self.ids
            .iter()
            .find(|(other, _)| *other == kind)
            .map(|(_, id)| *id)
    }

    /// Replaces the id of a kind that has one.
    pub(crate) fn replace_id(&mut self, kind: &str, id: u64) {
        if let Some((_, old)) = self.ids.iter_mut().find(|(other, _)| *other == kind) {
            *old = id;
        }
    }

    /// Appends everything to `keys`, after `merges`.
    ///
    /// # Errors
    /// `Parse` if an id does not fit, or a flag of the normalizer is none.
    pub(super) fn write(self, merges: Vec<String>, keys: &mut KeyList) -> Result<()> {
        keys.ggml_array("merges", GgufMetadataArray::String(merges));
        for (kind, id) in &self.ids {
            let Some((_, key)) = ID_KEYS.iter().find(|(other, _)| other == kind) else {
                continue;
            };
            let id = u32::try_from(*id).map_err(|_| {
                AnamnesisError::parse(format!("the id {id} of the {kind} token has no 32 bits"))
            })?;
            keys.ggml(key, GgufMetadataValue::U32(id));
        }
        for (kind, flag) in &self.kinds.added {
            if let Some((_, key)) = ADD_KEYS.iter().find(|(other, _)| other == kind) {
                keys.ggml_flag(key, *flag);
            }
        }
        self.templates.write(keys);
        for (key, flag) in [
            ("normalizer.lowercase", self.lowercase),
            ("normalizer.strip_accents", self.strip_accents),
        ] {
            match flag {
                // BertNormalizer has null where it does as `lowercase` says.
                None | Some(Value::Null) => {}
                Some(Value::Bool(flag)) => keys.ggml_flag(key, flag),
                Some(_) => {
                    return Err(AnamnesisError::parse(format!(
                        "tokenizer.json: `{key}` is neither true nor false"
                    )));
                }
            }
        }
        Ok(())
    }

    fn read_tokenizer(
        &mut self,
        texts: &Texts,
        file: Option<&HfTokenizerFile>,
        config: Map<String, Value>,
    ) -> Result<()> {
        let mut template = SpecialReader::new(config);
        if let Some(file) = file {
            self.read_normalizer(&file.normalizer, 0);
            template.fill_from_twins();
            let processor = &file.post_processor;
            match processor.get("processors").and_then(Value::as_array) {
                Some(inner) => inner
                    .iter()
                    .for_each(|p| self.read_processor(p, &mut template)),
                None if processor.is_object() => self.read_processor(processor, &mut template),
                None => {}
            }
        }
        let config = template.config;
        if config.is_empty() {
            return Ok(());
        }
        self.templates = ChatTemplates::read(texts, &config)?;
        let added = file.map_or(&[][..], |file| &file.added_tokens);
        for kind in self.kinds.looked_for.clone() {
            if let Some(Value::Bool(flag)) = config.get(&format!("add_{kind}_token"))
                && !self.kinds.knows_added(kind)
            {
                self.kinds.set_added(kind, *flag);
            }
            let Some(text) = config.get(&format!("{kind}_token")).and_then(content) else {
                continue;
            };
            if let Some(token) = added.iter().find(|token| token.content == text) {
                self.set_id(kind, &Value::from(token.id), TOKENIZER_CONFIG)?;
            }
        }
        Ok(())
    }

    fn read_config(&mut self, texts: &Texts) -> Result<()> {
        let Some(config) = texts.json(CONFIG)? else {
            return Ok(());
        };
        for kind in self.kinds.looked_for.clone() {
            let key = format!("{kind}_token_id");
            let of = |value: &Value| value.get(&key).filter(|id| !id.is_null()).cloned();
            let id = of(&config).or_else(|| config.get("text_config").and_then(of));
            if let Some(id) = id {
                self.set_id(kind, &id, CONFIG)?;
            }
        }
        Ok(())
    }

    fn read_normalizer(&mut self, normalizer: &Value, depth: usize) {
        match normalizer.get("type").and_then(Value::as_str) {
            Some("Lowercase") => self.lowercase = Some(true.into()),
            Some("StripAccents") => self.strip_accents = Some(true.into()),
            Some("BertNormalizer") => {
                let flag = |key: &str| normalizer.get(key).cloned();
                self.lowercase = flag("lowercase").or(self.lowercase.take());
                self.strip_accents = flag("strip_accents").or(self.strip_accents.take());
            }
            Some("Sequence") if depth < 8 => {
                let inner = normalizer.get("normalizers").and_then(Value::as_array);
                for normalizer in inner.into_iter().flatten() {
                    self.read_normalizer(normalizer, depth + 1);
                }
            }
            _ => {}
        }
    }

    fn read_processor(&mut self, processor: &Value, template: &mut SpecialReader) {
        match processor.get("type").and_then(Value::as_str) {
            Some("ByteLevel") => {
                for kind in ["bos", "eos"] {
                    if !self.kinds.knows_added(kind) {
                        self.kinds.set_added(kind, false);
                    }
                }
            }
            Some("RobertaProcessing") => {
                for kind in ["bos", "eos", "sep"] {
                    self.kinds.set_added(kind, true);
                }
                template.read_roberta(processor);
            }
            Some("TemplateProcessing") => template.read_single(processor, &mut self.kinds),
            _ => {}
        }
    }
}
