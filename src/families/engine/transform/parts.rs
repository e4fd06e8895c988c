//! Parts that take turns in the rows of a tensor: queries, keys and values of each head, gate and
//! projection of each expert.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::heads::head_rows;
use super::transposed;
use crate::error::InTensor;
use crate::families::engine::dims::{Dim, Dims};
use crate::families::engine::source::{
    Rearrangement, SourceRows, SourceTensor, assembled, made_of,
};
use crate::families::engine::table::{Parts, TensorRule, Then, Turn};
use crate::remember::layout::alternate::AlternateRows;
use crate::remember::layout::assembled::{Change, RowOrder};
use crate::remember::{Group, ResolvedItem};
use crate::{AnamnesisError, Result, TargetDtype};

/// The parts of a tensor, turn by turn.
struct Turns {
    count: usize,
    /// Lengths of the parts of a turn.
    lengths: Vec<usize>,
    /// The dimension that they are in.
    axis: usize,
}

impl Turns {
    /// The parts of the tensor `name` of transformers, whose shape is `shape`.
    ///
    /// # Errors
    /// `Parse` if its rows are no whole turns, or a length is missing in the config.
    fn new(turn: Turn, (name, shape): (&str, &[usize]), dims: &Dims) -> Result<Self> {
        let axis = turn.axis(shape.len());
        let lengths = match turn {
            Turn::Equal(count) => vec![shape[axis] / count; count],
            Turn::Single(count, _) => vec![1; count],
            Turn::Rows(lengths) => lengths_of(lengths, dims)?,
        };
        let (rows, of) = (shape[axis], lengths.iter().sum::<usize>());
        if of == 0 || !rows.is_multiple_of(of) {
            let count = match lengths.len() {
                2 => "two",
                3 => "three",
                _ => "several",
            };
            let what =
                format!("{}: {rows} rows are not those of {count} projections", InTensor(&name));
            return Err(AnamnesisError::parse(what));
        }
        let count = shape[..axis].iter().product::<usize>() * (rows / of);
        Ok(Self { count, lengths, axis })
    }

    /// Rows of a turn.
    fn rows(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// All rows of the parts `parts`, which follow each other in the source `source`, turn by turn.
    fn taken(&self, parts: Parts, source: usize) -> impl Iterator<Item = SourceRows> {
        let mut first = 0;
        (parts.first..parts.end).map(move |part| {
            let turn = self.lengths[part];
            let rows = self.count * turn;
            let order = RowOrder::From(first);
            first += rows;
            SourceRows { source, order, rows, turn }
        })
    }

    /// The rows of part `part` in a tensor of all parts.
    fn slice(&self, part: usize) -> SourceRows {
        let (first, len) = (self.lengths[..part].iter().sum(), self.lengths[part]);
        let order = match self.count {
            1 => RowOrder::From(first),
            _ => RowOrder::Slice { first, len, of: self.rows() },
        };
        SourceRows { source: 0, order, rows: self.count * len, turn: 1 }
    }
}

/// The lengths that the config says.
///
/// # Errors
/// `Parse` that names a field which is missing or 0.
fn lengths_of(lengths: &[Dim], dims: &Dims) -> Result<Vec<usize>> {
    lengths.iter().map(|dim| dims.need_size(*dim)).collect()
}

/// The tensor of GGUF called `name` that has `parts` of `source`.
///
/// # Errors
/// `Parse` if its rows are not those of such parts, or a length is missing in the config.
pub(super) fn to_gguf<'m>(
    mut source: SourceTensor<'m>,
    (name, rule): (String, &TensorRule),
    parts: Parts,
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    if parts.is_transposed {
        source = transposed(source, dtype);
    }
    let shape = source.shape.clone();
    let turns = Turns::new(parts.turn, (&source.name, &shape), dims)?;
    let (axis, of) = (turns.axis, turns.rows());
    let taken: usize = turns.lengths[parts.first..parts.end].iter().sum();
    let cols = shape[axis + 1..].iter().product();
    let mut made = shape;
    made[axis] = made[axis] / of * taken;
    match rank_in_gguf(rule) {
        Ordering::Greater => {
            made.splice(axis..=axis, [turns.count, taken]);
        }
        Ordering::Less => {
            made.remove(axis);
        }
        Ordering::Equal => {}
    }
    // Codes can be moved as they are then.
    if parts.is_transposed && turns.lengths == [1, 1] && source.decoder.grid().cols == cols {
        let inner = source.decoder.clone();
        let rows = Box::new(AlternateRows { inner, first: parts.first });
        return Ok(made_of([source], (name, made), dtype, rows));
    }
    let moved = Rearrangement {
        pieces: (parts.first..parts.end)
            .map(|part| turns.slice(part))
            .collect(),
        ..Rearrangement::of_each(1, RowOrder::From(0), (0, cols))
    };
    let group = assembled(vec![source], (name.clone(), made.clone()), dtype, &moved);
    Ok(match parts.then {
        Then::Nothing => group,
        Then::Heads => {
            let heads = SourceTensor::new(ResolvedItem::from(group))?;
            let order = RowOrder::interleaved(head_rows(&name, &made, dims)?);
            let moved = Rearrangement::of_each(1, order, (made[0], cols));
            assembled(vec![heads], (name, made), dtype, &moved)
        }
        Then::Transposed => {
            let matrices = SourceTensor::new(ResolvedItem::from(group))?;
            transposed(matrices, dtype).renamed(name, dtype)
        }
    })
}

