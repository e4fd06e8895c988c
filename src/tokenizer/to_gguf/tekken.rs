//! tekken.json of Mistral, which has ranks instead of merges: the tokenizer `gpt2` of GGUF.

use std::collections::HashMap;

use serde::Deserialize;

use super::bpe::byte_alphabet;
use super::keys::{KeyList, TokenTable, TokenType};
use super::template::ChatTemplates;
use super::unigram::base64;
use super::{MAX_TOKENS, TokenizerFiles};
use crate::model::gguf::{GgufMetadataArray, GgufMetadataValue};
use crate::model::gguf_keys::CHAT_TEMPLATE;
use crate::tokenizer::pre::{self, PreStep, PreTokenizerFacts};
use crate::{AnamnesisError, Result};

const FILE: &str = "tekken.json";

/// Special tokens of files that list none, up to version 7 (mistral-common, `Tekkenizer`).
const SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Names by which llama.cpp has a version's template built in.
const TEMPLATES: [(&str, &str); 2] = [("v3", "mistral-v3-tekken"), ("v7", "mistral-v7-tekken")];

/// Most bytes of a token: each place in it is tried as the end of a first half.
const MAX_TOKEN_BYTES: usize = 1024;

/// Most merges. Mistral's files have 270,000.
const MAX_MERGES: usize = 1 << 23;

#[derive(Deserialize)]
struct TekkenFile {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    #[serde(default)]
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: usize,
    default_num_special_tokens: usize,
    version: String,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: usize,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: usize,
    token_str: String,
}

fn malformed(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("{FILE}: {what}"))
}

/// Writes the keys of a tekken.json; `None` if there is none.
///
/// # Errors
/// `Parse` if the file is malformed, or has other sizes than it says; `LimitExceeded`.
pub(super) fn write(files: &TokenizerFiles<'_>, keys: &mut KeyList) -> Result<Option<usize>> {
    let Some(bytes) = files.request.texts.read(FILE)? else {
        return Ok(None);
    };
    // Tokens and the merges that lead to them.
    files.request.texts.charge(bytes.len() as u64 * 8, FILE)?;
    let file: TekkenFile = serde_json::from_slice(&bytes).map_err(malformed)?;
    let (n, n_special) = (file.config.default_vocab_size, file.config.default_num_special_tokens);
    crate::limits::cap(
        "MAX_TOKENS",
        n as u64,
        MAX_TOKENS as u64,
        format_args!("tokens in {FILE}"),
    )?;
    if n > files.vocab_size {
        let room = files.vocab_size;
        return Err(malformed(format_args!(
            "it has {n} tokens, and `vocab_size` of config.json is {room}"
        )));
    }
    let special = special_tokens(&file, n_special)?;
    let tokens = tokens(&file, n.saturating_sub(n_special))?;
    let mut table = TokenTable::padding(n);
    for (id, token) in special.iter().enumerate() {
        table.set(id, token.clone(), TokenType::Control, 0.0);
    }
    let alphabet = byte_alphabet();
    for (id, token) in tokens.iter().enumerate() {
        table.set(n_special + id, alphabet.text(token), TokenType::Normal, 0.0);
    }
    let id = |text: &str| special.iter().position(|token| token == text);
    let eos = id("</s>");
    keys.ggml_text("model", "gpt2");
    keys.ggml_text("pre", pre_name(files, &file.config)?);
    let merges = merges(&tokens)?;
    keys.ggml_array(
        "merges",
        GgufMetadataArray::String(
            merges
                .iter()
                .map(|(a, b)| format!("{} {}", alphabet.text(a), alphabet.text(b)))
                .collect(),
        ),
    );
    for (key, text, id) in [
        ("bos_token_id", "<s>", id("<s>")),
        ("eos_token_id", "</s>", eos),
        ("unknown_token_id", "<unk>", id("<unk>")),
        ("padding_token_id", "<pad>", id("<pad>").or(eos)),
    ] {
        let id = id.and_then(|id| u32::try_from(id).ok());
        let id = id.ok_or_else(|| malformed(format_args!("it has no special token `{text}`")))?;
        keys.ggml(key, GgufMetadataValue::U32(id));
    }
    let types = table.types.iter().map(|kind| *kind as i32).collect();
    keys.ggml_array("tokens", GgufMetadataArray::String(table.tokens));
    // gguf-py writes these zeros as integers; as floats they have the same bits.
    keys.ggml_array("scores", GgufMetadataArray::I32(vec![0; n]));
    keys.ggml_array("token_type", GgufMetadataArray::I32(types));
    keys.ggml_flag("add_bos_token", true);
    keys.ggml_flag("add_eos_token", false);
    match TEMPLATES
        .iter()
        .find(|(version, _)| *version == file.config.version)
    {
        Some((_, name)) => {
            let name = GgufMetadataValue::String((*name).to_owned());
            keys.set(CHAT_TEMPLATE.to_owned(), name);
        }
        // For newer versions the converter takes a template of llama.cpp's repository; here it is
        // the model's own.
        None => ChatTemplates::read(files.request.texts, &files.config)?.write(keys),
    }
    Ok(Some(n))
}

