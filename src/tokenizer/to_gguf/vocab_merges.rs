//! Byte-level BPE without tokenizer.json: vocab.json, merges.txt and added_tokens.json say what the
//! tokens are, and the class of the tokenizer how text is cut. Both become the tokenizer.json that
//! transformers makes of them.
//!
//! Source: transformers 5.24, `tokenization_{gpt2,codegen,qwen2,roberta}.py`, `tokenization_auto.py`
//! and `TokenizersBackend.update_post_processor`.

use serde_json::{Map, Value, json};

use super::TokenizerFiles;
use super::added::{AddedTokens, TOKENIZER_CONFIG, named};
use super::file::{HfAddedToken, HfTokenizerFile, HfVocabulary, TokenizerJsonModel};
use crate::sort::sort_by_key;
use crate::tokenizer::pre::{self, PreStep};
use crate::{AnamnesisError, Result};

const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";
const ADDED: &str = "added_tokens.json";
const SPECIAL_MAP: &str = "special_tokens_map.json";

/// A tokenizer class of transformers that has these files.
struct BpeClass {
    /// Name in `tokenizer_class`, without `Fast`.
    name: &'static str,
    /// `model_type` of configs whose tokenizer is of the class if nothing else is said.
    model_types: &'static [&'static str],
    /// Name of the pre-tokenizer in llama.cpp.
    pre: &'static str,
    ends: Ends,
}

/// What stands around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// What `add_bos_token` and `add_eos_token` say.
    AsFlagged,
    /// Nothing, unless the flags are there.
    Nothing,
    /// CLS and SEP.
    Roberta,
}

const CLASSES: [BpeClass; 4] = [
    BpeClass {
        name: "GPT2Tokenizer",
        model_types: &["gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"],
        pre: "gpt-2",
        ends: Ends::AsFlagged,
    },
    BpeClass { name: "CodeGenTokenizer", model_types: &[], pre: "gpt-2", ends: Ends::Nothing },
    BpeClass {
        name: "Qwen2Tokenizer",
        model_types: &[
            "qwen2",
            "qwen2_moe",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl",
            "qwen3_vl_moe",
        ],
        pre: "qwen2",
        ends: Ends::AsFlagged,
    },
    BpeClass {
        name: "RobertaTokenizer",
        model_types: &["roberta"],
        pre: "gpt-2",
        ends: Ends::Roberta,
    },
];

/// Models whose tokenizers cut text otherwise than the class that their configs name.
const OTHERWISE: &str = "qwen3_5";

/// Reads vocab.json and what goes with it; `None` if there is no vocab.json with merges.txt. The
/// config in `files` gets the special tokens of special_tokens_map.json and the class, if it has
/// none.
///
/// # Errors
/// `Parse` if a file is malformed or contradicts another; `Unsupported` if the class is not known;
/// `LimitExceeded`.
pub(super) fn read(files: &mut TokenizerFiles<'_>) -> Result<Option<HfTokenizerFile>> {
    let texts = files.request.texts;
    if !texts.exists(MERGES) {
        return Ok(None);
    }
    let Some(bytes) = texts.read(VOCAB)? else {
        return Ok(None);
    };
    texts.charge(bytes.len() as u64 * 4, "the tokens of vocab.json")?;
    let vocab: HfVocabulary = serde_json::from_slice(&bytes)
        .map_err(|error| AnamnesisError::parse(format!("{VOCAB}: {error}")))?;
    if !vocab.scores.is_empty() || vocab.tokens.is_empty() {
        return Err(AnamnesisError::parse(format!("{VOCAB}: it is no object of ids by token")));
    }
    let class = class_of(files)?;
    let is_listed = files.config.contains_key("added_tokens_decoder");
    if !is_listed && let Some(map) = texts.json(SPECIAL_MAP)? {
        let Value::Object(map) = map else {
            return Err(AnamnesisError::parse(format!("{SPECIAL_MAP} is no object")));
        };
        files.config.extend(map);
    }
    let name = files.config.entry("tokenizer_class");
    name.or_insert_with(|| class.name.into());
    let config = &files.config;
    let mut json = HfTokenizerFile {
        name: VOCAB,
        added_tokens: Vec::new(),
        normalizer: Value::Null,
        pre_tokenizer: pre_tokenizer(class, config),
        post_processor: Value::Null,
        decoder: json!({ "type": "ByteLevel" }),
        model: TokenizerJsonModel {
            kind: Some("BPE".to_owned()),
            vocab,
            ..TokenizerJsonModel::default()
        },
    };
    if !is_listed {
        json.added_tokens = listed(texts.json(ADDED)?, &json)?;
    }
    let mut all = AddedTokens::new(&json, config)?.tokens;
    sort_by_key(&mut all, |token| token.id);
    json.added_tokens = all;
    json.post_processor = post_processor(class.ends, config);
    Ok(Some(json))
}

