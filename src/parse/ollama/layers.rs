//! Models in layers of tensors: a safetensors blob for each weight, or for a group of weights, as
//! Ollama's MLX runner has them. The manifest stands for the model, and its place in the store
//! leads to the blobs.
//!
//! The metadata of a blob say how its weights are quantized: `quant_type` and `group_size` for all
//! of them, or `W.quant_type` and `W.group_size` for the weight `W`. In the model all are of the
//! second kind.
//!
//! Source: Ollama `x/create/quantize.go`, `x/mlxrunner/model/root.go`, `x/mlxrunner/runner.go`.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::files::take_files;
use super::other_layers::notes_on;
use super::{Layers, OllamaLayer, Weights, find_blob, read_layers_of};
use crate::error::InTensor;
use crate::limits::Budget;
use crate::parse::safetensors;
use crate::source::{FilePool, Source};
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// What the metadata of a blob say of its weights.
const QUANT_KEYS: [&str; 2] = ["quant_type", "group_size"];

/// Longest value of these, in bytes. Each is kept once for each tensor of the blob.
const MAX_VALUE_LEN: usize = 64;

/// Directories from a manifest up to the store: tag, model, namespace, host, `manifests`.
const DEPTH: usize = 5;

/// Reads the model whose manifest lies at `path`: the headers of its layers of tensors.
///
/// # Errors
/// `Unsupported` if the manifest is in no store, or is that of another kind of model; `Parse` if
/// two layers have one tensor, and if a blob is no safetensors file; those of reading the manifest
/// and the blobs.
pub(in crate::parse) fn read(
    _source: Source,
    path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let outside = || {
        let what = "it leads to files of its store; give its path in the store, or `ollama:MODEL`";
        AnamnesisError::unsupported("a manifest of Ollama", what)
    };
    let path = path.ok_or_else(outside)?;
    // A relative path may be too short for its parents to be seen.
    let full = std::path::absolute(path).map_err(|e| AnamnesisError::io_at(path, &e))?;
    let mut parents = full.ancestors().skip(DEPTH - 1);
    let is_in_store = parents
        .next()
        .is_some_and(|top| top.file_name() == Some("manifests".as_ref()));
    let root = parents.next().filter(|_| is_in_store).ok_or_else(outside)?;
    let Layers { weights, mut others } = read_layers_of(path)?;
    let layers = match weights {
        Weights::Tensors(layers) => layers,
        Weights::File(layer) => {
            let blob = find_blob(root, path, &layer)?;
            let what = format!("its weights are one file: give {}", blob.display());
            return Err(AnamnesisError::unsupported("a manifest of Ollama", what));
        }
    };
    let mut model = read_layers(root, path, &layers, budget)?;
    model.beside = take_files(&mut others, root, path)?;
    model.notes.extend(notes_on(&others, root, path));
    Ok(model)
}

/// Reads the headers of the blobs of `layers` into one model.
fn read_layers(
    root: &Path,
    manifest: &Path,
    layers: &[OllamaLayer],
    budget: &Budget,
) -> Result<ParsedModel> {
    let pool = Arc::new(FilePool::default());
    let mut model = ParsedModel::new(Container::Safetensors, 0);
    // Blobs are named by their content, and Ollama reads one that two layers name once.
    let mut seen = HashSet::new();
    for layer in layers {
        let about = |e: AnamnesisError| e.about(format_args!("layer `{}`", layer.name));
        let blob = find_blob(root, manifest, layer).map_err(about)?;
        if !seen.insert(layer.digest.as_str()) {
            continue;
        }
        let number = model.sources.len();
        let source = Source::open_pooled(&pool, number, &blob)?;
        let blob = safetensors::read(source, None, budget).map_err(about)?;
        append(&mut model, blob).map_err(about)?;
    }
    check_names(&model)?;
    Ok(model)
}

/// Adds the tensors of a blob to `model`.
///
/// # Errors
/// `Parse` if the metadata have a long text where they say how the weights are quantized.
fn append(model: &mut ParsedModel, blob: ParsedModel) -> Result<()> {
    let number = model.sources.len();
    let mut metadata = blob.metadata;
    // Ollama takes what is said of a weight from its own blob alone.
    let names: HashSet<&str> = blob.tensors.iter().map(|t| &*t.name).collect();
    metadata.retain(|key, _| described(key).is_none_or(|name| names.contains(name)));
    // A key of the blob would be taken for one of the whole model, whose other weights are
    // quantized otherwise.
    for key in QUANT_KEYS {
        let Some(value) = metadata.remove(key) else {
            continue;
        };
        if value.len() > MAX_VALUE_LEN {
            let what = format!("the metadata `{key}` has {} bytes", value.len());
            return Err(AnamnesisError::parse(what));
        }
        for t in blob.tensors.iter().filter(|t| t.dtype == Dtype::U32) {
            let of_tensor = metadata.entry(format!("{}.{key}", t.name)).or_default();
            if of_tensor.trim().is_empty() {
                value.clone_into(of_tensor);
            }
        }
    }
    for (key, value) in metadata {
        model.metadata.entry(key).or_insert(value);
    }
    model.tensors.extend(blob.tensors.into_iter().map(|mut t| {
        t.source = number;
        t
    }));
    model.header_size = model.header_size.saturating_add(blob.header_size);
    model.sources.extend(blob.sources);
    Ok(())
}

/// The weight that the key of a blob's metadata describes; `None` for other keys.
fn described(key: &str) -> Option<&str> {
    let (name, last) = key.rsplit_once('.')?;
    QUANT_KEYS.contains(&last).then_some(name)
}

/// Checks that no two layers have a tensor of one name: which one counts would depend on the
/// reader.
fn check_names(model: &ParsedModel) -> Result<()> {
    let mut names: Vec<&str> = model.tensors.iter().map(|t| &*t.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(AnamnesisError::parse(format!(
            "{} is in two layers of the model",
            InTensor(&pair[0])
        ))),
        None => Ok(()),
    }
}
