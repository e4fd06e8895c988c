//! An output that is a directory: shards one after another into a hidden sibling, which gets its name at the end.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::destination::{
    MARKER_FILE, check_destination, is_unfinished_conversion, manifests, partial_path,
    replaced_path,
};
use super::manifest::{
    self, Manifest, Parameters, has_manifest_prefix, is_manifest, path as manifest_path,
};
use super::options::ConvertOptions;
use super::plan::Plan;
use super::{run, sidecars};
use crate::containers::model::ParsedModel;
use crate::containers::parse::directory::is_weights;
use crate::containers::write::Sink;
use crate::containers::write::atomic::{directory_of, sync_directory, write_all_at};
use crate::{AnamnesisError, Result};

/// The work on one part of a directory.
pub(super) struct Work<'a, 'm> {
    pub plan: &'a Plan<'m>,
    pub model: &'m ParsedModel,
    pub options: &'a ConvertOptions,
}

impl Work<'_, '_> {
    /// Writes the part, and finishes the directory if it is the only one. What there is to say of it is returned.
    pub(super) fn write(&self, output: &Path) -> Result<Vec<String>> {
        let (part, parts) = self.options.part.unwrap_or((1, 1));
        if part == 0 || part > parts {
            return Err(AnamnesisError::unsupported(
                "part",
                format!("{part} of {parts}: parts count from 1"),
            ));
        }
        check_destination(output, self.options.run.force)?;
        self.check_input(output)?;
        let partial = partial_path(output)?;
        let names = self.names();
        let path = manifest_path(&partial, (part, parts));
        let mut manifest = self.manifest(&partial, &path, &names, parts)?;
        let mine: Vec<usize> = (0..names.len())
            .filter(|file| file % parts == part - 1)
            .collect();
        self.check_space(&partial, &mine, &manifest, &names)?;
        self.shards(&mine, &partial, &names, &mut manifest, &path)?;
        let mut notes = Vec::new();
        if part == 1 {
            notes = self.rest(&partial, output, &names)?;
        }
        manifest.done = true;
        manifest.write(&path)?;
        if parts == 1 {
            finish(output, self.options.run.force)?;
        } else {
            notes.push(format!(
                "part {part} of {parts}; when all are there, `amn remember --finish` ends it"
            ));
        }
        Ok(notes)
    }

    /// What is replaced_path goes with all that is in it, and the input must not.
    fn check_input(&self, output: &Path) -> Result<()> {
        let directory = self
            .model
            .directory
            .as_ref()
            .map(|directory| directory.path.clone());
        let inputs: Vec<PathBuf> = directory
            .into_iter()
            .chain(manifest::files(self.model))
            .collect();
        for there in [output.to_path_buf(), partial_path(output)?] {
            let Ok(there) = std::fs::canonicalize(there) else {
                continue;
            };
            for path in inputs
                .iter()
                .filter_map(|path| std::fs::canonicalize(path).ok())
            {
                let what = match path {
                    path if path == there => "the output is the input",
                    path if path.starts_with(&there) => {
                        "the output is to be replaced_path, and the input is in it"
                    }
                    _ => continue,
                };
                return Err(AnamnesisError::io_at(
                    output,
                    &Error::new(ErrorKind::InvalidInput, what),
                ));
            }
        }
        Ok(())
    }

    /// Names of the shards.
    pub(super) fn names(&self) -> Vec<String> {
        let first = self
            .model
            .directory
            .as_ref()
            .and_then(|directory| directory.files.first());
        let known = ["diffusion_pytorch_model", "consolidated", "adapter_model"];
        let stem = known
            .into_iter()
            .find(|stem| first.is_some_and(|first| first.starts_with(stem)));
        let (stem, count) = (stem.unwrap_or("model"), self.plan.files.len());
        match count {
            1 => vec![format!("{stem}.safetensors")],
            _ => (1..=count)
                .map(|no| format!("{stem}-{no:05}-of-{count:05}.safetensors"))
                .collect(),
        }
    }

