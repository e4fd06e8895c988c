//! [`ModelDescription`]: what a model is, from its config, its tokenizer files and its metadata.

use std::fmt;

use serde_json::Value;

use super::{is_optimizer, product};
use crate::config::Texts;
use crate::error::{counted, printable};
#[cfg(feature = "gguf")]
use crate::model::gguf_keys::{CHAT_TEMPLATE, PRE_TOKENIZER};
use crate::parse::directory::numbering;
use crate::{ParsedModel, Result};

/// Fields of `config.json` with the number of tokens that a model was made for, in order of
/// preference.
const CONTEXT: &[&str] = &[
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
];

/// Fields with the number of experts of a layer.
const EXPERTS: &[&str] =
    &["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"];

/// Fields with the number of experts that compute a token.
const EXPERTS_USED: &[&str] = &[
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_topk",
    "moe_top_k",
    "moe_k",
    "top_k_experts",
];

/// Files of vocabularies besides `tokenizer.json`, and the kind of tokenizer that has them.
const VOCABULARIES: &[(&str, &str)] = &[
    ("tokenizer.model", "SentencePiece"),
    ("spiece.model", "SentencePiece"),
    ("sentencepiece.bpe.model", "SentencePiece"),
    ("tekken.json", "Tekken"),
    ("merges.txt", "BPE"),
    ("vocab.txt", "WordPiece"),
];

/// Values of `tokenizer.ggml.model`, and the kind of tokenizer that each names. Source: llama.cpp
/// `llama-vocab.cpp`.
#[cfg(feature = "gguf")]
const GGUF_VOCABULARIES: &[(&str, &str)] =
    &[("gpt2", "BPE"), ("llama", "SentencePiece"), ("bert", "WordPiece"), ("t5", "Unigram")];

/// What a model is: architecture, number of values, context, tokenizer. What no file says is
/// `None`.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct ModelDescription {
    /// What the file is, if it is no model by itself: an adapter, a tower, an importance matrix.
    pub kind: Option<&'static str>,
    /// The class of transformers in `architectures`, else `model_type`; of GGUF,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// Number of values of the recovered tensors, without state of optimizers. Of a shard alone,
    /// those of the shard.
    pub parameters: u64,
    /// Number of values that compute a token of a mixture of experts: all but those of experts, and
    /// of these the part that a router chooses.
    pub active_parameters: Option<u64>,
    /// Stored bits for each value, scales included; `None` without values, or if a tensor cannot be
    /// decoded.
    pub bits_per_weight: Option<f64>,
    /// Number of tensors that cannot be decoded, whose values are not counted.
    pub undecodable: usize,
    /// Number of tokens that the model was made for.
    pub context_length: Option<u64>,
    /// Number of experts of a layer.
    pub experts: Option<u64>,
    /// Number of experts that compute a token.
    pub experts_used: Option<u64>,
    /// Kind of the tokenizer, with the file or the names that say so: `BPE (tokenizer.json,
    /// Qwen2Tokenizer)`.
    pub tokenizer: Option<String>,
    /// Whether there is a template that makes a text of a conversation.
    pub chat_template: bool,
    /// Number of this shard and of all shards, if the model is one shard that was parsed alone.
    pub shard: Option<ShardNumber>,
    /// Why a file beside the model could not be read.
    pub notes: Vec<String>,
}

/// Which of the files of a model one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ShardNumber {
    /// Number of the file, from 1.
    pub number: usize,
    /// Number of all files.
    pub of: usize,
}

