//! `ollama:<model>[:<tag>]`: a model of the local Ollama store, found by its name.
//!
//! A name leads to the manifest `manifests/<host>/<namespace>/<model>/<tag>`, the manifest to a layer with the
//! weights, and the layer's digest to the file `blobs/sha256-<hex>`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{Error, ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{AnamnesisError, Result};

const PREFIX: &str = "ollama:";
const DEFAULT_TAG: &str = "latest";

/// Home of the user that Ollama's Linux installer makes, and so the models of the service.
const SERVICE_ROOT: &str = "/usr/share/ollama/.ollama/models";

const MODEL_LAYER: &str = "application/vnd.ollama.image.model";
const TENSOR_LAYER: &str = "application/vnd.ollama.image.tensor";

/// Largest manifest that is read. Real ones have about a KiB.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Most directory entries that are looked at for one name.
const MAX_ENTRIES: usize = 10_000;

/// Finds the weights of a model that Ollama has pulled: `ollama:llama3`, `ollama:user/model:tag`,
/// `ollama:hf.co/org/repo:Q4_K_M`, in any case of letters. The store is `OLLAMA_MODELS`, or else
/// `~/.ollama/models`, or else, if there is none, that of the Linux service.
///
/// ```no_run
/// # fn main() -> anamnesis::Result<()> {
/// let weights = anamnesis::resolve_ollama_model("ollama:llama3.2:1b")?;
/// println!("{}", anamnesis::parse(weights)?.inspect());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if the name or the manifest is malformed or the file incomplete; `Unsupported` if the weights are not
/// one file; `LimitExceeded` if the manifest is over 1 MiB; `Io` if it (the error lists the model's other tags)
/// or the file is missing.
///
/// Source: Ollama's [names][1], [store][2] and [manifests][3].
///
/// [1]: https://github.com/ollama/ollama/blob/148a1be0a375910e783149d166803bd23a78c308/types/model/name.go#L101-L181
/// [2]: https://github.com/ollama/ollama/blob/148a1be0a375910e783149d166803bd23a78c308/manifest/paths.go#L17-L62
/// [3]: https://github.com/ollama/ollama/blob/148a1be0a375910e783149d166803bd23a78c308/manifest/manifest.go#L16-L25
pub fn resolve_ollama_model(spec: &str) -> Result<PathBuf> {
    let name = Name::parse(spec)?;
    let service = cfg!(target_os = "linux").then(|| PathBuf::from(SERVICE_ROOT));
    resolve_in(
        &root(
            std::env::var_os("OLLAMA_MODELS"),
            std::env::home_dir(),
            service,
        )?,
        &name,
    )
}

/// What to call files that are made from a model, without directory and extension.
#[cfg_attr(not(feature = "cli"), allow(dead_code))]
pub(crate) fn file_stem(spec: &str) -> String {
    match Name::parse(spec) {
        Ok(name) if name.tag.eq_ignore_ascii_case(DEFAULT_TAG) => name.model.to_owned(),
        Ok(name) => format!("{}-{}", name.model, name.tag),
        Err(_) => "model".to_owned(),
    }
}

/// A model's full name. Every part is safe as one component of a path.
struct Name<'a> {
    host: &'a str,
    namespace: &'a str,
    model: &'a str,
    tag: &'a str,
}

impl<'a> Name<'a> {
    fn parse(spec: &'a str) -> Result<Self> {
        let fail = |what: String| AnamnesisError::parse(format!("model name `{spec}`: {what}"));
        let text = spec
            .strip_prefix(PREFIX)
            .ok_or_else(|| fail(format!("does not begin with `{PREFIX}`")))?;
        if text.contains("@sha256") {
            let detail =
                format!("model name `{spec}`: the store knows models by tag, not by digest");
            return Err(AnamnesisError::unsupported("Ollama digest", detail));
        }
        // The scheme says how to pull, and leaves no trace in the store. Only full names can have one.
        let url = text
            .strip_prefix("https://")
            .or(text.strip_prefix("http://"));
        let text = url
            .filter(|text| text.matches('/').count() == 2)
            .unwrap_or(text);
        // A colon before the last slash belongs to the port.
        let (path, tag) = text
            .rsplit_once(':')
            .filter(|(_, t)| !t.contains('/'))
            .unwrap_or((text, DEFAULT_TAG));
        let mut parts = path.rsplitn(3, '/');
        let model = parts.next().unwrap_or_default();
        let namespace = parts.next().unwrap_or("library");
        let host = parts.next().unwrap_or("registry.ollama.ai");
        for (what, part) in [
            ("host", host),
            ("namespace", namespace),
            ("model", model),
            ("tag", tag),
        ] {
            flaw(what, part).map_or(Ok(()), |flaw| {
                Err(fail(format!("the {what} `{part}` {flaw}")))
            })?;
        }
        Ok(Self {
            host,
            namespace,
            model,
            tag,
        })
    }
}

