//! From the metadata of a GGUF file to `tokenizer.json`, `tokenizer_config.json` and
//! `chat_template.jinja`.
//!
//! A GGUF file has the tokens, what they are merged from, and names for everything else: the kind
//! of tokenizer (`tokenizer.ggml.model`) and how a text is cut before (`tokenizer.ggml.pre`). The
//! rest is what llama.cpp's code does for these names, and what the `tokenizers` crate calls it.

mod byte_level;
mod config;
mod json;
mod keys;
mod merges;
mod plamo;
mod rwkv;
mod special;
mod spm;
#[cfg(test)]
mod tests;
mod unigram;
mod vocabulary;
mod word_piece;

use self::json::{Decoder, TokenizerJson, TokenizerModel};
use self::keys::{GgufTokenizer, malformed};
use self::special::SpecialTokens;
use self::spm::MergeSource;
use self::vocabulary::Vocabulary;
use crate::model::gguf::GgufMetadata;
use crate::{AnamnesisError, Result};

const MODEL: &str = "tokenizer.ggml.model";

/// Kinds of tokenizers with files of their own: the files, and the classes that read them.
const OWN_FILES: [(&str, &str, &str); 2] = [
    ("plamo2", "tokenizer.jsonl", "Plamo2Tokenizer"),
    ("rwkv", "rwkv_vocab_v20230424.txt", "RwkvTokenizer"),
];

/// The tokenizer's files of a Hugging Face directory.
pub(crate) struct HfTokenizer {
    /// Names and texts.
    pub files: Vec<(&'static str, String)>,
    /// What the metadata leaves open, and how it was decided.
    pub notes: Vec<String>,
}

/// The tokenizer that the `metadata` of a GGUF file describes. `context_length` becomes
/// `model_max_length`.
///
/// # Errors
/// `Parse` if metadata is missing, malformed or contradicts itself, `Unsupported` for other kinds
/// of tokenizers. Both name the key.
pub(crate) fn from_gguf(
    metadata: &GgufMetadata,
    context_length: Option<u64>,
) -> Result<HfTokenizer> {
    let keys = GgufTokenizer(metadata);
    let model = keys
        .text(MODEL)?
        .ok_or_else(|| malformed(MODEL, "it is missing"))?;
    let parts = match model.as_str() {
        "gpt2" => byte_level::convert(keys)?,
        "bert" => word_piece::convert(keys)?,
        "t5" => unigram::convert(keys)?,
        "plamo2" => plamo::convert(keys)?,
        "rwkv" => rwkv::convert(keys)?,
        "llama" => spm::convert(keys, MergeSource::Scores)?,
        "gemma4" => spm::convert(keys, MergeSource::Stored)?,
        other => {
            let detail = format!("metadata key `{MODEL}`: no `tokenizer.json` is known for it");
            return Err(AnamnesisError::unsupported(other, detail));
        }
    };
    let TokenizerParts { json, vocabulary, special, clean_up, mut notes } = parts;
    notes.extend(SpecialTokens::notes_of_missing(keys, vocabulary.tokens.len())?);
    let own = OWN_FILES.iter().find(|(kind, ..)| *kind == model);
    let file = own.map_or("tokenizer.json", |(_, file, _)| file);
    let mut files = vec![(file, json)];
    let mut config = config::basics(&vocabulary, &special, context_length);
    config.insert("clean_up_tokenization_spaces".to_owned(), clean_up.into());
    if let Some((_, _, class)) = own {
        config.insert("tokenizer_class".to_owned(), (*class).into());
    }
    // Only BERT's models tell segments apart. Others refuse the `token_type_ids` that transformers
    // makes by default.
    if model != "bert" {
        let inputs = ["input_ids", "attention_mask"];
        config.insert("model_input_names".to_owned(), inputs.into_iter().collect());
    }
    files.extend(config::files(config, keys)?);
    Ok(HfTokenizer { files, notes })
}

/// What is known of a tokenizer when its `tokenizer.json` is written.
struct TokenizerParts {
    json: String,
    vocabulary: Vocabulary,
    special: SpecialTokens,
    /// `clean_up_tokenization_spaces`.
    clean_up: bool,
    notes: Vec<String>,
}

impl<'a> TokenizerJson<'a> {
    /// A file without anything around the model.
    fn new(model: TokenizerModel<'a>, decoder: Decoder) -> Self {
        Self {
            version: "1.0",
            truncation: (),
            padding: (),
            added_tokens: Vec::new(),
            normalizer: None,
            pre_tokenizer: None,
            post_processor: None,
            decoder,
            model,
        }
    }

    /// The file's text, laid out as the `tokenizers` crate does.
    fn text(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map_err(|error| AnamnesisError::parse(format!("writing tokenizer.json: {error}")))
    }
}