    /// The manifest to go on with: a new one, or that of the work that is resumed.
    fn manifest(
        &self,
        partial: &Path,
        path: &Path,
        names: &[String],
        parts: usize,
    ) -> Result<Manifest> {
        let new = Manifest {
            parameters: self.parameters(names, parts),
            inputs: manifest::inputs(self.model),
            finished: vec![],
            done: false,
        };
        let refuse = |what: String| {
            Err(AnamnesisError::io_at(
                partial,
                &Error::new(ErrorKind::AlreadyExists, what),
            ))
        };
        // Of several parts none can take away what the others have made.
        let anew = if parts == 1 {
            "--force begins anew"
        } else {
            "to begin anew, delete it"
        };
        if !is_unfinished_conversion(partial) {
            return refuse(
                "a directory of this name is there, and it is no unfinished conversion".to_owned(),
            );
        }
        if self.options.run.force && !self.options.resume && parts == 1 && partial.exists() {
            std::fs::remove_dir_all(partial).map_err(|e| AnamnesisError::io_at(partial, &e))?;
        }
        for other in manifests(partial)? {
            let Some(theirs) = Manifest::read(&other)? else {
                continue;
            };
            if let Some(what) = new.parameters.difference(&theirs.parameters) {
                return refuse(format!(
                    "an unfinished conversion with other parameters is there ({what})"
                ));
            }
            if theirs.inputs != new.inputs {
                return refuse(format!(
                    "the input has changed since the conversion was begun; {anew}"
                ));
            }
        }
        match Manifest::read(path)? {
            Some(_) if !self.options.resume => refuse(format!(
                "an unfinished conversion is there; --resume continues it, {anew}"
            )),
            Some(there) => Ok(there),
            None => {
                let made = std::fs::create_dir_all(partial)
                    .and_then(|()| File::create(partial.join(MARKER_FILE)));
                made.map_err(|e| AnamnesisError::io_at(partial, &e))?;
                new.write(path)?;
                Ok(new)
            }
        }
    }

    fn parameters(&self, names: &[String], parts: usize) -> Parameters {
        let header = |(name, file): (&String, &super::PlannedFile)| {
            let crc = file
                .pieces
                .first()
                .map_or(0, |(_, piece)| crc32fast::hash(piece));
            (name.clone(), file.len, crc)
        };
        Parameters {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            to: self.options.run.to.to_string(),
            decode: self.options.decode,
            max_shard_size: self.options.max_shard_size,
            include: self.options.include.clone(),
            exclude: self.options.exclude.clone(),
            forget: self.options.encoding_fingerprint(),
            parts,
            shards: names.iter().zip(&self.plan.files).map(header).collect(),
        }
    }

    fn check_space(
        &self,
        partial: &Path,
        mine: &[usize],
        manifest: &Manifest,
        names: &[String],
    ) -> Result<()> {
        let left = mine
            .iter()
            .filter(|&&file| !manifest.finished.contains(&names[file]));
        let needed: u64 = left.map(|&file| self.plan.files[file].len).sum();
        let free = fs4::available_space(partial).map_err(|e| AnamnesisError::io_at(partial, &e))?;
        if free < needed {
            let what = format!("the output takes {needed} bytes, and {free} are free");
            return Err(AnamnesisError::io_at(
                partial,
                &Error::new(ErrorKind::StorageFull, what),
            ));
        }
        Ok(())
    }

    /// Makes the shards `mine`, but those that are there. While one is made, the one before reaches the disk.
    fn shards(
        &self,
        mine: &[usize],
        partial: &Path,
        names: &[String],
        manifest: &mut Manifest,
        path: &Path,
    ) -> Result<()> {
        let done = AtomicU64::new(0);
        let mut pending: Option<Pending> = None;
        for &file in mine {
            let (name, planned) = (&names[file], &self.plan.files[file]);
            let target = partial.join(name);
            let is_there = target
                .metadata()
                .is_ok_and(|there| there.len() == planned.len);
            if manifest.finished.contains(name) && is_there {
                let header: usize = planned.pieces.iter().map(|(_, piece)| piece.len()).sum();
                done.fetch_add(planned.len - header as u64, Ordering::Relaxed);
                continue;
            }
            let shard = Shard::create(&target, planned.len)?;
            planned
                .pieces
                .iter()
                .try_for_each(|(at, piece)| shard.write_at(file, *at, piece))?;
            let made = run::run(
                self.plan,
                self.plan.outputs_of(file),
                &shard,
                &self.options.run,
                &done,
            );
            if let Some(before) = pending.take() {
                before.wait(manifest, path)?;
            }
            made?;
            self.options.run.cancel.check()?;
            pending = Some(Pending::start(shard, name.clone())?);
        }
        pending.map_or(Ok(()), |last| last.wait(manifest, path))
    }

    /// Everything but the shards; the index and the config come last.
    fn rest(&self, partial: &Path, output: &Path, names: &[String]) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        // What is copied as it is keeps the type that the config names.
        let dtype = (self.plan.report.recovered() > 0).then_some(self.options.run.to);
        let edits = sidecars::ConfigEdits {
            dtype,
            quantization: self.plan.quantization.as_ref(),
        };
        if let Some(directory) = &self.model.directory {
            notes = sidecars::copy(&directory.path, partial, &edits, &[partial, output])?;
        }
        sidecars::write_config(partial, &edits)?;
        if let Some(index) = index_name(names.iter().map(String::as_str)) {
            let outputs = self.plan.outputs.iter();
            let map: BTreeMap<&str, &str> = outputs
                .map(|o| (o.name.as_str(), names[o.file].as_str()))
                .collect();
            sidecars::write_index(&partial.join(index), &map, self.plan.data_len)?;
        }
        Ok(notes)
    }
}

