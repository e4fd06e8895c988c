//! Finds the weight files of a model directory, by an index or by their names.
//!
//! Index: `{"metadata": {…}, "weight_map": {tensor: file}}`, transformers
//! `modeling_utils.load_sharded_checkpoint`.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Component, Path};

use serde::de::{Deserializer, Error, MapAccess, Visitor};

use super::MAX_NAMED;
use super::dfloat11::find_dfloat11;
use super::no_weights::no_weights;
use super::nunchaku::refuse_nunchaku_pair;
use super::uqff::find_uqff;
use super::zero::{find_latest_zero, find_zero};
use crate::config::{QuantConfig, read_small};
use crate::error::InTensor;
use crate::limits::{Budget, join_first};
use crate::source::CompanionFile;
use crate::{AnamnesisError, Result};

/// Names of indexes, in order of preference. An index of another name counts only if it is the only
/// one.
pub(super) const INDEXES: &[&str] = &[
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
];

/// Names of weight files that need no index, in order of preference. A file of another name counts
/// only if it is the only one.
const SINGLE: &[&str] = &[
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "consolidated.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "diffusion_pytorch_model.bin",
];

/// Name of the file that describes a distributed checkpoint of PyTorch, whose weights are in files
/// of [`DISTRIBUTED_ENDING`].
pub(super) const DISTRIBUTED: &str = ".metadata";

const DISTRIBUTED_ENDING: &str = ".distcp";

/// Endings of files of weights in formats that are read.
const WEIGHTS: &[&str] = &[
    "safetensors",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "distcp",
    "pkl",
    "gguf",
    "npz",
    "npy",
    "qnat",
    "uqff",
];

/// Endings of files of weights in formats that are not read.
const UNREAD: &[&str] = &["h5", "msgpack", "onnx", "onnx_data", "ot", "tflite", "mlmodel"];

/// Whether a file of this name holds weights, or is an index of them.
pub(crate) fn is_weights(name: &str) -> bool {
    let is_index = name == DISTRIBUTED || name.ends_with(".index.json");
    let ending = &*ending(name);
    is_index || WEIGHTS.contains(&ending) || UNREAD.contains(&ending)
}

/// What follows the last dot of `name`, in small letters; empty without one.
fn ending(name: &str) -> String {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    ending.unwrap_or_default().to_ascii_lowercase()
}

/// What an index lists: the names of tensors, in order, each with the number of its file.
pub(super) type WeightMap = Vec<(Box<str>, u32)>;

/// How the weight files of a directory are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShardKind {
    /// Each by itself, by the container that it begins as.
    Single,
    /// As a checkpoint whose files a file [`DISTRIBUTED`] describes.
    Distributed,
    /// As a checkpoint of DeepSpeed's ZeRO, by the state of the model.
    Zero,
}

/// The weight files of a directory, in order.
pub(super) struct FoundShards {
    pub files: Vec<String>,
    pub kind: ShardKind,
    /// The index, and its map, if there is one.
    pub index: Option<CompanionFile>,
    pub map: Option<WeightMap>,
    /// What a user should know of the choice.
    pub note: Option<String>,
}

impl From<Vec<String>> for FoundShards {
    fn from(files: Vec<String>) -> Self {
        Self { files, kind: ShardKind::Single, index: None, map: None, note: None }
    }
}

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
    if let Some(found) = find_latest_zero(dir, names, budget)? {
        return Ok(found);
    }
    let is_model =
        |name: &str| is_weights(name) && numbering(name).is_none_or(|(_, no, _)| no == 1);
    // Beside a file that is read, those of other formats are the same model for other programs.
    let is_read = |name: &str| is_model(name) && !UNREAD.contains(&ending(name).as_str());
    let one = match names.iter().filter(|name| is_read(name)).count() {
        0 => only(names, is_model, "weight files")?,
        _ => only(names, is_read, "weight files")?,
    };
    match one {
        Some(single) => Ok(vec![single.to_owned()].into()),
        None => Err(no_weights(dir, names)),
    }
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

