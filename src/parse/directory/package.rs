//! Packages of Core ML (`.mlpackage`): a manifest says which of their files is the model.

use std::collections::HashMap;
use std::path::Path;

use super::shards::FoundShards;
use crate::config::{Confined, read_small};
use crate::limits::Budget;
use crate::parse::listing::is_inside;
use crate::source::CompanionFile;
use crate::{AnamnesisError, Result};

const MANIFEST: &str = "Manifest.json";

/// The directory of a package's files.
const DATA: &str = "Data";

/// What the manifest says.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    item_info_entries: HashMap<String, Item>,
    root_model_identifier: String,
}

#[derive(serde::Deserialize)]
struct Item {
    path: String,
}

/// The model of the package `dir` with entries `names`; `None` if it is no package.
///
/// # Errors
/// `Parse` if the manifest is malformed, or names no file of the package; `Io`.
pub(super) fn find_package(
    dir: &Path,
    names: &[String],
    budget: &Budget,
) -> Result<Option<FoundShards>> {
    let has = |name: &str| names.iter().any(|other| other == name);
    if !(has(MANIFEST) && has(DATA)) {
        return Ok(None);
    }
    let wrong = |what: String| AnamnesisError::parse(format!("`{MANIFEST}`: {what}"));
    let Some(text) = read_small(&dir.join(MANIFEST), budget)? else {
        return Ok(None);
    };
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
    let root = manifest
        .item_info_entries
        .get(&manifest.root_model_identifier);
    let root = root.ok_or_else(|| wrong("it does not say which file is the model".to_owned()))?;
    let path = &root.path;
    let file = format!("{DATA}/{path}");
    if !is_inside(path) || !Confined::new(dir).has(&dir.join(&file)) {
        return Err(wrong(format!("the model `{path:.256}` is not in the package")));
    }
    Ok(Some(FoundShards {
        index: Some(CompanionFile::new(dir.join(MANIFEST))),
        ..vec![file].into()
    }))
}
