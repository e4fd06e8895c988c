//! [`Inputs`]: what a run reads. An output never replaces any of it, under whatever name.
//!
//! Replacing a directory removes everything in it. Paths alone do not tell whether the input would
//! be lost: links and bind mounts give one directory several paths, and canonical paths resolve
//! only links. So files and directories are compared by device and inode as well. Of a directory
//! all files count, read or not, and what links in it lead to: it may be the only copy.

use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use super::Source;
use super::platform::place;
use crate::{AnamnesisError, Result};

/// Levels of directories below an input whose files count, and are copied. Links to directories are not
/// followed, so this only bounds the recursion.
pub(crate) const MAX_DEPTH: usize = 8;

/// Device and inode of a file or directory.
pub(crate) type FilePlace = (u64, u64);

/// The files and directories that a run reads.
#[derive(Debug, Default)]
pub(crate) struct Inputs<'a> {
    /// Opened files.
    pub sources: &'a [Source],
    /// Files and directories. They need not exist.
    pub paths: Vec<PathBuf>,
}

impl Inputs<'_> {
    /// Fails with `Io` if `output`, a file, is one of these, or in one of these directories.
    pub(crate) fn require_other_file(&self, output: &Path) -> Result<()> {
        let refuse = |what: String| {
            let error = Error::new(ErrorKind::InvalidInput, what);
            Err(AnamnesisError::io_at(output, &error))
        };
        if let Some(input) = self.sources.iter().find(|input| input.is_file_at(output)) {
            let named = input.path().filter(|input| *input != output);
            let named = named.map_or(String::new(), |input| format!(", `{}`", input.display()));
            return refuse(format!("the output is the input{named}"));
        }
        if output.symlink_metadata().is_err() {
            return Ok(());
        }
        // The name itself, which a rename replaces, and what it leads to.
        let itself = output.parent().and_then(|parent| {
            let parent = match parent == Path::new("") {
                true => Path::new("."),
                false => parent,
            };
            Some(parent.canonicalize().ok()?.join(output.file_name()?))
        });
        let target = output.canonicalize().ok();
        let places = [itself.as_deref(), target.as_deref()];
        let places: Vec<FilePlace> = places.into_iter().flatten().filter_map(place_at).collect();
        for input in self.files(&[]) {
            let is_same = Some(&input) == itself.as_ref() || Some(&input) == target.as_ref();
            if is_same || place_at(&input).is_some_and(|place| places.contains(&place)) {
                return refuse(format!(
                    "the output is `{}`, a file of the input, which is not replaced; write elsewhere, or remove it",
                    input.display()
                ));
            }
        }
        Ok(())
    }

    /// Fails with `Io` if a directory of `replaced` is one of these, or contains one. `output` is
    /// named in the error.
    pub(crate) fn require_apart(&self, output: &Path, replaced: &[PathBuf]) -> Result<()> {
        // What does not exist yet contains nothing.
        let there = replaced.iter().filter(|there| there.exists());
        let there: Vec<&PathBuf> = there.collect();
        if there.is_empty() {
            return Ok(());
        }
        let inputs = self.files(replaced);
        let places = places_of(&inputs);
        for there in there {
            let what =
                overlap_of_paths(there, &inputs).or_else(|| overlap_of_places(there, &places));
            if let Some(what) = what {
                let error = Error::new(ErrorKind::InvalidInput, what);
                return Err(AnamnesisError::io_at(output, &error));
            }
        }
        Ok(())
    }

    /// The canonical paths of all that is there, of what is in the directories, and of what links
    /// in these lead to. The directories `skipped` may lie in them, and do not count.
    fn files(&self, skipped: &[PathBuf]) -> Vec<PathBuf> {
        let skipped = skipped.iter().filter_map(|path| path.canonicalize().ok());
        let skipped: Vec<PathBuf> = skipped.collect();
        let skipped_places: Vec<FilePlace> = skipped.iter().filter_map(|p| place_at(p)).collect();
        let is_skipped = |path: &PathBuf| {
            skipped.contains(path) || place_at(path).is_some_and(|p| skipped_places.contains(&p))
        };
        let opened = self.sources.iter().filter_map(Source::path);
        let given = opened.chain(self.paths.iter().map(PathBuf::as_path));
        let mut found: Vec<PathBuf> = given.filter_map(|path| path.canonicalize().ok()).collect();
        let directories = found.iter().filter(|path| path.is_dir());
        let mut left: Vec<(PathBuf, usize)> = directories.map(|path| (path.clone(), 0)).collect();
        while let Some((directory, depth)) = left.pop() {
            let entries = std::fs::read_dir(&directory).into_iter().flatten();
            for entry in entries.flatten() {
                let path = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_symlink() => {
                        found.extend(path.canonicalize().ok());
                        found.push(path);
                    }
                    Ok(kind) if kind.is_dir() && !is_skipped(&path) => {
                        if depth < MAX_DEPTH {
                            left.push((path.clone(), depth + 1));
                        }
                        found.push(path);
                    }
                    Ok(kind) if kind.is_dir() => {}
                    _ => found.push(path),
                }
            }
        }
        found
    }
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
pub(crate) fn place_at(path: &Path) -> Option<FilePlace> {
    let found = place(&path.symlink_metadata().ok()?);
    (found != (0, 0)).then_some(found)
}

/// Describes how the canonical paths of `inputs` are in the directory `there`.
fn overlap_of_paths(there: &Path, inputs: &[PathBuf]) -> Option<String> {
    let there = there.canonicalize().ok()?;
    if inputs.contains(&there) {
        return Some("the output is the input".to_owned());
    }
    let within = inputs.iter().find(|input| input.starts_with(&there))?;
    Some(format!("the output is to be replaced, and the input is in it: `{}`", within.display()))
}

/// Describes which of `places` is the directory `there` or is below it.
fn overlap_of_places(there: &Path, places: &HashMap<FilePlace, (&Path, bool)>) -> Option<String> {
    let top = there.canonicalize().ok()?;
    match place_at(&top).and_then(|place| places.get(&place)) {
        Some((input, true)) => {
            let input = input.display();
            return Some(format!("the output is the input, `{input}`, under another name"));
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