/// A shard under a name of its own, until it is whole.
struct Shard {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl Shard {
    fn create(path: &Path, len: u64) -> Result<Self> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".partial");
        let temporary = PathBuf::from(temporary);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary);
        let file = file.and_then(|file| file.set_len(len).map(|()| file));
        let file = file.map_err(|e| AnamnesisError::io_at(&temporary, &e))?;
        Ok(Self {
            file,
            temporary,
            path: path.to_path_buf(),
        })
    }

    fn commit(self) -> Result<()> {
        let named = self
            .file
            .sync_all()
            .and_then(|()| std::fs::rename(&self.temporary, &self.path));
        named.map_err(|e| AnamnesisError::io_at(&self.path, &e))
    }
}

impl Sink for Shard {
    fn write_at(&self, _file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        write_all_at(&self.file, offset, bytes)
            .map_err(|e| AnamnesisError::io_at(&self.temporary, &e))
    }
}

/// A shard on its way to the disk.
struct Pending {
    name: String,
    thread: thread::JoinHandle<Result<()>>,
}

impl Pending {
    fn start(shard: Shard, name: String) -> Result<Self> {
        let thread = thread::Builder::new()
            .name("anamnesis-sync".to_owned())
            .spawn(move || shard.commit())?;
        Ok(Self { name, thread })
    }

    /// Waits for it, and enters it as finished.
    fn wait(self, manifest: &mut Manifest, path: &Path) -> Result<()> {
        let failed = |_| AnamnesisError::Io(Error::other("a thread failed"));
        self.thread.join().map_err(failed)??;
        manifest.finished.push(self.name);
        manifest.write(path)
    }
}

/// The name of the index of several shards.
fn index_name<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<String> {
    let (first, _) = (names.next()?, names.next()?);
    let stem = first
        .split_once("-00001-of-")
        .map_or("model", |(stem, _)| stem);
    Some(format!("{stem}.safetensors.index.json"))
}

/// Gives a directory its name, once all parts of it are there.
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
/// `Io` if there is no such unfinished directory, a part is missing or not done, or `output` exists and `force` is
/// not set.
pub fn finish_parts(output: impl AsRef<Path>, force: bool) -> Result<()> {
    finish(output.as_ref(), force)
}

fn finish(output: &Path, force: bool) -> Result<()> {
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
    for (name, len, _) in &parameters.shards {
        if partial.join(name).metadata().map_or(0, |there| there.len()) != *len {
            return refuse(format!("shard `{name}` is not there, or not whole"));
        }
    }
    clean(&partial, parameters)?;
    name(&partial, output, &found)
}

/// Takes out what an interrupted conversion with other parameters left behind, when its manifests were gone already.
fn clean(partial: &Path, parameters: &Parameters) -> Result<()> {
    let shards = || parameters.shards.iter().map(|(name, ..)| name.as_str());
    let index = index_name(shards());
    for entry in std::fs::read_dir(partial)
        .map_err(|e| AnamnesisError::io_at(partial, &e))?
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_part = shards().any(|shard| shard == name)
            || index.as_ref() == Some(&name)
            || is_manifest(&name);
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && !is_part && (is_weights(&name) || has_manifest_prefix(&name)) {
            std::fs::remove_file(entry.path())
                .map_err(|e| AnamnesisError::io_at(&entry.path(), &e))?;
        }
    }
    Ok(())
}

/// Makes the files below `directory` durable: the small ones were written without waiting for the disk.
fn sync_files(directory: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)?.flatten() {
        if entry.file_type()?.is_dir() {
            sync_files(&entry.path())?;
        } else if let Ok(file) = OpenOptions::new()
            .read(true)
            .write(cfg!(windows))
            .open(entry.path())
        {
            // Windows syncs what is open for writing, and a read-only file is not.
            file.sync_all()?;
        }
    }
    sync_directory(directory);
    Ok(())
}

/// Takes the manifests out of `partial` and renames it; what was there before goes when the new is in its place, and
/// comes back if that fails.
fn name(partial: &Path, output: &Path, manifests: &[PathBuf]) -> Result<()> {
    let failed = |e: Error| AnamnesisError::io_at(output, &e);
    let old = replaced_path(output);
    sync_files(partial).map_err(failed)?;
    manifests
        .iter()
        .try_for_each(std::fs::remove_file)
        .map_err(failed)?;
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
    std::fs::remove_file(output.join(MARKER_FILE)).map_err(failed)?;
    sync_directory(directory_of(output));
    if exists {
        std::fs::remove_dir_all(&old).map_err(failed)?;
    }
    Ok(())
}
