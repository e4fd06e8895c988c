//! The files beside the weights of a directory: tokenizer, configs, code. They are copied, and
//! configs lose what describes the quantization of the input: a loader would otherwise try to
//! dequantize weights that are decoded already.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::adapters::ConfigField;
use super::container::is_weights_of_output;
use super::unfinished::UnfinishedDirectory;
use crate::config::{
    Confined, Unwritten, edit, is_usual, read_small, resolve_links, why_unwritten,
};
use crate::limits::Budget;
use crate::model::FileBeside;
use crate::parse::directory::is_weights;
use crate::remember::is_sidecar;
use crate::sort::sort_by;
use crate::source::directory::OpenDirectory;
use crate::source::inputs::{MAX_DEPTH, place_at};
use crate::source::platform::{allocated, copy_contents, is_executable, open_unlinked};
use crate::source::sha256_of_file;
use crate::{AnamnesisError, Result, TargetDtype};

/// Changes to the input's config for the output.
#[derive(Default)]
pub(super) struct ConfigEdits<'a> {
    /// Element type to set; `None` if no weight was decoded.
    pub dtype: Option<TargetDtype>,
    /// Quantization config to set: the keys under which the config has it, and its value. `None` if
    /// nothing is encoded.
    pub quantization: Option<&'a (Vec<&'static str>, Value)>,
    /// Members that get another value.
    pub fields: &'a [ConfigField],
}

/// The files of an input directory that belong into an output directory, beside the weights.
#[derive(Default)]
pub(super) struct Sidecars {
    /// The path of each file, and its path below the input, which is that of the copy below the
    /// output.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// A note for each file that is left out and that the user may miss.
    pub notes: Vec<String>,
}

impl Sidecars {
    /// All files in `from`, except weights and files that describe only the quantization. The
    /// directories `outputs` may lie below `from`, and are skipped. Weights in directories below
    /// `from` get a note, unless `is_part` says that they are a part of the model.
    ///
    /// # Errors
    /// `Io` if a directory cannot be read.
    pub(super) fn find(
        from: &Path,
        outputs: &[&Path],
        is_part: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        let mut search = SidecarSearch {
            confined: Confined::new(from),
            outputs: outputs.iter().map(|path| resolve_links(path)).collect(),
            places: outputs.iter().filter_map(|path| place_at(path)).collect(),
            is_part,
            found: Self { files: vec![], notes: vec![] },
        };
        search.directory(from, Path::new(""), 0)?;
        Ok(search.found)
    }

    /// The files `files`, except weights, which get a note, and files that describe only the
    /// quantization.
    ///
    /// # Errors
    /// `Parse` if the content of a file has another SHA-256 than it is to have; `Io` if it cannot
    /// be read.
    pub(super) fn of_files(files: &[FileBeside]) -> Result<Self> {
        let mut found = Self::default();
        let mut buffer = vec![];
        for FileBeside { name, path, sha256 } in files {
            let last = name.rsplit('/').next().unwrap_or(name);
            if let Some(why) = why_unwritten(name, false) {
                found.notes.push(unwritten(Path::new(name), why));
                continue;
            }
            if is_excluded(last) {
                if is_weights(last) && !last.ends_with(".index.json") {
                    found.notes.push(left_out(Path::new(name)));
                }
                continue;
            }
            // A build without the feature has no SHA-256.
            if cfg!(feature = "check") {
                let sum = sha256_of_file(path, &mut buffer, &mut |_| Ok(()))?;
                if sum != *sha256 {
                    let what = format!(
                        "{}: it is to be `{name}`, and its SHA-256 is {sum}",
                        path.display()
                    );
                    return Err(AnamnesisError::parse(what));
                }
            }
            found.files.push((path.clone(), PathBuf::from(name)));
        }
        Ok(found)
    }

    /// Bytes that the copies take on the disk. What cannot be read counts as 0, and fails when it
    /// is copied.
    pub(super) fn size(&self) -> u64 {
        let sizes = self.files.iter().map(|(path, _)| path.metadata());
        sizes.flatten().map(|there| allocated(&there)).sum()
    }

