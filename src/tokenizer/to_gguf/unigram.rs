//! Unigram (T5, XLM-RoBERTa): the tokenizer `t5` of GGUF, from a SentencePiece model or from
//! tokenizer.json.

use serde_json::Value;

use super::TokenizerFiles;
use super::added::AddedTokens;
use super::file::{HfTokenizerFile, TOKENIZER_JSON};
use super::keys::{KeyList, TokenTable, TokenType};
use super::sentencepiece_model::{SentencePieceModel, add_listed, table};
use super::special::SpecialVocab;
use crate::model::gguf::GgufMetadataArray;
use crate::{AnamnesisError, Result};

/// `trainer_spec.model_type` of a Unigram model.
const UNIGRAM: u64 = 1;

/// Name of fairseq's file. Its ids are moved by one, to make room for fairseq's special tokens.
const FAIRSEQ: &str = "sentencepiece.bpe.model";

/// Whether a SentencePiece model becomes `t5` instead of `llama`.
pub(super) fn is_for(files: &TokenizerFiles<'_>, model: &SentencePieceModel) -> bool {
    let is_t5 = files.request.architecture.starts_with("t5");
    model.model_type == UNIGRAM && (is_t5 || model.file == FAIRSEQ)
}

/// What `t5` has besides its tokens.
struct UnigramFlags {
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    precompiled_charsmap: Vec<u8>,
}

/// Writes the keys of a SentencePiece model.
///
/// # Errors
/// `Parse` if it has more pieces than the config has room for.
pub(super) fn write_model(
    files: &TokenizerFiles<'_>,
    model: &SentencePieceModel,
    keys: &mut KeyList,
) -> Result<usize> {
    let flags = UnigramFlags {
        add_space_prefix: model.add_dummy_prefix,
        remove_extra_whitespaces: model.remove_extra_whitespaces,
        precompiled_charsmap: model.precompiled_charsmap.clone(),
    };
    if model.file != FAIRSEQ {
        let mut table = table(model, files.vocab_size)?;
        add_listed(files, &mut table)?;
        return flags.write(files, table, keys);
    }
    let n = files.vocab_size.max(model.pieces.len());
    let table = realigned(table(model, n)?, files.request.architecture)?;
    flags.write(files, table, keys)
}

/// The tokens with fairseq's ids: `<s>`, `<pad>`, `</s>`, `<unk>`, then the pieces from the fourth
/// on.
fn realigned(old: TokenTable, architecture: &str) -> Result<TokenTable> {
    let n = old.len();
    if n < 5 {
        return Err(AnamnesisError::parse(format!("{FAIRSEQ}: it has {n} pieces, and needs 5")));
    }
    let mut table = TokenTable::padding(n);
    for (id, token) in ["<s>", "<pad>", "</s>", "<unk>"].into_iter().enumerate() {
        let kind = if id == 3 {
            TokenType::Unknown
        } else {
            TokenType::Control
        };
        table.set(id, token.to_owned(), kind, 0.0);
    }
    let pieces = old.tokens.into_iter().zip(old.types).zip(old.scores);
    for (id, ((token, kind), score)) in (4..n).zip(pieces.skip(3)) {
        table.set(id, token, kind, score);
    }
    if architecture == "nomic-bert-moe" {
        // The model lacks the token that the tokenizer has at its end.
        table.set(250_001, "<mask>".to_owned(), TokenType::Control, 0.0);
    }
    Ok(table)
}

/// Writes the keys of a tokenizer.json.
///
/// # Errors
/// `Unsupported` if its normalizer is not one of SentencePiece; `Parse` if that is malformed.
pub(super) fn write(
    files: &TokenizerFiles<'_>,
    json: &HfTokenizerFile,
    keys: &mut KeyList,
) -> Result<usize> {
    let flag = |key: &str| files.config.get(key) == Some(&Value::Bool(true));
    let flags = match json.normalizer.get("normalizers").and_then(Value::as_array) {
        Some(steps) => UnigramFlags::of_steps(steps, &json.pre_tokenizer)?,
        None => UnigramFlags {
            add_space_prefix: flag("add_prefix_space"),
            remove_extra_whitespaces: flag("clean_up_tokenization_spaces"),
            precompiled_charsmap: charsmap(&json.normalizer)?,
        },
    };
    let added = AddedTokens::new(json, &files.config)?;
    let vocab = &json.model.vocab;
    if vocab.scores.len() != vocab.tokens.len() {
        return Err(AnamnesisError::parse(format!(
            "{TOKENIZER_JSON}: `model.vocab` of Unigram is no list of tokens with scores"
        )));
    }
    let unknown = files
        .config
        .get("unk_token")
        .and_then(super::added::content);
    let unknown = unknown
        .and_then(|text| added.get(text))
        .map(|token| token.id);
    let unknown = unknown.or(json.model.unk_id).unwrap_or(3);
    let mut table = TokenTable::padding(files.vocab_size.max(vocab.tokens.len()));
    for ((token, id), score) in vocab.tokens.iter().zip(&vocab.scores) {
        let kind = match added.get(token) {
            _ if *id == unknown => TokenType::Unknown,
            Some(_) if added.special.contains(token) => TokenType::Control,
            Some(_) => TokenType::UserDefined,
            None => TokenType::Normal,
        };
        // Files have what was an F32 once.
        table.set(usize::try_from(*id).unwrap_or(usize::MAX), token.clone(), kind, *score as f32);
    }
    flags.write(files, table, keys)
}

