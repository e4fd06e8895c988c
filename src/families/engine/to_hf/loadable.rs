//! Whether llama.cpp would load the file: what it refuses contradicts itself, or lacks what the class
//! in transformers has another default for.

use super::shape_of;
use crate::Result;
use crate::families::engine::draft::token_count;
use crate::families::engine::fields::{missing_key, wrong_key};
use crate::families::engine::graphs::{GraphProblem, problems_in};
use crate::families::engine::mapping::refused;
use crate::model::gguf::GgufMetadata;
use crate::remember::ResolvedItem;

/// Most bytes of a value that is looked at: only lists of tokens are longer.
const MOST_BYTES: usize = 1 << 16;

/// Names and shapes of the tensors of a file.
pub(super) fn shapes_of(items: &[ResolvedItem<'_>]) -> Vec<(String, Vec<usize>)> {
    let all = items.iter();
    all.map(|item| (item.name().to_owned(), shape_of(item).to_vec()))
        .collect()
}

/// Fails if a key is missing that llama.cpp needs of a model of `architecture`, or one contradicts
/// another or the tensors. Which tensors there must be is up to the class.
///
/// # Errors
/// `Parse` that names the key or the tensor.
pub(super) fn require(
    architecture: &str,
    metadata: &GgufMetadata,
    shapes: &[(String, Vec<usize>)],
) -> Result<()> {
    let embedding = shapes.iter().find(|(name, _)| name == "token_embd.weight");
    let rows = match embedding {
        Some((_, shape)) => shape.first().copied().unwrap_or(0),
        // Of a draft.
        None => token_count(metadata),
    };
    let tensors = shapes.iter().map(|(name, shape)| (&**name, &shape[..]));
    let keys = metadata.small(MOST_BYTES);
    for problem in problems_in(architecture, keys, tensors, rows as u64) {
        match &problem {
            GraphProblem::Key(key) => return Err(missing_key(key)),
            GraphProblem::Value { key, what } => return Err(wrong_key(key, what)),
            GraphProblem::Shape { tensor, .. } => return Err(refused(tensor, &problem)),
            GraphProblem::Missing { .. } | GraphProblem::NoPlace { .. } => {}
        }
    }
    Ok(())
}
