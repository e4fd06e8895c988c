//! Tensors that llama.cpp's converter fuses if it is asked to (`--fuse-qkv`,
//! `--fuse-gate-up-exps`), in files of architectures whose class has a tensor for each part: fused, and
//! taken apart.

use std::collections::HashMap;

use super::dims::{Dim, layer_of};
use super::graphs::loads_instead;
use super::mapping::Mapping;
use super::names::{find, split_suffix};
use super::request::FusedTensors;
use super::source::{Rearrangement, SourceRows, SourceTensor, assembled};
use super::table::ModelClass;
use crate::remember::layout::assembled::{Change, RowOrder};
use crate::remember::{Group, ResolvedItem};
use crate::{AnamnesisError, Result, TargetDtype};

/// A tensor of each layer that is fused.
struct FusedRule {
    option: &'static str,
    /// Its name in GGUF, behind that of the layer, and those of its parts in their order.
    name: &'static str,
    parts: &'static [&'static str],
    /// Whether the parts are stacks whose matrices are fused.
    is_stack: bool,
    /// Whether llama.cpp's converter fuses them for an architecture and a class.
    is_made_for: fn(&str, &str) -> bool,
}

const QKV: FusedRule = FusedRule {
    option: "--fuse-qkv",
    name: "attn_qkv",
    parts: &["attn_q", "attn_k", "attn_v"],
    is_stack: false,
    is_made_for: |architecture, name| !APART.contains(&architecture) && name != APART_CLASS,
};

const GATE_UP: FusedRule = FusedRule {
    option: "--fuse-gate-up-exps",
    name: "ffn_gate_up_exps",
    parts: &["ffn_gate_exps", "ffn_up_exps"],
    is_stack: true,
    is_made_for: |architecture, _| FUSED_EXPERTS.contains(&architecture),
};

/// Architectures that the converter has no fused queries, keys and values for, or whose class passes
/// over the option.
///
/// Source: `MODEL_TENSORS` in `gguf-py/gguf/constants.py`, and `modify_tensors` in `conversion` of llama.cpp.
const APART: &[&str] = &[
    "baichuan",
    "bailingmoe",
    "bailingmoe3",
    "bitnet",
    "cohere2moe",
    "deepseek2",
    "dflash",
    "eagle3",
    "falcon-h1",
    "glm5-next",
    "granite_swa",
    "hy_v3",
    "internlm2",
    "jamba",
    "laguna",
    "maple",
    "mellum",
    "minimax-m3",
    "nanbeige",
    "refact",
    "talkie",
];

/// A class that passes over the option, other than those of its architecture.
const APART_CLASS: &str = "Lfm2BidirectionalForMaskedLM";

/// Architectures whose layers that predict further tokens stay as they are.
const PREDICTING_APART: &[&str] = &["nemotron_h", "nemotron_h_moe"];

/// Architectures that it has fused gates and inner projections of experts for.
const FUSED_EXPERTS: &[&str] = &[
    "cohere2moe",
    "deepseek2-ocr",
    "gemma4",
    "granite_swa",
    "mistral4",
    "qwen35moe",
    "qwen3next",
    "qwen4exp",
];

