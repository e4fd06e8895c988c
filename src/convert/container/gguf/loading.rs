//! Whether llama.cpp loads the output. A caller's metadata for which it does not are an error.
//! Tensors for which it does not are a note: people make parts of models on purpose. What it does
//! not load of the input either, such as tensors of its forks, is neither.

use std::collections::HashSet;

use super::output_keys::OutputKeys;
use crate::convert::options::{ConvertOptions, ModelScope};
use crate::families::{GraphProblem, is_whole_model, problems};
use crate::model::gguf_keys::ARCHITECTURE;
use crate::write::OutputEntry;
use crate::{AnamnesisError, GgufMetadataValue, ParsedModel, Result};

/// Most keys that an error names.
const MOST_NAMED: usize = 3;

/// The note on an output of `entries` that llama.cpp does not load; `None` if it does, or does not
/// load the input for the same reasons, or the caller has asked for tensors alone. `made` are its
/// metadata without the caller's changes, and `edited` those with them, if there are any.
///
/// # Errors
/// `Usage` if llama.cpp would load the output without the caller's changes of the metadata, or as
/// the architecture that it had.
pub(super) fn note(
    model: &ParsedModel,
    entries: &[OutputEntry<'_>],
    (made, edited): (&OutputKeys<'_>, Option<&OutputKeys<'_>>),
    options: &ConvertOptions,
) -> Result<Option<String>> {
    if matches!(options.scope, ModelScope::Tensors | ModelScope::Vocabulary) {
        return Ok(None);
    }
    let stored = model
        .tensors()
        .filter(|_| model.is_gguf())
        .map(|t| t.name());
    let names = entries.iter().map(|entry| entry.name).chain(stored);
    if !is_whole_model(made.iter(), names) {
        return Ok(None);
    }
    let found = problems_of(edited.unwrap_or(made), entries);
    let Some(first) = found.first() else {
        return Ok(None);
    };
    if let Some(edited) = edited
        && (edited.get(ARCHITECTURE) != made.get(ARCHITECTURE)
            || problems_of(made, entries).is_empty())
    {
        let what = format!(
            "GGUF metadata {}: llama.cpp would not load the output: {first}; --tensors-only writes it all the same",
            named(options)
        );
        return Err(AnamnesisError::usage(what));
    }
    let known: HashSet<GraphProblem> = problems_of_input(model).into_iter().collect();
    let mut new = found.iter().filter(|problem| !known.contains(problem));
    let Some(first) = new.next() else {
        return Ok(None);
    };
    let more = match new.count() {
        0 => String::new(),
        n => format!(" (and {n} more)"),
    };
    Ok(Some(format!("llama.cpp does not load the output: {first}{more}")))
}

fn problems_of(keys: &OutputKeys<'_>, entries: &[OutputEntry<'_>]) -> Vec<GraphProblem> {
    let Some(GgufMetadataValue::String(architecture)) = keys.get(ARCHITECTURE) else {
        return vec![];
    };
    let tensors = entries.iter().map(|entry| (entry.name, entry.shape));
    problems(&architecture, keys.iter(), tensors)
}

fn problems_of_input(model: &ParsedModel) -> Vec<GraphProblem> {
    let Some(source) = model.gguf() else {
        return vec![];
    };
    let architecture = source.architecture().unwrap_or_default();
    let tensors = model.tensors().map(|t| (t.name(), t.shape()));
    problems(&architecture, source.metadata().iter(), tensors)
}

/// The keys of the caller that tables are about.
fn named(options: &ConvertOptions) -> String {
    let of_api = options.gguf_metadata.iter().map(|(key, _)| key.as_str());
    let keys = of_api.chain(options.gguf_edits.iter().map(|edit| edit.key()));
    let mut keys: Vec<&str> = keys.collect();
    let is_of_model = |key: &&str| *key == ARCHITECTURE || !key.starts_with("general.");
    if keys.iter().any(is_of_model) {
        keys.retain(|key| is_of_model(key));
    }
    keys.dedup();
    let more = match keys.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        n => format!(" (and {n} more)"),
    };
    keys.truncate(MOST_NAMED);
    let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
    format!("{}{more}", keys.join(", "))
}
