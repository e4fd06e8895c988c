//! Where an output directory is made, and which existing directory it may replace.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use super::container::is_weights_of_output;
use crate::write::atomic::directory_of;
use crate::{AnamnesisError, Result};

/// Path of the hidden sibling in which `output` is made: `.NAME.partial`.
///
/// # Errors
/// `Io` if `output` has no last component, such as `..`.
pub(crate) fn partial_path(output: &Path) -> Result<PathBuf> {
    let name = output.file_name().ok_or_else(|| {
        AnamnesisError::io_at(
            output,
            &Error::new(ErrorKind::InvalidInput, "the output has no name"),
        )
    })?;
    Ok(output.with_file_name(format!(".{}.partial", name.to_string_lossy())))
}

/// Checks that `output` may be created, or replaced with `force`.
///
/// Replacing removes a whole directory, so only one that holds a model is replaced. A mistyped path
/// then costs nothing. An empty directory may be replaced without `force`.
///
/// # Errors
/// `Io` if the parent directory is missing; if an interrupted replacement left a directory that has
/// to be looked at; if `output` is a file, a repository or a directory without weights; if it is a
/// directory that is not empty, and `force` is not set.
pub(super) fn check_destination(output: &Path, force: bool) -> Result<()> {
    let refuse = |what: &str| {
        Err(AnamnesisError::io_at(output, &Error::new(ErrorKind::AlreadyExists, what)))
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
            refuse("the output is a repository, which is not replaced")
        }
        true if names.iter().any(|name| is_weights_of_output(name)) => Ok(()),
        true => refuse("the output is a directory without weights, which is not replaced"),
    }
}

/// Path that the directory at `output` is moved to while it is replaced: `.NAME.old`.
pub(super) fn replaced_path(output: &Path) -> PathBuf {
    output.with_file_name(format!(
        ".{}.old",
        output.file_name().unwrap_or_default().to_string_lossy()
    ))
}