/// The first of `list` that is among `names`.
pub(super) fn preferred(list: &[&'static str], names: &[String]) -> Option<&'static str> {
    let mut list = list.iter().copied();
    list.find(|file| names.iter().any(|name| name == file))
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

/// The files that the index `index` names.
///
/// # Errors
/// `Parse` if it is malformed, or names a file outside of the directory; `Io`; `LimitExceeded`.
pub(super) fn find_indexed(dir: &Path, index: &str, budget: &Budget) -> Result<FoundShards> {
    let companion = CompanionFile::new(dir.join(index));
    let (files, map) =
        read_weight_map(&companion.path, budget).map_err(|e| e.about(format_args!("`{index}`")))?;
    if let Some(file) = files.iter().find(|file| !is_inside(file)) {
        return Err(AnamnesisError::parse(format!(
            "`{index}`: shard `{file}` is not in the directory"
        )));
    }
    Ok(FoundShards { index: Some(companion), map: Some(map), ..files.into() })
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

/// Parses the name `NAME-00001-of-0000N.safetensors`: the set `(NAME, 0000N.safetensors)`, the
/// number, and the count.
pub(crate) fn numbering(name: &str) -> Option<((&str, &str), usize, usize)> {
    let (head, rest) = name.rsplit_once("-of-").filter(|_| is_weights(name))?;
    let (stem, no) = head.rsplit_once('-')?;
    let (no, count) = (no.parse().ok()?, rest.split_once('.')?.0.parse().ok()?);
    (1..=count)
        .contains(&no)
        .then_some(((stem, rest), no, count))
}

/// Whether the relative path `file`, from an untrusted index, stays below its directory on every
/// system. A backslash separates components on Windows, and a colon may begin a drive or a stream
/// there.
pub(in crate::parse) fn is_inside(file: &str) -> bool {
    !file.is_empty()
        && !file.contains(['\\', '\0', ':'])
        && Path::new(file)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

/// Reads the `weight_map` of an index: the files that it names, in order, and the map.
///
/// # Errors
/// `Parse` if it is malformed or empty, or lists a tensor twice: which file counts would depend on
/// the reader.
fn read_weight_map(path: &Path, budget: &Budget) -> Result<(Vec<String>, WeightMap)> {
    /// Files are numbered as they come.
    #[derive(Default)]
    struct WeightMapPairs {
        files: BTreeMap<String, u32>,
        pairs: WeightMap,
    }
    impl<'de> serde::Deserialize<'de> for WeightMapPairs {
        fn deserialize<D: Deserializer<'de>>(
            deserializer: D,
        ) -> std::result::Result<Self, D::Error> {
            struct WeightMapVisitor;
            impl<'de> Visitor<'de> for WeightMapVisitor {
                type Value = WeightMapPairs;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a map from tensors to files")
                }

                fn visit_map<A: MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> std::result::Result<WeightMapPairs, A::Error> {
                    let mut found = WeightMapPairs::default();
                    while let Some((name, file)) = map.next_entry::<Box<str>, String>()? {
                        let next = found.files.len() as u32;
                        let number = *found.files.entry(file).or_insert(next);
                        found.pairs.push((name, number));
                    }
                    found.pairs.sort_unstable();
                    let twice = found.pairs.windows(2).find(|pair| pair[0].0 == pair[1].0);
                    if let Some([(name, _), _]) = twice {
                        return Err(A::Error::custom(format!(
                            "{} is listed twice",
                            InTensor(&name)
                        )));
                    }
                    Ok(found)
                }
            }
            deserializer.deserialize_map(WeightMapVisitor)
        }
    }
    #[derive(serde::Deserialize)]
    struct ShardIndex {
        weight_map: WeightMapPairs,
    }
    let json = read_small(path, budget)?.unwrap_or_default();
    let index: ShardIndex =
        serde_json::from_slice(&json).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    let WeightMapPairs { files, mut pairs } = index.weight_map;
    if pairs.is_empty() {
        return Err(AnamnesisError::parse("its weight_map is empty"));
    }
    let mut places = vec![0; files.len()];
    for (place, &number) in (0..).zip(files.values()) {
        places[number as usize] = place;
    }
    for (_, file) in &mut pairs {
        *file = places[*file as usize];
    }
    Ok((files.into_keys().collect(), pairs))
}
