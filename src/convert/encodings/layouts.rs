//! The decision for each item, in the layout in which it is encoded.

use std::sync::Arc;

use super::candidates::candidate;
use crate::convert::report::Report;
use crate::lethe::{Decision, Decisions, Forget, Imatrix, decide};
use crate::model::ParsedModel;
use crate::model::gguf::GgufMetadataValue;
use crate::remember::{Resolution, ResolvedItem};
use crate::{Result, TargetDtype};

/// Keys of the metadata of a GGUF file.
pub(super) type MetadataKeys = Vec<(String, GgufMetadataValue)>;

/// Decides for each item, in the layout in which it is encoded.
///
/// Some parameters are stored in another layout than the modules of inference have (`[out, in]`).
/// The module form is encoded if the scheme accepts it, and the stored form otherwise. `transposed`
/// has the shapes of weights of `Conv1D`, of which only the module form is encoded.
pub(super) fn decide_in_layouts(
    model: &ParsedModel,
    resolution: &mut Resolution<'_>,
    transposed: &[Option<[usize; 2]>],
    ways: (&Forget, Option<&Arc<Imatrix>>),
    (to, report): (TargetDtype, &mut Report),
) -> Result<(Vec<Decision>, MetadataKeys)> {
    let items = resolution.items.iter().zip(transposed);
    let modules: Vec<_> = items
        .clone()
        .map(|(item, shape)| candidate(item, (item.module(), shape.as_ref()), to))
        .collect();
    let Decisions { all: mut choices, notes, gguf_keys } = decide(model, &modules, ways, to)?;
    report.notes.extend(notes);
    let is_refused = |item: &ResolvedItem<'_>, choice: &Decision| {
        item.module().is_some() && matches!(choice, Decision::Keep(_))
    };
    let mut chosen = resolution.items.iter().zip(&choices);
    if !chosen.any(|(item, choice)| is_refused(item, choice)) {
        return Ok((choices, gguf_keys));
    }
    let stored: Vec<_> = items
        .map(|(item, shape)| candidate(item, (None, shape.as_ref()), to))
        .collect();
    let others = decide(model, &stored, ways, to)?.all;
    for ((item, choice), other) in resolution.items.iter_mut().zip(&mut choices).zip(others) {
        if is_refused(item, choice) && matches!(other, Decision::Encode { .. }) {
            *choice = other;
            item.take_module();
        }
    }
    Ok((choices, gguf_keys))
}
