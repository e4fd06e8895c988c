//! Layers that are files of the model: `config.json`, `tokenizer.json` and others, which Ollama
//! keeps as blobs with their names in the manifest.
//!
//! Ollama takes no quantization from them: its runner reads that from the metadata of the tensors'
//! blobs. Source: Ollama at fb307609, `x/create/pipeline.go` `importConfigBlobs`,
//! `x/mlxrunner/model/root.go`.

use std::collections::BTreeSet;
use std::path::Path;

use super::{OllamaLayer, find_blob};
use crate::config::{Unwritten, folded, why_unwritten};
use crate::model::FileBeside;
use crate::parse::listing::is_inside;
use crate::{AnamnesisError, Result};

const FILE_LAYER: &str = "application/vnd.ollama.image.json";

/// Removes the layers that are files of the model from `layers`, and returns these files.
///
/// # Errors
/// `Parse` if a name leads out of a directory or is one that no file can have, two layers would be one file, or a digest or a size
/// is wrong; `Io` if a blob is missing.
pub(super) fn take_files(
    layers: &mut Vec<OllamaLayer>,
    root: &Path,
    manifest: &Path,
) -> Result<Vec<FileBeside>> {
    let is_file = |layer: &OllamaLayer| layer.media_type == FILE_LAYER && !layer.name.is_empty();
    // Names that are one to some file systems count as one.
    let (mut names, mut files) = (BTreeSet::new(), vec![]);
    for layer in layers.iter().filter(|layer| is_file(layer)) {
        let name = &layer.name;
        let wrong = |what: &str| {
            let what = format!("{}: the layer `{name}` {what}", manifest.display());
            AnamnesisError::parse(what)
        };
        let parts: Vec<&str> = name.split('/').collect();
        let is_plain = |part: &&str| !matches!(*part, "" | "." | "..");
        if !is_inside(name) || !parts.iter().all(is_plain) || name.contains(char::is_control) {
            return Err(wrong(
                "is to be a file outside of the model's directory, or one without a name",
            ));
        }
        // What programs obey is left out when files are written. A name that no conversion could
        // write can be nothing but an attempt.
        if let Some(why) = why_unwritten(name, false).filter(|why| *why != Unwritten::Obeyed) {
            return Err(wrong(&format!("cannot be a file: {}", why.reason())));
        }
        let folded: Vec<String> = parts.iter().map(|part| folded(part)).collect();
        if !names.insert(folded.join("/")) {
            return Err(wrong("is there twice"));
        }
        let path = find_blob(root, manifest, layer)?;
        let digest = layer.digest.trim_start_matches("sha256:");
        files.push(FileBeside { name: name.clone(), path, sha256: digest.to_owned() });
    }
    for name in &names {
        let below = format!("{name}/");
        if names
            .range(below.clone()..)
            .next()
            .is_some_and(|next| next.starts_with(&below))
        {
            let what =
                format!("{}: `{name}` is a file and a directory of others", manifest.display());
            return Err(AnamnesisError::parse(what));
        }
    }
    layers.retain(|layer| !is_file(layer));
    Ok(files)
}
