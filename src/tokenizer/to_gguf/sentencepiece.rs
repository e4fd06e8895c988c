//! SentencePiece as the tokenizer `llama` of GGUF.

use super::added::listed_in;
use super::keys::KeyList;
use super::sentencepiece_model::{SentencePieceModel, add_listed, table};
use super::special::SpecialVocab;
use super::{TokenizerFiles, rules};
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
    rules::adjust(files.request.architecture, model, &mut table);
    add_listed(files, &mut table)?;
    let style = rules::added_style(files.request.architecture);
    for token in listed_in(&files.config)? {
        style.set(&mut table, &token);
    }
    if style == rules::AddedStyle::AsFlagged {
        for token in files.json.iter().flat_map(|json| &json.added_tokens) {
            style.set(&mut table, token);
        }
    }
    keys.ggml_text("model", "llama");
    keys.ggml_text("pre", "default");
    let n = table.write(keys, true)?;
    rules::between(files, model, keys);
    let mut special = SpecialVocab::read(files.request.texts, files.json.as_ref(), Some(n))?;
    rules::special(files, &mut special)?;
    special.write(Vec::new(), keys)?;
    Ok(n)
}
