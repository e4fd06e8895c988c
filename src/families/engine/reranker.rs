//! Rerankers of Qwen 3: language models that say whether a document fits a query. Of their output
//! GGUF has the rows of the two answers alone, as a classifier.
//!
//! Source: `Qwen3Model._is_qwen3_reranker` and what depends on it in `conversion/qwen.py` of
//! llama.cpp.

use serde_json::{Value, json};

use super::fields::{Fields, KeyValue, LABELS, wrong};
use super::general::directory_name;
use super::mapping::refused;
use super::pooling::RANK;
use super::request::GgufRequest;
use super::source::SourceTensor;
use super::table::{Kind, ModelClass};
use crate::config::Texts;
use crate::families::CLASSES;
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::model::gguf_keys::TOKENS;
use crate::{AnamnesisError, Result};

/// What names of rerankers contain, in small letters. Cards have it behind `# `.
const NAMES: [&str; 2] = ["qwen3-reranker", "qwen3-vl-reranker"];

/// The answers, in the order of the classifier's rows.
const ANSWERS: [&str; 2] = ["yes", "no"];

/// A longer card is not read.
const MOST_BYTES: u64 = 1 << 20;

/// The tensor of the classifier in transformers.
const SCORE: &str = "score.weight";

/// Name and text of the template of queries with documents, as llama.cpp's converter has it.
const TEMPLATE: (&str, &str) = (
    "rerank",
    concat!(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. ",
        "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n",
        "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n",
        "<Query>: {query}\n<Document>: {document}<|im_end|>\n",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
);

/// The class of rerankers that belongs to `class`, if the directory of the request has one: its
/// name, config or card says so.
///
/// # Errors
/// Those of reading.
pub(crate) fn class_of(
    class: &ModelClass,
    (config, fields): (&Value, &Fields),
    request: &GgufRequest<'_>,
    texts: &Texts,
) -> Result<Option<&'static ModelClass>> {
    let ranks = |other: &&&ModelClass| other.gguf == class.gguf && is_classifier(other);
    let Some(ranking) = CLASSES.iter().find(ranks) else {
        return Ok(None);
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let names = [
        Some(directory_name(request)),
        text(fields.0.get("_name_or_path")),
        text(config.pointer("/architectures/0")),
    ];
    let mut names = names.into_iter().flatten().map(|name| name.to_lowercase());
    let is_named = names.any(|name| NAMES.iter().any(|part| name.contains(part)));
    let is_one = is_named && !is_classifier(class) || is_in_card(texts)? && !is_classifier(class);
    Ok(is_one.then_some(*ranking))
}

/// Whether the card of the directory is that of a reranker.
fn is_in_card(texts: &Texts) -> Result<bool> {
    const FILE: &str = "README.md";
    if texts.size(FILE).is_none_or(|size| size > MOST_BYTES) {
        return Ok(false);
    }
    let card = texts.read(FILE)?.unwrap_or_default();
    let card = String::from_utf8_lossy(&card).to_lowercase();
    Ok(NAMES.iter().any(|name| card.contains(&format!("# {name}"))))
}

/// Whether the output of `class` is a classifier, whose scores llama.cpp turns into probabilities.
fn is_classifier(class: &ModelClass) -> bool {
    class.has_setting(Kind::Fixed(RANK))
}

/// Names the answers in the config of a reranker.
pub(crate) fn add_labels(fields: &mut Fields) {
    let labels = json!({"0": ANSWERS[0], "1": ANSWERS[1]});
    fields.0.insert(LABELS.to_owned(), labels);
}

/// Fails if `class` is a classifier of one class: the probability of one is always 1.
///
/// # Errors
/// `Parse` that names the field.
pub(crate) fn check_labels(class: &ModelClass, fields: &Fields) -> Result<()> {
    let labels = fields.0.get(LABELS).and_then(Value::as_object);
    match labels.map_or(0, serde_json::Map::len) {
        0 | 1 if is_classifier(class) => {
            let what = format!(
                "it names no two classes, and llama.cpp's {} has probabilities of classes, which are 1 if there is one",
                class.gguf
            );
            Err(wrong(LABELS, what))
        }
        _ => Ok(()),
    }
}

/// Puts the classifier in the place of the output in `sources`: the rows of the answers among the
/// tokens of `keys`. The output is the embedding if `is_tied`.
///
/// # Errors
/// `Unsupported` if an answer is no token; `Parse` if there is no output.
pub(crate) fn add_classifier(
    sources: &mut Vec<SourceTensor<'_>>,
    keys: &[KeyValue],
    is_tied: bool,
) -> Result<()> {
    let ids = ANSWERS.map(|answer| token_id(keys, answer));
    let [Some(yes), Some(no)] = ids else {
        let what = "the tokenizer has no tokens `yes` and `no`, which its answers are; it is one by the name of the directory, config.json or README.md";
        return Err(AnamnesisError::unsupported("a reranker", what));
    };
    let is_output = |source: &SourceTensor<'_>, name: &str| {
        let end = source.name.strip_suffix(name);
        end.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let name = match is_tied {
        true => "embed_tokens.weight",
        false => "lm_head.weight",
    };
    let head = sources.iter().find(|source| is_output(source, name));
    let rows = [yes, no];
    let fits = |head: &&SourceTensor<'_>| matches!(head.shape[..], [vocab, _] if rows.iter().all(|row| *row < vocab));
    let missing = || refused(name, "there is none with the rows of the reranker's answers");
    let score = head
        .filter(fits)
        .ok_or_else(missing)?
        .picked(SCORE.to_owned(), &rows);
    sources.retain(|source| !is_output(source, "lm_head.weight"));
    sources.push(score);
    Ok(())
}

/// The number of the token `token`.
fn token_id(keys: &[KeyValue], token: &str) -> Option<usize> {
    let tokens = keys.iter().find(|(key, _)| key == TOKENS);
    match tokens?.1.as_array()? {
        GgufMetadataArray::String(tokens) => tokens.iter().position(|found| found == token),
        _ => None,
    }
}

/// Adds the template of queries with documents to the keys of a tokenizer.
pub(crate) fn add_template(keys: &mut Vec<KeyValue>) {
    const NAMES: &str = "tokenizer.chat_templates";
    let (name, text) = TEMPLATE;
    let key = format!("tokenizer.chat_template.{name}");
    let mut names = Vec::new();
    keys.retain(|(found, value)| {
        if let (NAMES, Some(GgufMetadataArray::String(all))) = (found.as_str(), value.as_array()) {
            names.extend(all.iter().filter(|other| *other != name).cloned());
        }
        found != NAMES && *found != key
    });
    names.push(name.to_owned());
    let names = Box::new(GgufMetadataArray::String(names));
    keys.push((key, GgufMetadataValue::String(text.to_owned())));
    keys.push((NAMES.to_owned(), GgufMetadataValue::Array(names)));
}