/// Whether the matrix of `rule` has more dimensions in GGUF, or less.
fn rank_in_gguf(rule: &TensorRule) -> Ordering {
    let rank = rule.shape.len();
    let in_gguf = rule.gguf_shape.map_or(rank, <[Dim]>::len);
    in_gguf.cmp(&rank)
}

/// The tensor of transformers called `name` that the tensors `parts` of GGUF make, which have all
/// parts in their order.
///
/// # Errors
/// `Parse` if a length is missing in the config, or rows of queries or keys are not those of heads
/// that can be halved.
pub(crate) fn joined<'m>(
    parts: Vec<(Parts, SourceTensor<'m>)>,
    (name, rule): (String, &TensorRule),
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    let Some(&(kind, _)) = parts.first() else {
        return Err(AnamnesisError::parse(format!("{}: it has no parts", InTensor(&name))));
    };
    let undo = |(parts, source): (Parts, SourceTensor<'m>)| {
        Ok((
            parts,
            match parts.then {
                Then::Nothing => source,
                Then::Heads => {
                    let (part, shape) = (source.name.clone(), source.shape.clone());
                    let order = RowOrder::split(head_rows(&part, &shape, dims)?);
                    let moved = Rearrangement::of_each(1, order, (shape[0], shape[1]));
                    let split = assembled(vec![source], (part, shape), dtype, &moved);
                    SourceTensor::new(ResolvedItem::from(split))?
                }
                Then::Transposed => transposed(source, dtype),
            },
        ))
    };
    let parts: Vec<_> = parts.into_iter().map(undo).collect::<Result<_>>()?;
    let shape = &parts[0].1.shape;
    // The shape of the whole: with the parts of all turns in one dimension.
    let mut whole = shape.clone();
    let all = match kind.turn {
        // The parts are one each of a dimension that GGUF does not have.
        Turn::Single(count, axis) if rank_in_gguf(rule) == Ordering::Less => {
            whole.insert(axis.min(whole.len()), count);
            whole
        }
        Turn::Equal(count) | Turn::Single(count, _) => {
            let axis = kind.turn.axis(shape.len());
            whole[axis] = shape[axis] / kind.count() * count;
            whole
        }
        Turn::Rows(lengths) => {
            let lengths = lengths_of(lengths, dims)?;
            let taken = lengths[kind.first..kind.end].iter().sum::<usize>().max(1);
            // A part of each turn is a matrix, or they are the rows of one.
            let rows = match shape[..] {
                [turns, _, _] => {
                    whole.remove(0);
                    turns * lengths.iter().sum::<usize>()
                }
                _ => shape[0] / taken * lengths.iter().sum::<usize>(),
            };
            whole[0] = rows;
            whole
        }
    };
    let turns = Turns::new(kind.turn, (&name, &all), dims)?;
    let pieces = parts.iter().enumerate();
    let moved = Rearrangement {
        pieces: pieces
            .flat_map(|(source, (parts, _))| turns.taken(*parts, source))
            .collect(),
        cols: all[turns.axis + 1..].iter().product(),
        takes_turns: true,
        change: Change::None,
        columns: None,
    };
    let sources = parts.into_iter().map(|(_, source)| source).collect();
    let group = assembled(sources, (name.clone(), all), dtype, &moved);
    if !kind.is_transposed {
        return Ok(group);
    }
    let group = SourceTensor::new(ResolvedItem::from(group))?;
    Ok(transposed(group, dtype).renamed(name, dtype))
}

/// Tensors that wait for the others with which they make a tensor of transformers, by its name.
#[derive(Default)]
pub(crate) struct WaitingParts<'m>(BTreeMap<String, Vec<(Parts, SourceTensor<'m>)>>);

impl<'m> WaitingParts<'m> {
    /// All tensors that make `name`, in their order; `None`: `source`, which is `parts` of it,
    /// waits for the others.
    pub(crate) fn complete(
        &mut self,
        name: &str,
        source: SourceTensor<'m>,
        parts: Parts,
    ) -> Option<Vec<(Parts, SourceTensor<'m>)>> {
        let waiting = self.0.entry(name.to_owned()).or_default();
        waiting.push((parts, source));
        let found: usize = waiting.iter().map(|(parts, _)| parts.count()).sum();
        if found < parts.turn.count() {
            return None;
        }
        let mut all = self.0.remove(name)?;
        all.sort_by_key(|(parts, _)| parts.first);
        Some(all)
    }

    /// A tensor that still waits, and the name of what it is a part of.
    pub(crate) fn into_waiting(self) -> Option<(String, SourceTensor<'m>)> {
        let (name, parts) = self.0.into_iter().next()?;
        Some((name, parts.into_iter().next()?.1))
    }
}
