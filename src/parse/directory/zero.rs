//! Finds a checkpoint of DeepSpeed's ZeRO: in the directory that has its files, or in the one above
//! it, whose file `latest` names it.

use std::path::{Path, PathBuf};

use super::shards::{FoundShards, ShardKind};
use crate::config::read_small;
use crate::limits::Budget;
use crate::parse::listing::is_inside;
use crate::parse::listing::list;
use crate::source::CompanionFile;
use crate::{AnamnesisError, Result};

/// Name of the file that names the last checkpoint.
const LATEST: &str = "latest";

/// What the names of files with the states of optimizers end with. Each process writes one.
const OPTIMIZER_ENDING: &str = "_optim_states.pt";

/// Names of the file with the model's state: of stages 1 and 2, and of the first process in
/// stage 3.
const MODEL_STATES: [&str; 2] =
    ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"];

/// Finds the file with the state of the model in a directory with the entries `names`. `other` is
/// the file of another model there.
///
/// # Errors
/// `Parse` if both models are there, or the states of optimizers are without that of the model.
pub(super) fn find_zero(
    dir: &Path,
    names: &[String],
    other: Option<&str>,
) -> Result<Option<FoundShards>> {
    match (has_optimizers(names), other) {
        (false, _) => Ok(None),
        (true, Some(other)) => Err(AnamnesisError::parse(format!(
            "which of two models? there is {other}, and files *{OPTIMIZER_ENDING} of DeepSpeed"
        ))),
        (true, None) => {
            let states = model_state(names)?;
            let index = dir.join(states);
            Ok(Some(found(states.to_owned(), index)))
        }
    }
}

/// Finds the file with the state of the model in the directory that the file `latest` in `dir`
/// names. `names` are the entries of `dir`.
///
/// # Errors
/// As [`find_zero`]; `Io`; `LimitExceeded`.
pub(super) fn find_latest_zero(
    dir: &Path,
    names: &[String],
    budget: &Budget,
) -> Result<Option<FoundShards>> {
    if !names.iter().any(|name| name == LATEST) {
        return Ok(None);
    }
    let index = dir.join(LATEST);
    let tag = read_small(&index, budget)?.and_then(|text| String::from_utf8(text).ok());
    let tag = tag.as_deref().map(str::trim);
    let Some(tag) = tag.filter(|tag| is_inside(tag) && dir.join(tag).is_dir()) else {
        return Ok(None);
    };
    let names = list(&dir.join(tag))?;
    if !has_optimizers(&names) {
        return Ok(None);
    }
    let states = format!("{tag}/{}", model_state(&names)?);
    Ok(Some(found(states, index)))
}

fn found(states: String, index: PathBuf) -> FoundShards {
    FoundShards {
        files: vec![states],
        kind: ShardKind::Zero,
        index: Some(CompanionFile::new(index)),
        map: None,
        note: None,
    }
}

/// The name of the file with the state of the model.
fn model_state(names: &[String]) -> Result<&'static str> {
    let is_there = |name: &&&str| names.iter().any(|file| file == **name);
    let found = MODEL_STATES.iter().find(is_there).copied();
    found.ok_or_else(|| {
        let [first, third] = MODEL_STATES;
        AnamnesisError::parse(format!(
            "there are files *{OPTIMIZER_ENDING} of DeepSpeed, and neither `{first}` nor `{third}`, which say what is in them"
        ))
    })
}

/// Whether a file of this name is one of a checkpoint of ZeRO, whose weights are those of the
/// model.
pub(crate) fn is_zero_state(name: &str) -> bool {
    name.ends_with(OPTIMIZER_ENDING) || name.ends_with("_model_states.pt")
}

fn has_optimizers(names: &[String]) -> bool {
    names.iter().any(|name| name.ends_with(OPTIMIZER_ENDING))
}
