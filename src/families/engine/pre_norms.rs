//! Norms whose outputs only projections of their layer read: what multiplies the columns of these
//! may divide the norm.

use std::collections::{BTreeMap, HashMap};

use super::dims::Dim;
use super::names::{find, is_of_tower, of_language_model, split_suffix};
use super::table::{ModelClass, TensorRule};
use super::to_gguf::has_offset;

/// Names in GGUF of the norms of a layer, and what those of the matrices begin with that read them.
const NORMS: [(&str, &str); 2] =
    [("blk.{i}.attn_norm", "blk.{i}.attn_"), ("blk.{i}.ffn_norm", "blk.{i}.ffn_")];

/// A norm, and all matrices that read its output, by their numbers in a list of names.
#[derive(Debug, PartialEq)]
pub(crate) struct PreNorm {
    pub norm: usize,
    pub readers: Vec<usize>,
    /// What the model adds to the stored values of the norm.
    pub offset: f32,
}

/// The norms of layers among `tensors`, whose names are those of GGUF or of transformers, and in their
/// order. Models of MLX may have other offsets (`is_mlx`).
///
/// # Errors
/// The reason, if a matrix is none of the class: it may read what a norm gives.
pub(crate) fn pre_norms(
    class: &ModelClass,
    tensors: &[(&str, bool)],
    is_mlx: bool,
) -> Result<Vec<PreNorm>, String> {
    let adds_one =
        class.traits.norms_plus_one && !(is_mlx && class.mlx.is_some_and(|mlx| mlx.norms_plus_one));
    let prefix = class.base_prefix();
    let is_gguf = tensors.iter().any(|(name, _)| name.starts_with("blk."));
    let mut norms = HashMap::new();
    let mut readers: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (at, &(name, is_matrix)) in tensors.iter().enumerate() {
        if is_of_tower(name) {
            continue;
        }
        let Some((rule, layer)) = rule_of(class, name, (is_gguf, &prefix)) else {
            if is_matrix {
                return Err(format!("no tensor of `{}` is called `{name}`", class.classes[0]));
            }
            continue;
        };
        let Some(layer) = layer else {
            continue;
        };
        for (kind, (norm, reader)) in NORMS.into_iter().enumerate() {
            if rule.gguf == norm && name.ends_with(".weight") {
                let has_one = adds_one && !is_gguf && has_offset(&format!("{norm}.weight"));
                norms.insert((layer, kind), (at, f32::from(u8::from(has_one))));
            } else if is_matrix && reads_hidden(rule) && rule.gguf.starts_with(reader) {
                readers.entry((layer, kind)).or_default().push(at);
            }
        }
    }
    let of_norm = |(key, readers)| {
        let &(norm, offset) = norms.get(&key)?;
        Some(PreNorm { norm, readers, offset })
    };
    Ok(readers.into_iter().filter_map(of_norm).collect())
}

/// The rule of the tensor `name`, with its layer. Names that are not GGUF's may lack the `prefix` of
/// models with an output.
fn rule_of(
    class: &ModelClass,
    name: &str,
    (is_gguf, prefix): (bool, &str),
) -> Option<(&'static TensorRule, Option<usize>)> {
    let own = of_language_model(name);
    let names = match is_gguf {
        true => [name.to_owned(), String::new()],
        false => [format!("{prefix}{own}"), own],
    };
    let tables = class.tensors.iter().copied().chain([class.other_tensors]);
    let mut rules = tables.flatten();
    rules.find_map(|rule| {
        let pattern = if is_gguf { rule.gguf } else { rule.hf };
        let place = names.iter().find_map(|name| {
            let base = if rule.is_whole_name {
                name
            } else {
                split_suffix(name).0
            };
            find(pattern, base)
        })?;
        Some((rule, place.layer))
    })
}

/// Whether it is a matrix whose columns are those of the hidden state.
fn reads_hidden(rule: &TensorRule) -> bool {
    let shape = rule.gguf_shape.unwrap_or(rule.shape);
    shape.len() > 1 && shape.last() == Some(&Dim::Hidden)
}

/// Whether the rules of a class with pre-norms say of all matrices which norm they read.
#[cfg(test)]
pub(crate) fn is_complete(class: &ModelClass) -> bool {
    let rules = || class.tensors.iter().flat_map(|rules| rules.iter());
    let has = |norm: &str| rules().any(|rule| rule.gguf == norm);
    let is_known = |rule: &TensorRule| {
        !reads_hidden(rule)
            || !rule.gguf.starts_with("blk.")
            || NORMS
                .iter()
                .any(|(_, reader)| rule.gguf.starts_with(reader))
    };
    NORMS.iter().all(|(norm, _)| has(norm)) && rules().all(is_known)
}
