//! SHA-256 of files, against the names of caches and against a manifest.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{CheckOptions, Finding, Severity, unless_cancelled};
use crate::diff::Schedule;
use crate::{AnamnesisError, CancelToken, ParsedModel, Result};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// Largest manifest that is read, in bytes: a million lines.
const MAX_MANIFEST: u64 = 128 << 20;

/// A file and the SHA-256 that it should have, in lower-case hexadecimal digits.
struct Expected {
    file: PathBuf,
    sha256: String,
    /// Where the SHA-256 comes from, for messages.
    origin: &'static str,
}

/// Compares files with the SHA-256 that they should have and adds what differs. Returns the number of files that were read.
///
/// # Errors
/// The manifest cannot be read, or is malformed; `Cancelled`.
pub(super) fn check(
    model: &ParsedModel,
    options: &CheckOptions,
    findings: &mut Vec<Finding>,
) -> Result<usize> {
    let mut files: Vec<&Path> = model.sources.iter().filter_map(|s| s.path()).collect();
    files.dedup();
    let mut expected = Vec::new();
    if options.data {
        expected.extend(files.iter().filter_map(|file| named_by_sha256(file)));
    }
    if let Some(manifest) = &options.manifest {
        from_manifest(manifest, model, &files, &mut expected, findings)?;
    }
    let schedule = Schedule::new(expected.iter().map(|_| 1));
    schedule.run(
        &options.run,
        |i, _, buffer: &mut Vec<u8>| {
            unless_cancelled(sha256_of(&expected[i].file, &options.run.cancel, buffer))
        },
        |i, found| {
            let expected = &expected[i];
            let message = match found {
                Ok(sha256) if sha256 == expected.sha256 => return,
                Ok(sha256) => {
                    let (origin, right) = (expected.origin, &expected.sha256);
                    format!("its SHA-256 is {sha256}; {origin} has {right}")
                }
                Err(error) => error,
            };
            findings.push(Finding::of_file(Severity::Error, &expected.file, message));
        },
    )?;
    Ok(expected.len())
}

/// Whether `text` is a SHA-256 in hexadecimal digits.
fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The SHA-256 that a file of a cache is named by: `blobs/HEX` of Hugging Face's, to which the names in a snapshot are links, or
/// `blobs/sha256-HEX` of Ollama's. Small files of the hub are named by a hash of Git's, which is shorter.
fn named_by_sha256(file: &Path) -> Option<Expected> {
    let real = std::fs::canonicalize(file).ok()?;
    let name = real.file_name()?.to_str()?;
    let sha256 = name.strip_prefix("sha256-").unwrap_or(name);
    let is_blob = real.parent()?.file_name()? == "blobs";
    (is_blob && is_sha256(sha256)).then(|| Expected {
        file: file.to_path_buf(),
        sha256: sha256.to_ascii_lowercase(),
        origin: "its name in the cache",
    })
}

/// Adds the lines of `manifest` that are about files of the model, and findings for weight files without a line and for lines
/// without a file.
fn from_manifest(
    manifest: &Path,
    model: &ParsedModel,
    weights: &[&Path],
    expected: &mut Vec<Expected>,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let base = manifest.parent().unwrap_or(Path::new(""));
    let directory = model.directory.as_ref().map(|d| real(&d.path));
    let weights_by_path: Vec<PathBuf> = weights.iter().map(|file| real(file)).collect();
    let mut is_listed = vec![false; weights.len()];
    for (name, sha256) in read_manifest(manifest)? {
        let file = base.join(name);
        let path = real(&file);
        let weight = weights_by_path.iter().position(|weight| *weight == path);
        if let Some(i) = weight {
            is_listed[i] = true;
        }
        let is_beside = directory.as_ref().is_some_and(|directory| {
            real(file.parent().unwrap_or(Path::new(""))).starts_with(directory)
        });
        if weight.is_some() || is_beside {
            let origin = "the manifest";
            expected.push(Expected {
                file,
                sha256,
                origin,
            });
        }
    }
    for (file, _) in weights.iter().zip(is_listed).filter(|(_, listed)| !listed) {
        let what = "the manifest has no sum of it";
        findings.push(Finding::of_file(Severity::Warning, file, what));
    }
    Ok(())
}

/// Names and SHA-256 of a manifest: lines `HEX  NAME`, or `HEX *NAME`, as `sha256sum` writes them.
///
/// # Errors
/// `Io`; `Parse` for another line; `LimitExceeded`.
fn read_manifest(path: &Path) -> Result<Vec<(String, String)>> {
    let error = |e: std::io::Error| AnamnesisError::io_at(path, &e);
    let file = File::open(path).map_err(error)?;
    let len = file.metadata().map_err(error)?.len();
    crate::limits::cap("MAX_MANIFEST", len, MAX_MANIFEST, "bytes of a manifest")?;
    let mut text = String::new();
    file.take(MAX_MANIFEST)
        .read_to_string(&mut text)
        .map_err(error)?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let row = |(i, line): (usize, &str)| {
        let (sha256, name) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let name = name.strip_prefix([' ', '*', '\t']).unwrap_or(name);
        if !is_sha256(sha256) || name.is_empty() {
            let what = format!("{}: line {} is not `SHA-256  NAME`", path.display(), i + 1);
            return Err(AnamnesisError::parse(what));
        }
        Ok((name.to_owned(), sha256.to_ascii_lowercase()))
    };
    lines.map(row).collect()
}

/// The SHA-256 of a file in hexadecimal digits.
fn sha256_of(path: &Path, cancel: &CancelToken, buffer: &mut Vec<u8>) -> Result<String> {
    let error = |e: std::io::Error| AnamnesisError::io_at(path, &e);
    let mut file = File::open(path).map_err(error)?;
    let mut hasher = Sha256::new();
    buffer.resize(PIECE_BYTES, 0);
    loop {
        cancel.check()?;
        let n = file.read(buffer).map_err(error)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
    }
    let digits = hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(digits)
}