impl ParsedModel {
    /// Describes the model by what its tensors, its metadata and the files beside it say:
    /// `config.json`, and those of the tokenizer. A file that cannot be read is a note.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// assert_eq!(model.describe().parameters, 65536);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn describe(&self) -> ModelDescription {
        let mut found = ModelDescription { kind: self.kind(), ..ModelDescription::default() };
        if !self.describe_gguf(&mut found)
            && let Some(directory) = self.model_directory()
        {
            let texts = Texts::following(&directory, &self.limits);
            for read in [describe_config, describe_tokenizer, describe_template] {
                if let Err(error) = read(&texts, &mut found) {
                    found.notes.push(error.to_string());
                }
            }
        }
        let file = self.path().filter(|_| self.directory.is_none());
        let name = file.and_then(|path| path.file_name()?.to_str());
        found.shard = name
            .and_then(numbering)
            .map(|(_, number, of)| ShardNumber { number, of })
            .filter(|shard| shard.of > 1);
        self.count_parameters(&mut found);
        found
    }

    /// Counts values, and those of experts by the names that models have for these.
    fn count_parameters(&self, found: &mut ModelDescription) {
        let (mut all, mut of_experts) = (0u64, 0u64);
        let resolution = self.resolve();
        for item in &resolution.items {
            if is_optimizer(item.name()) {
                continue;
            }
            let values = product(item.shape());
            all = all.saturating_add(values);
            let is_expert = |part: &str| part == "experts" || part.ends_with("_exps");
            if item.name().split('.').any(is_expert) {
                of_experts = of_experts.saturating_add(values);
            }
        }
        found.parameters = all;
        found.undecodable = resolution.problems.len() + self.skipped.len();
        if found.undecodable > 0 {
            return;
        }
        let stored = self.tensors().filter(|t| !is_optimizer(t.name()));
        let bytes: u64 = stored.fold(0, |n, t| n.saturating_add(t.info().len));
        found.bits_per_weight = (all > 0).then(|| bytes as f64 * 8.0 / all as f64);
        if let (Some(experts), Some(used)) = (found.experts, found.experts_used)
            && (1..=experts).contains(&used)
            && of_experts > 0
        {
            // At most `of_experts`, for at most all experts are used.
            let chosen = u128::from(of_experts) * u128::from(used) / u128::from(experts);
            found.active_parameters = Some(all - of_experts + chosen as u64);
        }
    }

    /// Fills in what the metadata of a GGUF file says. Returns whether the model is one.
    #[cfg(feature = "gguf")]
    fn describe_gguf(&self, found: &mut ModelDescription) -> bool {
        let Some(gguf) = self.gguf() else {
            return false;
        };
        let metadata = gguf.metadata();
        let text = |key: &str| Some(metadata.get(key)?.as_string()?.to_owned());
        found.architecture = gguf.architecture();
        let of_architecture = |key: &str| {
            let architecture = found.architecture.as_deref()?;
            let value = metadata.get(&format!("{architecture}.{key}"))?;
            serde_json::to_value(&value).ok()?.as_u64()
        };
        let context = of_architecture("context_length");
        let experts = of_architecture("expert_count");
        let used = of_architecture("expert_used_count");
        (found.context_length, found.experts, found.experts_used) =
            (context, experts.filter(|n| *n > 0), used.filter(|n| *n > 0));
        found.tokenizer = text("tokenizer.ggml.model").map(|model| {
            let known = GGUF_VOCABULARIES.iter().find(|(name, _)| *name == model);
            let names = match text(PRE_TOKENIZER) {
                Some(pre) => format!("{model}, {pre}"),
                None => model.clone(),
            };
            match known {
                Some((_, kind)) => format!("{kind} ({names})"),
                None => names,
            }
        });
        let mut keys = metadata.keys();
        found.chat_template = keys.any(|key| key.starts_with(CHAT_TEMPLATE));
        true
    }

    #[cfg(not(feature = "gguf"))]
    fn describe_gguf(&self, _found: &mut ModelDescription) -> bool {
        false
    }
}

fn describe_config(texts: &Texts, found: &mut ModelDescription) -> Result<()> {
    let Some(config) = texts.json("config.json")? else {
        return Ok(());
    };
    // The language model's fields count before those of the whole, of which several have a pendant
    // for vision.
    let nested = crate::config::TEXT_CONFIGS
        .iter()
        .find_map(|key| config.get(*key));
    let get = |names: &[&str]| {
        let of = |all: &Value| names.iter().find_map(|name| all.get(*name)?.as_u64());
        nested.and_then(of).or_else(|| of(&config))
    };
    let class = config
        .pointer("/architectures/0")
        .or(config.get("model_type"));
    found.architecture = class.and_then(Value::as_str).map(str::to_owned);
    found.context_length = get(CONTEXT);
    found.experts = get(EXPERTS).filter(|n| *n > 0);
    found.experts_used = get(EXPERTS_USED).filter(|n| *n > 0 && found.experts.is_some());
    Ok(())
}

