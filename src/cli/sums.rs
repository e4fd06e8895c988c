//! SHA-256 of output files: `--sha256` and `--manifest`.

use std::io::{Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::outputs::full_path;
use super::printed::print_line;
use crate::error::printable;
use crate::hooks::{SideFile, directory_of};
use crate::{AnamnesisError, Conversion, FileSum, Result};

/// Prints the sums as `sha256sum` does.
pub(super) fn print(sums: &[FileSum], out: &mut impl Write) {
    for FileSum { file, sha256, .. } in sums {
        let file = printable(&file.to_string_lossy());
        print_line(out, format_args!("{sha256}  {file}"));
    }
}

/// A file that is written beside an output.
#[derive(Clone, Copy)]
pub(super) struct SideOutput<'a> {
    pub path: &'a Path,
    /// What messages call it.
    pub what: &'static str,
}

impl<'a> SideOutput<'a> {
    pub(super) fn manifest(path: &'a Path) -> Self {
        Self { path, what: "the manifest" }
    }

    pub(super) fn page(path: &'a Path) -> Self {
        Self { path, what: "the page" }
    }
}

/// Fails if there is no place for `side`, such as a manifest of the files `weights` at `output`, so
/// that this shows before the work.
///
/// # Errors
/// `Io` if `side` is one of these files or of those that `conversion` reads, or no regular file; if
/// it is there and is not to be replaced, or has no directory.
pub(super) fn check_place(
    side: SideOutput<'_>,
    output: &Path,
    weights: &[PathBuf],
    conversion: Option<&Conversion<'_>>,
    force: bool,
) -> Result<()> {
    let SideOutput { path: side, what } = side;
    let refuse =
        |kind: ErrorKind, what: &str| Err(AnamnesisError::io_at(side, &Error::new(kind, what)));
    let (itself, target) = (full_path(side), side.canonicalize().ok());
    let outputs = weights.iter().map(PathBuf::as_path).chain([output]);
    let mut outputs = outputs.map(full_path);
    if outputs.any(|output| output == itself || Some(output) == target) {
        return refuse(ErrorKind::InvalidInput, &format!("{what} is a file of the output"));
    }
    SideFile::check_name(side, conversion, force)?;
    // The output may become its directory.
    if !side.starts_with(output) && !directory_of(side).is_dir() {
        return refuse(ErrorKind::NotFound, &format!("{what}'s directory does not exist"));
    }
    Ok(())
}

const IS_THE_OUTPUT: &str = "the manifest is a file of the output";

/// Writes the list of `sums`. Paths are relative to the list's directory if the files are below it,
/// as `amn check --manifest` and `sha256sum -c` in that directory take them.
///
/// # Errors
/// `Io` if it cannot be written, or a path is not UTF-8.
pub(super) fn write(
    manifest: &Path,
    sums: &[FileSum],
    conversion: Option<&Conversion<'_>>,
    force: bool,
) -> Result<()> {
    let failed = |path: &Path, e: &Error| AnamnesisError::io_at(path, e);
    let absolute = |path: &Path| std::path::absolute(path).map_err(|e| failed(path, &e));
    let resolved =
        |path: &Path| -> Result<PathBuf> { path.canonicalize().or_else(|_| absolute(path)) };
    let base = resolved(directory_of(manifest))?;
    let there = manifest.canonicalize().ok();
    let mut text = String::new();
    for FileSum { file, sha256, .. } in sums {
        let path = resolved(file)?;
        if there.as_ref() == Some(&path) {
            let error = Error::new(ErrorKind::InvalidInput, IS_THE_OUTPUT);
            return Err(failed(manifest, &error));
        }
        let Some(name) = path.strip_prefix(&base).unwrap_or(&path).to_str() else {
            let what = "a name is not UTF-8, and the manifest is text";
            return Err(failed(file, &Error::new(ErrorKind::InvalidData, what)));
        };
        text += &line(sha256, name);
    }
    write_text(manifest, &text, conversion, force)
}

/// Writes a file of text beside an output.
///
/// # Errors
/// `Io` if it cannot be written.
pub(super) fn write_text(
    path: &Path,
    text: &str,
    conversion: Option<&Conversion<'_>>,
    force: bool,
) -> Result<()> {
    let file = SideFile::create(path, text.len() as u64, conversion, force)?;
    let written = file.file().write_all(text.as_bytes());
    written.map_err(|e| AnamnesisError::io_at(path, &e))?;
    file.commit()
}

/// A line of a manifest. Coreutils mark names that have backslashes or ends of lines with a
/// backslash before the line, and escape these.
fn line(sha256: &str, name: &str) -> String {
    let escaped = name
        .replace('\\', "\\\\")
        .replace('\n', "\\n")
        .replace('\r', "\\r");
    let mark = if escaped == name { "" } else { "\\" };
    format!("{mark}{sha256}  {escaped}\n")
}