    /// Copies the files to `to`. Configs are edited. Of permissions only the owner's right to run a
    /// file is copied.
    ///
    /// # Errors
    /// `Io` if a file cannot be read or written, or if a link stands where a directory is to be
    /// made.
    pub(super) fn copy(&self, to: &UnfinishedDirectory, edits: &ConfigEdits<'_>) -> Result<()> {
        for (path, below) in &self.files {
            let failed = |e: std::io::Error| AnamnesisError::io_at(&to.path().join(below), &e);
            let mut opened: Option<OpenDirectory> = None;
            for name in below.parent().into_iter().flat_map(Path::iter) {
                let directory = opened.as_ref().unwrap_or(to.handle());
                opened = Some(directory.open_or_create(name).map_err(failed)?);
            }
            let directory = opened.as_ref().unwrap_or(to.handle());
            let name = below.file_name().unwrap_or_default();
            let original =
                open_unlinked(&resolve_links(path)).map_err(|e| AnamnesisError::io_at(path, &e))?;
            let meta = original.metadata().map_err(failed)?;
            let config = edited(path, below, edits)?;
            let copy = directory.create_anew(name, is_executable(&meta));
            let written = copy.and_then(|mut copy| match config {
                Some(text) => copy.write_all(text.as_bytes()),
                None => copy_contents(&original, &copy),
            });
            written.map_err(failed)?;
        }
        Ok(())
    }
}

/// The edited text of the config `path`; `None` if it is another file, or not valid JSON, and is
/// copied as it is.
///
/// # Errors
/// A config cannot be read. It is not copied then: the input's quantization would stay in it.
fn edited(path: &Path, below: &Path, edits: &ConfigEdits<'_>) -> Result<Option<String>> {
    if !edit::EDITED_FILES
        .iter()
        .any(|name| below == Path::new(name))
    {
        return Ok(None);
    }
    // Only `config.json` is edited further: `params.json` has no key for these, and its readers may
    // refuse one.
    let is_main = below == Path::new("config.json");
    let edits = match is_main {
        true => edits,
        false => &ConfigEdits::default(),
    };
    let text = read_small(path, &Budget::unbounded())?;
    let text = text.and_then(|text| String::from_utf8(text).ok());
    Ok(text.and_then(|text| edit_config(&text, edits)))
}

/// Writes a `config.json` with only the quantization config, if weights are encoded and the input
/// has no config. Without it the output could not be decoded.
///
/// # Errors
/// `Io` if the file cannot be written.
pub(super) fn write_config(to: &UnfinishedDirectory, edits: &ConfigEdits<'_>) -> Result<()> {
    let name = "config.json";
    let added = ConfigEdits { dtype: None, fields: &[], ..*edits };
    match edit_config("{}", &added) {
        Some(mut text) if edits.quantization.is_some() && to.open_file(name)?.is_none() => {
            text.push('\n');
            write_anew(to, name, text.as_bytes())
        }
        _ => Ok(()),
    }
}

/// Writes a file that was made for the output. A config gets the quantization of the output.
///
/// # Errors
/// `Io` if the file cannot be written.
pub(super) fn write_made(
    to: &UnfinishedDirectory,
    (name, text): (&str, &str),
    edits: &ConfigEdits<'_>,
) -> Result<()> {
    // What was made has the type already.
    let edits = ConfigEdits { dtype: None, ..*edits };
    let edited = match name {
        "config.json" => edit_config(text, &edits),
        _ => None,
    };
    write_anew(to, name, edited.as_deref().unwrap_or(text).as_bytes())
}

/// Writes the file `name` in `to`, in place of a file of that name.
fn write_anew(to: &UnfinishedDirectory, name: &str, bytes: &[u8]) -> Result<()> {
    let file = to.handle().create_anew(name.as_ref(), false);
    let written = file.and_then(|mut file| file.write_all(bytes));
    written.map_err(|e| AnamnesisError::io_at(&to.path().join(name), &e))
}

/// Finds the files beside the weights.
struct SidecarSearch<'a> {
    /// Which files are the input's.
    confined: Confined,
    /// Directories to skip, with all links resolved.
    outputs: Vec<PathBuf>,
    /// Device and inode of these directories: a bind mount gives a directory another path.
    places: Vec<(u64, u64)>,
    /// Whether a file of this name is a part of the model.
    is_part: &'a dyn Fn(&str) -> bool,
    found: Sidecars,
}