/// Fuses the tensors `all` of a GGUF model of the class `name`, with so many layers besides those that
/// predict further tokens, that are asked to be.
///
/// # Errors
/// `Unsupported` if llama.cpp does not load them fused, or no layer has all parts.
pub(crate) fn fuse<'m>(
    mut all: Vec<Group<'m>>,
    (class, name, layers): (&ModelClass, &str, usize),
    asked: FusedTensors,
) -> Result<Vec<Group<'m>>> {
    let rules = [(asked.qkv, &QKV), (asked.gate_up_experts, &GATE_UP)];
    for (_, rule) in rules.into_iter().filter(|(is_asked, _)| *is_asked) {
        let refused = |what: String| {
            let what = format!("`{name}`: {what}; leave the option out");
            Err(AnamnesisError::unsupported(rule.option, what))
        };
        if !loads_instead(class.gguf, (rule.name, rule.parts)) {
            let what = format!("llama.cpp's {} loads no `{}`", class.gguf, rule.name);
            return refused(what);
        }
        if !(rule.is_made_for)(class.gguf, name) {
            let what = format!("llama.cpp's converter makes no `{}` of it", rule.name);
            return refused(what);
        }
        let before = all.len();
        let is_left = PREDICTING_APART.contains(&class.gguf);
        all = rule.fuse(all, |layer| !is_left || layer < layers as u64)?;
        if all.len() == before {
            let what = format!("no layer has {} that could be one", rule.parts.join(", "));
            return refused(what);
        }
    }
    Ok(all)
}

impl FusedRule {
    /// Fuses the weights of all layers that `takes_layer` takes and that have each part, and their
    /// biases. A layer in which some parts alone have a bias stays as it is. The fused tensor is where
    /// its last part was.
    ///
    /// # Errors
    /// Those of [`SourceTensor::new`].
    fn fuse<'m>(
        &self,
        all: Vec<Group<'m>>,
        takes_layer: impl Fn(u64) -> bool,
    ) -> Result<Vec<Group<'m>>> {
        // The parts that each layer has of the weight and of the bias.
        let mut found: HashMap<u64, [usize; 2]> = HashMap::new();
        for (layer, suffix, _) in all.iter().filter_map(|group| self.part_of(&group.name)) {
            found.entry(layer).or_default()[usize::from(suffix == ".bias")] += 1;
        }
        let count = self.parts.len();
        found.retain(|layer, [weights, biases]| {
            takes_layer(*layer) && *weights == count && [0, count].contains(biases)
        });
        let mut waiting: HashMap<(u64, &str), Vec<Option<Group<'m>>>> = HashMap::new();
        let mut out = Vec::with_capacity(all.len());
        for group in all {
            let place = self.part_of(&group.name);
            let Some((layer, suffix, part)) = place.filter(|(at, ..)| found.contains_key(at))
            else {
                out.push(group);
                continue;
            };
            let parts = waiting.entry((layer, suffix)).or_default();
            parts.resize_with(count, || None);
            parts[part] = Some(group);
            if parts.iter().all(Option::is_some) {
                let parts = std::mem::take(parts).into_iter().flatten().collect();
                out.push(self.fused(parts, format!("blk.{layer}.{}{suffix}", self.name))?);
            }
        }
        Ok(out)
    }

    /// Layer, ending and number of the part that is called `name`.
    fn part_of(&self, name: &str) -> Option<(u64, &'static str, usize)> {
        let (base, suffix) = split_suffix(name);
        let layer = layer_of(base)?;
        let (_, last) = base.rsplit_once('.')?;
        // Biases of experts stay apart.
        let has_place = suffix == ".weight" || suffix == ".bias" && !self.is_stack;
        let is_whole = has_place && base == format!("blk.{layer}.{last}");
        let part = self.parts.iter().position(|part| *part == last)?;
        is_whole.then_some((layer, suffix, part))
    }

    /// The tensor called `name` that `parts` make. Of stacks each matrix is made of those of the
    /// parts.
    fn fused<'m>(&self, parts: Vec<Group<'m>>, name: String) -> Result<Group<'m>> {
        let kinds = |part: &Group<'_>| (part.keeps, part.encoded_as);
        if let Some(other) = parts.iter().find(|part| kinds(part) != kinds(&parts[0])) {
            let what =
                format!("`{name}`: `{}` is stored otherwise than the other parts", other.name);
            return Err(AnamnesisError::unsupported(self.option, what));
        }
        let axis = usize::from(self.is_stack && parts[0].shape.len() == 3);
        let dtype = parts[0].keeps.unwrap_or(TargetDtype::F32);
        let encoded_as = parts[0].encoded_as;
        let mut shape = parts[0].shape.to_vec();
        shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        let rows = |part: &Group<'_>| part.shape[..=axis].iter().product();
        let piece = |(source, part): (usize, &Group<'m>)| SourceRows {
            source,
            order: RowOrder::From(0),
            rows: rows(part),
            turn: part.shape[axis],
        };
        let moved = Rearrangement {
            pieces: parts.iter().enumerate().map(piece).collect(),
            cols: shape[axis + 1..].iter().product(),
            takes_turns: axis > 0,
            change: Change::None,
            columns: None,
        };
        let sources = parts
            .into_iter()
            .map(|part| SourceTensor::new(ResolvedItem::from(part)));
        let mut group = assembled(sources.collect::<Result<_>>()?, (name, shape), dtype, &moved);
        group.encoded_as = encoded_as;
        Ok(group)
    }
}