/// The class that tokenizer_config.json or the type of the model names.
fn class_of(files: &TokenizerFiles<'_>) -> Result<&'static BpeClass> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let stated = text(files.config.get("tokenizer_class"));
    let model_type = text(files.request.config.get("model_type")).unwrap_or_default();
    let name = stated
        .as_deref()
        .map(|name| name.strip_suffix("Fast").unwrap_or(name));
    let fits = |class: &&BpeClass| match name {
        Some(name) => class.name == name,
        None => class.model_types.contains(&model_type.as_str()),
    };
    let class = CLASSES.iter().find(fits);
    let class = class.filter(|_| !model_type.starts_with(OTHERWISE));
    class.ok_or_else(|| {
        let known: Vec<_> = CLASSES.iter().map(|class| class.name).collect();
        let what = match &stated {
            Some(stated) => format!("`tokenizer_class` {stated} of {TOKENIZER_CONFIG}"),
            None => format!("`model_type` {model_type} of config.json"),
        };
        AnamnesisError::unsupported(
            "tokenizer BPE without tokenizer.json",
            format!(
                "{VOCAB} and {MERGES} do not say how text is cut, and {what} is none of {}; \
                 `save_pretrained` of transformers writes tokenizer.json",
                known.join(", ")
            ),
        )
    })
}

fn pre_tokenizer(class: &BpeClass, config: &Map<String, Value>) -> Value {
    let has_prefix = config.get("add_prefix_space") == Some(&Value::Bool(true));
    let forms = pre::find(class.pre).and_then(|(class, _)| class.forms.first());
    let steps = forms.into_iter().copied().flatten().map(|step| match step {
        PreStep::Split(regex) => json!({
            "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated"
        }),
        step => json!({
            "type": "ByteLevel",
            "add_prefix_space": has_prefix,
            "use_regex": *step == PreStep::ByteLevel { use_regex: true }
        }),
    });
    json!({ "type": "Sequence", "pretokenizers": steps.collect::<Vec<_>>() })
}

fn post_processor(ends: Ends, config: &Map<String, Value>) -> Value {
    let token = |kind: &str| named(config, &format!("{kind}_token"));
    if ends == Ends::Roberta {
        // The ids do not count.
        return json!({
            "type": "RobertaProcessing", "sep": [token("sep"), 0], "cls": [token("cls"), 0]
        });
    }
    let flag = |kind: &str| config.get(&format!("add_{kind}_token"));
    if ends == Ends::Nothing && flag("bos").or_else(|| flag("eos")).is_none() {
        return json!({ "type": "ByteLevel" });
    }
    let added = |kind: &str, type_id: u32| {
        let is_added = flag(kind) == Some(&Value::Bool(true));
        let text = token(kind).filter(|_| is_added)?;
        Some(json!({ "SpecialToken": { "id": text, "type_id": type_id } }))
    };
    let around = |text: &str, type_id: u32| {
        let text = json!({ "Sequence": { "id": text, "type_id": type_id } });
        let steps = added("bos", type_id).into_iter().chain([text]);
        steps.chain(added("eos", type_id)).collect::<Vec<_>>()
    };
    let single = around("A", 0);
    let pair: Vec<_> = single.iter().cloned().chain(around("B", 1)).collect();
    json!({ "type": "TemplateProcessing", "single": single, "pair": pair })
}

/// The tokens of added_tokens.json, in the order of their ids.
///
/// # Errors
/// `Parse` if it is no object of ids, or an id is not the one that the `tokenizers` library gives.
fn listed(added: Option<Value>, json: &HfTokenizerFile) -> Result<Vec<HfAddedToken>> {
    let Some(added) = added else {
        return Ok(Vec::new());
    };
    let malformed = || AnamnesisError::parse(format!("{ADDED}: it is no object of ids by token"));
    let entries = added.as_object().ok_or_else(malformed)?;
    let token = |(content, id): (&String, &Value)| {
        Ok(HfAddedToken {
            id: id.as_u64().ok_or_else(malformed)?,
            content: content.clone(),
            special: false,
            normalized: true,
        })
    };
    let mut out = entries.iter().map(token).collect::<Result<Vec<_>>>()?;
    sort_by_key(&mut out, |token| token.id);
    let ids = json.model.vocab.tokens.iter();
    let ids: std::collections::HashMap<_, _> = ids.map(|(text, id)| (text, *id)).collect();
    let mut next = ids.len() as u64;
    for token in &out {
        let expected = ids.get(&token.content).copied().unwrap_or(next);
        if token.id != expected || token.content.is_empty() {
            return Err(AnamnesisError::parse(format!(
                "{ADDED}: `{}` has the id {}, and the `tokenizers` library gives it {expected}",
                token.content, token.id
            )));
        }
        next = next.max(token.id.saturating_add(1));
    }
    Ok(out)
}
