//! The manifest: a JSON file in an unfinished directory, one for each part, from which an
//! interrupted conversion is resumed.
//!
//! Resuming is safe if the shards of the earlier run and those of this run are shards of the same
//! model. So the manifest holds everything that the output's bytes depend on: the version of this
//! crate, the options, the length and header checksum of every planned shard, and the state of the
//! input's files. If any of these differs, resuming is refused. It also has the checksum of each
//! finished shard: one that was damaged since is made again.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checksum::checksum_of_file;
use super::names::NameChanges;
use super::unfinished::UnfinishedDirectory;
use crate::source::{FileState, Source};
use crate::{AnamnesisError, CancelToken, ParsedModel, Result};

/// The record of one part of an output directory. It is written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Everything that the output's bytes depend on.
    pub parameters: ConversionParameters,
    /// The state of each input file when the part was begun; see [`inputs`].
    pub inputs: Vec<InputRecord>,
    /// The shards of this part that are durable under their names.
    pub finished: Vec<FinishedShard>,
    /// Whether this part has made all its files.
    pub done: bool,
}

/// The record of one file of the input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct InputRecord {
    /// Path below the input directory.
    pub name: String,
    state: FileState,
    /// CRC-32 of the content, if the file is small.
    crc: Option<u32>,
}

impl InputRecord {
    /// Whether the file that `now` is of is this one, wherever it lies: it has the same times to the
    /// nanosecond, which only the system sets. Where it sets none, nothing can tell.
    pub(super) fn is_file_of(&self, now: &FileState) -> bool {
        let FileState { len, modified, changed, .. } = self.state;
        changed != 0 && (len, modified, changed) == (now.len, now.modified, now.changed)
    }
}

/// The record of a shard that is durable under its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FinishedShard {
    pub name: String,
    /// CRC-32 of the whole file.
    pub crc: u32,
}

/// Everything that the output's bytes depend on, besides the input. All parts of an output have the
/// same.
///
/// The field names are keys of the JSON and appear in error messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ConversionParameters {
    /// Version of this crate: another one may decode or lay out tensors differently.
    pub version: String,
    /// Element type of decoded weights.
    pub to: String,
    pub decode: bool,
    /// How plain floats are cast; `None` if they are not.
    #[serde(default)]
    pub cast: Option<String>,
    pub max_shard_size: Option<u64>,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    /// Names that change, and tensors that are left out.
    #[serde(default)]
    pub names: NameChanges,
    /// The encoding options with the state of the files that they name, as text.
    pub forget: Option<String>,
    /// The adapters that are merged, with their weights and the states of their files, as text.
    #[serde(default)]
    pub adapters: Vec<String>,
    pub parts: usize,
    /// Every shard with its length and the CRC-32 of its header.
    pub shards: Vec<(String, u64, u32)>,
}

impl ConversionParameters {
    /// Describes the first parameter in which `self` differs from `other`; `None` if they are
    /// equal.
    ///
    /// The shards are compared last. They differ whenever another parameter changes the plan, and
    /// that parameter is what the user can act on.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (serde_json::to_value(self).ok()?, serde_json::to_value(other).ok()?);
        let fields = ours.as_object()?.iter();
        let differ = |(key, value): (&String, &serde_json::Value)| {
            let other = theirs.get(key).filter(|other| *other != value)?;
            let both = if key == "shards" {
                String::new()
            } else {
                format!(": {value}, and it was begun with {other}")
            };
            Some(format!("{key}{both}"))
        };
        let (shards, others): (Vec<_>, Vec<_>) = fields.partition(|(key, _)| *key == "shards");
        others.into_iter().chain(shards).find_map(differ)
    }
}

/// Paths of the weight files of `model`, those of a split GGUF model included.
fn weights(model: &ParsedModel) -> Vec<PathBuf> {
    let opened = model.sources.iter().filter_map(Source::path);
    let mut files: Vec<PathBuf> = opened.map(Path::to_path_buf).collect();
    files.dedup();
    files
}

/// Largest file whose content is summed, in bytes: configs, indexes and tokenizers are smaller.
const MAX_SUMMED: u64 = 64 << 20;

/// The state of each file that `model` is read from and of the files `sidecars` that are copied, each
/// given as its path and its path below the input. Sorted by name.
///
/// Of weights the times tell whether they have changed, because summing them would read the whole
/// model. A program can set the modification time but not the change time. Small files are summed
/// as well. CRC-32 is enough, as nobody gains by a forged sum: who may write the input may write
/// any model.
///
/// # Errors
/// `Io` if a small file cannot be read.
pub(super) fn inputs(
    model: &ParsedModel,
    sidecars: &[(PathBuf, PathBuf)],
) -> Result<Vec<InputRecord>> {
    let mut found = BTreeMap::new();
    let weights: Vec<PathBuf> = weights(model);
    for path in &weights {
        let name = below(model, path);
        found.insert(name.clone(), InputRecord::new(name, path, false)?);
    }
    let companions = model.companions().filter(|companion| companion.exists());
    let companions = companions.map(|companion| (&companion.path, below(model, &companion.path)));
    let sidecars = sidecars
        .iter()
        .map(|(path, below)| (path, below.to_string_lossy().into_owned()));
    for (path, name) in companions.chain(sidecars) {
        if !found.contains_key(&name) {
            found.insert(name.clone(), InputRecord::new(name, path, true)?);
        }
    }
    Ok(found.into_values().collect())
}