/// The map of characters of a `Precompiled` normalizer; empty if there is no normalizer.
fn charsmap(normalizer: &Value) -> Result<Vec<u8>> {
    let text = normalizer
        .get("precompiled_charsmap")
        .and_then(Value::as_str);
    match text {
        Some(text) => base64(text).ok_or_else(|| {
            AnamnesisError::parse(format!(
                "{TOKENIZER_JSON}: `normalizer.precompiled_charsmap` is no Base64"
            ))
        }),
        None if normalizer.is_null() => Ok(Vec::new()),
        None => Err(AnamnesisError::unsupported(
            "tokenizer Unigram",
            format!(
                "{TOKENIZER_JSON}: llama.cpp's converter needs a `normalizer` of the type Precompiled"
            ),
        )),
    }
}

/// The bytes of a Base64 text (RFC 4648) with padding; `None` if it is none.
pub(super) fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut bits, mut n) = (0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        n += 6;
        if n >= 8 {
            n -= 8;
            out.push((bits >> n) as u8);
        }
    }
    Some(out)
}

impl UnigramFlags {
    /// What several normalizers and a pre-tokenizer say together, as transformers makes them of a
    /// SentencePiece model. llama.cpp's converter knows one normalizer alone, and takes the flags
    /// from tokenizer_config.json.
    ///
    /// # Errors
    /// `Unsupported` if there is a step that SentencePiece does not have.
    fn of_steps(steps: &[Value], pre_tokenizer: &Value) -> Result<Self> {
        let mut flags = Self {
            add_space_prefix: false,
            remove_extra_whitespaces: false,
            precompiled_charsmap: Vec::new(),
        };
        let unknown = |step: &Value| {
            let what = format!("{TOKENIZER_JSON}: llama.cpp has no {step}");
            AnamnesisError::unsupported("tokenizer Unigram", what)
        };
        let kind = |step: &Value| step.get("type").and_then(Value::as_str).map(str::to_owned);
        for step in steps {
            match kind(step).as_deref() {
                Some("Precompiled") => flags.precompiled_charsmap = charsmap(step)?,
                Some("Strip") if step.get("strip_right") == Some(&Value::Bool(true)) => {}
                Some("Replace")
                    if step.pointer("/pattern/Regex") == Some(&Value::from(" {2,}")) =>
                {
                    flags.remove_extra_whitespaces = true;
                }
                _ => return Err(unknown(step)),
            }
        }
        let inner = pre_tokenizer.get("pretokenizers").and_then(Value::as_array);
        for step in inner.map_or(std::slice::from_ref(pre_tokenizer), Vec::as_slice) {
            match kind(step).as_deref() {
                Some("Metaspace") => {
                    let scheme = step.get("prepend_scheme").and_then(Value::as_str);
                    let old = step.get("add_prefix_space").and_then(Value::as_bool);
                    flags.add_space_prefix = match scheme {
                        Some("always") => true,
                        Some("never") => false,
                        None => old.unwrap_or(true),
                        Some(_) => return Err(unknown(step)),
                    };
                }
                Some("WhitespaceSplit") if flags.remove_extra_whitespaces => {}
                _ => return Err(unknown(step)),
            }
        }
        Ok(flags)
    }

    fn write(
        self,
        files: &TokenizerFiles<'_>,
        table: TokenTable,
        keys: &mut KeyList,
    ) -> Result<usize> {
        keys.ggml_text("model", "t5");
        keys.ggml_text("pre", "default");
        let n = table.write(keys, true)?;
        keys.ggml_flag("add_space_prefix", self.add_space_prefix);
        if !files.request.architecture.starts_with("t5") {
            files.write_token_types(keys);
        }
        keys.ggml_flag("remove_extra_whitespaces", self.remove_extra_whitespaces);
        keys.ggml_array("precompiled_charsmap", GgufMetadataArray::U8(self.precompiled_charsmap));
        let special = SpecialVocab::read(files.request.texts, files.json.as_ref(), Some(n))?;
        special.write(Vec::new(), keys)?;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_of_rfc_4648() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9vYmFy", "foobar")] {
            assert_eq!(base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        for text in ["Z", "Zg=", "Z===", "Zm9v!mFy"] {
            assert_eq!(base64(text), None);
        }
    }
}
