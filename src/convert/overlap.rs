//! Refuses an output that is the input or holds a part of it, under whatever name.
//!
//! Replacing a directory removes everything in it. Paths alone do not tell whether the input would
//! be lost: links and bind mounts give one directory several paths, and canonical paths resolve
//! only links. So files and directories are compared by device and inode as well.

use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use crate::source::platform::place;
use crate::{AnamnesisError, Result};

/// Device and inode of a file or directory.
pub(super) type FilePlace = (u64, u64);

/// Fails with `Io` if a directory of `replaced` is one of `inputs`, or contains one. `output` is
/// named in the error.
pub(super) fn require_apart(output: &Path, replaced: &[PathBuf], inputs: &[PathBuf]) -> Result<()> {
    let inputs = inputs.iter().filter_map(|path| path.canonicalize().ok());
    let inputs: Vec<PathBuf> = inputs.collect();
    let places = places_of(&inputs);
    // What does not exist yet contains nothing.
    for there in replaced.iter().filter(|there| there.exists()) {
        let what = overlap_of_paths(there, &inputs).or_else(|| overlap_of_places(there, &places));
        if let Some(what) = what {
            let error = Error::new(ErrorKind::InvalidInput, what);
            return Err(AnamnesisError::io_at(output, &error));
        }
    }
    Ok(())
}

/// The places of `inputs` and of all directories above them, each with the input.
fn places_of(inputs: &[PathBuf]) -> HashMap<FilePlace, (&Path, bool)> {
    let mut places = HashMap::new();
    for input in inputs {
        for above in input.ancestors() {
            let is_input = above == input.as_path();
            let Some(place) = place_at(above) else {
                continue;
            };
            // Most inputs are in one directory, whose ancestors are known after the first.
            if places.contains_key(&place) && !is_input {
                break;
            }
            let entry = places.entry(place).or_insert((input.as_path(), is_input));
            entry.1 |= is_input;
        }
    }
    places
}

/// Place of the file or directory `path`, links not followed; `None` if there is none or the system
/// cannot tell.
pub(super) fn place_at(path: &Path) -> Option<FilePlace> {
    let found = place(&path.symlink_metadata().ok()?);
    (found != (0, 0)).then_some(found)
}

/// Describes how the canonical paths of `inputs` are in the directory `there`.
fn overlap_of_paths(there: &Path, inputs: &[PathBuf]) -> Option<String> {
    let there = there.canonicalize().ok()?;
    inputs.iter().find_map(|input| match input {
        input if *input == there => Some("the output is the input".to_owned()),
        input if input.starts_with(&there) => Some(format!(
            "the output is to be replaced, and the input is in it: `{}`",
            input.display()
        )),
        _ => None,
    })
}

/// Describes which of `places` is the directory `there` or is below it.
fn overlap_of_places(there: &Path, places: &HashMap<FilePlace, (&Path, bool)>) -> Option<String> {
    let top = there.canonicalize().ok()?;
    match place_at(&top).and_then(|place| places.get(&place)) {
        Some((input, true)) => {
            let input = input.display();
            return Some(format!(
                "the output is the input, `{input}`, under another name"
            ));
        }
        Some((input, false)) => {
            let input = input.display();
            return Some(format!(
                "the output is to be replaced, and the input is in it under another name: `{input}`"
            ));
        }
        None => {}
    }
    // All that is below is removed, and a removal goes through mounts. What cannot be listed cannot
    // be removed either.
    let mut directories = vec![top];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            let path = entry.path();
            if let Some((input, _)) = place_at(&path).and_then(|place| places.get(&place)) {
                return Some(format!(
                    "the output is to be replaced, and `{}` in it is of the input: `{}`",
                    path.display(),
                    input.display()
                ));
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(path);
            }
        }
    }
    None
}
