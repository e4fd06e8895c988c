//! Drafts for speculative decoding: what they have of the model that they are drafts of, the target.

use serde_json::{Map, Value};

use super::dims::Dims;
use super::fields::{Fields, wrong};
use super::integers;
use super::request::GgufRequest;
use super::table::{ModelClass, TensorShapes};
use crate::config::Texts;
use crate::error::InTensor;
use crate::families::{class_name, class_of};
use crate::model::Tensor;
use crate::model::gguf::{GgufMetadata, GgufMetadataArray};
use crate::model::gguf_keys::TOKENS;
use crate::remember::layout::assembled::ComputedIntegers;
use crate::remember::{Group, QuantScheme, ResolvedItem};
use crate::tokenizer::TokenizerRules;
use crate::{AnamnesisError, Dtype, Result, TensorRole};

/// The field that has the fields of the target, if that is known. No config has one of this name.
pub(crate) const TARGET: &str = "fields of the target";

/// The field of whether a draft says how sure it is of a token.
pub(crate) const HAS_CONFIDENCE: &str = "has_confidence_head";

/// The field of how many tokens a draft chooses from.
pub(crate) const DRAFT_TOKENS: &str = "draft_vocab_size";

/// The class of the target, among these fields.
const TARGET_CLASS: &str = "class";

/// Which token of the target each token of the draft is: its number minus that of the draft's token
/// in transformers, its number in GGUF.
const TO_TARGET: &str = "d2t";

/// Which tokens of the target the draft has. It follows from the other one, and GGUF has none.
const IN_DRAFT: &str = "t2d";

/// Which tokens are near each other, by which assistants of Gemma 4 compute the output of some.
const ORDER: &str = "masked_embedding.token_ordering";

/// What to do about something that is the target's.
pub(crate) const WAY_OUT: &str =
    "--base TARGET names the directory of the model that it is a draft of";

/// The files of the target, if `class` is a draft and the request names one.
pub(crate) fn texts_of_target(class: &ModelClass, request: &GgufRequest<'_>) -> Option<Texts> {
    let target = request.target.filter(|_| class.traits.is_draft)?;
    Some(Texts::new(target, request.limits))
}

/// Adds the fields of the target of a draft to `fields`, if the request names it.
///
/// # Errors
/// `Parse` or `Io` if it has no config.
pub(crate) fn add_target(
    fields: &mut Fields,
    class: &ModelClass,
    request: &GgufRequest<'_>,
) -> Result<()> {
    let Some(texts) = texts_of_target(class, request) else {
        return Ok(());
    };
    let Some(config) = texts.json("config.json")? else {
        let directory = request.target.unwrap_or(request.directory).display();
        let what = format!("{directory} has no config.json; {WAY_OUT}");
        return Err(AnamnesisError::parse(what));
    };
    let mask = request.directory.join("mask_embedding.pt");
    if mask.is_file() {
        let what = "a row of the embedding that a file of its own has is not read here";
        return Err(AnamnesisError::unsupported(mask.display().to_string(), what));
    }
    let mut target = Fields::new(&config)?.0;
    let name = class_name(&config).map(Value::from);
    target.extend(name.map(|name| (TARGET_CLASS.to_owned(), name)));
    fields.0.insert(TARGET.to_owned(), Value::Object(target));
    Ok(())
}

/// The field of the target that counts something.
///
/// # Errors
/// `Parse` that names `field`, which is the draft's, if the target is not known.
pub(crate) fn count_of_target(fields: &Fields, name: &str, field: &str) -> Result<u32> {
    match fields.0.get(TARGET).and_then(Value::as_object) {
        Some(target) => Fields(target.clone()).need(&[name]),
        None => Err(wrong(field, format!("it is missing; {WAY_OUT}"))),
    }
}

/// Sets how many tokens a draft chooses from, which is all of them where the config is silent.
pub(crate) fn add_draft_tokens(fields: &mut Fields) {
    if let Some(tokens) = fields.0.get("vocab_size").cloned() {
        fields.0.entry(DRAFT_TOKENS).or_insert(tokens);
    }
}

