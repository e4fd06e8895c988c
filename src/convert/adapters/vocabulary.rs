//! Vocabularies that an adapter's base had grown or shrunk before it was trained: PEFT saves the
//! embedding and the head with all of their rows.

use std::collections::BTreeMap;

use serde_json::Value;

use super::change::WeightChange;
use super::heads::{is_embedding, is_head};
use crate::error::InTensor;
use crate::remember::ResolvedItem;
use crate::{AnamnesisError, Result};

/// Key of the number of tokens in a model's config.
const KEY: &str = "vocab_size";

/// Whether a tensor of the shape `new` may replace the weight `weight` of the shape `old`: both have
/// a row for each token, and all else is the same.
pub(super) fn is_resized(weight: &str, old: &[usize], new: &[usize]) -> bool {
    is_of_tokens(weight)
        && matches!((old, new), ([_, old @ ..], [rows, new @ ..]) if old == new && *rows > 0)
}

/// Whether the tensor `name` has a row for each token.
fn is_of_tokens(name: &str) -> bool {
    let weight = name
        .strip_suffix(".bias")
        .map(|head| format!("{head}.weight"));
    is_embedding(name) || is_head(weight.as_deref().unwrap_or(name))
}

/// What the config says of the vocabulary when the tensors in `changes` have replaced others;
/// `None`: nothing else than before. With it goes a note.
///
/// # Errors
/// `Unsupported` if the embedding and the head would have different numbers of rows.
pub(super) fn resized(
    items: &[ResolvedItem<'_>],
    changes: &BTreeMap<usize, WeightChange>,
) -> Result<Option<(ConfigField, String)>> {
    let new = changes.iter().find_map(|(&at, change)| {
        let rows = *change.shape.as_ref()?.first()?;
        Some((at, rows))
    });
    let Some((first, rows)) = new else {
        return Ok(None);
    };
    let old = items[first].shape().first().copied().unwrap_or(0);
    let of_tokens = items.iter().enumerate();
    let of_tokens = of_tokens.filter(|(_, item)| is_of_tokens(item.name()));
    for (at, item) in of_tokens {
        let resized = changes.get(&at).and_then(|change| change.shape.as_deref());
        let has = resized.unwrap_or(item.shape()).first();
        if has != Some(&rows) {
            let what = format!(
                "{}: it has {} rows, and `{}` gets {rows} of the adapter, which was trained with another vocabulary; give a BASE with that vocabulary, as `resize_token_embeddings` of transformers makes it",
                InTensor(&item.name()),
                has.unwrap_or(&0),
                items[first].name()
            );
            return Err(AnamnesisError::unsupported("an adapter", what));
        }
    }
    let note = format!(
        "the vocabulary has {rows} tokens, as the adapter has it, and BASE {old}: config.json gets `{KEY}` {rows}; a tokenizer with these tokens has to be copied"
    );
    let field = ConfigField { key: KEY, old: Some(Value::from(old)), new: Value::from(rows) };
    Ok(Some((field, note)))
}

/// A member of `config.json` that changes with the weights.
#[derive(Debug, Clone)]
pub(in crate::convert) struct ConfigField {
    pub key: &'static str,
    /// The value that is replaced; `None`: any.
    pub old: Option<Value>,
    pub new: Value,
}
