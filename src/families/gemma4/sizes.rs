//! Sizes that differ by layer: layers that see the whole text have other heads than
//! those with a window, and the last layers use keys and values of earlier ones.
//!
//! Source: `Gemma4TextConfig` and `Gemma4TextAttention` of transformers 5.23; `Gemma4Model` in
//! `conversion/gemma.py` and `src/models/gemma4.cpp` of llama.cpp.

use serde_json::{Map, Value, json};

use crate::error::InTensor;
use crate::families::engine::dims::{Dim, Dims, OwnSizes};
use crate::families::engine::fields::{
    EXPERTS, EXPERTS_USED, FULL_ATTENTION, Fields, LAYER_KINDS, missing_key, wrong,
};
use crate::families::engine::rope::{PARAMETERS, ROPE_FACTORS, proportional};
use crate::families::engine::table::TensorShapes;
use crate::{AnamnesisError, Result};

/// What `layer_types` calls a layer with a window.
pub(super) const WINDOWED: &str = "sliding_attention";
/// Field of the length of a head in layers that see the whole text.
pub(super) const FULL_HEAD: &str = "global_head_dim";
/// Field of the number of heads of keys and values in them.
pub(super) const FULL_KV_HEADS: &str = "num_global_key_value_heads";
/// Field of how many of the last layers use keys and values of earlier ones.
pub(crate) const SHARED: &str = "num_kv_shared_layers";
/// Field of whether keys are values in layers that see the whole text.
pub(super) const KEYS_ARE_VALUES: &str = "attention_k_eq_v";
/// Field of an assistant: the hidden size of its target, whose keys and values all layers use.
pub(super) const TARGET_SIZE: &str = "backbone_hidden_size";
/// Field of whether layers without keys have twice the width.
pub(super) const DOUBLE_WIDE: &str = "use_double_wide_mlp";
/// Field of the length of what each layer gets of a token beside the hidden state.
const INPUT: &str = "hidden_size_per_layer_input";
/// Field of the number of tokens that layers get something of.
pub(crate) const INPUT_TOKENS: &str = "vocab_size_per_layer_input";
/// Field of an object with the sizes of single layers, by their numbers.
const BY_LAYER: &str = "per_layer_config";

/// The sizes of the layers of a model that has `fields` and, in layers with a window, `dims`.
///
/// # Errors
/// `Parse` that names the field which is missing, contradicts another, or is what llama.cpp cannot
/// be told.
pub(super) fn layers(fields: &Fields, dims: &Dims) -> Result<Vec<OwnSizes>> {
    let (layers, heads) = (dims.layers, dims.heads);
    let is_full = full_layers(fields, layers)?;
    let head = match fields.need(&[FULL_HEAD])? {
        0 => return Err(wrong(FULL_HEAD, "it is 0")),
        head => head as usize,
    };
    let keys_are_values = fields.flag(KEYS_ARE_VALUES);
    let kv_heads = fields.count(&[FULL_KV_HEADS])?.map(|n| n as usize);
    if let Some(full) = kv_heads
        && (full == 0 || !heads.is_multiple_of(full))
    {
        let what = format!("{full} does not divide num_attention_heads, {heads}");
        return Err(wrong(FULL_KV_HEADS, what));
    }
    if kv_heads.is_some_and(|full| full != dims.kv_heads) && !keys_are_values {
        let what = format!("transformers reads it only if {KEYS_ARE_VALUES} is true");
        return Err(wrong(FULL_KV_HEADS, what));
    }
    let first_shared = first_shared(fields, &is_full)?;
    let tokens = [INPUT_TOKENS, "vocab_size"].map(|field| fields.0.get(field));
    if fields.count(&[INPUT])? > Some(0) && tokens[0] != tokens[1] {
        return Err(wrong(INPUT_TOKENS, "it is not vocab_size, as llama.cpp has it"));
    }
    let is_double_wide = fields.flag(DOUBLE_WIDE);
    let inner = dims.size(Dim::TwoInner, None);
    let layers = is_full.into_iter().enumerate();
    Ok(layers
        .map(|(layer, is_full)| {
            let has_keys = layer < first_shared;
            let (head, kv_heads) = match is_full {
                true => (head, kv_heads.unwrap_or(dims.kv_heads)),
                false => (dims.head, dims.kv_heads),
            };
            OwnSizes {
                head,
                heads,
                kv_heads,
                inner: inner.filter(|_| is_double_wide && !has_keys),
                keys: has_keys.then_some(true),
                values: has_keys.then_some(!(keys_are_values && is_full)),
            }
        })
        .collect())
}