/// Texts of the special tokens: those of the file, or of old versions, and as many more as it has
/// room for.
fn special_tokens(file: &TekkenFile, n: usize) -> Result<Vec<String>> {
    let mut out: Vec<String> = match &file.special_tokens {
        Some(tokens) => {
            if let Some((i, _)) = tokens
                .iter()
                .enumerate()
                .find(|(i, token)| token.rank != *i)
            {
                return Err(malformed(format_args!("`special_tokens[{i}]` is not of rank {i}")));
            }
            tokens.iter().map(|token| token.token_str.clone()).collect()
        }
        None if matches!(file.config.version.as_str(), "v1" | "v2" | "v3" | "v7") => {
            SPECIAL.iter().map(|token| (*token).to_owned()).collect()
        }
        None => return Err(malformed("it has no `special_tokens`")),
    };
    if out.len() > n || n > file.config.default_vocab_size {
        return Err(malformed(format_args!(
            "it has {} special tokens, and `config.default_num_special_tokens` is {n}",
            out.len()
        )));
    }
    out.extend((out.len()..n).map(|id| format!("<SPECIAL_{id}>")));
    Ok(out)
}

/// Bytes of the first `n` tokens, by rank.
fn tokens(file: &TekkenFile, n: usize) -> Result<Vec<Vec<u8>>> {
    let listed = file.vocab.get(..n).ok_or_else(|| {
        malformed(format_args!("`vocab` has {} tokens, and `config` wants {n}", file.vocab.len()))
    })?;
    let mut out = Vec::with_capacity(n);
    for (i, token) in listed.iter().enumerate() {
        let bytes = base64(&token.token_bytes).filter(|bytes| !bytes.is_empty());
        let is_byte = |bytes: &[u8]| i >= 256 || *bytes == [i as u8];
        match bytes.filter(|bytes| token.rank == i && is_byte(bytes)) {
            Some(bytes) => out.push(bytes),
            None => {
                return Err(malformed(format_args!("`vocab[{i}]` is no token of rank {i}")));
            }
        }
    }
    Ok(out)
}

/// Merges of two tokens to a third, by the rank of the third and then of the two.
fn merges(tokens: &[Vec<u8>]) -> Result<Vec<(&[u8], &[u8])>> {
    let mut ranks = HashMap::with_capacity(tokens.len());
    for (rank, token) in tokens.iter().enumerate() {
        if ranks.insert(token.as_slice(), rank).is_some() {
            return Err(malformed(format_args!("`vocab[{rank}]` is there twice")));
        }
    }
    let mut out = Vec::new();
    for (rank, token) in tokens.iter().enumerate().skip(256) {
        let what = format!("bytes of `vocab[{rank}]` in {FILE}");
        crate::limits::cap("MAX_TOKEN_BYTES", token.len() as u64, MAX_TOKEN_BYTES as u64, what)?;
        let mut pairs: Vec<_> = (1..token.len())
            .filter_map(|at| {
                let (left, right) = token.split_at_checked(at)?;
                Some((*ranks.get(left)?, *ranks.get(right)?, left, right))
            })
            .collect();
        if pairs.is_empty() {
            return Err(malformed(format_args!("`vocab[{rank}]` is not made of two tokens")));
        }
        pairs.sort_unstable_by_key(|(left, right, ..)| (*left, *right));
        out.extend(pairs.into_iter().map(|(_, _, left, right)| (left, right)));
        let what = format!("merges in {FILE}");
        crate::limits::cap("MAX_MERGES", out.len() as u64, MAX_MERGES as u64, what)?;
    }
    Ok(out)
}

fn pre_name(files: &TokenizerFiles<'_>, config: &TekkenConfig) -> Result<&'static str> {
    match files.request.pre {
        Some(name) => pre::require(name),
        None => pre::choose(&PreTokenizerFacts {
            steps: &[PreStep::Split(&config.pattern), PreStep::ByteLevel { use_regex: false }],
            ignore_merges: true,
            architecture: files.request.architecture,
            has_token: &|_| false,
        }),
    }
}