/// Sets what the tensors of transformers say of a draft.
pub(crate) fn add_of_tensors(fields: &mut Fields, class: &ModelClass, items: &[ResolvedItem<'_>]) {
    if class.traits.is_draft {
        let mut items = items.iter();
        let has_head = items.any(|item| {
            let name = item.name();
            name.contains("confidence_head.proj") || name.contains("confidence_proj.")
        });
        fields.0.insert(HAS_CONFIDENCE.to_owned(), has_head.into());
    }
}

/// The class of the target.
pub(crate) fn target_class(fields: &Fields) -> Option<&str> {
    fields.0.get(TARGET)?.get(TARGET_CLASS)?.as_str()
}

/// The rules of the tokenizer of a draft and the architecture that has it: those of the target, if
/// the class has none.
pub(crate) fn tokenizer_rules(
    class: &ModelClass,
    fields: &Fields,
) -> (&'static TokenizerRules, &'static str) {
    let target = fields.0.get(TARGET).filter(|_| class.gguf == "dflash");
    let of_target = target.and_then(|target| class_of(target_class(fields)?, target));
    of_target.map_or((class.tokenizer, class.gguf), |target| (target.tokenizer, target.gguf))
}

/// Sets the number of tokens of a draft whose embedding is that of its target.
pub(crate) fn add_vocab_size(
    config: &mut Map<String, Value>,
    class: &ModelClass,
    metadata: &GgufMetadata,
) {
    if class.traits.is_draft && !config.contains_key("vocab_size") {
        config.insert("vocab_size".to_owned(), token_count(metadata).into());
    }
}

/// Number of the tokens of a GGUF file.
pub(crate) fn token_count(metadata: &GgufMetadata) -> usize {
    match metadata
        .get(TOKENS)
        .as_ref()
        .and_then(|tokens| tokens.as_array())
    {
        Some(GgufMetadataArray::String(all)) => all.len(),
        _ => 0,
    }
}

/// Sets the number of tokens that a draft chooses from, and whether its output is its embedding.
pub(crate) fn set_draft_tokens(
    config: &mut Map<String, Value>,
    tensors: &TensorShapes<'_>,
) -> Result<()> {
    let rows = |name: &str| tensors.get(name).and_then(|shape| shape.first()).copied();
    let tokens = rows(TO_TARGET)
        .or_else(|| rows("output.weight"))
        .map(Value::from);
    let tokens = tokens.or_else(|| config.get("vocab_size").cloned());
    config.extend(tokens.map(|tokens| (DRAFT_TOKENS.to_owned(), tokens)));
    let is_tied = rows("token_embd.weight").is_some() && rows("output.weight").is_none();
    config.insert("tie_word_embeddings".to_owned(), is_tied.into());
    Ok(())
}

/// Takes the tables of tokens out of the tensors of transformers, and makes that of GGUF.
///
/// # Errors
/// `Parse` if a token is none of the target, or two are the same, or the table is missing.
pub(crate) fn ids_for_gguf<'m>(
    class: &ModelClass,
    dims: &Dims,
    items: &mut Vec<ResolvedItem<'m>>,
) -> Result<Option<Group<'m>>> {
    if !class.traits.is_draft {
        return Ok(None);
    }
    items.retain(|item| ![IN_DRAFT, ORDER].contains(&without_model(item.name())));
    let Ok(size) = dims.need(DRAFT_TOKENS) else {
        return Ok(None);
    };
    let Some((table, offsets)) = take_table(items, dims.vocab)? else {
        if size == dims.vocab {
            return Ok(None);
        }
        let what = format!("there is none, and the draft has {size} of {} tokens", dims.vocab);
        return Err(AnamnesisError::parse(what).in_tensor(TO_TARGET));
    };
    let ids = offsets
        .iter()
        .zip(0..)
        .map(|(offset, token): (_, i64)| offset.saturating_add(token));
    let ids: Vec<_> = ids.collect();
    if ids.len() != size {
        let what =
            format!("{}: {} tokens, and {DRAFT_TOKENS} is {size}", InTensor(&TO_TARGET), ids.len());
        return Err(AnamnesisError::parse(what));
    }
    tokens_of(&ids, dims.vocab)?;
    Ok(Some(computed(TO_TARGET, (Dtype::I64, ids), Some(table))))
}

