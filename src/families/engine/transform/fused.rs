//! Tensors of transformers that several tensors of GGUF make together.

use std::collections::BTreeMap;

use super::groups;
use super::heads::{LatentHeads, LinearHeads, head_rows};
use crate::families::engine::dims::Dims;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor, assembled};
use crate::families::engine::table::{LatentPart, LinearPart, Transform};
use crate::remember::layout::assembled::{Change, RowOrder};
use crate::remember::{Group, ResolvedItem};
use crate::sort::sort_by_key;
use crate::{Result, TargetDtype};

/// Which part of a tensor of transformers a tensor of GGUF is, and of how many; `None`: it is made
/// of one.
pub(in crate::families) fn part_of(transform: Transform) -> Option<(usize, usize)> {
    let part = match transform {
        Transform::TransposedHalf(half)
        | Transform::TransposedHalves(half)
        | Transform::Half(half)
        | Transform::Halves(half) => half,
        Transform::Latent(part) => usize::from(part != LatentPart::Keys),
        Transform::Linear(part) => usize::from(part != LinearPart::Projections),
        Transform::GroupPart(part) => return Some((part, 3)),
        _ => return None,
    };
    Some((part, 2))
}

/// Tensors that wait for the others with which they make a tensor of transformers, by its name.
#[derive(Default)]
pub(in crate::families) struct WaitingParts<'m>(BTreeMap<String, Vec<(usize, SourceTensor<'m>)>>);

impl<'m> WaitingParts<'m> {
    /// All tensors that make `name`, in their order; `None`: `source`, part `part` of `count`,
    /// waits for the others.
    pub(in crate::families) fn complete(
        &mut self,
        name: &str,
        source: SourceTensor<'m>,
        (part, count): (usize, usize),
    ) -> Option<Vec<SourceTensor<'m>>> {
        let waiting = self.0.entry(name.to_owned()).or_default();
        waiting.push((part, source));
        if waiting.len() < count {
            return None;
        }
        let mut parts = self.0.remove(name)?;
        sort_by_key(&mut parts, |(part, _)| *part);
        Some(parts.into_iter().map(|(_, source)| source).collect())
    }

    /// A tensor that still waits, and the name of what it is a part of.
    pub(in crate::families) fn into_waiting(self) -> Option<(String, SourceTensor<'m>)> {
        let (name, parts) = self.0.into_iter().next()?;
        Some((name, parts.into_iter().next()?.1))
    }
}

/// The tensor of transformers called `name` that the tensors `parts` of GGUF make.
///
/// # Errors
/// `Parse` if a size is missing in the config, or rows of queries or keys are not those of heads
/// that can be halved.
pub(in crate::families) fn fused<'m>(
    parts: Vec<SourceTensor<'m>>,
    (name, transform): (String, Transform),
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    match <[SourceTensor<'m>; 2]>::try_from(parts) {
        Ok(pair) => fused_pair(pair, (name, transform), dtype, dims),
        Err(parts) => fused_groups(parts, name, dtype, dims),
    }
}

/// Queries, keys and values of all groups of heads, group by group.
fn fused_groups<'m>(
    parts: Vec<SourceTensor<'m>>,
    name: String,
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    let split = |(part, source): (usize, SourceTensor<'m>)| {
        if part == groups::VALUES {
            return Ok(source);
        }
        let (part, shape) = (source.name.clone(), source.shape.clone());
        let order = RowOrder::split(head_rows(&part, &shape, dims)?);
        let moved = Rearrangement::of_each(1, order, (shape[0], shape[1]));
        let split = assembled(vec![source], (part, shape), dtype, &moved);
        SourceTensor::new(ResolvedItem::from(split))
    };
    let parts: Vec<_> = parts
        .into_iter()
        .enumerate()
        .map(split)
        .collect::<Result<_>>()?;
    let (rows, cols) = (
        parts.iter().map(|part| part.shape[0]).sum(),
        parts.iter().map(|part| part.shape[1]).max().unwrap_or(0),
    );
    let moved = groups::turns(&parts, cols, dims);
    Ok(assembled(parts, (name, vec![rows, cols]), dtype, &moved))
}

/// The tensor of transformers called `name` that two tensors of GGUF make.
fn fused_pair<'m>(
    [first, second]: [SourceTensor<'m>; 2],
    (name, transform): (String, Transform),
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    let shape = first.shape.clone();
    let whole = |pair, pieces, shape: Vec<usize>, cols| {
        let moved =
            Rearrangement { pieces, cols, takes_turns: true, change: Change::None, columns: None };
        assembled(pair, (name.clone(), shape), dtype, &moved)
    };
    match transform {
        Transform::Latent(_) => {
            let heads = LatentHeads::new(dims)?;
            let cols = second.shape[2];
            let pieces = [heads.keys, heads.values].into_iter().enumerate();
            let pieces = pieces.map(|(source, turn)| all_rows(source, heads.count * turn, turn));
            let rows = heads.count * (heads.keys + heads.values);
            let pair = vec![first.transposed(dtype), second];
            Ok(whole(pair, pieces.collect(), vec![rows, cols], cols))
        }
        Transform::Linear(_) => {
            let (heads, cols) = (LinearHeads::new(dims)?, shape[1]);
            let pieces = heads.turns();
            let rows = pieces.iter().map(|piece| piece.rows).sum();
            Ok(whole(vec![first, second], pieces, vec![rows, cols], cols))
        }
        _ => {
            // Rows alternate, or the halves of each expert or of one matrix do.
            let (axis, turn) = match transform {
                Transform::Halves(_) | Transform::TransposedHalves(_) => {
                    (shape.len() - 2, shape[shape.len() - 2])
                }
                _ => (1, 1),
            };
            let rows = shape[..=axis].iter().product();
            let pieces = vec![all_rows(0, rows, turn), all_rows(1, rows, turn)];
            let cols = shape[axis + 1..].iter().product();
            let mut doubled = shape;
            doubled[axis] *= 2;
            let whole = whole(vec![first, second], pieces, doubled, cols);
            if let Transform::Half(_) | Transform::Halves(_) = transform {
                return Ok(whole);
            }
            let transposed = SourceTensor::new(ResolvedItem::from(whole))?.transposed(dtype);
            Ok(transposed.renamed(name, dtype))
        }
    }
}

/// All `rows` rows of a source, `turn` at once.
fn all_rows(source: usize, rows: usize, turn: usize) -> SourceRows {
    SourceRows { source, order: RowOrder::From(0), rows, turn }
}
