//! Which files of a directory are the weights of its model.

use std::collections::HashMap;
use std::path::Path;

use super::MAX_NAMED;
use super::dfloat11::find_dfloat11;
use super::no_weights::no_weights;
use super::nunchaku::refuse_nunchaku_pair;
use super::package::find_package;
use super::ranks::find_rank_files;
use super::shards::{
    DISTRIBUTED, DISTRIBUTED_ENDING, FoundShards, INDEXES, MLC, ONNX, SINGLE, ShardKind, ending,
    find_indexed, is_secondary, is_weights, numbering, preferred,
};
use super::uqff::find_uqff;
use super::zarr::find_zarr;
use super::zero::{find_latest_zero, find_zero};
use crate::config::{QuantConfig, read_small};
use crate::limits::{Budget, join_first};
use crate::source::CompanionFile;
use crate::{AnamnesisError, Result};

/// Finds the weight files of a directory with entries `names`, beside which `config` was found.
///
/// # Errors
/// `Parse` if several sets of files could be the model, or none; `Unsupported` if they are the
/// older ones of Nunchaku; `Io`; `LimitExceeded`.
pub(super) fn find_shards(
    dir: &Path,
    names: &[String],
    config: &QuantConfig,
    budget: &Budget,
) -> Result<FoundShards> {
    if config.is_dfloat11()
        && let Some(found) = find_dfloat11(dir, names, budget)?
    {
        return Ok(found);
    }
    if let Some(found) = find_package(dir, names, budget)? {
        return Ok(found);
    }
    let listed = preferred(INDEXES, names).or_else(|| preferred(SINGLE, names));
    if listed.is_none() {
        refuse_nunchaku_pair(names)?;
    }
    if let Some(metadata) = find_distributed(names, listed)? {
        return Ok(FoundShards {
            kind: ShardKind::Distributed,
            index: Some(CompanionFile::new(dir.join(metadata))),
            ..vec![metadata.to_owned()].into()
        });
    }
    if let Some(found) = find_zero(dir, names, listed)? {
        return Ok(found);
    }
    if let Some((files, report)) = find_uqff(dir, names, listed, budget)? {
        return Ok(FoundShards { index: Some(report), ..files.into() });
    }
    let index = match preferred(INDEXES, names) {
        Some(index) => Some(index),
        None => only(names, |name| name.ends_with(".index.json"), "indexes")?,
    };
    if let Some(index) = index {
        let found = find_indexed(dir, index, budget)?;
        return Ok(without_stale_index(found, index, names));
    }
    if let Some(single) = preferred(SINGLE, names) {
        return Ok(vec![single.to_owned()].into());
    }
    if let Some(set) = find_numbered(names)? {
        return Ok(set.into());
    }
    if let Some(found) = find_rank_files(names)? {
        return Ok(found);
    }
    if let Some(found) = find_latest_zero(dir, names, budget)? {
        return Ok(found);
    }
    refuse_other_programs(names)?;
    if let Some(list) = preferred(MLC, names) {
        return Ok(FoundShards { kind: ShardKind::Mlc, ..vec![list.to_owned()].into() });
    }
    let is_model =
        |name: &str| is_weights(name) && numbering(name).is_none_or(|(_, no, _)| no == 1);
    // Beside a file that is read, those of other formats are the same model for other programs.
    let is_onnx = |name: &str| ending(name) == ONNX;
    let has_onnx = names.iter().any(|name| is_onnx(name));
    let is_openvino = |name: &str| is_graph(name, names);
    // The data of a graph may be in a file called like a checkpoint.
    let is_data = |name: &str| {
        let beside = name.strip_suffix(".bin").map(|stem| format!("{stem}.xml"));
        ending(name) == "bin" && (has_onnx || beside.is_some_and(|graph| names.contains(&graph)))
    };
    let is_read = |name: &str| is_model(name) && !is_secondary(&ending(name)) && !is_data(name);
    let arrays: Vec<&String> = names.iter().filter(|name| is_read(name)).collect();
    if !arrays.is_empty() && arrays.iter().all(|name| ending(name) == "npy") {
        let files: Vec<String> = arrays.into_iter().cloned().collect();
        return Ok(FoundShards { kind: ShardKind::Arrays, ..files.into() });
    }
    let one = match !arrays.is_empty() {
        true => only(names, is_read, "weight files")?,
        // Those beside it are the same model in other precisions.
        false if has_onnx => match preferred(&["model.onnx"], names) {
            Some(model) => Some(model),
            None => only(names, is_onnx, "weight files")?,
        },
        false if names.iter().any(|name| is_openvino(name)) => {
            match preferred(&["openvino_model.xml"], names) {
                Some(model) => Some(model),
                None => only(names, is_openvino, "weight files")?,
            }
        }
        false => only(names, is_model, "weight files")?,
    };
    if one.is_none()
        && let Some(found) = find_tensorflow(dir, names, budget)?
    {
        return Ok(found.into());
    }
    if one.is_none()
        && let Some(found) = find_zarr(dir, names)?
    {
        return Ok(found);
    }
    match one {
        Some(single) => Ok(vec![single.to_owned()].into()),
        None => Err(no_weights(dir, names)),
    }
}

