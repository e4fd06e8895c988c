//! Finishing a directory: checks that every part is done, and gives the hidden directory its name.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::thread;

use super::replacement::{LockedMarker, settle};
use crate::convert::checksum::checksum_of_file;
use crate::convert::container::{index_name, is_weights_of_output};
use crate::convert::destination::{check_destination, partial_path, replaced_path};
use crate::convert::manifest::{ConversionParameters, InputRecord, Manifest};
use crate::convert::unfinished::{
    Claimant, UnfinishedDirectory, has_manifest_prefix, is_manifest, manifest_name,
};
use crate::parse::directory::is_weights;
use crate::source::FileState;
use crate::write::atomic::{directory_of, sync_directory};
use crate::{AnamnesisError, CancelToken, Result};

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
/// - a shard is missing, or is not as it was written: all of them are read once and compared with
///   their checksums;
/// - `output` exists and `force` is not set, or it is not a directory of weights and is therefore
///   never replaced;
/// - a file cannot be synced, renamed or removed.
///
/// `Parse` if the record of a part is malformed.
pub fn finish_parts(output: impl AsRef<Path>, force: bool) -> Result<()> {
    match settle(output.as_ref())? {
        Some(settled) if settled.is_finished => Ok(()),
        _ => finish(output.as_ref(), force, true).map(drop),
    }
}

/// As [`finish_parts`]; returns a note if what was replaced could not be removed.
pub(crate) fn finish(output: &Path, force: bool, reads_shards: bool) -> Result<Option<String>> {
    // The output may have appeared since the parts were begun, so its place is checked again.
    check_destination(output, force)?;
    let partial = partial_path(output)?;
    let found = UnfinishedDirectory::open(&partial)?;
    let found = found.map(|directory| directory.manifests()).transpose()?;
    if found.is_none_or(|manifests| manifests.is_empty()) {
        return Err(nothing_to_finish(&partial));
    }
    match UnfinishedDirectory::claim(&partial, Claimant::Sole)? {
        Some(directory) => finish_claimed(&directory, output, force, reads_shards),
        None => Err(nothing_to_finish(&partial)),
    }
}

fn nothing_to_finish(partial: &Path) -> AnamnesisError {
    let error = Error::new(ErrorKind::InvalidInput, "there is nothing to finish");
    AnamnesisError::io_at(partial, &error)
}

/// As [`finish`] of `directory`, on which no other process works. Without `reads_shards` only the
/// lengths of shards are compared.
pub(super) fn finish_claimed(
    directory: &UnfinishedDirectory,
    output: &Path,
    force: bool,
    reads_shards: bool,
) -> Result<Option<String>> {
    // Another process may just be removing what its output has replaced.
    settle(output)?;
    check_destination(output, force)?;
    let refuse = |what: String| {
        Err(AnamnesisError::io_at(directory.path(), &Error::new(ErrorKind::InvalidInput, what)))
    };
    let found = directory.manifests()?;
    directory.require_own_files()?;
    let first = found.first().map(|name| Manifest::read(directory, name));
    let Some(first) = first.transpose()?.flatten() else {
        return Err(nothing_to_finish(directory.path()));
    };
    require_no_input(output, &first.inputs)?;
    // Any manifest says how many parts there are. All of them must agree, because shards that were
    // made with different parameters do not belong to one model.
    let parameters = &first.parameters;
    let mut finished = HashMap::new();
    for part in 1..=parameters.parts {
        match Manifest::read(directory, &manifest_name((part, parameters.parts)))? {
            None => return refuse(format!("part {part} of {} was not begun", parameters.parts)),
            Some(theirs) if theirs.parameters != *parameters || theirs.inputs != first.inputs => {
                return refuse(format!(
                    "part {part} was made with other parameters, or of another input"
                ));
            }
            Some(theirs) if !theirs.done => {
                return refuse(format!("part {part} of {} is not done", parameters.parts));
            }
            Some(theirs) => {
                finished.extend(theirs.finished.into_iter().map(|s| (s.name, s.crc)));
            }
        }
    }
    // Manifests say what was written once. A shard that was removed or cut since then shows in its
    // length, other damage in its checksum.
    for (name, len, _) in &parameters.shards {
        let file = directory.open_file(name)?;
        let is_whole = |file: &File| file.metadata().is_ok_and(|there| there.len() == *len);
        let Some(file) = file.filter(is_whole) else {
            return refuse(format!("shard `{name}` is not there, or not whole"));
        };
        if reads_shards {
            let threads = thread::available_parallelism().map_or(1, usize::from);
            let crc = checksum_of_file(&file, *len, threads, &CancelToken::new())?;
            if finished.get(name) != Some(&crc) {
                return refuse(format!(
                    "shard `{name}` is not as it was written; make its part again with --resume"
                ));
            }
        }
    }
    remove_leftovers(directory, parameters)?;
    publish(directory, output)
}

