//! Tensors that llama.cpp's converter fuses if it is asked to (`--fuse-qkv`,
//! `--fuse-gate-up-exps`), in files of architectures whose class has a tensor for each part.

use super::dims::Dim;
use super::mapping::Mapping;
use super::names::{find, split_suffix};
use super::source::SourceTensor;

/// Names and rows of the parts of a fused tensor, in their order, and whether each matrix of a
/// stack has them.
type Parts = (Vec<(&'static str, usize)>, bool);

/// Queries, keys and values behind one another, and gates and inner projections of each expert.
const FUSED: [&str; 2] = ["attn_qkv", "ffn_gate_up_exps"];

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
    if fused == "ffn_gate_up_exps" {
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
    // Queries may have gates behind them.
    let queries = mapping.rule_in_layer(&format!("blk.{layer}.attn_q"), layer)?;
    let size = |dim| mapping.dims.size(dim, Some(layer));
    let (queries, keys) = (size(queries.shape[0])?, size(Dim::Keys)?);
    let values = shape.first()?.checked_sub(queries)?.checked_sub(keys)?;
    let parts = vec![("attn_q", queries), ("attn_k", keys), ("attn_v", values)];
    Some((parts, false))
}
