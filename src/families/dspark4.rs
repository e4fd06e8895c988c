//! DSpark of DeepSeek V4: a draft that is in the layers `mtp.*` of its target, each of them one of
//! DeepSeek V4 with a window, and has the Markov head of DSpark.
//!
//! Source: `DeepseekV4DSparkModel` in `conversion/deepseek.py` of llama.cpp; names and fields of
//! published models.

use serde_json::{Map, Value};

use super::deepseek4::{self, ATTENTION, CONNECTIONS, DEEPSEEK4, FEED_FORWARD, ROOT};
use super::dflash::{MARKOV, SETTINGS, TAPPED, TAPPED_COUNT, count_tapped};
use super::engine::draft::{DRAFT_TOKENS, add_draft_tokens, set_draft_tokens};
use crate::Result;
use crate::TargetDtype;
use crate::families::engine::dims::{Dims, MOST_LAYERS};
use crate::families::engine::fields::{Fields, LAYER_KINDS, LAYERS, wrong};
use crate::families::engine::rows::*;
use crate::families::engine::source::SourceTensor;
use crate::remember::{Group, QuantScheme, ResolvedItem};

/// Fields, and what other drafts call the same.
const RENAMED: &[(&str, &str)] = &[
    ("dspark_block_size", "block_size"),
    ("dspark_noise_token_id", "mask_token_id"),
    ("dspark_target_layer_ids", TAPPED),
];

/// Tensors that one layer has for all: those of the first, and those of the last.
const OF_FIRST: &[&str] = &["main_proj.", "main_norm."];
const OF_LAST: &[&str] = &["norm.", "hc_head_", "markov_head.", "confidence_head."];

const ENDS: &[TensorRule] = &[
    ROOT[1],
    ROOT[3],
    ROOT[4],
    ROOT[5],
    same("fc", "main_proj", &[Hidden, Product(&[Field(TAPPED_COUNT), Hidden])]),
    same("enc.output_norm", "main_norm", &[Hidden]),
];

pub(super) const DSPARK4: ModelClass = ModelClass {
    gguf: "dflash",
    classes: &["DeepseekV4DSparkModel"],
    tensors: &[ENDS, CONNECTIONS, ATTENTION, FEED_FORWARD, MARKOV],
    other_tensors: &[],
    settings: &[deepseek4::SETTINGS, &[SETTINGS[0], SETTINGS[1], SETTINGS[2]]],
    traits: Traits {
        is_draft: true,
        needs_output: false,
        left_out: &[],
        integers: &[],
        laws: &[],
        completes: &[complete],
        from_tensors: &[set_draft_tokens, count_tapped, deepseek4::add_many],
        restores: &[restore],
        own_tensors: Some(&OwnTensors { to_gguf: take, to_hf: make, keys: [&[], &[]] }),
        sign: Sign::Has("hyper_connection.count"),
        ..DEEPSEEK4.traits
    },
    ..DEEPSEEK4
};

/// Says of layers what those of the draft are, and of the draft what other drafts say.
fn complete(fields: &mut Fields) -> Result<()> {
    for (own, usual) in RENAMED {
        let value = fields
            .0
            .remove(*own)
            .ok_or_else(|| wrong(own, "it is missing"))?;
        fields.0.insert((*usual).to_owned(), value);
    }
    let tapped = fields.0.get(TAPPED).and_then(Value::as_array);
    let count = tapped.map_or(0, Vec::len);
    if count == 0 {
        return Err(wrong(RENAMED[2].0, "it is no list of layers"));
    }
    fields.0.insert(TAPPED_COUNT.to_owned(), count.into());
    for field in [LAYER_KINDS, deepseek4::CHOICE] {
        fields.0.remove(field);
    }
    let layers = fields.need(LAYERS)?.min(MOST_LAYERS) as usize;
    let plain: Value = std::iter::repeat_n(0, layers).collect();
    fields.0.insert(deepseek4::RATIOS.to_owned(), plain);
    fields.0.insert(deepseek4::HASH_LAYERS.to_owned(), 0.into());
    add_draft_tokens(fields);
    deepseek4::complete(fields)
}

/// The layer of the draft that the tensor `name` is of, and the rest of the name.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("mtp.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

fn is_of(rest: &str, starts: &[&str]) -> bool {
    starts.iter().any(|start| rest.starts_with(start))
}

/// Leaves the layers of the draft, under the names of those of a model.
fn take(fields: &mut Fields, items: &mut Vec<ResolvedItem<'_>>) -> Result<()> {
    let mut layers = 0;
    for item in std::mem::take(items) {
        let Some((layer, rest)) = layer_of(item.name()) else {
            continue;
        };
        layers = layers.max(layer.saturating_add(1));
        // Of images, which a draft does not see.
        if rest == "ffn.gate.bias_vl" {
            continue;
        }
        let name = match is_of(rest, OF_FIRST) || is_of(rest, OF_LAST) {
            true => rest.to_owned(),
            false => format!("layers.{layer}.{rest}"),
        };
        let source = SourceTensor::new(item)?;
        let (scheme, stored) = (source.scheme, source.stored);
        let mut group = source.renamed(name, stored.unwrap_or(TargetDtype::F32));
        if scheme != QuantScheme::Unquantized {
            group.keeps = None;
        }
        items.push(ResolvedItem::from(group));
    }
    if layers > 0 {
        for field in [LAYER_KINDS, deepseek4::CHOICE] {
            if let Some(Value::Array(all)) = fields.0.get_mut(field) {
                let first = all.first().cloned().unwrap_or_default();
                all.resize(layers.min(MOST_LAYERS as usize), first);
            }
        }
        fields.0.insert(LAYERS[0].to_owned(), layers.into());
    }
    Ok(())
}

/// Gives tensors the names that they have in the target.
fn make(config: &mut Map<String, Value>, items: &mut Vec<Group<'_>>) -> Result<()> {
    let layers = config.get(LAYERS[0]).and_then(Value::as_u64).unwrap_or(1);
    for item in items {
        let name = item.name.strip_prefix("model.").unwrap_or(&item.name);
        let name = match name.strip_prefix("layers.") {
            Some(rest) => format!("mtp.{rest}"),
            None if is_of(name, OF_FIRST) => format!("mtp.0.{name}"),
            None => format!("mtp.{}.{name}", layers.saturating_sub(1)),
        };
        item.name = name.into();
    }
    Ok(())
}

/// States the draft as published configs do.
fn restore(config: &mut Map<String, Value>, dims: &Dims) -> Result<()> {
    deepseek4::restore(config, dims)?;
    for field in [TAPPED_COUNT, DRAFT_TOKENS] {
        config.remove(field);
    }
    for (own, usual) in RENAMED {
        let value = config.remove(*usual);
        config.extend(value.map(|value| ((*own).to_owned(), value)));
    }
    Ok(())
}