/// What is wrong with a part of a name by Ollama's grammar, in which no part is `..` or empty or holds a separator.
fn flaw(what: &str, part: &str) -> Option<String> {
    let (max, marks) = match what {
        "host" => (350, "-.:"),
        "namespace" => (80, "-"),
        _ => (80, "-."),
    };
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if part.is_empty() {
        Some("is empty".to_owned())
    } else if part.len() > max {
        Some(format!("has {} bytes, of at most {max}", part.len()))
    } else if let Some(c) = part.chars().find(|&c| !is_word(c) && !marks.contains(c)) {
        Some(format!("contains {c:?}"))
    } else if !part.starts_with(is_word) {
        Some("does not begin with a letter, a digit or `_`".to_owned())
    } else {
        // `C:` is a host by the grammar, and replaces the whole path it is joined to on Windows.
        (part.find(':') == Some(1)).then(|| "looks like a drive".to_owned())
    }
}

/// Where the store is. If it cannot be told whether the service has one, its own error will say why.
fn root(
    variable: Option<OsString>,
    home: Option<PathBuf>,
    service: Option<PathBuf>,
) -> Result<PathBuf> {
    // Ollama itself takes off space and quotes.
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

fn resolve_in(root: &Path, name: &Name<'_>) -> Result<PathBuf> {
    let manifest = find_manifest(root, name)?;
    find_blob(root, &manifest, &model_layer(&manifest)?)
}

/// The manifest of this name, or else of the one that differs only in case, as Ollama compares names:
/// directories keep the case in which a model was pulled.
fn find_manifest(root: &Path, name: &Name<'_>) -> Result<PathBuf> {
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
        models = list(
            &models,
            |entry| entry.eq_ignore_ascii_case(part),
            &mut budget,
        )?;
    }
    let tags = list(&models, |entry| flaw("tag", entry).is_none(), &mut budget)?;
    let is_wanted = |path: &&PathBuf| {
        path.file_name()
            .is_some_and(|tag| tag.eq_ignore_ascii_case(name.tag))
    };
    match tags.iter().filter(is_wanted).collect::<Vec<_>>().as_slice() {
        [] => Err(missing(&exact, &tags)),
        [one] => Ok(one.to_path_buf()),
        [a, b, ..] => {
            let (a, b) = (a.display(), b.display());
            Err(AnamnesisError::parse(format!(
                "names that differ only in case: {a} and {b}; give one exactly"
            )))
        }
    }
}

/// Those entries of `directories` whose names are `wanted`.
fn list(
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
                let message = format!(
                    "{}: more than {MAX_ENTRIES} entries to search",
                    directory.display()
                );
                AnamnesisError::LimitExceeded {
                    limit: "OLLAMA_MAX_ENTRIES",
                    message,
                }
            })?;
            if entry.file_name().to_str().is_some_and(&wanted) {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Whether there is no such file. A host may be longer than file systems let names be.
fn is_absence(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename
    )
}

fn missing(manifest: &Path, tags: &[PathBuf]) -> AnamnesisError {
    let mut tags: Vec<_> = tags
        .iter()
        .filter_map(|path| path.file_name()?.to_str())
        .collect();
    tags.sort_unstable();
    let more = if tags.len() > 10 { ", …" } else { "" };
    tags.truncate(10);
    let what = match tags.join(", ") {
        tags if tags.is_empty() => "is the model pulled, and OLLAMA_MODELS set?".to_owned(),
        tags => format!("tags of this model: {tags}{more}"),
    };
    AnamnesisError::io_at(
        manifest,
        &Error::new(ErrorKind::NotFound, format!("no such manifest; {what}")),
    )
}

