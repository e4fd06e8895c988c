//! Finds the files of a model of DFloat11.

use std::collections::BTreeSet;
use std::path::Path;

use super::shards::{FoundShards, INDEXES, find_indexed, preferred};
use crate::Result;
use crate::limits::Budget;

/// Finds the files of a model of DFloat11. Its library writes a file for each module that it
/// compresses, beside the file, or the shards and the index, of all other tensors; it reads every
/// safetensors file of the directory (`load_and_replace_tensors`). An index that lists modules as
/// well counts, as for other models.
///
/// # Errors
/// Those of reading the index.
pub(super) fn find_dfloat11(
    dir: &Path,
    names: &[String],
    budget: &Budget,
) -> Result<Option<FoundShards>> {
    let files = names.iter().filter(|name| name.ends_with(".safetensors"));
    let files: BTreeSet<String> = files.cloned().collect();
    if files.is_empty() {
        return Ok(None);
    }
    let indexes = INDEXES.iter().copied();
    let indexes: Vec<_> = indexes
        .filter(|name| name.contains("safetensors"))
        .collect();
    let index = preferred(&indexes, names);
    let Some(index) = index else {
        return Ok(Some(files.into_iter().collect::<Vec<_>>().into()));
    };
    let mut found = find_indexed(dir, index, budget)?;
    let mut listed = found.map.iter().flatten();
    if listed.any(|(name, _)| name.ends_with(".encoded_exponent")) {
        // It lists the modules, too, and what it does not list is no part of the model.
        return Ok(Some(found));
    }
    let more: Vec<String> = files
        .into_iter()
        .filter(|file| !found.files.contains(file))
        .collect();
    if !more.is_empty() {
        found.files.extend(more);
        found.map = None;
    }
    Ok(Some(found))
}
