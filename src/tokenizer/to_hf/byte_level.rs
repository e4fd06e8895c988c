//! The kind `gpt2`: BPE on bytes that are written as characters, after a pre-tokenizer that
//! `tokenizer.ggml.pre` names.

use super::TokenizerParts;
use super::json::{
    Decoder, Normalizer, PostProcessor, PreTokenizer, SplitPattern, TokenizerJson, TokenizerModel,
};
use super::keys::GgufTokenizer;
use super::merges::{parse_merges, stored_merges};
use super::special::SpecialTokens;
use super::spm::{self, MergeSource};
use super::vocabulary::{StripRules, Vocabulary};
use crate::model::gguf_keys::PRE_TOKENIZER;
use crate::tokenizer::pre::{self, PreStep};
use crate::{AnamnesisError, Result};

/// # Errors
/// `Parse` if metadata is missing, malformed or contradicts itself; `Unsupported` if it is not
/// known how the pre-tokenizer cuts text.
pub(super) fn convert(keys: GgufTokenizer<'_>) -> Result<TokenizerParts> {
    let name = keys.text(PRE_TOKENIZER)?.ok_or_else(|| {
        let what = "is missing: the file does not say how text is cut before merging; `amn convert FILE --to gguf --gguf-kv tokenizer.ggml.pre=NAME` makes a copy that does";
        unknown("none", what)
    })?;
    if pre::ON_TEXT.contains(&name.as_str()) {
        return spm::convert(keys, MergeSource::Stored);
    }
    let Some((class, row)) = pre::find(&name) else {
        return Err(unknown(&name, "llama.cpp has no pre-tokenizer of this name"));
    };
    let Some(steps) = class.forms.first() else {
        return Err(unknown(&name, "no `tokenizer.json` is known for it"));
    };
    let mut vocabulary = Vocabulary::read(keys)?;
    let defaults = SpecialTokens {
        add_bos: row.add_bos,
        // llama.cpp, `llama_vocab::impl::load`.
        add_sep: matches!(row.name, "jina-v1-en" | "jina-v2-code" | "roberta-bpe"),
        ..SpecialTokens::default()
    };
    let special = SpecialTokens::read(keys, vocabulary.tokens.len(), defaults)?;
    vocabulary.mark_control(special.named().map(|(_, id)| id));
    let architecture = keys.text("general.architecture")?;
    let ids = vocabulary.ids()?;
    let stored = stored_merges(keys)?;
    let merges = parse_merges(&stored, &ids)?;
    let model = TokenizerModel::Bpe {
        dropout: (),
        unk_token: None,
        continuing_subword_prefix: (),
        end_of_word_suffix: (),
        fuse_unk: false,
        byte_fallback: false,
        // gpt-oss shares the name `gpt-4o` and has the flag. Its merges lead to every token, so it
        // changes no ids.
        ignore_merges: row.ignore_merges || architecture.as_deref() == Some("gpt-oss"),
        vocab: vocabulary.model_vocab(merges.ids_end),
        merges: merges.pairs,
    };
    let decoder =
        Decoder::ByteLevel { add_prefix_space: true, trim_offsets: true, use_regex: true };
    let mut json = TokenizerJson::new(model, decoder);
    json.added_tokens = vocabulary.added_tokens(&StripRules::read(keys)?);
    json.normalizer = row.nfc.then_some(Normalizer::Nfc);
    json.pre_tokenizer = Some(pre_tokenizer(steps));
    json.post_processor = Some(post_processor(special.template(&vocabulary)?));
    let json = json.text()?;
    Ok(TokenizerParts {
        json,
        vocabulary,
        special,
        // Llama 3 alone has it among those whose files were compared.
        clean_up: matches!(row.name, "llama-bpe" | "smaug-bpe"),
        notes: Vec::new(),
    })
}

/// The error for a pre-tokenizer that cannot be written.
fn unknown(name: &str, what: &str) -> AnamnesisError {
    AnamnesisError::unsupported(name, format!("metadata key `{PRE_TOKENIZER}`: {what}"))
}

fn pre_tokenizer(steps: &[PreStep<'static>]) -> PreTokenizer {
    let mut steps: Vec<_> = steps.iter().filter_map(|step| pre_step(*step)).collect();
    match (steps.pop(), steps.is_empty()) {
        (Some(only), true) => only,
        (last, _) => {
            PreTokenizer::Sequence { pretokenizers: steps.into_iter().chain(last).collect() }
        }
    }
}

/// The step in `tokenizer.json`. `None` for steps of which only the type is known; the classes have
/// none.
fn pre_step(step: PreStep<'static>) -> Option<PreTokenizer> {
    Some(match step {
        PreStep::Split(regex) => PreTokenizer::Split {
            pattern: SplitPattern::Regex(regex),
            behavior: "Isolated",
            invert: false,
        },
        PreStep::Digits { individual } => PreTokenizer::Digits { individual_digits: individual },
        PreStep::Punctuation => PreTokenizer::Punctuation { behavior: "Contiguous" },
        PreStep::ByteLevel { use_regex } => {
            PreTokenizer::ByteLevel { add_prefix_space: false, trim_offsets: true, use_regex }
        }
        PreStep::Other(_) => return None,
    })
}

/// `ByteLevel`, which concerns offsets alone, and the template after it.
fn post_processor(template: Option<PostProcessor>) -> PostProcessor {
    let bytes =
        PostProcessor::ByteLevel { add_prefix_space: true, trim_offsets: false, use_regex: true };
    match template {
        None => bytes,
        Some(template) => PostProcessor::Sequence { processors: vec![bytes, template] },
    }
}