/// The path of a file of `model` below the model's directory; its name if it is elsewhere.
fn below(model: &ParsedModel, path: &Path) -> String {
    let directory = model.directory.as_ref().map(|d| d.path.as_path());
    let below = directory.and_then(|directory| path.strip_prefix(directory).ok());
    let below = below.or_else(|| path.file_name().map(Path::new));
    below.unwrap_or(path).to_string_lossy().into_owned()
}

/// Describes the first file in which the records `before` and `now`, both sorted by name, differ;
/// `None` if they are equal.
pub(super) fn changed_input(before: &[InputRecord], now: &[InputRecord]) -> Option<String> {
    let find = |records: &[InputRecord], name: &str| {
        records.binary_search_by(|record| record.name.as_str().cmp(name))
    };
    let of_now = now.iter().find_map(|now| match find(before, &now.name) {
        Err(_) => Some(format!("`{}` was not there", now.name)),
        Ok(at) => before[at].difference(now),
    });
    let gone = |record: &InputRecord| {
        let is_gone = find(now, &record.name).is_err();
        is_gone.then(|| format!("`{}` is no longer there", record.name))
    };
    of_now.or_else(|| before.iter().find_map(gone))
}

impl InputRecord {
    /// The record of the file `path` as it is now. What is not there counts as empty.
    fn new(name: String, path: &Path, is_summed: bool) -> Result<Self> {
        let failed = |e: std::io::Error| AnamnesisError::io_at(path, &e);
        let Ok(meta) = std::fs::metadata(path) else {
            let (state, crc) = (FileState::default(), None);
            return Ok(Self { name, state, crc });
        };
        let mut state = FileState::of(&meta);
        // Devices can get other numbers when the system starts again.
        state.place = (0, 0);
        let is_summed = is_summed && meta.is_file() && meta.len() <= MAX_SUMMED;
        let sum = || {
            let file = File::open(path).map_err(failed)?;
            checksum_of_file(&file, meta.len(), 1, &CancelToken::new()).map_err(|e| match e {
                AnamnesisError::Io(e) => failed(e),
                other => other,
            })
        };
        let crc = is_summed.then(sum).transpose()?;
        Ok(Self { name, state, crc })
    }

    /// Describes what differs in `now`, a later record of the file.
    fn difference(&self, now: &Self) -> Option<String> {
        let of_content = || (self.crc != now.crc).then(|| "its content differs".to_owned());
        let what = self.state.difference(&now.state).or_else(of_content)?;
        Some(format!("`{}`: {what}", self.name))
    }
}

impl Manifest {
    /// Whether the files in `directory` have the states of the input's files when the part was
    /// begun.
    pub(super) fn is_of(&self, directory: &Path) -> bool {
        !self.inputs.is_empty()
            && self.inputs.iter().all(|then| {
                let now = InputRecord::new(then.name.clone(), &directory.join(&then.name), false);
                now.is_ok_and(|now| then.state.difference(&now.state).is_none())
            })
    }

    /// The record of shard `name`, if it is finished.
    pub(super) fn finished(&self, name: &str) -> Option<&FinishedShard> {
        self.finished.iter().find(|shard| shard.name == name)
    }

    /// Records a shard as finished, in place of an earlier record of it.
    pub(super) fn add_finished(&mut self, shard: FinishedShard) {
        self.finished.retain(|other| other.name != shard.name);
        self.finished.push(shard);
    }

    /// Reads the manifest `name` in `directory`; `None` if there is no such file.
    ///
    /// # Errors
    /// `Io` if the file cannot be read, `Parse` if it is not the JSON of a manifest.
    pub(super) fn read(directory: &UnfinishedDirectory, name: &str) -> Result<Option<Self>> {
        let Some(json) = directory.read(name)? else {
            return Ok(None);
        };
        let manifest = serde_json::from_slice(&json);
        let path = directory.path().join(name);
        manifest
            .map(Some)
            .map_err(|e| AnamnesisError::parse(format!("{}: {e}", path.display())))
    }

    /// Writes the manifest to `directory` as `name`, durably. A crash leaves the old manifest or
    /// the new one. Earlier renames of shards in that directory are durable then, too.
    ///
    /// # Errors
    /// `Io` if the file cannot be written, synced or renamed.
    pub(super) fn write(&self, directory: &UnfinishedDirectory, name: &str) -> Result<()> {
        let json = serde_json::to_vec(self).map_err(|e| AnamnesisError::parse(e.to_string()))?;
        directory.write(name, &json)
    }
}
