//! Positions of RoBERTa's kin, which begin behind that of the padding token. GGUF does not have the
//! rows in front of it.

use crate::AnamnesisError;
use crate::error::InTensor;
use crate::families::engine::rows::OwnTransform;
use crate::families::engine::source::{Rearrangement, SourceRows, SourceTensor, computed};
use crate::remember::ResolvedItem;
use crate::remember::layout::assembled::RowOrder;

/// The rows that texts have. Coming back those that no text has are zeros, as that of the padding
/// token is in every model.
pub(super) const BEHIND_PADDING: OwnTransform = OwnTransform {
    to_gguf: |sources, name, dims| {
        let (first, [rows, cols]) = (dims.unused_positions()?, size(&sources[0]));
        let used = rows.checked_sub(first).filter(|used| *used > 0);
        let used = used.ok_or_else(|| wrong(name, rows, first))?;
        let moved = Rearrangement::of_each(1, RowOrder::From(first), (used, cols));
        Ok((moved, vec![used, cols]))
    },
    to_hf: |sources, name, dims| {
        let (unused, [rows, cols]) = (dims.unused_positions()?, size(&sources[0]));
        if unused > rows {
            return Err(wrong(name, rows, unused));
        }
        let zeros = computed(("", vec![0.0; unused * cols]));
        sources.insert(0, SourceTensor::new(ResolvedItem::from(zeros))?);
        let piece = |source, rows| SourceRows { source, order: RowOrder::From(0), rows, turn: 1 };
        let moved = Rearrangement {
            pieces: vec![piece(0, unused), piece(1, rows)],
            ..Rearrangement::of_each(0, RowOrder::From(0), (0, cols))
        };
        Ok((moved, vec![unused + rows, cols]))
    },
};

/// Rows and columns.
fn size(source: &SourceTensor<'_>) -> [usize; 2] {
    [source.shape[0], source.shape[1]]
}

fn wrong(name: &str, rows: usize, unused: usize) -> AnamnesisError {
    let what =
        format!("{}: {rows} rows, and {unused} in front of the first position", InTensor(&name));
    AnamnesisError::parse(what)
}
