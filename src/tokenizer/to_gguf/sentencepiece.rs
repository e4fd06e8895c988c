//! SentencePiece as the tokenizer `llama` of GGUF.

use super::added::listed_in;
use super::keys::KeyList;
use super::sentencepiece_model::{SentencePieceModel, add_listed, table};
use super::special::SpecialVocab;
use super::{AddedStyle, KeyRule, TokenizerFiles};
use crate::Result;

/// Writes the keys of a SentencePiece model.
pub(super) fn write(
    files: &TokenizerFiles<'_>,
    model: &SentencePieceModel,
    keys: &mut KeyList,
) -> Result<usize> {
    if let Some(json) = &files.json {
        model.require_same(json)?;
    }
    let mut table = table(model, files.vocab_size)?;
    let rules = files.request.rules;
    if let Some(change) = rules.pieces {
        change(model, &mut table);
    }
    add_listed(files, &mut table)?;
    let style = rules.added;
    for token in listed_in(&files.config)? {
        style.set(&mut table, &token);
    }
    if style == AddedStyle::AsFlagged {
        for token in files.json.iter().flat_map(|json| &json.added_tokens) {
            style.set(&mut table, token);
        }
    }
    keys.ggml_text("model", "llama");
    keys.ggml_text("pre", "default");
    let n = table.write(keys, true)?;
    KeyRule::write_all(rules.between, files, Some(model), keys)?;
    let mut special = SpecialVocab::read(files.request.texts, files.json.as_ref(), Some(n))?;
    if let Some(change) = rules.special {
        change(files, &mut special)?;
    }
    special.write(Vec::new(), keys)?;
    Ok(n)
}
