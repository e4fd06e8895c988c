//! `ollama:<model>[:<tag>]`: finds the weights of a model in the local Ollama store.
//!
//! The name gives the path of a manifest, `manifests/<host>/<namespace>/<model>/<tag>`. The
//! manifest names the layer with the weights by its digest, and the digest gives the path of the
//! file, `blobs/sha256-<hex>`. Name and digest are held to their grammars before any path is made
//! of them. A model in layers of tensors has a file for each weight; the manifest itself then
//! stands for it (`read`).

mod files;
mod layers;
mod name;
mod other_layers;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub(super) use self::layers::read;
use self::name::{DEFAULT_TAG, HOST, NAMESPACE, OllamaName, PREFIX, flaw};
use self::other_layers::notes_on;
use crate::limits::join_first;
use crate::{AnamnesisError, Result};

/// Store of the Linux service, in the home of the user that Ollama's installer creates.
const SERVICE_ROOT: &str = "/usr/share/ollama/.ollama/models";

const MODEL_LAYER: &str = "application/vnd.ollama.image.model";
const TENSOR_LAYER: &str = "application/vnd.ollama.image.tensor";

/// Largest manifest that is read, in bytes. Real ones have about a KiB.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Most directory entries that are searched for one name.
const MAX_ENTRIES: usize = 10_000;

/// Most tags that an error names.
const MAX_NAMED: usize = 10;

/// Finds the weights file of a model that Ollama has pulled: `llama3`, `user/model:tag`,
/// `hf.co/org/repo:Q4_K_M`, each with or without `ollama:` before it. Names are compared without
/// regard to case. The store is the directory `OLLAMA_MODELS`; if that is not set,
/// `~/.ollama/models`; if that is not there, the store of the Linux service.
///
/// Of a model that has a layer for each weight the manifest is returned, which
/// [`parse`](crate::parse()) reads with all layers.
///
/// ```no_run
/// # fn main() -> anamnesis::Result<()> {
/// let weights = anamnesis::resolve_ollama_model("llama3.2:1b")?;
/// println!("{}", anamnesis::parse(weights)?.inspect());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the name or the manifest is malformed, or the file is incomplete; `Unsupported` if
/// the weights are neither one file nor layers of tensors; `LimitExceeded` if the manifest is over
/// 1 MiB; `Io` if the manifest or the file is missing. The error for a missing manifest lists the
/// model's other tags.
///
/// Source: Ollama's [names][1], [store][2] and [manifests][3].
///
/// [1]:
/// https://github.com/ollama/ollama/blob/148a1be0a375910e783149d166803bd23a78c308/types/model/name.go#L101-L181
/// [2]:
/// https://github.com/ollama/ollama/blob/148a1be0a375910e783149d166803bd23a78c308/manifest/paths.go#L17-L62
/// [3]:
/// https://github.com/ollama/ollama/blob/148a1be0a375910e783149d166803bd23a78c308/manifest/manifest.go#L16-L25
pub fn resolve_ollama_model(spec: &str) -> Result<PathBuf> {
    resolve_with_notes(spec).map(|(path, _)| path)
}

/// As [`resolve_ollama_model`], with notes on the layers beside the one that is returned. [`read`]
/// notes those of a manifest.
///
/// # Errors
/// As [`resolve_ollama_model`].
pub(crate) fn resolve_with_notes(spec: &str) -> Result<(PathBuf, Vec<String>)> {
    let service = cfg!(target_os = "linux").then(|| PathBuf::from(SERVICE_ROOT));
    let store = || find_store(std::env::var_os("OLLAMA_MODELS"), std::env::home_dir(), service);
    if spec == PREFIX {
        return Err(unnamed_model(&store()?));
    }
    let name = OllamaName::parse(spec)?;
    let store = store()?;
    let manifest = find_manifest(&store, &name)?;
    let Layers { weights, others } = read_layers_of(&manifest)?;
    match weights {
        Weights::File(layer) => {
            Ok((find_blob(&store, &manifest, &layer)?, notes_on(&others, &store, &manifest)))
        }
        Weights::Tensors(_) => Ok((manifest, vec![])),
    }
}

/// Name for files that are made from a model, without directory and extension: the model, and the
/// tag unless it is `latest`.
pub(crate) fn file_stem(spec: &str) -> String {
    match OllamaName::parse(spec) {
        Ok(name) if name.tag.eq_ignore_ascii_case(DEFAULT_TAG) => name.model.to_owned(),
        Ok(name) => format!("{}-{}", name.model, name.tag),
        Err(_) => "model".to_owned(),
    }
}