/// The index of the variables of a SavedModel, or that of the checkpoint which the file `checkpoint` names,
/// or the only one.
fn find_tensorflow(dir: &Path, names: &[String], budget: &Budget) -> Result<Option<Vec<String>>> {
    const VARIABLES: &str = "variables/variables.index";
    let has = |name: &str| names.iter().any(|other| other == name);
    if has("saved_model.pb") && dir.join(VARIABLES).is_file() {
        return Ok(Some(vec![VARIABLES.to_owned()]));
    }
    let latest = match has("checkpoint") {
        true => read_small(&dir.join("checkpoint"), budget)?,
        false => None,
    };
    let latest = latest.and_then(|text| String::from_utf8(text).ok());
    let latest = latest.as_deref().and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("model_checkpoint_path:"))?;
        // It may be a path, of the directory as it was called when it was written.
        let name = line.trim().trim_matches('"').rsplit('/').next()?;
        Some(format!("{name}.index"))
    });
    if let Some(latest) = latest.filter(|latest| has(latest)) {
        return Ok(Some(vec![latest]));
    }
    let only = only(names, |name| name.ends_with(".index"), "indexes")?;
    Ok(only.map(|name| vec![name.to_owned()]))
}

/// Fails if the files are those of a program whose directories are not read.
fn refuse_other_programs(names: &[String]) -> Result<()> {
    let is_rank = |name: &&String| {
        let rank = name
            .strip_prefix("rank")
            .and_then(|rest| rest.strip_suffix(".safetensors"));
        rank.is_some_and(|rank| !rank.is_empty() && rank.bytes().all(|b| b.is_ascii_digit()))
    };
    if names.iter().filter(is_rank).count() > 1 {
        let what = "each process has its part of each tensor, and no file says along which axis; give one of them, such as `rank0.safetensors`";
        return Err(AnamnesisError::unsupported("checkpoint of TensorRT-LLM", what));
    }
    Ok(())
}

/// Whether a file of this name may be a graph of OpenVINO: beside it is one for its data. Other XML files
/// are of any kind.
fn is_graph(name: &str, names: &[String]) -> bool {
    let data = name.strip_suffix(".xml").map(|stem| format!("{stem}.bin"));
    data.is_some_and(|data| names.contains(&data))
}

/// The file beside an index whose shards are not all there, which is left of an earlier model:
/// transformers takes the file, too. The index `found` if all its shards are there, or no file.
fn without_stale_index(found: FoundShards, index: &str, names: &[String]) -> FoundShards {
    let is_there = |file: &str| names.iter().any(|name| name == file);
    let single = index.strip_suffix(".index.json");
    let single = single.filter(|single| SINGLE.contains(single) && is_there(single));
    // Shards in directories below are looked for when they are opened.
    let is_missing = |file: &&String| !file.contains('/') && !is_there(file);
    match (single, found.files.iter().find(is_missing)) {
        (Some(single), Some(missing)) => FoundShards {
            note: Some(format!(
                "`{index}` is of another model: `{missing}` is missing; {single} is read"
            )),
            ..vec![single.to_owned()].into()
        },
        _ => found,
    }
}

