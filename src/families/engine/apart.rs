//! Experts that a checkpoint stores one by one, of a class that has them in one tensor: stacked as
//! transformers has them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::mapping::refused;
use super::names::{Place, fill, find, of_language_model};
use super::source::{Rearrangement, SourceRows, SourceTensor, assembled};
use crate::families::class_name;
use crate::model::gguf::GgufMetadata;
use crate::remember::layout::assembled::{Change, RowOrder};
use crate::remember::{QuantScheme, ResolvedItem};
use crate::{Result, TargetDtype, families};

/// Where a tensor belongs: the stack, the layer, the expert and the projection.
type PlaceInStack = (usize, Option<usize>, Option<usize>, usize);

/// A stack: its number in the table of the class, and its layer.
type StackKey = (usize, Option<usize>);

/// Stacks the experts among `items` that the class of `config` has in one tensor. Returns whether
/// there were any.
///
/// # Errors
/// `Parse` if an expert is missing, or its shape is not that of the others.
pub(crate) fn stack_experts(items: &mut Vec<ResolvedItem<'_>>, config: &Value) -> Result<bool> {
    let class = class_name(config).and_then(|name| families::class_of(name, config));
    let Some(stacks) = class.map(|class| class.traits.experts_apart) else {
        return Ok(false);
    };
    stack(items, stacks, None)
}

/// Stacks of experts in GGUF, and what the tensor of each is called in early files of llama.cpp, which
/// it no longer loads.
const EARLY_STACKS: &[(&str, &[&str])] = &[
    ("blk.{i}.ffn_gate_exps.weight", &["blk.{i}.ffn_gate.{e}.weight"]),
    ("blk.{i}.ffn_down_exps.weight", &["blk.{i}.ffn_down.{e}.weight"]),
    ("blk.{i}.ffn_up_exps.weight", &["blk.{i}.ffn_up.{e}.weight"]),
];

/// Stacks the experts among `items` of an early GGUF file with the keys `metadata`. Returns whether
/// there were any.
///
/// # Errors
/// `Parse` if an expert is missing, or its shape is not that of the others.
pub(crate) fn stack_early_experts(
    items: &mut Vec<ResolvedItem<'_>>,
    metadata: &GgufMetadata,
) -> Result<bool> {
    let architecture = metadata.get("general.architecture");
    let architecture = architecture.as_ref().and_then(|value| value.as_string());
    let key = format!("{}.expert_count", architecture.unwrap_or_default());
    let experts = metadata.get(&key).and_then(|count| count.as_unsigned());
    stack(items, EARLY_STACKS, experts)
}

/// Whether the tensor `name` of a GGUF file is that of one expert.
pub(crate) fn is_early_expert(name: &str) -> bool {
    place_of(name, EARLY_STACKS).is_some()
}

/// Puts those of `items` that belong to one of `stacks` in their places. A stack has `experts`, if the
/// number is known. Returns whether there were any.
fn stack(
    items: &mut Vec<ResolvedItem<'_>>,
    stacks: &[(&str, &[&str])],
    experts: Option<u64>,
) -> Result<bool> {
    let mut found: BTreeMap<StackKey, BTreeMap<(Option<usize>, usize), SourceTensor<'_>>> =
        BTreeMap::new();
    let all = std::mem::take(items);
    for item in all {
        match place_of(item.name(), stacks) {
            None => items.push(item),
            Some((stack, layer, expert, part)) => {
                let source = SourceTensor::new(item)?;
                let of_stack = found.entry((stack, layer)).or_default();
                if let Some(other) = of_stack.insert((expert, part), source) {
                    return Err(refused(&other.name, "there are two of it"));
                }
            }
        }
    }
    let is_any = !found.is_empty();
    for ((stack, layer), sources) in found {
        items.push(stacked(stacks[stack], layer, sources, experts)?);
    }
    Ok(is_any)
}

/// Where the tensor `name` belongs, if it is one of an expert.
fn place_of(name: &str, stacks: &[(&str, &[&str])]) -> Option<PlaceInStack> {
    let name = of_language_model(name);
    stacks.iter().enumerate().find_map(|(stack, (_, parts))| {
        let mut places = parts.iter().map(|part| find(part, &name));
        let part = places.position(|place| place.is_some())?;
        let place = find(parts[part], &name)?;
        Some((stack, place.layer, place.expert, part))
    })
}

/// The stack of `sources`, which are those of experts and their projections in this order.
fn stacked<'m>(
    (name, parts): (&str, &[&str]),
    layer: Option<usize>,
    sources: BTreeMap<(Option<usize>, usize), SourceTensor<'m>>,
    experts: Option<u64>,
) -> Result<ResolvedItem<'m>> {
    let found = sources.len().div_ceil(parts.len());
    let experts =
        experts.map_or(found, |experts| found.max(usize::try_from(experts).unwrap_or(found)));
    let expected = (0..experts).flat_map(|e| (0..parts.len()).map(move |part| (Some(e), part)));
    let missing = expected.clone().find(|key| !sources.contains_key(key));
    if let Some((expert, part)) = missing {
        let name = fill(parts[part], Place { layer, expert });
        return Err(refused(&name, "there is none, and there are other experts"));
    }
    let sources: Vec<_> = sources.into_values().collect();
    let [rows, cols] = sources[0].shape[..] else {
        return Err(refused(&sources[0].name, "it is no matrix"));
    };
    if let Some(other) = sources.iter().find(|source| source.shape != [rows, cols]) {
        let what = format!("its shape is not that of the other experts, [{rows}, {cols}]");
        return Err(refused(&other.name, what));
    }
    let piece = |source| SourceRows { source, order: RowOrder::From(0), rows, turn: 1 };
    let moved = Rearrangement {
        pieces: (0..sources.len()).map(piece).collect(),
        cols,
        takes_turns: false,
        change: Change::None,
        columns: None,
    };
    // A model for images has something in front of the layers.
    let name = fill(name, Place { layer, expert: None });
    let own = &sources[0].name;
    let inner = name.split_once("layers.").map_or("", |(_, inner)| inner);
    let name = match own.split_once("layers.") {
        Some((outer, _)) => format!("{outer}layers.{inner}"),
        None => name,
    };
    // Experts of several types are widened.
    let mut types = sources.iter().map(|source| source.stored);
    let stored = sources[0]
        .stored
        .filter(|first| types.all(|other| other == Some(*first)));
    let mut schemes = sources.iter().map(|source| source.scheme);
    let scheme = schemes.find(|scheme| *scheme != QuantScheme::Unquantized);
    let shape = vec![experts, parts.len() * rows, cols];
    let dtype = stored.unwrap_or(TargetDtype::F32);
    let mut group = assembled(sources, (name, shape), dtype, &moved);
    // What is quantized is rounded where the tensor is written.
    if let Some(scheme) = scheme {
        (group.scheme, group.keeps) = (scheme, None);
    }
    Ok(ResolvedItem::from(group))
}
