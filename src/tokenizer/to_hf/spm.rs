//! The kinds `llama` (SentencePiece BPE) and `gemma4` (the same with merges): BPE on text whose
//! blanks are `▁`, with a token for each byte.

use super::TokenizerParts;
use super::json::{Decoder, Normalizer, PreTokenizer, SplitPattern, TokenizerJson, TokenizerModel};
use super::keys::GgufTokenizer;
use super::merges::{merges_by_priority, parse_merges, priorities, stored_merges};
use super::special::SpecialTokens;
use super::vocabulary::{GgufTokenType, StripRules, Vocabulary};
use crate::Result;

/// What llama.cpp takes if a file of the kind `llama` does not say (`llama_vocab::impl::load`).
const DEFAULTS: SpecialTokens = SpecialTokens {
    bos: Some(1),
    eos: Some(2),
    unk: Some(0),
    sep: None,
    pad: None,
    cls: None,
    mask: None,
    add_bos: true,
    add_eos: false,
    add_sep: false,
};

/// Where the merges come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MergeSource {
    Scores,
    Stored,
}

/// # Errors
/// `Parse` if metadata is missing, malformed or contradicts itself.
pub(super) fn convert(keys: GgufTokenizer<'_>, source: MergeSource) -> Result<TokenizerParts> {
    let mut vocabulary = Vocabulary::read(keys)?;
    let defaults = match source {
        MergeSource::Scores => DEFAULTS,
        MergeSource::Stored => SpecialTokens::default(),
    };
    let special = SpecialTokens::read(keys, vocabulary.tokens.len(), defaults)?;
    vocabulary.mark_control(special.named().map(|(_, id)| id));
    let architecture = keys.text("general.architecture")?.unwrap_or_default();
    let is_gemma = architecture.starts_with("gemma");
    let is_gpt2 = keys.text("tokenizer.ggml.model")?.as_deref() == Some("gpt2");
    if is_gpt2 || is_gemma && source == MergeSource::Scores {
        respell_gemma(&mut vocabulary, !is_gpt2);
    }
    let has_prefix = keys.flag("tokenizer.ggml.add_space_prefix")?;
    let has_prefix = has_prefix.unwrap_or(!is_gemma) && source == MergeSource::Scores;

    let mut notes = Vec::new();
    let ids = vocabulary.ids()?;
    let stored;
    let merges = match source {
        MergeSource::Stored => {
            stored = stored_merges(keys)?;
            parse_merges(&stored, &ids)?
        }
        MergeSource::Scores => {
            let (priorities, are_equal) =
                priorities(&vocabulary, &vocabulary.scores(keys)?, has_prefix);
            if are_equal {
                let what = "all scores are equal: the order of merges was taken from the ids of the tokens";
                notes.push(format!("metadata key `tokenizer.ggml.scores`: {what}"));
            }
            merges_by_priority(&vocabulary, &ids, &priorities)?
        }
    };
    let model = TokenizerModel::Bpe {
        dropout: (),
        unk_token: special
            .unk
            .map(|id| vocabulary.tokens[id as usize].as_str()),
        continuing_subword_prefix: (),
        end_of_word_suffix: (),
        fuse_unk: true,
        byte_fallback: true,
        ignore_merges: false,
        vocab: vocabulary.model_vocab(merges.ids_end),
        merges: merges.pairs,
    };
    let mut json = TokenizerJson::new(model, decoder(has_prefix));
    json.added_tokens = vocabulary.added_tokens(&StripRules::read(keys)?);
    json.normalizer = Some(normalizer(is_gemma, has_prefix));
    json.pre_tokenizer = is_gemma.then_some(PreTokenizer::Split {
        pattern: SplitPattern::String(" "),
        behavior: "MergedWithPrevious",
        invert: false,
    });
    json.post_processor = special.template(&vocabulary)?;
    let json = json.text()?;
    Ok(TokenizerParts { json, vocabulary, special, clean_up: false, notes })
}

/// Gives tokens of Gemma the texts that they have in `tokenizer.json`: llama.cpp's converter writes
/// runs of blanks as such, and SentencePiece has the tab as a byte.
///
/// Source: transformers 4.57 `GemmaConverter.vocab`, llama.cpp `_create_vocab_sentencepiece`.
fn respell_gemma(vocabulary: &mut Vocabulary, has_tab_as_byte: bool) {
    let respelled = |token: &str| {
        if token == "<0x09>" && has_tab_as_byte {
            return Some("\t".to_owned());
        }
        let is_blank = token.bytes().all(|byte| byte == b' ');
        is_blank.then(|| "▁".repeat(token.len()))
    };
    let known: std::collections::HashSet<&str> =
        vocabulary.tokens.iter().map(String::as_str).collect();
    let tokens = vocabulary.tokens.iter().enumerate();
    let respelled: Vec<_> = tokens
        .filter_map(|(id, token)| Some((id, respelled(token)?)))
        .filter(|(_, new)| !known.contains(new.as_str()))
        .collect();
    for (id, new) in respelled {
        if new == "\t" {
            vocabulary.types[id] = GgufTokenType::Normal;
        }
        vocabulary.tokens[id] = new;
    }
}

/// A blank as it is in tokens.
fn blank() -> Normalizer {
    Normalizer::Replace { pattern: SplitPattern::String(" "), content: "▁" }
}

fn normalizer(is_gemma: bool, has_prefix: bool) -> Normalizer {
    if is_gemma && !has_prefix {
        return blank();
    }
    let prefix = has_prefix.then_some(Normalizer::Prepend { prepend: "▁" });
    Normalizer::Sequence { normalizers: prefix.into_iter().chain([blank()]).collect() }
}

fn decoder(has_prefix: bool) -> Decoder {
    let blank = Decoder::Replace { pattern: SplitPattern::String("▁"), content: " " };
    let strip = has_prefix.then_some(Decoder::Strip { content: ' ', start: 1, stop: 0 });
    let decoders = [blank, Decoder::ByteFallback, Decoder::Fuse];
    Decoder::Sequence { decoders: decoders.into_iter().chain(strip).collect() }
}
