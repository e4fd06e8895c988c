//! What an unfinished directory says of itself: what it is to become, and which shards are there.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::read_small;
use crate::{AnamnesisError, Result};

/// One part's account of its work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Everything that the output's bytes depend on.
    pub parameters: Parameters,
    /// The input's files: name, length, and time of the last change in nanoseconds.
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
    pub parts: usize,
    /// Every shard with its length and the CRC-32 of its header.
    pub shards: Vec<(String, u64, u32)>,
}

impl Parameters {
    /// The first thing in which `self` differs from `other`.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (serde_json::to_value(self).ok()?, serde_json::to_value(other).ok()?);
        let fields = ours.as_object()?.iter();
        let differ = |(key, value): (&String, &serde_json::Value)| {
            let other = theirs.get(key).filter(|other| *other != value)?;
            let both =
                if key == "shards" { String::new() } else { format!(": {value}, and it was begun with {other}") };
            Some(format!("{key}{both}"))
        };
        fields.filter_map(differ).next()
    }
}

/// Where part `part` of `of` keeps its manifest.
pub(super) fn path(directory: &Path, (part, of): (usize, usize)) -> PathBuf {
    directory.join(format!("anamnesis-part-{part}-of-{of}.json"))
}

/// Whether a file of this name is a manifest.
pub(super) fn is_manifest(name: &str) -> bool {
    name.starts_with("anamnesis-part-") && name.ends_with(".json")
}

impl Manifest {
    /// The manifest at `path`, if there is one.
    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        let Some(json) = read_small(path)? else { return Ok(None) };
        let manifest = serde_json::from_slice(&json);
        manifest.map(Some).map_err(|e| AnamnesisError::parse(format!("{}: {e}", path.display())))
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
        sync_directory(path.parent().unwrap_or(Path::new(".")));
        Ok(())
    }
}

/// Makes names in `directory` durable. Some file systems cannot; the files are there and whole all the same.
pub(super) fn sync_directory(directory: &Path) {
    #[cfg(unix)]
    let _ = File::open(directory).and_then(|directory| directory.sync_all());
    #[cfg(not(unix))]
    let _ = directory;
}
