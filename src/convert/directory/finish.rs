//! Finishing a directory: checks that every part is done, and gives the hidden directory its name.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::{Error, ErrorKind};
use std::path::Path;

use super::replacement::{LockedMarker, settle};
use crate::containers::parse::directory::is_weights;
use crate::containers::write::atomic::{directory_of, sync_directory};
use crate::convert::container::{index_name, is_weights_of_output};
use crate::convert::destination::{check_destination, manifests, partial_path, replaced_path};
use crate::convert::manifest::{
    ConversionParameters, Manifest, has_manifest_prefix, is_manifest, path as manifest_path,
};
use crate::{AnamnesisError, Result};

/// Gives an output directory its name, once all its parts are done.
///
/// ```no_run
/// # fn main() -> anamnesis::Result<()> {
/// // After runs of `ConvertOptions` that each made a part of `out`.
/// anamnesis::finish_parts("out", false)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` in these cases:
/// - there is no unfinished directory for `output`;
/// - a part was not begun, is not done, or was made with other parameters or of another input;
/// - a shard is missing or has another length than planned;
/// - `output` exists and `force` is not set, or it is not a directory of weights and is therefore never replaced;
/// - a file cannot be synced, renamed or removed.
///
/// `Parse` if the record of a part is malformed.
pub fn finish_parts(output: impl AsRef<Path>, force: bool) -> Result<()> {
    match settle(output.as_ref())? {
        Some(settled) if settled.is_finished => Ok(()),
        _ => finish(output.as_ref(), force).map(drop),
    }
}

/// As [`finish_parts`]; returns a note if what was replaced could not be removed.
pub(crate) fn finish(output: &Path, force: bool) -> Result<Option<String>> {
    // The output may have appeared since the parts were begun, so its place is checked again.
    check_destination(output, force)?;
    let partial = partial_path(output)?;
    let refuse = |what: String| {
        Err(AnamnesisError::io_at(
            &partial,
            &Error::new(ErrorKind::InvalidInput, what),
        ))
    };
    let found = manifests(&partial)?;
    let Some(first) = found
        .first()
        .map(|path| Manifest::read(path))
        .transpose()?
        .flatten()
    else {
        return refuse("there is nothing to finish".to_owned());
    };
    // Any manifest says how many parts there are. All of them must agree, because shards that were made with different
    // parameters do not belong to one model.
    let parameters = &first.parameters;
    for part in 1..=parameters.parts {
        match Manifest::read(&manifest_path(&partial, (part, parameters.parts)))? {
            None => return refuse(format!("part {part} of {} was not begun", parameters.parts)),
            Some(theirs) if theirs.parameters != *parameters || theirs.inputs != first.inputs => {
                return refuse(format!(
                    "part {part} was made with other parameters, or of another input"
                ));
            }
            Some(theirs) if !theirs.done => {
                return refuse(format!("part {part} of {} is not done", parameters.parts));
            }
            Some(_) => {}
        }
    }
    // Manifests say what was written once. A shard that was removed or cut since then shows in its length.
    for (name, len, _) in &parameters.shards {
        if partial.join(name).metadata().map_or(0, |there| there.len()) != *len {
            return refuse(format!("shard `{name}` is not there, or not whole"));
        }
    }
    remove_leftovers(&partial, parameters)?;
    publish(&partial, output)
}

/// Removes from `partial` the weights and indexes that are not of this output, and manifests that were never whole.
///
/// A directory whose manifests were removed by hand looks new. A later conversion with other parameters then begins in it,
/// because nothing contradicts it, and the shards of the first one would become a part of the model.
fn remove_leftovers(partial: &Path, parameters: &ConversionParameters) -> Result<()> {
    let shards = parameters.shards.iter().map(|(name, ..)| name.clone());
    let shards: Vec<String> = shards.collect();
    let index = index_name(&shards);
    let shards: HashSet<String> = shards.into_iter().collect();
    for entry in std::fs::read_dir(partial)
        .map_err(|e| AnamnesisError::io_at(partial, &e))?
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_of_output =
            shards.contains(&name) || index.as_ref() == Some(&name) || is_manifest(&name);
        let is_leftover =
            is_weights(&name) || is_weights_of_output(&name) || has_manifest_prefix(&name);
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && !is_of_output && is_leftover {
            std::fs::remove_file(entry.path())
                .map_err(|e| AnamnesisError::io_at(&entry.path(), &e))?;
        }
    }
    Ok(())
}

/// Makes all files below `directory` durable. Shards are already; configs, the index and other small files were written
/// without waiting for the disk.
fn sync_files(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)?.flatten() {
        if entry.file_type()?.is_dir() {
            sync_files(&entry.path())?;
        } else if let Ok(file) = OpenOptions::new()
            .read(true)
            .write(cfg!(windows))
            .open(entry.path())
        {
            // Windows only syncs files that are open for writing. A read-only file cannot be opened so, and is skipped.
            file.sync_all()?;
        }
    }
    sync_directory(directory);
    Ok(())
}

/// Renames `partial` to `output`. What was at `output` is moved aside first. It is removed when the new directory is in its
/// place, and moved back if the rename fails. Returns a note if something could not be removed.
///
/// The order makes a crash at any point recoverable:
/// 1. Data is synced before the rename, so that the name never stands for files without their data.
/// 2. The marker names the directory that is moved aside before that is moved, so that the next run knows it.
/// 3. Manifests go after the rename, so that a crash before it loses nothing of the work.
/// 4. The parent is synced before the old directory is removed, so that one of the two is always there.
fn publish(partial: &Path, output: &Path) -> Result<Option<String>> {
    let failed = |e: Error| AnamnesisError::io_at(output, &e);
    let old = replaced_path(output);
    sync_files(partial).map_err(failed)?;
    let marker = LockedMarker::record(partial, output).map_err(failed)?;
    // A rename cannot replace a directory that is not empty, so the old one has to be moved aside.
    let exists = output.symlink_metadata().is_ok();
    if exists {
        std::fs::rename(output, &old).map_err(failed)?;
    }
    if let Err(e) = std::fs::rename(partial, output) {
        if exists {
            std::fs::rename(&old, output).map_err(failed)?;
        }
        return Err(failed(e));
    }
    sync_directory(directory_of(output));
    Ok(marker.clear(output))
}