/// Takes the table of tokens out of the tensors of GGUF, and makes those of transformers.
///
/// # Errors
/// As [`ids_for_gguf`].
pub(crate) fn ids_for_hf<'m>(
    class: &ModelClass,
    dims: &Dims,
    items: &mut Vec<ResolvedItem<'m>>,
    metadata: &GgufMetadata,
) -> Result<Vec<Group<'m>>> {
    if !class.traits.is_draft {
        return Ok(vec![]);
    }
    let tokens = token_count(metadata);
    if tokens != dims.vocab {
        return Err(wrong(
            "vocab_size",
            format!("it is {}, and there are {tokens} tokens", dims.vocab),
        ));
    }
    let Some((table, ids)) = take_table(items, dims.vocab)? else {
        return Ok(vec![]);
    };
    let has_token = tokens_of(&ids, dims.vocab)?
        .into_iter()
        .map(i64::from)
        .collect();
    let offsets = ids
        .iter()
        .zip(0..)
        .map(|(id, token): (_, i64)| id - token)
        .collect();
    Ok(vec![
        computed(TO_TARGET, (Dtype::I64, offsets), Some(table)),
        computed(IN_DRAFT, (Dtype::Bool, has_token), None),
    ])
}

fn without_model(name: &str) -> &str {
    name.strip_prefix("model.").unwrap_or(name)
}

/// Takes the table out of `items`, with its values.
fn take_table<'m>(
    items: &mut Vec<ResolvedItem<'m>>,
    tokens: usize,
) -> Result<Option<(Tensor<'m>, Vec<i64>)>> {
    let Some(at) = items
        .iter()
        .position(|item| without_model(item.name()) == TO_TARGET)
    else {
        return Ok(None);
    };
    let ResolvedItem::Plain(table) = items.remove(at) else {
        let what = format!("{}: it is quantized", InTensor(&TO_TARGET));
        return Err(AnamnesisError::parse(what));
    };
    let table = table.stored;
    // No token is there twice.
    let values = integers::read(&table, tokens.saturating_mul(8) as u64)?;
    let other = || {
        let dtype = table.dtype();
        let what = format!("{}: {dtype} is no type of token numbers", InTensor(&TO_TARGET));
        AnamnesisError::parse(what)
    };
    let values = values.ok_or_else(other)?;
    Ok(Some((table, values)))
}

/// Which of `tokens` tokens of the target are in `ids`.
fn tokens_of(ids: &[i64], tokens: usize) -> Result<Vec<bool>> {
    let mut has_token = vec![false; tokens];
    for (token, id) in ids.iter().enumerate() {
        let place = usize::try_from(*id)
            .ok()
            .and_then(|id| has_token.get_mut(id));
        let what = match place {
            Some(found) if !*found => {
                *found = true;
                continue;
            }
            Some(_) => "two tokens of the draft are that one".to_owned(),
            None => format!("the target has {tokens} tokens"),
        };
        let what = format!("{}: token {token} is {id} of the target: {what}", InTensor(&TO_TARGET));
        return Err(AnamnesisError::parse(what));
    }
    Ok(has_token)
}

/// A vector of integers that is made of `table`.
fn computed<'m>(
    name: &'static str,
    (dtype, values): (Dtype, Vec<i64>),
    table: Option<Tensor<'m>>,
) -> Group<'m> {
    let parts = table
        .map(|table| (TensorRole::Passthrough, table))
        .into_iter()
        .collect();
    let shape = vec![values.len()];
    let decoder = Box::new(ComputedIntegers { dtype, values });
    Group::new(name, shape, QuantScheme::Unquantized, parts, decoder)
}

#[cfg(test)]
mod tests {
    use super::tokens_of;

    #[test]
    fn tokens_are_different_ones_of_the_target() {
        assert_eq!(tokens_of(&[2, 0], 3).unwrap(), [true, false, true]);
        for (ids, what) in [
            (&[0, 0][..], "two tokens"),
            (&[3], "has 3 tokens"),
            (&[-1], "has 3 tokens"),
            (&[i64::MAX], "has 3 tokens"),
        ] {
            let error = tokens_of(ids, 3).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