impl SidecarSearch<'_> {
    /// Finds the files in `from`, which is the directory `below` of the input.
    fn directory(&mut self, from: &Path, below: &Path, depth: usize) -> Result<()> {
        let failed = |e: &std::io::Error| AnamnesisError::io_at(from, e);
        let mut entries: Vec<PathBuf> = Vec::new();
        for entry in std::fs::read_dir(from).map_err(|e| failed(&e))? {
            entries.push(entry.map_err(|e| failed(&e))?.path());
        }
        sort_by(&mut entries, PathBuf::cmp);
        for path in entries {
            let (Some(name), Ok(kind)) = (path.file_name(), path.symlink_metadata()) else {
                continue;
            };
            // Names of weights and descriptions are text. A name that is not, is none of them,
            // whatever stands for its bytes.
            let (text, below) = (name.to_string_lossy(), below.join(name));
            if kind.is_dir() && self.is_output(&path) {
                continue;
            }
            if !kind.is_dir() && is_excluded(&text) {
                if depth > 0 && is_weights(&text) && !(self.is_part)(&text) {
                    self.found.notes.push(left_out(&below));
                }
            } else if let Some(why) = why_unwritten(&text, kind.is_dir()) {
                if !is_usual(&text) {
                    self.found.notes.push(unwritten(&below, why));
                }
            } else if kind.is_dir() {
                if depth < MAX_DEPTH {
                    self.directory(&path, &below, depth + 1)?;
                }
            } else if path.is_file() && self.confined.has(&path) {
                self.found.files.push((path, below));
            } else if kind.is_symlink() {
                let what = match path.metadata() {
                    Ok(there) if there.is_dir() => "is a link to a directory",
                    Ok(_) => "is a link out of the directory",
                    Err(_) => "is a link to nothing",
                };
                let note = format!("`{text}` {what}, and was left out");
                self.found.notes.push(note);
            }
        }
        Ok(())
    }

    /// Whether the directory `path` is one that is to be skipped.
    fn is_output(&self, path: &Path) -> bool {
        self.outputs.contains(&resolve_links(path))
            || place_at(path).is_some_and(|place| self.places.contains(&place))
    }
}

/// The note that `file` is not written because of its name.
fn unwritten(file: &Path, why: Unwritten) -> String {
    let reason = why.reason();
    format!("`{}` was left out: {reason}", file.display())
}

/// The note that the weights `file` are in no output.
fn left_out(file: &Path) -> String {
    format!("`{}` is not converted, and was left out", file.display())
}

fn is_excluded(name: &str) -> bool {
    is_weights(name) || is_weights_of_output(name) || is_sidecar(name)
}

/// The config `json` without the input's quantization, and with what `edits` set; `None` if it is
/// not valid.
fn edit_config(json: &str, edits: &ConfigEdits<'_>) -> Option<String> {
    let stored = edit::StoredDtypes {
        dtype: edits.dtype.map(TargetDtype::torch_name),
        experts: edits
            .quantization
            .and_then(|(_, config)| dtype_of_experts(config)),
    };
    let entries = edits
        .quantization
        .into_iter()
        .flat_map(|(keys, value)| keys.iter().map(move |&key| (key, value)));
    let mut text = edit::requantized(json, stored, &entries.collect::<Vec<_>>())?;
    for field in edits.fields {
        text = edit::replaced(&text, field.key, field.old.as_ref(), &field.new)?;
    }
    Some(text)
}

/// What DeepSeek-V4's `expert_dtype` is in a model of the quantization config `config`: `fp8` if that
/// encodes the experts. vLLM takes them for `fp4` where the key is missing. It has no word for others.
///
/// Source: <https://github.com/vllm-project/vllm/pull/42970>
fn dtype_of_experts(config: &Value) -> Option<&'static str> {
    let is_fp8 = config.get("quant_method")?.as_str()? == "fp8";
    let skipped = config.get("modules_to_not_convert")?.as_array()?;
    let is_expert = |module: &Value| module.as_str().is_some_and(|name| name.contains("experts"));
    (is_fp8 && !skipped.iter().any(is_expert)).then_some("fp8")
}

/// Writes the index of a model in several files: the file of each tensor, and the bytes of all
/// tensors.
///
/// # Errors
/// `Io` if the file cannot be written.
pub(super) fn write_index(
    to: &UnfinishedDirectory,
    name: &str,
    weight_map: &BTreeMap<&str, &str>,
    total_size: u64,
) -> Result<()> {
    let index =
        serde_json::json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    let mut json =
        serde_json::to_vec_pretty(&index).map_err(|e| AnamnesisError::parse(e.to_string()))?;
    json.push(b'\n');
    write_anew(to, name, &json)
}
