//! Finds arrays of Zarr: those of a directory, or of a checkpoint of Orbax in it.
//!
//! Orbax writes each step into a directory that is called by its number, and there each item into one of its own.

use std::path::Path;

use super::MAX_NAMED;
use super::shards::{FoundShards, ShardKind};
use crate::limits::join_first;
use crate::parse::listing::list;
use crate::{AnamnesisError, Result};

/// Files by which arrays are read, the first of them that is there: of a database of OCDBT, of a checkpoint, and of arrays and groups.
const ANCHORS: [&str; 5] = ["manifest.ocdbt", "_METADATA", "zarr.json", ".zarray", ".zgroup"];

/// Finds the file by which the arrays of the directory `dir` with entries `names` are read.
///
/// # Errors
/// `Parse` if there are several items of a checkpoint; `Io`.
pub(super) fn find_zarr(dir: &Path, names: &[String]) -> Result<Option<FoundShards>> {
    if let Some(anchor) = find_item(dir, names)? {
        return Ok(Some(found(anchor, None)));
    }
    let mut steps: Vec<(u64, &String)> = vec![];
    for name in names {
        let number = name
            .rsplit('_')
            .next()
            .and_then(|number| number.parse().ok());
        steps.extend(number.map(|number| (number, name)));
    }
    steps.sort_unstable();
    for (_, step) in steps.iter().rev() {
        let path = dir.join(step);
        if !path.is_dir() {
            continue;
        }
        if let Some(anchor) = find_item(&path, &list(&path)?)? {
            let note = (steps.len() > 1).then(|| {
                format!("of {} steps of a checkpoint, `{step}` is read, the last", steps.len())
            });
            return Ok(Some(found(format!("{step}/{anchor}"), note)));
        }
    }
    // Arrays without a group.
    for name in names.iter().filter(|name| dir.join(name).is_dir()) {
        let below = list(&dir.join(name))?;
        let of_array = |anchor: &&&str| anchor.ends_with(".zarray") || anchor.ends_with(".json");
        if let Some(anchor) = anchor_of(&below).as_ref().filter(of_array) {
            let found = found(format!("{name}/{anchor}"), None);
            return Ok(Some(FoundShards { kind: ShardKind::ZarrArrays, ..found }));
        }
    }
    Ok(None)
}

/// Finds the file in `dir`, or in the only directory there that has one.
fn find_item(dir: &Path, names: &[String]) -> Result<Option<String>> {
    if let Some(anchor) = anchor_of(names) {
        return Ok(Some(anchor.to_owned()));
    }
    // What other programs call so may be anything; Orbax leaves a file beside its items.
    if !names.iter().any(|name| name == "_CHECKPOINT_METADATA") {
        return Ok(None);
    }
    let mut items = vec![];
    for name in names.iter().filter(|name| dir.join(name).is_dir()) {
        if let Some(anchor) = anchor_of(&list(&dir.join(name))?) {
            items.push((name.as_str(), anchor));
        }
    }
    match items.as_slice() {
        [] => Ok(None),
        [(item, anchor)] => Ok(Some(format!("{item}/{anchor}"))),
        several => {
            let names: Vec<&str> = several.iter().map(|(name, _)| *name).collect();
            let (n, names) = (names.len(), join_first(&names, MAX_NAMED));
            let what = format!("which of {n} items of the checkpoint? Give one of: {names}");
            Err(AnamnesisError::parse(what))
        }
    }
}

fn anchor_of(names: &[String]) -> Option<&'static str> {
    let is_there = |anchor: &&str| names.iter().any(|name| name == anchor);
    ANCHORS.into_iter().find(is_there)
}

fn found(anchor: String, note: Option<String>) -> FoundShards {
    FoundShards { kind: ShardKind::Zarr, note, ..vec![anchor].into() }
}