/// Whether each of `layers` layers sees the whole text.
fn full_layers(fields: &Fields, layers: usize) -> Result<Vec<bool>> {
    let kind = |kind: &Value| match kind.as_str() {
        Some(FULL_ATTENTION) => Some(true),
        Some(WINDOWED) => Some(false),
        _ => None,
    };
    let kinds = fields.0.get(LAYER_KINDS).and_then(Value::as_array);
    let is_full: Option<Vec<bool>> = kinds.and_then(|kinds| kinds.iter().map(kind).collect());
    let is_full = is_full.filter(|kinds| kinds.len() == layers);
    let is_full = is_full.ok_or_else(|| {
        let what = format!("it is no list of {layers} layers of {FULL_ATTENTION} or {WINDOWED}");
        wrong(LAYER_KINDS, what)
    })?;
    if is_full.last() != Some(&true) {
        let what = format!("the last layer is not of {FULL_ATTENTION}, as transformers has it");
        return Err(wrong(LAYER_KINDS, what));
    }
    Ok(is_full)
}

/// The first layer that uses keys and values of an earlier one.
fn first_shared(fields: &Fields, is_full: &[bool]) -> Result<usize> {
    let (layers, shared) = (is_full.len(), fields.count(&[SHARED])?.unwrap_or(0) as usize);
    if shared == layers && fields.0.contains_key(TARGET_SIZE) {
        return Ok(0);
    }
    let first = layers.checked_sub(shared).filter(|first| *first >= 2);
    let Some(first) = first else {
        let what = format!("llama.cpp needs two layers before the last {shared} of {layers}");
        return Err(wrong(SHARED, what));
    };
    // llama.cpp takes keys and values of the last two layers that have them: a full one behind one
    // with a window.
    if shared > 0 && is_full[first - 2..first] != [false, true] {
        let what = format!(
            "llama.cpp needs one layer of {WINDOWED} and one of {FULL_ATTENTION} in front of the last {shared}"
        );
        return Err(wrong(SHARED, what));
    }
    Ok(first)
}

/// Adds what transformers takes for granted, and states the sizes of single layers in the fields of
/// all such layers.
///
/// # Errors
/// `Parse` if layers of one kind have different sizes, or a layer sees what is behind it.
pub(super) fn complete(fields: &mut Fields) -> Result<()> {
    match fields.0.remove(BY_LAYER) {
        Some(sizes) => by_kind(fields, &sizes)?,
        None => {
            let head = fields.0.entry(FULL_HEAD);
            head.or_insert_with(|| 512.into());
        }
    }
    if !fields.flag("enable_moe_block") {
        for name in EXPERTS
            .iter()
            .chain(EXPERTS_USED)
            .chain(&["moe_intermediate_size"])
        {
            fields.0.remove(*name);
        }
    }
    // Images may be seen as a whole; text is not.
    let direction = "use_bidirectional_attention";
    if let Some(other) = fields.0.get(direction).filter(|value| *value != "vision") {
        let what = format!("it is {other}, and llama.cpp's gemma4 reads text from left to right");
        return Err(wrong(direction, what));
    }
    let inputs = fields.0.entry(INPUT);
    inputs.or_insert_with(|| 0.into());
    let rope = fields.0.entry(PARAMETERS);
    rope.or_insert_with(|| parameters(&1e6.into(), &1e4.into(), 0.25));
    Ok(())
}

