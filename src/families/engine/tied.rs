//! Outputs that a config ties to the embedding, and that are stored all the same.
//!
//! transformers 4 ignores such a tensor, and transformers 5 takes it if it differs from the
//! embedding (`tie_weights` in `modeling_utils.py`).

use serde_json::Value;

use super::fields::Fields;
use super::graphs::{OUTPUT, has_output};
use super::names::is_of_tower;
use super::table::ModelClass;
use crate::config::text_config;
use crate::error::InTensor;
use crate::families::class_name;
use crate::remember::{ResolvedItem, have_same_values};
use crate::{Result, families};

/// Ends of the names of embeddings.
const EMBEDDINGS: &[&str] = &[
    "embed_tokens.weight",
    "wte.weight",
    "embed_in.weight",
    "word_embeddings.weight",
    "tok_embeddings.weight",
    "shared.weight",
    "backbone.embeddings.weight",
    "backbone.embedding.weight",
];

/// Ends of the names of outputs.
const HEADS: &[&str] = &["lm_head.weight", "embed_out.weight", "output.weight"];

/// Field of whether the output is the embedding.
pub(crate) const TIED: &str = "tie_word_embeddings";

/// What is wrong with the output among the tensors `items` of a model with the config `config`:
/// it is the embedding by the config, and another one is stored. `None` if nothing is.
///
/// # Errors
/// Those of reading.
pub(crate) fn other_output(items: &[ResolvedItem<'_>], config: &Value) -> Result<Option<String>> {
    if !is_tied(config) {
        return Ok(None);
    }
    let find = |ends: &[&str]| {
        let is_it = |item: &&ResolvedItem<'_>| {
            let name = item.name();
            let is_end = ends.iter().any(|end| ends_with(name, end));
            is_end && !is_of_tower(name) && !name.contains("layers.")
        };
        items.iter().find(is_it)
    };
    let (Some(embedding), Some(head)) = (find(EMBEDDINGS), find(HEADS)) else {
        return Ok(None);
    };
    let what = || {
        format!(
            "{}: it differs from the embedding `{}`, which it is by config.json (`{TIED}`): transformers 4 takes the embedding, and transformers 5 the tensor",
            InTensor(&head.name()),
            embedding.name()
        )
    };
    let differs = !have_same_values(embedding, head)?;
    Ok(differs.then(what))
}

/// Whether the output of a model is the embedding by its config, or by its class where the config
/// does not say it.
pub(crate) fn is_tied(config: &Value) -> bool {
    let places = std::iter::once(config).chain(text_config(config));
    let stated: Vec<bool> = places
        .filter_map(|place| place.get(TIED)?.as_bool())
        .collect();
    let class = class_name(config).and_then(|name| families::class_of(name, config));
    let completed = class.and_then(|class| {
        let mut fields = Fields::new(config).ok()?;
        fields.complete(class).ok()?;
        fields.boolean(TIED).ok()?
    });
    match (&stated[..], class) {
        // What other fields say of T5 goes before what it says itself.
        ([_], Some(_)) => completed == Some(true),
        ([], Some(class)) => completed.unwrap_or(class.traits.ties_output),
        // Of a nested config and the one around it, transformers goes by one or the other, by its
        // version.
        _ => stated.contains(&true),
    }
}

/// Whether `name` is `end`, or that below a module.
fn ends_with(name: &str, end: &str) -> bool {
    let rest = name.strip_suffix(end);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether the output of a model is another matrix than the embedding, by its config, which may nest
/// that of the language model, with the `fields`. Of the two, transformers goes by one or the other,
/// by its version.
pub(crate) fn is_untied(config: &Value, fields: &Fields) -> Result<bool> {
    Ok(fields.boolean(TIED)? == Some(false) || config.get(TIED) == Some(&false.into()))
}

/// The name of an output of GGUF, and of the embedding.
const ENDS: [&str; 2] = [OUTPUT, "token_embd.weight"];

/// Compares the output among the tensors `items` of a GGUF model with the embedding, if the class
/// `class` ties the two in all published models. One that is the embedding once more is removed. Of
/// another one, returns a note.
///
/// # Errors
/// Those of reading.
pub(crate) fn take_output(
    class: &ModelClass,
    items: &mut Vec<ResolvedItem<'_>>,
) -> Result<Option<String>> {
    let [output, embedding] = ENDS.map(|name| items.iter().position(|item| item.name() == name));
    let (true, Some(output), Some(embedding)) = (class.traits.ties_output, output, embedding)
    else {
        return Ok(None);
    };
    if have_same_values(&items[output], &items[embedding])? {
        items.remove(output);
        return Ok(None);
    }
    let name = class.gguf;
    let others = match has_output(name) {
        true => "mlx-lm takes".to_owned(),
        false => format!("llama.cpp's {name} and mlx-lm take"),
    };
    Ok(Some(format!(
        "{}: it differs from the embedding, which it is in all published models of the class; config.json gets `{TIED}` false, by which transformers loads it, and {others} the embedding",
        InTensor(&OUTPUT)
    )))
}