/// Path of the store. If it cannot be told whether the service has one (permissions), its path is
/// returned all the same, so that the error of opening it says why.
fn find_store(
    variable: Option<OsString>,
    home: Option<PathBuf>,
    service: Option<PathBuf>,
) -> Result<PathBuf> {
    // Ollama trims whitespace and quotes of environment variables as well.
    let trim = |text: String| text.trim().trim_matches(['"', '\'']).into();
    let path = variable.map(|value| value.into_string().map_or_else(PathBuf::from, trim));
    if let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) {
        return Ok(path);
    }
    let home = home
        .filter(|home| !home.as_os_str().is_empty())
        .map(|home| home.join(".ollama").join("models"));
    let service = service.filter(|path| !matches!(path.try_exists(), Ok(false)));
    let found = home
        .clone()
        .filter(|path| path.is_dir())
        .or(service)
        .or(home);
    found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no home directory; set OLLAMA_MODELS").into()
    })
}

/// Finds the manifest of `name`. If there is none under this name, the store is searched for one
/// that differs in case alone: Ollama compares names so, and directories keep the case in which a
/// model was pulled.
fn find_manifest(root: &Path, name: &OllamaName<'_>) -> Result<PathBuf> {
    let top = root.join("manifests");
    let exact = top
        .join(name.host)
        .join(name.namespace)
        .join(name.model)
        .join(name.tag);
    match std::fs::metadata(&exact) {
        Ok(_) => return Ok(exact),
        Err(e) if is_absence(&e) => {}
        Err(e) => return Err(AnamnesisError::io_at(&exact, &e)),
    }
    let mut budget = MAX_ENTRIES;
    let mut models = vec![top];
    for part in [name.host, name.namespace, name.model] {
        models = list_matching(&models, |entry| entry.eq_ignore_ascii_case(part), &mut budget)?;
    }
    let tags = list_matching(&models, |entry| flaw("tag", entry).is_none(), &mut budget)?;
    let is_wanted = |path: &&PathBuf| {
        path.file_name()
            .is_some_and(|tag| tag.eq_ignore_ascii_case(name.tag))
    };
    match tags.iter().filter(is_wanted).collect::<Vec<_>>().as_slice() {
        [] => Err(missing_manifest(&exact, &tags)),
        [one] => Ok(one.to_path_buf()),
        [a, b, ..] => {
            let (a, b) = (a.display(), b.display());
            Err(AnamnesisError::parse(format!(
                "names that differ only in case: {a} and {b}; give one exactly"
            )))
        }
    }
}

