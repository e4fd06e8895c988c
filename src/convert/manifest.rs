//! What an unfinished directory says of itself: what it is to become, and which shards are there.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::{QuantConfig, read_small};
use crate::containers::write::atomic::{directory_of, sync_directory};
use crate::limits::Budget;
use crate::{AnamnesisError, ParsedModel, Result};

/// One part's account of its work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Everything that the output's bytes depend on.
    pub parameters: Parameters,
    /// The input's files, as [`inputs`] has them.
    pub inputs: Vec<(String, u64, u128)>,
    /// The shards that are whole.
    pub finished: Vec<String>,
    /// Whether nothing is left to do in this part.
    pub done: bool,
}

/// What all parts of an output have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Parameters {
    /// Of this crate.
    pub version: String,
    pub to: String,
    pub decode: bool,
    pub max_shard_size: Option<u64>,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    /// What tensors are encoded to, and which.
    pub forget: Option<String>,
    pub parts: usize,
    /// Every shard with its length and the CRC-32 of its header.
    pub shards: Vec<(String, u64, u32)>,
}

impl Parameters {
    /// The first thing in which `self` differs from `other`: the shards only if nothing else tells why they differ.
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

/// The files that `model` is read from: its weights, and the configs that say how to read them.
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

/// The files of `model` as they are now: name, length, and time of the last change in nanoseconds.
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

/// Where part `part` of `of` keeps its manifest.
pub(super) fn path(directory: &Path, (part, of): (usize, usize)) -> PathBuf {
    directory.join(format!("anamnesis-part-{part}-of-{of}.json"))
}

/// Whether a file of this name is a manifest.
pub(super) fn is_manifest(name: &str) -> bool {
    has_manifest_prefix(name) && name.ends_with(".json")
}

/// Whether a file of this name is a manifest, or was to become one.
pub(super) fn has_manifest_prefix(name: &str) -> bool {
    name.starts_with("anamnesis-part-")
}

impl Manifest {
    /// The manifest at `path`, if there is one.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let Some(json) = read_small(path, &Budget::unbounded())? else {
            return Ok(None);
        };
        let manifest = serde_json::from_slice(&json);
        manifest
            .map(Some)
            .map_err(|e| AnamnesisError::parse(format!("{}: {e}", path.display())))
    }

    /// Writes it, durably.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_vec(self).map_err(|e| AnamnesisError::parse(e.to_string()))?;
        let partial = path.with_extension("partial");
        let written = File::create(&partial).and_then(|mut file| {
            file.write_all(&json)?;
            file.sync_all()?;
            std::fs::rename(&partial, path)
        });
        written.map_err(|e| AnamnesisError::io_at(path, &e))?;
        sync_directory(directory_of(path));
        Ok(())
    }
}
