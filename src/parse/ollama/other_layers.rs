//! Layers of a manifest beside the weights: what a user may miss in an output, and where it lies.
//!
//! Media types: Ollama at fb307609, `x/create/pipeline.go`, `server/create.go`,
//! `manifest/layer.go`.

use std::path::Path;

use super::{OllamaLayer, find_blob};
use crate::limits::join_first;

/// What precedes the kind in a media type.
const IMAGE: &str = "application/vnd.ollama.image.";

/// Kinds of layers that are files of the model, with what a note says of them. Templates,
/// parameters and licences, which Ollama writes itself, are not among them.
const KINDS: [(&str, &str); 4] = [
    ("json", "settings and tokenizer are layers of their own, which are in no output"),
    ("adapter", "it has adapters, which are not merged (`amn merge` merges them)"),
    ("projector", "it has a projector in a file of its own, which is in no output"),
    ("draft", "it has a draft model, which is in no output"),
];

/// Files that a note names, at most.
const MAX_NAMED: usize = 16;

/// A note for each kind of layer among `others` that is a file of the model, with the paths of its
/// blobs.
pub(super) fn notes_on(others: &[OllamaLayer], root: &Path, manifest: &Path) -> Vec<String> {
    let note = |&(kind, what): &(&str, &str)| {
        let of_kind = |layer: &&OllamaLayer| layer.media_type.strip_prefix(IMAGE) == Some(kind);
        let layers: Vec<_> = others.iter().filter(of_kind).collect();
        let file = |layer: &&OllamaLayer| {
            // A note on a file that is not there still names it.
            let path = find_blob(root, manifest, layer);
            let path =
                path.map_or_else(|_| layer.digest.clone(), |path| path.display().to_string());
            match layer.name.as_str() {
                "" => path,
                name => format!("`{name}` is {path}"),
            }
        };
        let files: Vec<String> = layers.iter().map(file).collect();
        (!files.is_empty()).then(|| format!("{what}: {}", join_first(&files, MAX_NAMED)))
    };
    KINDS.iter().filter_map(note).collect()
}
