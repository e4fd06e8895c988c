//! Positions of RoBERTa's kin, which begin behind that of the padding token. GGUF does not have the
//! rows in front of it.

use crate::error::InTensor;
use crate::families::engine::dims::Dims;
use crate::families::engine::source::{
    Rearrangement, SourceRows, SourceTensor, assembled, computed,
};
use crate::remember::layout::assembled::{Change, RowOrder};
use crate::remember::{Group, ResolvedItem};
use crate::{AnamnesisError, Result, TargetDtype};

/// The rows that texts have, and their shape.
///
/// # Errors
/// `Parse` if there are none.
pub(super) fn to_gguf(
    name: &str,
    shape: &[usize],
    dims: &Dims,
) -> Result<(Rearrangement, Vec<usize>)> {
    let first = dims.unused_positions()?;
    let rows = shape[0].checked_sub(first).filter(|rows| *rows > 0);
    let rows = rows.ok_or_else(|| wrong(name, shape[0], first))?;
    let moved = Rearrangement::of_each(1, RowOrder::From(first), (rows, shape[1]));
    Ok((moved, vec![rows, shape[1]]))
}

/// All rows: those that no text has are zeros, as that of the padding token is in every model.
///
/// # Errors
/// `Parse` if there are more of them than of others.
pub(super) fn to_hf<'m>(
    source: SourceTensor<'m>,
    name: String,
    dtype: TargetDtype,
    dims: &Dims,
) -> Result<Group<'m>> {
    let (unused, [rows, cols]) = (dims.unused_positions()?, [source.shape[0], source.shape[1]]);
    if unused > rows {
        return Err(wrong(&name, rows, unused));
    }
    let zeros = computed(("", vec![0.0; unused * cols]));
    let piece = |source, rows| SourceRows { source, order: RowOrder::From(0), rows, turn: 1 };
    let moved = Rearrangement {
        pieces: vec![piece(0, unused), piece(1, rows)],
        cols,
        takes_turns: false,
        change: Change::None,
        columns: None,
    };
    let sources = vec![SourceTensor::new(ResolvedItem::from(zeros))?, source];
    let shape = vec![unused + rows, cols];
    Ok(assembled(sources, (name, shape), dtype, &moved))
}

fn wrong(name: &str, rows: usize, unused: usize) -> AnamnesisError {
    let what =
        format!("{}: {rows} rows, and {unused} in front of the first position", InTensor(&name));
    AnamnesisError::parse(what)
}
