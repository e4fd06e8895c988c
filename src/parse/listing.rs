//! Names of files in a directory.

use std::path::{Component, Path};

use crate::{AnamnesisError, Result};

/// Names of all entries of `dir`, sorted. Names that are not Unicode are left out.
pub(super) fn list(dir: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(dir).map_err(|e| AnamnesisError::io_at(dir, &e))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| AnamnesisError::io_at(dir, &e))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether the relative path `file`, from an untrusted index, stays below its directory on every
/// system. A backslash separates components on Windows, and a colon may begin a drive or a stream
/// there.
pub(super) fn is_inside(file: &str) -> bool {
    !file.is_empty()
        && !file.contains(['\\', '\0', ':'])
        && Path::new(file)
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}
