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

/// The numbers of processes and of the process in the name of a file of FSDP's processes.
pub(super) fn rank_file(name: &str) -> Option<(usize, usize)> {
    let numbers = name
        .strip_prefix("model_world_size_")?
        .strip_suffix(".pt")?;
    let (world, rank) = numbers.split_once("_rank_")?;
    let (world, rank) = (world.parse().ok()?, rank.parse().ok()?);
    // Without signs and zeros before the numbers, so that no process has two names.
    (rank < world && rank_file_name(world, rank) == name).then_some((world, rank))
}

/// The name of the file of process `rank` of `world` processes.
pub(super) fn rank_file_name(world: usize, rank: usize) -> String {
    format!("model_world_size_{world}_rank_{rank}.pt")
}
