//! The kind `bert`: WordPiece. llama.cpp marks the beginning of a word with `▁`, `tokenizer.json`
//! its continuation with `##`.

use super::TokenizerParts;
use super::json::{Decoder, Normalizer, PreTokenizer, TokenizerJson, TokenizerModel};
use super::keys::{GgufTokenizer, malformed};
use super::special::SpecialTokens;
use super::vocabulary::{GgufTokenType, StripRules, Vocabulary};
use crate::Result;

const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

/// What llama.cpp takes if a file of the kind `bert` does not say (`llama_vocab::impl::load`).
const DEFAULTS: SpecialTokens = SpecialTokens {
    bos: None,
    eos: None,
    unk: Some(100),
    sep: Some(102),
    pad: Some(0),
    cls: Some(101),
    mask: Some(103),
    add_bos: true,
    add_eos: true,
    add_sep: false,
};

/// # Errors
/// `Parse` if metadata is missing, malformed or contradicts itself.
pub(super) fn convert(keys: GgufTokenizer<'_>) -> Result<TokenizerParts> {
    let mut vocabulary = Vocabulary::read(keys)?;
    let mut special = SpecialTokens::read(keys, vocabulary.tokens.len(), DEFAULTS)?;
    // BOS is what llama.cpp puts first. Files of the converter have only CLS.
    if keys.0.get("tokenizer.ggml.cls_token_id").is_none() {
        special.cls = special.bos.or(special.cls);
    }
    vocabulary.mark_control(special.named().map(|(_, id)| id));
    respell(&mut vocabulary);
    let mut notes = Vec::new();
    let lowercase = match keys.flag(LOWERCASE)? {
        Some(lowercase) => lowercase,
        None => {
            let lowercase = !has_upper_case(&vocabulary);
            let found = if lowercase { "no" } else { "some" };
            let what =
                format!("it is missing; {found} tokens have upper case, so it is {lowercase}");
            notes.push(format!("metadata key `{LOWERCASE}`: {what}"));
            lowercase
        }
    };
    vocabulary.ids()?;
    let unk = special
        .unk
        .ok_or_else(|| malformed("tokenizer.ggml.unknown_token_id", "it is missing"))?;
    let model = TokenizerModel::WordPiece {
        unk_token: &vocabulary.tokens[unk as usize],
        continuing_subword_prefix: "##",
        max_input_chars_per_word: 100,
        vocab: vocabulary.model_vocab(0),
    };
    let decoder = Decoder::WordPiece { prefix: "##", cleanup: true };
    let mut json = TokenizerJson::new(model, decoder);
    json.added_tokens = vocabulary.added_tokens(&StripRules::read(keys)?);
    json.normalizer = Some(Normalizer::Bert {
        clean_text: true,
        handle_chinese_chars: true,
        strip_accents: keys.flag(STRIP_ACCENTS)?,
        lowercase,
    });
    json.pre_tokenizer = Some(PreTokenizer::Bert);
    json.post_processor = special.bert_template(&vocabulary);
    let json = json.text()?;
    Ok(TokenizerParts { json, vocabulary, special, clean_up: true, notes })
}

/// Gives all tokens but control tokens the texts of `tokenizer.json`: the inverse of what
/// llama.cpp's converter does (`BertModel.set_vocab`).
fn respell(vocabulary: &mut Vocabulary) {
    for (token, kind) in vocabulary.tokens.iter_mut().zip(&vocabulary.types) {
        if *kind != GgufTokenType::Control {
            *token = match token.strip_prefix('▁') {
                Some(word) => word.to_owned(),
                None => format!("##{token}"),
            };
        }
    }
}

/// Whether a token of a text has upper case. Tokens in brackets, such as `[unused1]`, are none of a
/// text.
fn has_upper_case(vocabulary: &Vocabulary) -> bool {
    let tokens = vocabulary.tokens.iter().zip(&vocabulary.types);
    tokens
        .filter(|(token, kind)| **kind == GgufTokenType::Normal && !token.starts_with('['))
        // `ᴬ` counts as upper case and has no lower case, so it stays in lower-cased text.
        .any(|(token, _)| token.chars().any(|c| !c.to_lowercase().eq([c])))
}
