//! The manifest: a JSON file in an unfinished directory, one for each part, from which an interrupted conversion is resumed.
//!
//! Resuming is safe if the shards of the earlier run and those of this run are shards of the same model. So the manifest
//! holds everything that the output's bytes depend on: the version of this crate, the options, the length and header checksum of
//! every planned shard, and the state of the input's files. If any of these differs, resuming is refused.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::{QuantConfig, read_small};
use crate::containers::write::atomic::{directory_of, sync_directory};
use crate::limits::Budget;
use crate::{AnamnesisError, ParsedModel, Result};

/// The record of one part of an output directory. It is written as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Everything that the output's bytes depend on.
    pub parameters: ConversionParameters,
    /// Name, length in bytes and modification time in nanoseconds of each input file; see [`inputs`].
    pub inputs: Vec<(String, u64, u128)>,
    /// Names of the shards of this part that are durable under their names.
    pub finished: Vec<String>,
    /// Whether this part has made all its files.
    pub done: bool,
}

/// Everything that the output's bytes depend on, besides the input. All parts of an output have the same.
///
/// The field names are keys of the JSON and appear in error messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ConversionParameters {
    /// Version of this crate: another one may decode or lay out tensors differently.
    pub version: String,
    /// Element type of decoded weights.
    pub to: String,
    pub decode: bool,
    pub max_shard_size: Option<u64>,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    /// The encoding options with the state of the files that they name, as text.
    pub forget: Option<String>,
    pub parts: usize,
    /// Every shard with its length and the CRC-32 of its header.
    pub shards: Vec<(String, u64, u32)>,
}

impl ConversionParameters {
    /// Describes the first parameter in which `self` differs from `other`; `None` if they are equal.
    ///
    /// The shards are compared last. They differ whenever another parameter changes the plan, and that parameter is what
    /// the user can act on.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (
            serde_json::to_value(self).ok()?,
            serde_json::to_value(other).ok()?,
        );
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

/// Paths of the files that `model` is read from: its weights, and the configs that say how they are quantized.
pub(super) fn files(model: &ParsedModel) -> Vec<PathBuf> {
    let (mut files, directory) = match (&model.directory, model.path()) {
        (Some(d), _) => (
            d.files.iter().map(|file| d.path.join(file)).collect(),
            Some(d.path.as_path()),
        ),
        (None, path) => (
            path.into_iter().map(Path::to_path_buf).collect::<Vec<_>>(),
            path.and_then(Path::parent),
        ),
    };
    let configs = directory
        .into_iter()
        .flat_map(|dir| QuantConfig::files().into_iter().map(|name| dir.join(name)));
    files.extend(configs.filter(|path| path.is_file()));
    files
}

/// Name, length in bytes and modification time in nanoseconds since 1970 of each of the [`files`] of `model`, as they are now.
/// What cannot be read counts as 0. Contents are not hashed, because that would read the whole model.
pub(super) fn inputs(model: &ParsedModel) -> Vec<(String, u64, u128)> {
    let facts = |path: PathBuf| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let there = std::fs::metadata(path).ok();
        let changed = there.as_ref().and_then(|there| {
            there
                .modified()
                .ok()?
                .duration_since(std::time::UNIX_EPOCH)
                .ok()
        });
        (
            name,
            there.map_or(0, |there| there.len()),
            changed.map_or(0, |changed| changed.as_nanos()),
        )
    };
    files(model).into_iter().map(facts).collect()
}

/// Path of the manifest of part `part` of `of`, counted from 1.
pub(super) fn path(directory: &Path, (part, of): (usize, usize)) -> PathBuf {
    directory.join(format!("anamnesis-part-{part}-of-{of}.json"))
}

/// Whether a file of this name is a manifest.
pub(super) fn is_manifest(name: &str) -> bool {
    has_manifest_prefix(name) && name.ends_with(".json")
}

/// Whether a file of this name is a manifest, or the temporary file of one that was being written.
pub(super) fn has_manifest_prefix(name: &str) -> bool {
    name.starts_with("anamnesis-part-")
}

impl Manifest {
    /// Reads the manifest at `path`; `None` if there is no such file.
    ///
    /// # Errors
    /// `Io` if the file cannot be read, `Parse` if it is not the JSON of a manifest.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let Some(json) = read_small(path, &Budget::unbounded())? else {
            return Ok(None);
        };
        let manifest = serde_json::from_slice(&json);
        manifest
            .map(Some)
            .map_err(|e| AnamnesisError::parse(format!("{}: {e}", path.display())))
    }

    /// Writes the manifest to `path`, durably: under a temporary name, synced, renamed, and then the directory is synced. A
    /// crash leaves the old manifest or the new one. The last sync also makes earlier renames of shards in that directory
    /// durable.
    ///
    /// # Errors
    /// `Io` if the file cannot be written, synced or renamed.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_vec(self).map_err(|e| AnamnesisError::parse(e.to_string()))?;
        let partial = path.with_extension("partial");
        let written = File::create(&partial).and_then(|mut file| {
            file.write_all(&json)?;
            file.sync_all()?;
            std::fs::rename(&partial, path)
        });
        written.map_err(|e| {
            let _ = std::fs::remove_file(&partial);
            AnamnesisError::io_at(path, &e)
        })?;
        sync_directory(directory_of(path));
        Ok(())
    }
}
