//! Files beside the weights of a directory: copied, without what describes the quantization of the input.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::{edit, read_small};
use crate::containers::parse::directory::is_weights;
use crate::limits::Budget;
use crate::scheme::is_sidecar;
use crate::{AnamnesisError, Result, TargetDtype};

/// Files that describe a model, its quantization among other things.
const CONFIGS: &[&str] = &["config.json", "params.json"];

/// Directories that are no part of a model.
const SKIPPED: &[&str] = &[".git", ".cache", "__pycache__"];

/// How many levels of directories below the input are copied.
const MAX_DEPTH: usize = 8;

/// What the config of an output says and the config of the input does not.
pub(super) struct ConfigEdits<'a> {
    /// Type of decoded weights, if there are any.
    pub dtype: Option<TargetDtype>,
    /// How the weights are quantized, if they are: the keys under which the config has it, and their value.
    pub quantization: Option<&'a (Vec<&'static str>, Value)>,
}

/// Copies every file but weights and sidecars from `from` to `to`, without the directories `outputs`, which may lie below
/// `from`. Configs are edited. Returns a note for each file that the user may miss.
pub(super) fn copy(
    from: &Path,
    to: &Path,
    edits: &ConfigEdits<'_>,
    outputs: &[&Path],
) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    let copier = SidecarCopier {
        from: from.to_path_buf(),
        root: resolve_links(from),
        outputs: outputs.iter().map(|path| resolve_links(path)).collect(),
        edits,
    };
    copier.copy_directory(from, to, 0, &mut notes)?;
    Ok(notes)
}

/// Writes a config that says how weights are quantized and nothing else, where there is none.
pub(super) fn write_config(to: &Path, edits: &ConfigEdits<'_>) -> Result<()> {
    let path = to.join("config.json");
    match edit_config("{}", None, edits.quantization) {
        Some(mut text) if edits.quantization.is_some() && !path.exists() => {
            text.push('\n');
            std::fs::write(&path, text).map_err(|e| AnamnesisError::io_at(&path, &e))
        }
        _ => Ok(()),
    }
}

struct SidecarCopier<'a> {
    from: PathBuf,
    /// `from`, with all links followed.
    root: PathBuf,
    outputs: Vec<PathBuf>,
    edits: &'a ConfigEdits<'a>,
}

fn resolve_links(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

impl SidecarCopier<'_> {
    fn copy_directory(
        &self,
        from: &Path,
        to: &Path,
        depth: usize,
        notes: &mut Vec<String>,
    ) -> Result<()> {
        let failed = |e: &std::io::Error| AnamnesisError::io_at(from, e);
        let mut entries: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(from).map_err(|e| failed(&e))? {
            entries.push(entry.map_err(|e| failed(&e))?.path());
        }
        entries.sort();
        for path in entries {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            let Ok(kind) = path.symlink_metadata() else {
                continue;
            };
            if kind.is_dir() {
                if depth < MAX_DEPTH
                    && !SKIPPED.contains(&name)
                    && !self.outputs.contains(&resolve_links(&path))
                {
                    self.copy_directory(&path, &to.join(name), depth + 1, notes)?;
                }
            } else if self.is_excluded(name) {
                if depth > 0 && is_weights(name) {
                    let below = path.strip_prefix(&self.from).unwrap_or(&path).display();
                    notes.push(format!("`{below}` is not converted, and was left out"));
                }
            } else if path.is_file() && self.is_model_file(&path) {
                self.copy_file(&path, name, to, depth)?;
            } else if kind.is_symlink() {
                let what = match path.metadata() {
                    Ok(there) if there.is_dir() => "is a link to a directory",
                    Ok(_) => "is a link out of the directory",
                    Err(_) => "is a link to nothing",
                };
                notes.push(format!("`{name}` {what}, and was left out"));
            }
        }
        Ok(())
    }

    fn is_excluded(&self, name: &str) -> bool {
        is_weights(name) || is_sidecar(name) || super::manifest::is_manifest(name)
    }

    /// Whether a file is in the input, or in the store of the cache that the input's links lead into.
    fn is_model_file(&self, path: &Path) -> bool {
        let file = resolve_links(path);
        let store = self
            .root
            .parent()
            .and_then(Path::parent)
            .map(|repository| repository.join("blobs"));
        file.starts_with(&self.root) || store.is_some_and(|store| file.starts_with(store))
    }

    fn copy_file(&self, path: &Path, name: &str, to: &Path, depth: usize) -> Result<()> {
        let target = to.join(name);
        let written = std::fs::create_dir_all(to).and_then(|()| {
            // One that an interrupted run left is as read-only as its original, and could not be written again.
            let _ = std::fs::remove_file(&target);
            // Other configs do not have the key, and who reads them may not expect it.
            let is_main = name == "config.json";
            let (dtype, quantization) = (
                self.edits.dtype.filter(|_| is_main),
                self.edits.quantization.filter(|_| is_main),
            );
            let is_config = depth == 0 && CONFIGS.contains(&name);
            let text = if is_config {
                read_small(path, &Budget::unbounded()).ok().flatten()
            } else {
                None
            };
            let text = text.and_then(|text| String::from_utf8(text).ok());
            match text.and_then(|text| edit_config(&text, dtype, quantization)) {
                Some(text) => std::fs::write(&target, text),
                None => std::fs::copy(path, &target).map(|_| ()),
            }
        });
        written.map_err(|e| AnamnesisError::io_at(&target, &e))
    }
}

/// A config that says nothing of the input's quantization any more.
fn edit_config(
    json: &str,
    dtype: Option<TargetDtype>,
    quantization: Option<&(Vec<&'static str>, Value)>,
) -> Option<String> {
    let dtype = dtype.map(TargetDtype::torch_name);
    let entries = quantization
        .into_iter()
        .flat_map(|(keys, value)| keys.iter().map(move |&key| (key, value)));
    edit::requantized(json, dtype, &entries.collect::<Vec<_>>())
}

/// Writes the index of a model in several files.
pub(super) fn write_index(
    path: &Path,
    weight_map: &BTreeMap<&str, &str>,
    total_size: u64,
) -> Result<()> {
    let index =
        serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    let mut json =
        serde_json::to_vec_pretty(&index).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    json.push(b'\n');
    std::fs::write(path, json).map_err(|e| AnamnesisError::io_at(path, &e))
}