/// The only one of `names` that `fits`, if there is one.
///
/// # Errors
/// `Parse` if there are several, which are `what`.
fn only<'n>(
    names: &'n [String],
    fits: impl Fn(&str) -> bool,
    what: &str,
) -> Result<Option<&'n str>> {
    let found = names.iter().map(String::as_str);
    let found: Vec<&str> = found.filter(|name| fits(name)).collect();
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        several => Err(AnamnesisError::parse(format!(
            "which of {} {what}? {}",
            several.len(),
            join_first(several, MAX_NAMED)
        ))),
    }
}

/// Finds the file that describes a distributed checkpoint. `other` is the file of another model in
/// the directory.
///
/// # Errors
/// `Parse` if both models are there; if it is missing, and the files that it should describe are
/// there: a part of a tensor would pass for all of it.
fn find_distributed(names: &[String], other: Option<&str>) -> Result<Option<&'static str>> {
    let has = |ending: &str| names.iter().any(|name| name.ends_with(ending));
    match (names.iter().any(|name| name == DISTRIBUTED), has(DISTRIBUTED_ENDING)) {
        (true, true) => match other {
            None => Ok(Some(DISTRIBUTED)),
            Some(other) => Err(AnamnesisError::parse(format!(
                "which of two models? {DISTRIBUTED} describes one, and there is {other}"
            ))),
        },
        (false, true) if other.is_some() => Ok(None),
        (false, true) if has(DISTRIBUTED) => Err(AnamnesisError::unsupported(
            "distributed checkpoint",
            "each process has written metadata of its own; there is no `.metadata` for all of them",
        )),
        (false, true) => Err(AnamnesisError::parse(format!(
            "`{DISTRIBUTED}` is missing, which says what is in the files `*{DISTRIBUTED_ENDING}`"
        ))),
        (_, false) => Ok(None),
    }
}

/// Finds shards without an index, whose names have their number and count. Each must be there: a
/// model without some of its tensors would pass for a whole one. GGUF files are left out, for the
/// first file's reader finds the others.
fn find_numbered(names: &[String]) -> Result<Option<Vec<String>>> {
    let parts = names
        .iter()
        .filter_map(|name| Some((numbering(name)?, name)));
    let parts: Vec<_> = parts
        .filter(|(((_, rest), ..), _)| !rest.ends_with(".gguf"))
        .collect();
    let Some(&((set, _, count), first)) = parts.first() else {
        return Ok(None);
    };
    if let Some((_, other)) = parts.iter().find(|((other, ..), _)| *other != set) {
        if set.0.starts_with("shard-") && other.starts_with("shard-") {
            return Err(AnamnesisError::unsupported(
                "safetensors of a distributed checkpoint",
                "each process has written its pieces; torch joins them with `consolidate_safetensors_files`",
            ));
        }
        return Err(AnamnesisError::parse(format!(
            "which of several sets of shards? {first}, {other}"
        )));
    }
    let mut by_number = HashMap::new();
    for &((_, no, _), name) in &parts {
        // Numbers may have zeros before them, or none.
        if let Some(other) = by_number.insert(no, name) {
            let what = format!("which of two files is shard {no}? {other}, {name}");
            return Err(AnamnesisError::parse(what));
        }
    }
    let shard = |no: usize| {
        let missing = || {
            let ((stem, rest), width) = (set, set.1.find('.').unwrap_or(0));
            AnamnesisError::parse(format!("shard `{stem}-{no:0width$}-of-{rest}` is missing"))
        };
        by_number
            .get(&no)
            .map(|&name| name.clone())
            .ok_or_else(missing)
    };
    (1..=count).map(shard).collect::<Result<_>>().map(Some)
}