/// Sets the fields of layers that see the whole text to the sizes that `sizes` states of each of
/// them.
fn by_kind(fields: &mut Fields, sizes: &Value) -> Result<()> {
    let refuse = |what: String| Err(wrong(BY_LAYER, what));
    let (Some(sizes), Some(kinds)) =
        (sizes.as_object(), fields.0.get(LAYER_KINDS).and_then(Value::as_array))
    else {
        return refuse("it is no object with the sizes of layers".to_owned());
    };
    let is_full = |layer: &str| {
        let kind = layer.parse().ok().and_then(|layer: usize| kinds.get(layer));
        kind.is_some_and(|kind| kind == FULL_ATTENTION)
    };
    // An empty object says as much as the sizes of the model in every layer.
    if sizes.is_empty() {
        let head = fields.0.get("head_dim").cloned();
        fields
            .0
            .extend(head.map(|head| (FULL_HEAD.to_owned(), head)));
        fields.0.remove(FULL_KV_HEADS);
        return Ok(());
    }
    let Some(first) = sizes.values().next().and_then(Value::as_object) else {
        return refuse("it has no layers".to_owned());
    };
    if sizes.len() != kinds.iter().filter(|kind| *kind == FULL_ATTENTION).count() {
        return refuse(format!("it does not have all layers of {FULL_ATTENTION}"));
    }
    let different = sizes
        .iter()
        .find(|(layer, size)| !is_full(layer) || size.as_object() != Some(first));
    if let Some((layer, size)) = different {
        return refuse(format!(
            "layer {layer} has {size}, and GGUF has sizes for all layers of {FULL_ATTENTION} alone"
        ));
    }
    let mut own = Map::new();
    for (name, value) in first.clone() {
        let field = match name.as_str() {
            "head_dim" => FULL_HEAD,
            "num_key_value_heads" => FULL_KV_HEADS,
            _ => return refuse(format!("GGUF has no {name} of single layers")),
        };
        own.insert(field.to_owned(), value);
    }
    if !own.contains_key(FULL_HEAD) {
        return refuse(format!("layers of {FULL_ATTENTION} have no head_dim"));
    }
    fields.0.extend(own);
    Ok(())
}

/// Adds to the fields `config` of a GGUF file what its tensors say.
pub(super) fn from_tensors(
    config: &mut Map<String, Value>,
    shapes: &TensorShapes<'_>,
) -> Result<()> {
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let shared = config.get(SHARED).and_then(Value::as_u64).unwrap_or(0);
    let kinds = kinds.map(Vec::as_slice).unwrap_or_default();
    let own = kinds
        .len()
        .saturating_sub(usize::try_from(shared).unwrap_or(usize::MAX));
    let full = (0..own).filter(|layer| kinds[*layer] == FULL_ATTENTION);
    let name = |part: &str, layer: usize| format!("blk.{layer}.{part}.weight");
    let has_no = |part: &str, layer| !shapes.contains_key(name(part, layer).as_str());
    let has_no_values = |layer| has_no("attn_v", layer) && has_no("attn_qkv", layer);
    let is_without = full.into_iter().any(has_no_values);
    config.insert(KEYS_ARE_VALUES.to_owned(), is_without.into());
    Ok(())
}

/// Sets the field `rope_parameters` of a config by the tensors of `factors`, and by the bases in
/// `config`, which are taken out.
///
/// # Errors
/// `Parse` if something is missing; `Unsupported` if the factors are not those of a part of a head.
pub(super) fn set_rope(
    config: &mut Map<String, Value>,
    factors: &[(String, Vec<f32>)],
) -> Result<()> {
    let mut base = |field: &str, key| {
        let missing = || missing_key(key);
        config.remove(field).ok_or_else(missing)
    };
    let full = base("rope_theta", "gemma4.rope.freq_base")?;
    let windowed = base("rope_local_base_freq", "gemma4.rope.freq_base_swa")?;
    let factors = factors.iter().find(|(name, _)| *name == ROPE_FACTORS);
    let Some((_, factors)) = factors else {
        let what = format!("{}: there is none", InTensor(&ROPE_FACTORS));
        return Err(AnamnesisError::parse(what));
    };
    let head = config.get(FULL_HEAD).and_then(Value::as_u64).unwrap_or(0) as usize;
    let part = part_of(factors, head)?;
    config.insert(PARAMETERS.to_owned(), parameters(&full, &windowed, part));
    Ok(())
}

/// The part of heads of length `head` that rotates, by its `factors`.
///
/// # Errors
/// `Unsupported` if they are not those of a part of a head.
pub(super) fn part_of(factors: &[f32], head: usize) -> Result<f64> {
    let rotating = factors.iter().take_while(|x| **x == 1.0).count();
    let part = (2 * rotating) as f64 / head.max(1) as f64;
    let is_same = proportional(head, part).is_some_and(|made| made == factors);
    if rotating == 0 || !is_same {
        let what =
            format!("{}: its values are not those of a part of a head", InTensor(&ROPE_FACTORS));
        return Err(AnamnesisError::unsupported("a whole model", what));
    }
    Ok(part)
}

/// Rotary positions with the base `full` of layers that see the whole text, of whose heads a `part`
/// rotates, and with `windowed` of the others.
fn parameters(full: &Value, windowed: &Value, part: f64) -> Value {
    json!({
        (FULL_ATTENTION): {"rope_type": "proportional", "rope_theta": full, "partial_rotary_factor": part},
        (WINDOWED): {"rope_type": "default", "rope_theta": windowed},
    })
}
