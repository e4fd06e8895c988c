//! SHA-256 of files, against the names of caches and against a manifest.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{CheckOptions, Finding, Severity, unless_cancelled};
use crate::convert::progress::ProgressSum;
use crate::report::diff::Schedule;
use crate::source::sha256_of_file;
use crate::{AnamnesisError, ParsedModel, RememberOptions, Result};

/// Largest manifest that is read, in bytes: a million lines.
const MAX_MANIFEST: u64 = 128 << 20;

/// A file and the SHA-256 that it should have, in lower-case hexadecimal digits.
pub(super) struct Expected {
    file: PathBuf,
    sha256: String,
    /// Where the SHA-256 comes from, for messages.
    origin: &'static str,
}

/// The files that have a SHA-256 to be compared. Adds findings for weight files without one in the
/// manifest, and for lines of it without a file.
///
/// # Errors
/// The manifest cannot be read, or is malformed.
pub(super) fn expected(
    model: &ParsedModel,
    options: &CheckOptions,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Expected>> {
    let mut files: Vec<&Path> = model.sources.iter().filter_map(|s| s.path()).collect();
    files.dedup();
    let mut expected = Vec::new();
    if options.data {
        expected.extend(files.iter().filter_map(|file| named_by_sha256(file)));
    }
    if let Some(manifest) = &options.manifest {
        from_manifest(manifest, model, &files, &mut expected, findings)?;
    }
    Ok(expected)
}

/// Bytes of these files.
pub(super) fn byte_len(expected: &[Expected]) -> u64 {
    let len = |expected: &Expected| expected.file.metadata().map_or(0, |there| there.len());
    expected.iter().map(len).sum()
}

/// Compares files with the SHA-256 that they should have and adds what differs. Adds the bytes that
/// are read to `done`.
///
/// # Errors
/// `Cancelled`.
pub(super) fn check(
    expected: &[Expected],
    run: &RememberOptions,
    done: &ProgressSum,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let schedule = Schedule::new(expected.iter().map(|_| 1));
    schedule.run(
        run,
        |i, _, buffer: &mut Vec<u8>| {
            let hashed = sha256_of_file(&expected[i].file, buffer, &mut |bytes| {
                done.add(bytes, 0, 0);
                run.cancel.check()
            });
            unless_cancelled(hashed)
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
    )
}

/// Whether `text` is a SHA-256 in hexadecimal digits.
fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// The SHA-256 that a file of a cache is named by: `blobs/HEX` of Hugging Face's, to which the
/// names in a snapshot are links, or `blobs/sha256-HEX` of Ollama's. Small files of the hub are
/// named by a hash of Git's, which is shorter.
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

/// Adds the lines of `manifest` that are about files of the model, and findings for weight files
/// without a line and for lines without a file.
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
            expected.push(Expected { file, sha256, origin });
        }
    }
    for (file, _) in weights.iter().zip(is_listed).filter(|(_, listed)| !listed) {
        let what = "the manifest has no sum of it";
        findings.push(Finding::of_file(Severity::Warning, file, what));
    }
    Ok(())
}

/// Names and SHA-256 of a manifest: lines `HEX  NAME`, or `HEX *NAME`, as `sha256sum` writes them.
/// A line that begins with a backslash has a name in which backslashes and ends of lines are
/// escaped.
///
/// # Errors
/// `Io`; `Parse` for another line; `LimitExceeded`.
fn read_manifest(path: &Path) -> Result<Vec<(String, String)>> {
    let error = |e: std::io::Error| AnamnesisError::io_at(path, &e);
    // Opening a pipe would wait for its writer, and a device may have no end.
    if !std::fs::metadata(path).map_err(error)?.is_file() {
        let what = format!("--manifest: {} is not a regular file", path.display());
        return Err(AnamnesisError::usage(what));
    }
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
        let (is_escaped, line) = match line.strip_prefix('\\') {
            Some(line) => (true, line),
            None => (false, line),
        };
        let (sha256, name) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let name = name.strip_prefix([' ', '*', '\t']).unwrap_or(name);
        if !is_sha256(sha256) || name.is_empty() {
            let what = format!("{}: line {} is not `SHA-256  NAME`", path.display(), i + 1);
            return Err(AnamnesisError::parse(what));
        }
        let name = match is_escaped {
            true => unescaped(name),
            false => name.to_owned(),
        };
        Ok((name, sha256.to_ascii_lowercase()))
    };
    lines.map(row).collect()
}

/// `name` without the escapes of `sha256sum`: a backslash before a backslash, an `n` or an `r`.
fn unescaped(name: &str) -> String {
    let (mut out, mut rest) = (String::new(), name.chars());
    while let Some(c) = rest.next() {
        out.push(match c {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                other => other.unwrap_or('\\'),
            },
            c => c,
        });
    }
    out
}