/// Paths of the entries of `directories` whose names are `wanted`. A directory that is missing has
/// none. `budget` is the number of entries that may still be searched.
fn list_matching(
    directories: &[PathBuf],
    wanted: impl Fn(&str) -> bool,
    budget: &mut usize,
) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in directories {
        let fail = |e: Error| AnamnesisError::io_at(directory, &e);
        let entries = match std::fs::read_dir(directory) {
            Err(e) if is_absence(&e) => continue,
            entries => entries.map_err(fail)?,
        };
        for entry in entries {
            let entry = entry.map_err(fail)?;
            *budget = budget.checked_sub(1).ok_or_else(|| {
                let message =
                    format!("{}: more than {MAX_ENTRIES} entries to search", directory.display());
                AnamnesisError::LimitExceeded { limit: "OLLAMA_MAX_ENTRIES", message }
            })?;
            if entry.file_name().to_str().is_some_and(&wanted) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Whether an error says that there is no such file. A valid host may be longer than file systems
/// allow names to be, so `InvalidFilename` says that, too.
fn is_absence(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename
    )
}

/// The error for no name at all. It lists the models that Ollama has without a host and a namespace.
fn unnamed_model(root: &Path) -> AnamnesisError {
    let library = root.join("manifests").join(HOST).join(NAMESPACE);
    let models =
        list_matching(&[library], |name| flaw("model", name).is_none(), &mut { MAX_ENTRIES });
    let models = models.unwrap_or_default();
    let mut names: Vec<_> = models
        .iter()
        .filter_map(|path| path.file_name()?.to_str())
        .collect();
    names.sort_unstable();
    let what = match names.is_empty() {
        true => format!("none is pulled into {}; is OLLAMA_MODELS set?", root.display()),
        false => format!("pulled are {}", join_first(&names, MAX_NAMED)),
    };
    AnamnesisError::usage(format!("`{PREFIX}` wants the name of a model, `{PREFIX}NAME`; {what}"))
}

/// The error for a missing manifest. It lists the tags that the model has.
fn missing_manifest(manifest: &Path, tags: &[PathBuf]) -> AnamnesisError {
    let mut tags: Vec<_> = tags
        .iter()
        .filter_map(|path| path.file_name()?.to_str())
        .collect();
    tags.sort_unstable();
    let what = match tags.is_empty() {
        true => "is the model pulled, and OLLAMA_MODELS set?".to_owned(),
        false => format!("tags of this model: {}", join_first(&tags, MAX_NAMED)),
    };
    AnamnesisError::io_at(
        manifest,
        &Error::new(ErrorKind::NotFound, format!("no such manifest; {what}")),
    )
}

#[derive(Deserialize)]
struct OllamaManifest {
    /// `null` for a model that only runs remotely.
    layers: Option<Vec<OllamaLayer>>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct OllamaLayer {
    media_type: String,
    digest: String,
    size: Option<u64>,
    /// Name of the tensor, or of the group of tensors, in a layer of tensors.
    name: String,
}

/// The layers of a manifest that have the weights.
enum Weights {
    /// One GGUF or safetensors file.
    File(OllamaLayer),
    /// A safetensors file for each weight or group of weights.
    Tensors(Vec<OllamaLayer>),
}

/// The layers of a manifest.
struct Layers {
    weights: Weights,
    /// Those that are neither.
    others: Vec<OllamaLayer>,
}

/// Reads the manifest and returns its layers.
///
/// # Errors
/// `Unsupported` if there are several layers of whole models, or none with weights.
fn read_layers_of(path: &Path) -> Result<Layers> {
    let layers = read_manifest(path)?.layers.unwrap_or_default();
    let mut kinds = BTreeMap::new();
    for layer in &layers {
        *kinds.entry(layer.media_type.clone()).or_insert(0) += 1;
    }
    let of_kind = |kind: &str| -> Vec<OllamaLayer> {
        let layers = layers.iter().filter(|layer| layer.media_type == kind);
        layers.cloned().collect()
    };
    let weights = match (of_kind(MODEL_LAYER), of_kind(TENSOR_LAYER)) {
        (mut files, tensors) if files.len() == 1 && tensors.is_empty() => {
            Weights::File(files.swap_remove(0))
        }
        (files, tensors) if files.is_empty() && !tensors.is_empty() => Weights::Tensors(tensors),
        _ => {
            let found: Vec<_> = kinds
                .iter()
                .map(|(kind, n)| format!("{n} of `{kind}`"))
                .collect();
            let found = if found.is_empty() {
                "no layers".to_owned()
            } else {
                found.join(", ")
            };
            let detail = format!(
                "{}: needs one layer of `{MODEL_LAYER}`, or layers of `{TENSOR_LAYER}`; found: {found}",
                path.display()
            );
            let what = "Ollama model that is not one file and not layers of tensors";
            return Err(AnamnesisError::unsupported(what, detail));
        }
    };
    let mut others = layers;
    others.retain(|layer| ![MODEL_LAYER, TENSOR_LAYER].contains(&layer.media_type.as_str()));
    Ok(Layers { weights, others })
}

fn read_manifest(path: &Path) -> Result<OllamaManifest> {
    let fail = |e: Error| AnamnesisError::io_at(path, &e);
    // The type is checked before the file is opened: opening a pipe blocks until it has a writer.
    regular_file(path).map_err(fail)?;
    // One byte more than allowed, so that a larger file is noticed.
    let mut json = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut json))
        .map_err(fail)?;
    if json.len() as u64 > MAX_MANIFEST_BYTES {
        let message = format!("{} is larger than {MAX_MANIFEST_BYTES} bytes", path.display());
        return Err(AnamnesisError::LimitExceeded { limit: "OLLAMA_MAX_MANIFEST_BYTES", message });
    }
    serde_json::from_slice(&json)
        .map_err(|e| AnamnesisError::parse(format!("{}: {e}", path.display())))
}

/// Metadata of the regular file at `path`; an error if it is anything else.
fn regular_file(path: &Path) -> std::io::Result<Metadata> {
    let meta = std::fs::metadata(path)?;
    if meta.is_file() {
        Ok(meta)
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// Path of the file with the content of `layer`.
///
/// # Errors
/// `Parse` if the digest is malformed, or if the file has another length than the manifest says;
/// `Io` if it is missing.
fn find_blob(root: &Path, manifest: &Path, layer: &OllamaLayer) -> Result<PathBuf> {
    let is_hex =
        |hex: &&str| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let Some(hex) = layer.digest.strip_prefix("sha256:").filter(is_hex) else {
        let what =
            format!("the digest `{}` is not `sha256:` and 64 lowercase hex digits", layer.digest);
        return Err(AnamnesisError::parse(format!("{}: {what}", manifest.display())));
    };
    let path = root.join("blobs").join(format!("sha256-{hex}"));
    let partial = path.with_file_name(format!("sha256-{hex}-partial"));
    let hint = if partial.exists() {
        "; the file with `-partial` beside it is an unfinished download"
    } else {
        ""
    };
    let fail = |e: Error| AnamnesisError::io_at(&path, &Error::new(e.kind(), format!("{e}{hint}")));
    let len = regular_file(&path).map_err(fail)?.len();
    if let Some(size) = layer.size.filter(|&size| size != len) {
        let what = format!("{len} bytes of {size}: truncated or still being downloaded{hint}");
        return Err(AnamnesisError::parse(format!("{}: {what}", path.display())));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_has_the_store_if_home_has_none() {
        let (home, there) = (PathBuf::from("/none"), std::env::temp_dir());
        let found =
            |service: &Path| find_store(None, Some(home.clone()), Some(service.into())).ok();
        assert_eq!(found(&there), Some(there.clone()));
        assert_eq!(found(&home), Some(home.join(".ollama/models")));
    }
}