#[derive(Deserialize)]
struct Manifest {
    /// `null` if the model only runs remotely.
    layers: Option<Vec<Layer>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Layer {
    media_type: String,
    digest: String,
    size: Option<u64>,
}

/// The one layer with weights.
fn model_layer(path: &Path) -> Result<Layer> {
    let layers = read_manifest(path)?.layers.unwrap_or_default();
    let mut kinds = BTreeMap::new();
    for layer in &layers {
        *kinds.entry(layer.media_type.clone()).or_insert(0) += 1;
    }
    let is_one_file = kinds.get(MODEL_LAYER) == Some(&1) && !kinds.contains_key(TENSOR_LAYER);
    layers
        .into_iter()
        .find(|layer| is_one_file && layer.media_type == MODEL_LAYER)
        .ok_or_else(|| {
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
                "{}: needs one layer of `{MODEL_LAYER}`; found: {found}",
                path.display()
            );
            AnamnesisError::unsupported("Ollama model that is not one file", detail)
        })
}

fn read_manifest(path: &Path) -> Result<Manifest> {
    let fail = |e: Error| AnamnesisError::io_at(path, &e);
    // Looked at first: to open a pipe is to wait for its writer.
    regular_file(path).map_err(fail)?;
    let mut json = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut json))
        .map_err(fail)?;
    if json.len() as u64 > MAX_MANIFEST_BYTES {
        let message = format!(
            "{} is larger than {MAX_MANIFEST_BYTES} bytes",
            path.display()
        );
        return Err(AnamnesisError::LimitExceeded {
            limit: "OLLAMA_MAX_MANIFEST_BYTES",
            message,
        });
    }
    serde_json::from_slice(&json)
        .map_err(|e| AnamnesisError::parse(format!("{}: {e}", path.display())))
}

fn regular_file(path: &Path) -> std::io::Result<Metadata> {
    let meta = std::fs::metadata(path)?;
    if meta.is_file() {
        Ok(meta)
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// The file of `layer`, all of it.
fn find_blob(root: &Path, manifest: &Path, layer: &Layer) -> Result<PathBuf> {
    let is_hex =
        |hex: &&str| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let Some(hex) = layer.digest.strip_prefix("sha256:").filter(is_hex) else {
        let what = format!(
            "the digest `{}` is not `sha256:` and 64 lowercase hex digits",
            layer.digest
        );
        return Err(AnamnesisError::parse(format!(
            "{}: {what}",
            manifest.display()
        )));
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
    fn names() {
        for (spec, expected, stem) in [
            (
                "ollama:m:Latest",
                "registry.ollama.ai library m Latest",
                "m",
            ),
            (
                "ollama:_n/m.1:t-2",
                "registry.ollama.ai _n m.1 t-2",
                "m.1-t-2",
            ),
            (
                "ollama:hf.co/Org/Repo:Q4_K_M",
                "hf.co Org Repo Q4_K_M",
                "Repo-Q4_K_M",
            ),
            (
                "ollama:http://localhost:5000/n/m",
                "localhost:5000 n m latest",
                "m",
            ),
            ("ollama:hf.co/../m", "", "model"),
        ] {
            let name = Name::parse(spec).map(|n| [n.host, n.namespace, n.model, n.tag].join(" "));
            assert_eq!(
                (name.unwrap_or_default(), file_stem(spec)),
                (expected.to_owned(), stem.to_owned())
            );
        }
    }

    #[test]
    fn the_service_has_the_store_if_home_has_none() {
        let (home, there) = (PathBuf::from("/none"), std::env::temp_dir());
        let found = |service: &Path| root(None, Some(home.clone()), Some(service.into())).ok();
        assert_eq!(found(&there), Some(there.clone()));
        assert_eq!(found(&home), Some(home.join(".ollama/models")));
    }
}