/// Names and rows of the parts of a fused tensor, in their order, and whether each matrix of a
/// stack has them.
type Parts = (Vec<(&'static str, usize)>, bool);

/// Queries, keys and values behind one another, and gates and inner projections of each expert.
const FUSED: [&str; 2] = [QKV.name, GATE_UP.name];

/// `source`, or the tensors that are fused in it.
pub(crate) fn taken_apart<'m>(
    mapping: &Mapping<'_>,
    source: SourceTensor<'m>,
) -> Vec<SourceTensor<'m>> {
    let (base, suffix) = split_suffix(&source.name);
    let place = FUSED.iter().find_map(|part| {
        let place = find(&format!("blk.{{i}}.{part}"), base)?;
        Some((*part, place.layer?))
    });
    // Linear attention has a fused tensor of this name, too, in other layers.
    let is_other = |&(_, layer): &(&str, usize)| mapping.rule_in_layer(base, layer).is_none();
    let Some((fused, layer)) = place.filter(is_other) else {
        return vec![source];
    };
    let Some((parts, is_stack)) = parts_of(mapping, fused, layer, &source.shape) else {
        return vec![source];
    };
    let name = |part: &str| format!("blk.{layer}.{part}");
    let is_known = parts.iter().all(|(part, _)| mapping.has_rule(&name(part)));
    if !is_known || source.decoder.grid().row_align != 1 {
        return vec![source];
    }
    let mut first = 0;
    let part = |(part, rows): (&str, usize)| {
        let taken = source.rows_of(format!("{}{suffix}", name(part)), first, (rows, is_stack));
        first += rows;
        taken
    };
    parts.into_iter().map(part).collect()
}

/// The parts of the tensor `fused` of `layer`, which has this shape, with their rows; `None` if it
/// has others.
fn parts_of(mapping: &Mapping<'_>, fused: &str, layer: usize, shape: &[usize]) -> Option<Parts> {
    if fused == GATE_UP.name {
        let &[experts, rows, _] = shape else {
            return None;
        };
        // Each expert is a piece of the tensors that are made.
        let is_so = mapping.dims.size(Dim::Experts, Some(layer)) == Some(experts);
        if !is_so || shape.contains(&0) {
            return None;
        }
        let half = rows / 2;
        let parts = vec![("ffn_gate_exps", half), ("ffn_up_exps", half)];
        return rows.is_multiple_of(2).then_some((parts, true));
    }
    // Queries may have gates behind them, and layers of one model heads of several sizes.
    let rows = |part: &str| {
        let rule = mapping.rule_in_layer(&format!("blk.{layer}.{part}"), layer)?;
        let shape = rule.gguf_shape.unwrap_or(rule.shape);
        mapping.dims.size(shape[0], Some(layer))
    };
    let (queries, keys) = (rows("attn_q")?, rows("attn_k")?);
    let values = shape.first()?.checked_sub(queries)?.checked_sub(keys)?;
    let parts = vec![("attn_q", queries), ("attn_k", keys), ("attn_v", values)];
    Some((parts, false))
}
