//! Rows of zeros behind those of a matrix, for tokens that have none in transformers.

use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor, computed};
use crate::remember::ResolvedItem;
use crate::remember::layout::assembled::{Change, RowOrder};

/// Adds zeros to `sources`, one matrix, and returns its rows and these in so many as there are
/// tokens, and their shape.
pub(super) fn to_gguf(
    sources: &mut Vec<SourceTensor<'_>>,
    dims: &Dims,
) -> Result<(Rearrangement, Vec<usize>)> {
    let (rows, cols) = (sources[0].shape[0], sources[0].shape[1]);
    let missing = dims.vocab.saturating_sub(rows);
    let zeros = computed(("", vec![0.0; cols]));
    sources.push(SourceTensor::new(ResolvedItem::from(zeros))?);
    let piece = |source, order, rows| SourceRows { source, order, rows, turn: 1 };
    let moved = Rearrangement {
        pieces: vec![piece(0, RowOrder::From(0), rows), piece(1, RowOrder::Same(0), missing)],
        cols,
        takes_turns: false,
        change: Change::None,
        columns: None,
    };
    Ok((moved, vec![rows + missing, cols]))
}
