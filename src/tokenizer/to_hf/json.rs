//! `tokenizer.json` as the `tokenizers` crate writes it: names, and the order of keys.
//!
//! Source: `tokenizers` 0.22, the `Serialize` implementations of `TokenizerImpl` and of its parts.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// The whole file.
#[derive(Serialize)]
pub(super) struct TokenizerJson<'a> {
    pub version: &'static str,
    pub truncation: (),
    pub padding: (),
    pub added_tokens: Vec<AddedToken<'a>>,
    pub normalizer: Option<Normalizer>,
    pub pre_tokenizer: Option<PreTokenizer>,
    pub post_processor: Option<PostProcessor>,
    pub decoder: Decoder,
    pub model: TokenizerModel<'a>,
}

/// A token that is found in the text before everything else.
#[derive(Serialize)]
pub(super) struct AddedToken<'a> {
    pub id: u32,
    pub content: &'a str,
    pub single_word: bool,
    /// Whether the token takes the blanks to its left with it.
    pub lstrip: bool,
    /// Whether the token takes the blanks to its right with it.
    pub rstrip: bool,
    pub normalized: bool,
    pub special: bool,
}

#[derive(Serialize)]
pub(super) enum SplitPattern {
    String(&'static str),
    Regex(&'static str),
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Normalizer {
    Sequence {
        normalizers: Vec<Normalizer>,
    },
    #[serde(rename = "BertNormalizer")]
    Bert {
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: Option<bool>,
        lowercase: bool,
    },
    #[serde(rename = "NFC")]
    Nfc,
    Prepend {
        prepend: &'static str,
    },
    Replace {
        pattern: SplitPattern,
        content: &'static str,
    },
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    /// The map is in base64.
    Precompiled {
        precompiled_charsmap: String,
    },
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum PreTokenizer {
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
    #[serde(rename = "BertPreTokenizer")]
    Bert,
    ByteLevel {
        add_prefix_space: bool,
        trim_offsets: bool,
        use_regex: bool,
    },
    Digits {
        individual_digits: bool,
    },
    Metaspace {
        replacement: char,
        prepend_scheme: &'static str,
        split: bool,
    },
    Punctuation {
        behavior: &'static str,
    },
    Split {
        pattern: SplitPattern,
        behavior: &'static str,
        invert: bool,
    },
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum PostProcessor {
    Sequence {
        processors: Vec<PostProcessor>,
    },
    ByteLevel {
        add_prefix_space: bool,
        trim_offsets: bool,
        use_regex: bool,
    },
    TemplateProcessing {
        single: Vec<TemplatePiece>,
        pair: Vec<TemplatePiece>,
        special_tokens: BTreeMap<String, TemplateToken>,
    },
}

#[derive(Serialize, Clone)]
pub(super) enum TemplatePiece {
    SpecialToken { id: String, type_id: u32 },
    Sequence { id: &'static str, type_id: u32 },
}

#[derive(Serialize)]
pub(super) struct TemplateToken {
    pub id: String,
    pub ids: [u32; 1],
    pub tokens: [String; 1],
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum Decoder {
    Sequence { decoders: Vec<Decoder> },
    ByteFallback,
    ByteLevel { add_prefix_space: bool, trim_offsets: bool, use_regex: bool },
    Fuse,
    Metaspace { replacement: char, prepend_scheme: &'static str, split: bool },
    Replace { pattern: SplitPattern, content: &'static str },
    Strip { content: char, start: usize, stop: usize },
    WordPiece { prefix: &'static str, cleanup: bool },
}

#[derive(Serialize)]
#[serde(tag = "type")]
pub(super) enum TokenizerModel<'a> {
    #[serde(rename = "BPE")]
    Bpe {
        dropout: (),
        unk_token: Option<&'a str>,
        continuing_subword_prefix: (),
        end_of_word_suffix: (),
        fuse_unk: bool,
        byte_fallback: bool,
        ignore_merges: bool,
        vocab: IdByText<'a>,
        merges: Vec<(&'a str, &'a str)>,
    },
    WordPiece {
        unk_token: &'a str,
        continuing_subword_prefix: &'static str,
        max_input_chars_per_word: usize,
        vocab: IdByText<'a>,
    },
    Unigram {
        unk_id: u32,
        vocab: Vec<(&'a str, f64)>,
        byte_fallback: bool,
    },
}

/// Tokens with their ids: a map in the order of the ids.
pub(super) struct IdByText<'a>(pub Vec<(&'a str, u32)>);

impl Serialize for IdByText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}