/// Deepest directory of an output that is searched for the input.
const MAX_DEPTH: usize = 8;

/// Refuses an output that would be replaced and has a file of the input, which may have been moved
/// there since the parts were made.
fn require_no_input(output: &Path, inputs: &[InputRecord]) -> Result<()> {
    let mut left = vec![(output.to_path_buf(), 0)];
    while let Some((directory, depth)) = left.pop() {
        let entries = std::fs::read_dir(&directory).into_iter().flatten();
        for entry in entries.flatten() {
            let Ok(there) = entry.metadata() else {
                continue;
            };
            if there.is_dir() && depth < MAX_DEPTH {
                left.push((entry.path(), depth + 1));
            }
            let state = FileState::of(&there);
            if there.is_file() && inputs.iter().any(|input| input.is_file_of(&state)) {
                let what = format!(
                    "`{}` in it is a file of the input, which is not replaced",
                    entry.path().display()
                );
                let error = Error::new(ErrorKind::InvalidInput, what);
                return Err(AnamnesisError::io_at(output, &error));
            }
        }
    }
    Ok(())
}

/// Whether the files of `input`, a directory or a file, are those that the unfinished directory
/// `partial` is made of, as they were when it was begun. What cannot be read is not.
pub(crate) fn is_input_of(input: &Path, partial: &Path) -> bool {
    let directory = match input.is_dir() {
        true => input,
        false => directory_of(input),
    };
    let found = || -> Result<bool> {
        let Some(unfinished) = UnfinishedDirectory::open(partial)? else {
            return Ok(false);
        };
        let names = unfinished.manifests()?;
        let first = names.first().map(|name| Manifest::read(&unfinished, name));
        let first = first.transpose()?.flatten();
        Ok(first.is_some_and(|first| first.is_of(directory)))
    };
    found().unwrap_or(false)
}

/// Removes from `directory` the weights and indexes that are not of this output, and manifests that
/// were never whole.
///
/// A directory whose manifests were removed by hand looks new. A later conversion with other
/// parameters then begins in it, because nothing contradicts it, and the shards of the first one
/// would become a part of the model.
fn remove_leftovers(
    directory: &UnfinishedDirectory,
    parameters: &ConversionParameters,
) -> Result<()> {
    let shards = parameters.shards.iter().map(|(name, ..)| name.clone());
    let shards: Vec<String> = shards.collect();
    let index = index_name(&shards);
    let shards: HashSet<String> = shards.into_iter().collect();
    let failed = |e: Error| AnamnesisError::io_at(directory.path(), &e);
    for (entry, is_directory) in directory.handle().entries().map_err(failed)? {
        let name = entry.to_string_lossy().into_owned();
        let is_of_output =
            shards.contains(&name) || index.as_ref() == Some(&name) || is_manifest(&name);
        let is_leftover =
            is_weights(&name) || is_weights_of_output(&name) || has_manifest_prefix(&name);
        if !is_directory && !is_of_output && is_leftover {
            directory.handle().remove_file(&entry).map_err(failed)?;
        }
    }
    Ok(())
}

/// Renames `directory` to `output`. What was at `output` is moved aside first. It is removed when
/// the new directory is in its place, and moved back if the rename fails. Returns a note if
/// something could not be removed.
///
/// The order makes a crash at any point recoverable:
/// 1. Data is synced before the rename, so that the name never stands for files without their data.
/// 2. The marker names the directory that is moved aside before that is moved, so that the next run
///    knows it.
/// 3. Manifests go after the rename, so that a crash before it loses nothing of the work.
/// 4. The parent is synced before the old directory is removed, so that one of the two is always
///    there.
fn publish(directory: &UnfinishedDirectory, output: &Path) -> Result<Option<String>> {
    let failed = |e: Error| AnamnesisError::io_at(output, &e);
    let (partial, old) = (directory.path(), replaced_path(output));
    // Shards are durable already; configs, the index and other small files were written without
    // waiting for the disk.
    directory.handle().sync_all().map_err(failed)?;
    let marker = LockedMarker::record(directory, output).map_err(failed)?;
    directory.require_at(partial)?;
    directory.handle().make_public().map_err(failed)?;
    directory.allow_rename();
    // A rename cannot replace a directory that is not empty, so the old one has to be moved aside.
    let exists = output.symlink_metadata().is_ok();
    if exists {
        std::fs::rename(output, &old).map_err(failed)?;
    }
    let named = std::fs::rename(partial, output).map_err(failed);
    // The rename goes by name: it is undone if somebody has put another directory under it just
    // then.
    let is_named = named.is_ok();
    if let Err(e) = named.and_then(|()| directory.require_at(output)) {
        if is_named {
            std::fs::rename(output, partial).map_err(failed)?;
        }
        if exists {
            std::fs::rename(&old, output).map_err(failed)?;
        }
        return Err(e);
    }
    sync_directory(directory_of(output));
    Ok(marker.clear(output))
}
