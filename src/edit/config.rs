//! Edits of a JSON file: `config.json`, or any other that is an object.

use std::path::Path;

use super::json::EditedJson;
use super::{EditOptions, EditedHeader, KeyChange};
use crate::config::{Member, PLACES, parse_python, quoted, read_json};
use crate::limits::Budget;
use crate::{AnamnesisError, Result};

/// Edits the text of the file at `path`: the whole file is its header.
pub(super) fn edit(path: &Path, options: &EditOptions, budget: &Budget) -> Result<EditedHeader> {
    options.require_no_gguf(
        "a config",
        "a directory has its template in chat_template.jinja or tokenizer_config.json",
    )?;
    let Some((_, old)) = read_json(path, budget)? else {
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(AnamnesisError::io_at(path, &error));
    };
    let json = std::str::from_utf8(&old);
    let json = json.map_err(|e| AnamnesisError::parse(format!("{}: {e}", path.display())))?;
    let EditedJson { text, changes, .. } =
        EditedJson::new(json, |json, key| Member::at_path(json, key), options, json_or_text)?;
    // A second look at what will be written.
    parse_python(text.as_bytes(), path, budget)?;
    let notes = changes.iter().filter_map(note_on_type);
    let notes = notes.chain(note_on_weights(&changes)).collect();
    Ok(EditedHeader { new: text.into_bytes(), old, changes, notes })
}

/// A value as the caller spells it, if that is JSON; else a text.
fn json_or_text(value: &str) -> String {
    match serde_json::from_str::<serde::de::IgnoredAny>(value) {
        Ok(_) => value.trim().to_owned(),
        Err(_) => quoted(value),
    }
}

/// The note that a value has another type than before.
fn note_on_type(change: &KeyChange) -> Option<String> {
    let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
    if before.kind == after.kind || before.kind == "null" || after.kind == "null" {
        return None;
    }
    let way_out = match &*before.kind {
        "string" => format!("; --set '{}=\"{}\"' is a text", change.key, after.value),
        _ => String::new(),
    };
    Some(format!("`{}` was a {} and is a {} now{way_out}", change.key, before.kind, after.kind))
}

/// The note that a section is changed which says how weights are stored.
fn note_on_weights(changes: &[KeyChange]) -> Option<String> {
    let names = changes
        .iter()
        .flat_map(|change| [Some(&change.key), change.renamed_from.as_ref()]);
    let sections = PLACES.iter().filter_map(|(_, path)| path.last().copied());
    let mut parts = names.flatten().flat_map(|name| name.split('.'));
    let section = parts.find(|part| sections.clone().any(|section| section == *part))?;
    Some(format!("`{section}` says how the weights are stored, and these stay as they are"))
}
