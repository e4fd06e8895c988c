//! LoRA beside a model of transformers and of llama.cpp: `W.lora_a` `[rank, in]` and `W.lora_b`
//! `[out, rank]` for the weight that GGUF calls `W`. Rows of the weight are rows of B, and its
//! columns those of A, so that what moves the weight moves one of the two. Of the embedding A is
//! `[tokens, rank]` in GGUF, and `[rank, tokens]` in PEFT.
//!
//! Source: `convert_lora_to_gguf.py`, and
//! [llama-adapter.cpp](https://github.com/ggml-org/llama.cpp/blob/0650ea8c05bc6e31273182470197e9b2e50253e0/src/llama-adapter.cpp)
//! of llama.cpp.

mod peft;
mod to_gguf;
mod to_hf;

use serde_json::Value;

pub(crate) use self::peft::{PEFT_PREFIX, PeftSettings};
pub(crate) use self::to_gguf::{LoraPair, LoraRequest, lora_to_gguf};
pub(crate) use self::to_hf::lora_to_hf;

use super::dims::Dim;
use super::mapping::{Mapping, refused};
use super::names::{Place, fill};
use super::request::GgufRequest;
use super::table::{TensorRule, Transform};
use super::to_gguf::StatedClass;
use crate::config::Texts;
use crate::families::class_name;
use crate::remember::layout::assembled::Change;
use crate::{AnamnesisError, Result};

/// What the config of the base model says: its class's name, the class, and the config itself.
///
/// # Errors
/// `Unsupported` if there is none, or the class is unknown; `Parse` that names a field.
fn base_of<'a>(
    config: Option<&'a Value>,
    base: &GgufRequest<'_>,
    texts: &Texts,
) -> Result<(&'a str, StatedClass, &'a Value)> {
    let named = config.and_then(|config| Some((class_name(config)?, config)));
    let Some((name, config)) = named else {
        let directory = base.directory.display();
        let what = format!("{directory}: no config.json there names a class in `architectures`");
        return Err(AnamnesisError::unsupported("an adapter", what));
    };
    Ok((name, StatedClass::read((name, config), base, texts)?, config))
}

/// Fails if llama.cpp has no weight of `rule` for the factor `name` to change.
///
/// # Errors
/// `Parse` that names the factor.
fn require_there(
    Mapping { class, dims }: &Mapping<'_>,
    rule: &TensorRule,
    place: Place,
    name: &str,
) -> Result<()> {
    let layer = place.layer;
    let is_there = layer.is_none_or(|layer| layer < dims.layers + dims.prediction)
        && dims.has(rule.need, layer.unwrap_or(0)) != Some(false);
    if is_there && !(rule.gguf == "output" && class.traits.ties_output) {
        return Ok(());
    }
    let what = format!("llama.cpp's {} has no `{}`", class.gguf, fill(rule.gguf, place));
    Err(refused(name, what))
}

/// The shape of the weight of `rule` as the factors have it: those of weights `[in, out]` are stored
/// as those of `[out, in]`.
fn shape_of(rule: &TensorRule) -> Vec<Dim> {
    match rule.transform {
        Transform::Transposed => rule.shape.iter().rev().copied().collect(),
        _ => rule.shape.to_vec(),
    }
}

/// Whether a factor of a weight of `rule` moves: A if columns do, B if rows do; `None` if the
/// weight is made in a way that no factor can follow.
fn moves(rule: &TensorRule, is_a: bool) -> Option<bool> {
    if rule.shape.len() != 2 {
        return None;
    }
    match rule.transform {
        Transform::None | Transform::Transposed => Some(false),
        Transform::Experts | Transform::Stack(_) => Some(true),
        Transform::Heads | Transform::Neighbours | Transform::Halves => Some(!is_a),
        Transform::Parts(parts) if parts.is_of_rows() => Some(!is_a),
        Transform::Tiled(tiling) if rule.gguf_shape.is_none() && tiling.change == Change::None => {
            Some(tiling.is_of_columns == is_a)
        }
        _ => None,
    }
}
