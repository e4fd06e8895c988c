//! Finds a checkpoint of DeepSpeed's ZeRO: in the directory that has its files, or in the one above it, whose file `latest` names
//! it.

use std::path::Path;

use super::list;
use super::shards::{FoundShards, ShardKind, is_inside};
use crate::config::read_small;
use crate::limits::Budget;
use crate::source::CompanionFile;
use crate::{AnamnesisError, Result};

/// Name of the file that names the last checkpoint.
const LATEST: &str = "latest";

/// What the names of files with the states of optimizers end with. Each process writes one.
const OPTIMIZER_ENDING: &str = "_optim_states.pt";

/// Names of the file with the model's state: of stages 1 and 2, and of the first process in stage 3.
const MODEL_STATES: [&str; 2] = [
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_model_states.pt",
];

/// Finds the file with the state of the model in `dir`, whose entries are `names`, or in the directory that `latest` names. `other` is
/// the file of another model in the directory, which counts rather than a checkpoint below it.
///
/// # Errors
/// `Parse` if both models are in the directory, or the states of optimizers are there without that of the model; `Io`;
/// `LimitExceeded`.
pub(super) fn find_zero(
    dir: &Path,
    names: &[String],
    other: Option<&str>,
    budget: &Budget,
) -> Result<Option<FoundShards>> {
    let (above, files) = match (has_optimizers(names), other) {
        (true, None) => (String::new(), names.to_vec()),
        (true, Some(other)) => {
            let what = format!(
                "which of two models? there is {other}, and files *{OPTIMIZER_ENDING} of DeepSpeed"
            );
            return Err(AnamnesisError::parse(what));
        }
        (false, Some(_)) => return Ok(None),
        (false, None) => match latest(dir, names, budget)? {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    let Some(states) = MODEL_STATES
        .iter()
        .find(|name| files.iter().any(|file| file == *name))
    else {
        let [first, third] = MODEL_STATES;
        let what = format!(
            "there are files *{OPTIMIZER_ENDING} of DeepSpeed, and neither `{first}` nor `{third}`, which say what is in them"
        );
        return Err(AnamnesisError::parse(what));
    };
    let index = match above.is_empty() {
        true => dir.join(states),
        false => dir.join(LATEST),
    };
    Ok(Some(FoundShards {
        files: vec![format!("{above}{states}")],
        kind: ShardKind::Zero,
        index: Some(CompanionFile::new(index)),
        map: None,
    }))
}

/// Whether a file of this name is one of a checkpoint of ZeRO, whose weights are those of the model.
pub(crate) fn is_zero_state(name: &str) -> bool {
    name.ends_with(OPTIMIZER_ENDING) || name.ends_with("_model_states.pt")
}

fn has_optimizers(names: &[String]) -> bool {
    names.iter().any(|name| name.ends_with(OPTIMIZER_ENDING))
}

/// The directory that `latest` names, with a slash, and its entries; `None` if it is no checkpoint of ZeRO.
fn latest(dir: &Path, names: &[String], budget: &Budget) -> Result<Option<(String, Vec<String>)>> {
    if !names.iter().any(|name| name == LATEST) {
        return Ok(None);
    }
    let tag = read_small(&dir.join(LATEST), budget)?;
    let Some(tag) = tag.and_then(|text| String::from_utf8(text).ok()) else {
        return Ok(None);
    };
    let tag = tag.trim();
    if !is_inside(tag) || !dir.join(tag).is_dir() {
        return Ok(None);
    }
    let files = list(&dir.join(tag))?;
    Ok(has_optimizers(&files).then(|| (format!("{tag}/"), files)))
}
