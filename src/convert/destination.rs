//! Where an output directory is made, and what must not be there.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use super::manifest::is_manifest;
use crate::containers::write::atomic::directory_of;
use crate::{AnamnesisError, Result};

/// The hidden sibling in which `output` is made.
pub(super) fn partial_path(output: &Path) -> Result<PathBuf> {
    let name = output.file_name().ok_or_else(|| {
        AnamnesisError::io_at(
            output,
            &Error::new(ErrorKind::InvalidInput, "the output has no name"),
        )
    })?;
    Ok(output.with_file_name(format!(".{}.partial", name.to_string_lossy())))
}

/// Refuses what is there already, but a directory with weights if it is to be replaced_path, or an empty one.
pub(super) fn check_destination(output: &Path, force: bool) -> Result<()> {
    let refuse = |what: &str| {
        Err(AnamnesisError::io_at(
            output,
            &Error::new(ErrorKind::AlreadyExists, what),
        ))
    };
    let parent = directory_of(output);
    if !parent.is_dir() {
        let error = Error::new(ErrorKind::NotFound, "the output's directory does not exist");
        return Err(AnamnesisError::io_at(parent, &error));
    }
    let old = replaced_path(output);
    if old.symlink_metadata().is_ok() {
        return refuse(&format!(
            "{} is there, what a replacement left that was interrupted; move it away",
            old.display()
        ));
    }
    let Ok(there) = output.symlink_metadata() else {
        return Ok(());
    };
    if !there.is_dir() {
        return refuse("the output is to be a directory, and a file is there");
    }
    let names = std::fs::read_dir(output).map_err(|e| AnamnesisError::io_at(output, &e))?;
    let names: Vec<String> = names
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    match force {
        false => refuse("the output exists; --force (`force`) replaces it"),
        true if names.iter().any(|name| name == ".git") => {
            refuse("the output is a repository, which is not replaced_path")
        }
        true if names.iter().any(|name| is_model(name)) => Ok(()),
        true => refuse("the output is a directory without weights, which is not replaced_path"),
    }
}

/// Whether a file of this name makes a directory one of a model, as outputs are.
fn is_model(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
}

/// Where what is replaced_path goes for the moment.
pub(super) fn replaced_path(output: &Path) -> PathBuf {
    output.with_file_name(format!(
        ".{}.old",
        output.file_name().unwrap_or_default().to_string_lossy()
    ))
}

/// Says that a directory is being made by this program.
pub(super) const MARKER_FILE: &str = ".anamnesis";

/// Whether what is at `partial` may be gone on with, or taken away: nothing, or an unfinished conversion.
pub(super) fn is_unfinished_conversion(partial: &Path) -> bool {
    let is_empty = || std::fs::read_dir(partial).is_ok_and(|mut names| names.next().is_none());
    let is_begun = || manifests(partial).is_ok_and(|found| !found.is_empty());
    // Other parts may be beginning just now: the mark is the first file that they make, so what is not empty has it.
    partial.symlink_metadata().is_err()
        || is_empty()
        || partial.join(MARKER_FILE).is_file()
        || is_begun()
}

/// Manifests in `partial`, sorted.
pub(super) fn manifests(partial: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(partial) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(e) => return Err(AnamnesisError::io_at(partial, &e)),
    };
    let names = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = names
        .filter(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(is_manifest)
        })
        .collect();
    found.sort();
    Ok(found)
}