/// The kind in `tokenizer.json`. Only this is kept of what can have 30 MB.
#[derive(serde::Deserialize)]
struct TokenizerFile {
    model: TokenizerKind,
}

#[derive(serde::Deserialize)]
struct TokenizerKind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

fn describe_tokenizer(texts: &Texts, found: &mut ModelDescription) -> Result<()> {
    let config = texts.json("tokenizer_config.json")?;
    let class = config
        .as_ref()
        .and_then(|c| c.get("tokenizer_class")?.as_str());
    let (kind, file) = match texts.read("tokenizer.json")? {
        Some(bytes) => {
            let file: TokenizerFile = serde_json::from_slice(&bytes)
                .map_err(|e| crate::AnamnesisError::parse(format!("tokenizer.json: {e}")))?;
            // Files of the first versions of the library have no type.
            let kind = file.model.kind.unwrap_or("unknown kind".to_owned());
            (kind, "tokenizer.json")
        }
        None => {
            let there = |(file, _): &&(&str, &str)| texts.exists(file);
            match VOCABULARIES.iter().find(there) {
                Some((file, kind)) => ((*kind).to_owned(), *file),
                None => {
                    found.tokenizer = class.map(str::to_owned);
                    return Ok(());
                }
            }
        }
    };
    let class = class.map_or(String::new(), |class| format!(", {class}"));
    found.tokenizer = Some(format!("{kind} ({file}{class})"));
    Ok(())
}

fn describe_template(texts: &Texts, found: &mut ModelDescription) -> Result<()> {
    let config = texts.json("tokenizer_config.json")?;
    let embedded =
        config.is_some_and(|config| config.get("chat_template").is_some_and(|t| !t.is_null()));
    let files = ["chat_template.jinja", "chat_template.json"];
    found.chat_template = embedded || files.into_iter().any(|file| texts.exists(file));
    Ok(())
}

impl fmt::Display for ModelDescription {
    /// Lines with labels, without the last line's end. What is unknown has no line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        let mut line = |label: &str, text: String| lines.push(format!("{label:<12} {text}"));
        if let Some(kind) = self.kind {
            line("Kind:", kind.to_owned());
        }
        if let Some(architecture) = &self.architecture {
            line("Arch:", printable(architecture));
        }
        let active = self
            .active_parameters
            .map_or(String::new(), |n| format!(", {n} active"));
        let remark = match (self.bits_per_weight, self.undecodable) {
            (Some(bits), _) => format!(" ({bits:.2} bits each as stored)"),
            (None, 0) => String::new(),
            (None, n) => format!(" (without {} that cannot be decoded)", counted(n, "tensor")),
        };
        let all = self.parameters;
        line("Parameters:", format!("{all}{active}{remark}"));
        if let (Some(experts), Some(used)) = (self.experts, self.experts_used) {
            line("Experts:", format!("{used} of {experts} for each token"));
        }
        if let Some(tokens) = self.context_length {
            line("Context:", format!("{tokens} tokens"));
        }
        if let Some(tokenizer) = &self.tokenizer {
            let template = match self.chat_template {
                true => "with a chat template",
                false => "no chat template",
            };
            line("Tokenizer:", format!("{}, {template}", printable(tokenizer)));
        }
        if let Some(ShardNumber { number, of }) = self.shard {
            line(
                "Shard:",
                format!("{number} of {of}; the model's other tensors are in the others"),
            );
        }
        for note in &self.notes {
            line("Note:", printable(note));
        }
        f.write_str(&lines.join("\n"))
    }
}
