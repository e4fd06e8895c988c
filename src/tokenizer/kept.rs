//! What a GGUF file says of a model and its tokenizer and the files of Hugging Face cannot say: kept
//! in a file of its own beside them, which other programs ignore, and put back into the next GGUF
//! file.
//!
//! `metadata` in the file is JSON of metadata as `--gguf-metadata` takes it. What it says of a
//! tokenizer counts as long as the files of the tokenizer are those that were written along with it.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::TokenizerKeys;
use crate::config::Texts;
use crate::model::gguf::{GgufMetadata, GgufMetadataValue};
use crate::parse::gguf::{parse_gguf_metadata_json, plain_json};
use crate::{AnamnesisError, Result};

/// Name of the file.
pub(crate) const GGUF_METADATA: &str = "gguf_metadata.json";

/// Files of a tokenizer: that of the vocabulary, and those of all else.
const VOCABULARY_FILES: [&str; 3] =
    ["tokenizer.json", "tokenizer.jsonl", "rwkv_vocab_v20230424.txt"];
const TOKENIZER_FILES: [&str; 5] = [
    VOCABULARY_FILES[0],
    VOCABULARY_FILES[1],
    VOCABULARY_FILES[2],
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Keys of arrays that tokenizer.json has as well.
const DERIVED: [&str; 2] = ["tokenizer.ggml.merges", "tokenizer.ggml.precompiled_charsmap"];

/// Keys that follow from the tensors of the file they stand in, or from the class.
const OF_THE_FILE: [&str; 5] = [
    "general.architecture",
    "general.type",
    "general.file_type",
    "general.quantization_version",
    "general.alignment",
];

/// Keys of a vocabulary: they count also where only other files of the tokenizer have changed.
const OF_VOCABULARY: [&str; 9] = [
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.token_type_count",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.remove_extra_whitespaces",
    "tokenizer.ggml.escape_whitespaces",
];

/// Whether `key` is of what a file says of itself, and of no other.
fn is_general(key: &str) -> bool {
    key.starts_with("general.") && !OF_THE_FILE.contains(&key)
}

fn is_tokenizer(key: &str) -> bool {
    key.starts_with("tokenizer.")
}

/// The text of the file for the `metadata` of a GGUF file whose tokenizer became `files`, beside a
/// model that becomes GGUF of `architecture` again.
pub(crate) fn write(
    metadata: &GgufMetadata,
    architecture: &str,
    files: &[(&'static str, String)],
) -> String {
    let sums: BTreeMap<_, _> = files
        .iter()
        .filter(|(name, _)| TOKENIZER_FILES.contains(name))
        .map(|(name, text)| (*name, fingerprint(text.as_bytes())))
        .collect();
    let derived: Vec<_> = metadata
        .keys()
        .filter(|key| DERIVED.contains(key))
        .collect();
    let kept = metadata.iter().filter(|(key, _)| {
        let is_kept = is_general(key) || is_tokenizer(key) && !DERIVED.contains(key);
        // What is malformed was not read either.
        is_kept && !metadata.has_malformed_text(key)
    });
    let entries: Vec<_> = kept
        .map(|(key, value)| {
            let plain = plain_json(&value);
            let typed = match &value {
                GgufMetadataValue::Array(items) => {
                    json!({ "type": "array", "item_type": items.item_name(), "value": plain })
                }
                other => json!({ "type": other.type_name(), "value": plain }),
            };
            format!("    {}: {typed}", Value::from(key))
        })
        .collect();
    format!(
        "{{\n  \"architecture\": {},\n  \"files\": {},\n  \"derived\": {},\n  \"metadata\": {{\n{}\n  }}\n}}\n",
        json!(architecture),
        json!(sums),
        json!(derived),
        entries.join(",\n")
    )
}

/// A number that differs for texts that differ (FNV-1a of 64 bits, and the length).
fn fingerprint(bytes: &[u8]) -> String {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    format!("{sum:016x}-{}", bytes.len())
}

/// The file as it is stored.
#[derive(serde::Deserialize)]
struct StoredMetadata<'a> {
    architecture: Option<String>,
    files: BTreeMap<String, String>,
    derived: Vec<String>,
    #[serde(borrow)]
    metadata: &'a RawValue,
}

/// What was kept of a GGUF file.
pub(crate) struct KeptMetadata {
    files: BTreeMap<String, String>,
    derived: Vec<String>,
    entries: Vec<(String, GgufMetadataValue)>,
}

impl KeptMetadata {
    /// Reads the file beside a model that becomes GGUF of `architecture`; `None` if there is none,
    /// or it is of another architecture.
    ///
    /// # Errors
    /// `Parse` if it is malformed; `LimitExceeded`; `Io`.
    pub(crate) fn read(texts: &Texts, architecture: &str) -> Result<Option<Self>> {
        let Some(bytes) = texts.read(GGUF_METADATA)? else {
            return Ok(None);
        };
        // Numbers and short texts take more memory as values than as text.
        texts.charge(bytes.len() as u64 * 16, GGUF_METADATA)?;
        let malformed = |what: &dyn std::fmt::Display| {
            AnamnesisError::parse(format!("{GGUF_METADATA}: {what}; delete it to go without"))
        };
        let stored: StoredMetadata<'_> =
            serde_json::from_slice(&bytes).map_err(|error| malformed(&error))?;
        if stored.architecture.as_deref() != Some(architecture) {
            return Ok(None);
        }
        let mut entries =
            parse_gguf_metadata_json(stored.metadata.get()).map_err(|error| malformed(&error))?;
        entries.retain(|(key, _)| is_general(key) || is_tokenizer(key));
        Ok(Some(Self { files: stored.files, derived: stored.derived, entries }))
    }

    /// Puts what the GGUF file said of itself into `keys`.
    pub(crate) fn restore_general(&self, keys: &mut Vec<(String, GgufMetadataValue)>) {
        let kept = self.entries.iter().filter(|(key, _)| is_general(key));
        kept.for_each(|entry| set(keys, entry));
    }

    /// Puts what the GGUF file said of its tokenizer into `keys`, which were made of the files in
    /// `texts` for an embedding of `rows` rows.
    ///
    /// # Errors
    /// `Parse` if arrays of tokens have other lengths; `Io`; `LimitExceeded`.
    pub(crate) fn restore_tokenizer(
        &self,
        texts: &Texts,
        rows: usize,
        keys: &mut TokenizerKeys,
    ) -> Result<()> {
        let mut changed = Vec::new();
        for name in TOKENIZER_FILES {
            let found = texts.read(name)?.map(|bytes| fingerprint(&bytes));
            if found.as_ref() != self.files.get(name) {
                changed.push(name);
            }
        }
        let n = self.tokens()?;
        let of_vocabulary = changed.iter().find(|name| VOCABULARY_FILES.contains(name));
        if n != rows || of_vocabulary.is_some() {
            let file = of_vocabulary.unwrap_or(&VOCABULARY_FILES[0]);
            keys.notes.push(format!(
                "{GGUF_METADATA}: {file} has changed since, and what the GGUF file said of the tokenizer is left out"
            ));
            return Ok(());
        }
        let is_whole = changed.is_empty();
        let made = std::mem::take(&mut keys.keys);
        let is_kept = |key: &str| is_tokenizer(key) && (is_whole || OF_VOCABULARY.contains(&key));
        let is_derived = |key: &str| self.derived.iter().any(|derived| derived == key);
        let remains = |key: &str| match DERIVED.contains(&key) {
            true => is_derived(key),
            false => !is_whole && !OF_VOCABULARY.contains(&key),
        };
        let kept = self.entries.iter().filter(|(key, _)| is_kept(key));
        keys.keys.extend(kept.cloned());
        // Each of the others stands behind the key that it stands behind without this file.
        let mut at = keys.keys.len();
        for (key, value) in made {
            match keys.keys.iter().position(|(known, _)| *known == key) {
                Some(place) => at = place + 1,
                None if remains(&key) => {
                    keys.keys.insert(at, (key, value));
                    at += 1;
                }
                None => {}
            }
        }
        keys.tokens = n;
        keys.notes.clear();
        Ok(())
    }

    /// The number of tokens.
    ///
    /// # Errors
    /// `Parse` if there are none, or other arrays have other lengths.
    fn tokens(&self) -> Result<usize> {
        let length = |name: &str| {
            let key = format!("tokenizer.ggml.{name}");
            let found = self.entries.iter().find(|(known, _)| *known == key);
            found.map(|(_, value)| value.as_array().map_or(0, |items| items.len()))
        };
        let n = length("tokens").unwrap_or(0);
        let others = ["scores", "token_type"].into_iter().filter_map(length);
        if n == 0 || others.into_iter().any(|other| other != n) {
            return Err(AnamnesisError::parse(format!(
                "{GGUF_METADATA}: tokens, scores and types are not equally many; delete it to go without"
            )));
        }
        Ok(n)
    }
}

/// Sets a key; one that is there keeps its place.
fn set(keys: &mut Vec<(String, GgufMetadataValue)>, entry: &(String, GgufMetadataValue)) {
    match keys.iter_mut().find(|(known, _)| *known == entry.0) {
        Some((_, old)) => *old = entry.1.clone(),
        None => keys.push(entry.clone()),
    }
}
