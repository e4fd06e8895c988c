//! The files beside the weights of a directory: tokenizer, configs, code. They are copied, and configs lose what describes the
//! quantization of the input: a loader would otherwise try to dequantize weights that are decoded already.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::container::is_weights_of_output;
use crate::config::{edit, read_small};
use crate::containers::parse::directory::is_weights;
use crate::limits::Budget;
use crate::scheme::is_sidecar;
use crate::{AnamnesisError, Result, TargetDtype};

/// Names of the configs that describe a model, including its quantization.
const CONFIGS: &[&str] = &["config.json", "params.json"];

/// Names of directories that are not part of a model.
const SKIPPED: &[&str] = &[".git", ".cache", "__pycache__"];

/// Levels of directories below the input that are copied. Links are not followed to directories, so this only bounds the
/// recursion.
const MAX_DEPTH: usize = 8;

/// Changes to the input's config for the output.
pub(super) struct ConfigEdits<'a> {
    /// Element type to set; `None` if no weight was decoded.
    pub dtype: Option<TargetDtype>,
    /// Quantization config to set: the keys under which the config has it, and its value. `None` if nothing is encoded.
    pub quantization: Option<&'a (Vec<&'static str>, Value)>,
}

/// Copies all files from `from` to `to`, except weights and files that describe only the quantization. Configs are edited. The
/// directories `outputs` may lie below `from`, and are skipped. Returns a note for each file that the user may miss.
///
/// # Errors
/// `Io` if a directory or file cannot be read or written.
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

/// Writes a `config.json` with only the quantization config, if weights are encoded and the input has no config. Without it the
/// output could not be decoded.
///
/// # Errors
/// `Io` if the file cannot be written.
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

/// Copies the files beside the weights.
struct SidecarCopier<'a> {
    from: PathBuf,
    /// `from` with all links resolved.
    root: PathBuf,
    /// Directories to skip, with all links resolved.
    outputs: Vec<PathBuf>,
    edits: &'a ConfigEdits<'a>,
}

/// `path` with all links resolved, or `path` itself if it cannot be resolved.
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
        is_weights(name)
            || is_weights_of_output(name)
            || is_sidecar(name)
            || super::manifest::is_manifest(name)
    }

    /// Whether a file, with links resolved, belongs to the model: it is in the input directory, or in the blob store of the
    /// Hugging Face cache. There a model is `models--ORG--NAME/snapshots/REVISION`, full of links into `models--ORG--NAME/blobs`.
    ///
    /// Any other link is not followed: a downloaded directory could otherwise make a private file a part of the output.
    fn is_model_file(&self, path: &Path) -> bool {
        let file = resolve_links(path);
        let store = self
            .root
            .parent()
            .and_then(Path::parent)
            .map(|repository| repository.join("blobs"));
        file.starts_with(&self.root) || store.is_some_and(|store| file.starts_with(store))
    }

    /// Copies the file `path` to the directory `to`. A config at the top level is edited; one that is not valid JSON is copied.
    fn copy_file(&self, path: &Path, name: &str, to: &Path, depth: usize) -> Result<()> {
        let target = to.join(name);
        let written = std::fs::create_dir_all(to).and_then(|()| {
            // An interrupted run may have left a copy. `std::fs::copy` copies permissions too, so if the original is read-only the
            // copy is, and could not be overwritten.
            let _ = std::fs::remove_file(&target);
            // Only `config.json` is edited further: `params.json` has no key for these, and its readers may refuse one.
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

/// The config `json` without the input's quantization, and with the given dtype and quantization config; `None` if it is not valid.
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

/// Writes the index of a model in several files: the file of each tensor, and the bytes of all tensors.
///
/// # Errors
/// `Io` if the file cannot be written.
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
