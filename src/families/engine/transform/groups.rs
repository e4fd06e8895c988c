//! Projections in which each group of heads has its queries, and then the keys and the values that
//! they share.

use crate::families::engine::dims::Dims;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor};
use crate::remember::layout::assembled::RowOrder;

/// Rows of each part of a group: queries, keys, values.
fn parts(dims: &Dims) -> [usize; 3] {
    [dims.heads / dims.kv_heads * dims.head, dims.head, dims.head]
}

/// All queries, all keys, all values of the groups in a tensor of `shape`.
pub(super) fn to_gguf(shape: &[usize], dims: &Dims) -> Rearrangement {
    let parts = parts(dims);
    let of = parts.iter().sum();
    let slice = |at: usize| SourceRows {
        source: 0,
        order: RowOrder::Slice { first: parts[..at].iter().sum(), len: parts[at], of },
        rows: dims.kv_heads * parts[at],
        turn: 1,
    };
    made_of((0..3).map(slice).collect(), shape, false)
}

/// The groups again, of which the three parts take turns.
pub(super) fn to_hf(shape: &[usize], dims: &Dims) -> Rearrangement {
    let mut first = 0;
    let turns = parts(dims).map(|turn| {
        let rows = dims.kv_heads * turn;
        let order = RowOrder::From(first);
        first += rows;
        SourceRows { source: 0, order, rows, turn }
    });
    made_of(turns.to_vec(), shape, true)
}

/// The part of the values.
pub(super) const VALUES: usize = 2;

/// The rows of part `part` of all groups in a tensor of `shape`, and how many there are.
pub(super) fn part(part: usize, shape: &[usize], dims: &Dims) -> (Rearrangement, usize) {
    let mut moved = to_gguf(shape, dims);
    moved.pieces = moved.pieces.split_off(part);
    moved.pieces.truncate(1);
    let rows = moved.pieces.iter().map(|piece| piece.rows).sum();
    (moved, rows)
}

/// The groups of which `sources` have a part each: queries, keys, values.
pub(super) fn turns(sources: &[SourceTensor<'_>], cols: usize, dims: &Dims) -> Rearrangement {
    let turn = |(source, turn): (usize, usize)| SourceRows {
        source,
        order: RowOrder::From(0),
        rows: sources[source].shape[0],
        turn,
    };
    let turns = parts(dims).into_iter().enumerate().map(turn).collect();
    made_of(turns, &[0, cols], true)
}

/// A tensor of `shape` that is made of `pieces`.
fn made_of(pieces: Vec<SourceRows>, shape: &[usize], takes_turns: bool) -> Rearrangement {
    let all = Rearrangement::of_each(1, RowOrder::From(0), (shape[0], shape[1..].iter().product()));
    Rearrangement { pieces, takes_turns, ..all }
}
