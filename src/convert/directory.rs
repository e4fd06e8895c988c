//! An output that is a directory: shards are written one after another into a hidden sibling of the output, which gets its
//! name at the end.
//!
//! The sibling is called `.NAME.partial`. Its dot keeps a model that is not whole out of listings and of patterns such as
//! `*`, and it is in the same directory because a rename cannot cross file systems. Nothing under `NAME` changes before
//! everything is durable.
//!
//! A directory may be made in several parts, by as many processes: part `i` of `n` makes every `n`-th shard and records in
//! its own manifest which of them are finished. The first part also makes the files beside the weights. Only [`finish`]
//! touches what all parts share.

mod finish;
mod replacement;
mod shard;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use self::finish::finish;
pub use self::finish::finish_parts;
pub(crate) use self::replacement::settle;
use self::shard::{ShardCommit, ShardFile};
use super::container::index_name;
use super::destination::{
    MARKER_FILE, check_destination, is_unfinished_conversion, manifests, partial_path,
};
use super::manifest::{self, ConversionParameters, Manifest, path as manifest_path};
use super::options::ConvertOptions;
use super::plan::{Plan, PlannedFile};
use super::run;
use super::sidecars::{self, Sidecars};
use crate::containers::model::ParsedModel;
use crate::containers::write::Sink;
use crate::containers::write::atomic::directory_of;
use crate::source::platform::available_space;
use crate::{AnamnesisError, Result};

/// Writes one part of an output directory; the whole of it, if there is only one part.
pub(super) struct PartWriter<'a, 'm> {
    pub plan: &'a Plan<'m>,
    pub model: &'m ParsedModel,
    pub options: &'a ConvertOptions,
    /// File names of the shards, in order.
    pub names: &'a [String],
}

impl PartWriter<'_, '_> {
    /// Writes the part, and finishes the directory if it is the only part. Returns notes for the report.
    ///
    /// # Errors
    /// `Unsupported` if the options name a part that does not exist. `Io` if the output or the unfinished directory may not
    /// be replaced or continued, if the disk is too small, or if the operating system fails. Also the errors of the jobs.
    pub(super) fn write(&self, output: &Path) -> Result<Vec<String>> {
        let (part, parts) = self.options.part.unwrap_or((1, 1));
        if part == 0 || part > parts {
            return Err(AnamnesisError::unsupported(
                "part",
                format!("{part} of {parts}: parts count from 1"),
            ));
        }
        let settled = settle(output)?;
        check_destination(output, self.options.run.replaces())?;
        self.check_input(output)?;
        let partial = partial_path(output)?;
        let path = manifest_path(&partial, (part, parts));
        let new = Manifest {
            parameters: self.parameters(parts),
            inputs: manifest::inputs(self.model),
            finished: vec![],
            done: false,
        };
        let begun = self.find_manifest(&partial, &path, &new)?;
        let mut manifest = begun.unwrap_or(new);
        // Every `parts`-th shard: all parts get the same number of shards, give or take one.
        let mine: Vec<usize> = (0..self.names.len())
            .filter(|file| file % parts == part - 1)
            .collect();
        let sidecars = match &self.model.directory {
            Some(directory) if part == 1 => {
                Some(Sidecars::find(&directory.path, &[&partial, output])?)
            }
            _ => None,
        };
        let sidecar_bytes = sidecars.as_ref().map_or(0, Sidecars::size);
        // Before anything is made, so that a refusal leaves nothing behind.
        self.check_space(&partial, &mine, &manifest, sidecar_bytes)?;
        let made = self.make(&mine, sidecars.as_ref(), &partial, &mut manifest, &path);
        if made.is_err() && manifest.finished.is_empty() {
            // There is nothing to resume, and the record of it would be in the way of the next run. Of several parts, others
            // may be in the directory.
            let _ = match parts {
                1 => std::fs::remove_dir_all(&partial),
                _ => std::fs::remove_file(&path),
            };
        }
        made?;
        let mut notes: Vec<String> = settled.into_iter().map(|settled| settled.note).collect();
        notes.extend(sidecars.into_iter().flat_map(|sidecars| sidecars.notes));
        if parts == 1 {
            notes.extend(finish(output, self.options.run.replaces())?);
        } else {
            notes.push(format!(
                "part {part} of {parts}; when all are there, `amn remember --finish` ends it"
            ));
        }
        Ok(notes)
    }

    /// Refuses an output that is the input or contains it. Replacing a directory removes everything in it, so the input would
    /// be lost. Links are followed on both sides, because one directory can have several paths.
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
            // What does not exist yet contains nothing.
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
                        "the output is to be replaced, and the input is in it"
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

    /// The manifest of this part at `path`, to resume it; `None` if the part is to be begun, with the manifest `new`.
    ///
    /// Before that, the manifests of all parts in `partial` are compared with this run: a directory in which two sets of
    /// parameters, or two states of the input, have made shards would be a model that nobody asked for.
    ///
    /// # Errors
    /// `Io` if `partial` is no unfinished conversion; if it was begun with other parameters or before the input changed; if
    /// this part was begun and the options do not resume it; if the operating system fails.
    fn find_manifest(
        &self,
        partial: &Path,
        path: &Path,
        new: &Manifest,
    ) -> Result<Option<Manifest>> {
        let parts = new.parameters.parts;
        let refuse = |what: String| {
            Err(AnamnesisError::io_at(
                partial,
                &Error::new(ErrorKind::AlreadyExists, what),
            ))
        };
        // With several parts, none may remove the directory: other processes may be writing to it.
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
            there => Ok(there),
        }
    }

    /// Makes everything of this part in `partial`: the shards `mine`, and the files beside the weights if `sidecars` are given.
    fn make(
        &self,
        mine: &[usize],
        sidecars: Option<&Sidecars>,
        partial: &Path,
        manifest: &mut Manifest,
        path: &Path,
    ) -> Result<()> {
        if !path.exists() {
            // The marker comes before anything else, so that a directory that is not empty can be recognized as ours from
            // its first file on.
            let made = std::fs::create_dir_all(partial)
                .and_then(|()| File::create(partial.join(MARKER_FILE)));
            made.map_err(|e| AnamnesisError::io_at(partial, &e))?;
            manifest.write(path)?;
        }
        self.write_shards(mine, partial, manifest, path)?;
        if self.options.part.is_none_or(|(part, _)| part == 1) {
            self.write_companion_files(partial, sidecars)?;
        }
        manifest.done = true;
        manifest.write(path)
    }

    /// Everything that the output's bytes depend on, besides the input.
    fn parameters(&self, parts: usize) -> ConversionParameters {
        // A header holds the name, dtype, shape and offset of every tensor in its shard. Its checksum therefore changes with
        // any decision of the plan.
        let header = |(name, file): (&String, &PlannedFile)| {
            let crc = file
                .pieces
                .first()
                .map_or(0, |(_, piece)| crc32fast::hash(piece));
            (name.clone(), file.len, crc)
        };
        ConversionParameters {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            to: self.options.run.to.to_string(),
            decode: self.options.decode,
            max_shard_size: self.options.max_shard_size,
            include: self.options.include.clone(),
            exclude: self.options.exclude.clone(),
            forget: self.options.encoding_fingerprint(),
            parts,
            shards: self
                .names
                .iter()
                .zip(&self.plan.files)
                .map(header)
                .collect(),
        }
    }

    /// Fails with `Io` unless the disk has room for the shards `mine` that are not finished, and for `sidecars` bytes beside
    /// them. Shards of other parts are not counted: the processes that write them check for them.
    fn check_space(
        &self,
        partial: &Path,
        mine: &[usize],
        manifest: &Manifest,
        sidecars: u64,
    ) -> Result<()> {
        let left = mine
            .iter()
            .filter(|&&file| !manifest.finished.contains(&self.names[file]));
        let needed = left.map(|&file| self.plan.files[file].len).sum::<u64>() + sidecars;
        let parent = directory_of(partial);
        let free = available_space(parent).map_err(|e| AnamnesisError::io_at(parent, &e))?;
        if free < needed {
            let what = format!("the output takes {needed} bytes, and {free} are free");
            return Err(AnamnesisError::io_at(
                partial,
                &Error::new(ErrorKind::StorageFull, what),
            ));
        }
        Ok(())
    }

    /// Writes the shards `mine`, except those that are finished. While the workers make one shard, another thread syncs the
    /// one before.
    ///
    /// # Errors
    /// The error of the lowest job that failed, or `Io`. Shards that were finished before stay in the manifest.
    fn write_shards(
        &self,
        mine: &[usize],
        partial: &Path,
        manifest: &mut Manifest,
        path: &Path,
    ) -> Result<()> {
        let done = AtomicU64::new(0);
        let mut pending: Option<ShardCommit> = None;
        for &file in mine {
            let (name, planned) = (&self.names[file], &self.plan.files[file]);
            let target = partial.join(name);
            // The manifest names only durable shards, but a user may have removed or cut one since.
            let is_whole = target
                .metadata()
                .is_ok_and(|there| there.len() == planned.len);
            if manifest.finished.contains(name) && is_whole {
                // Counted as done, so that progress ends at its total.
                let header: usize = planned.pieces.iter().map(|(_, piece)| piece.len()).sum();
                done.fetch_add(planned.len - header as u64, Ordering::Relaxed);
                continue;
            }
            let made = self.write_shard(file, &target, &done);
            // At most one shard is being synced, so at most two are in the page cache. Its result comes before that of the
            // shard just made: even if this one has failed, the one before is finished and a later run can skip it.
            if let Some(before) = pending.take() {
                before.wait(manifest, path)?;
            }
            pending = Some(ShardCommit::start(made?, name.clone()));
        }
        pending.map_or(Ok(()), |last| last.wait(manifest, path))
    }

    /// Writes the shard number `file`, which is to be `target`, under its temporary name. Adds the written bytes to `done`.
    fn write_shard(&self, file: usize, target: &Path, done: &AtomicU64) -> Result<ShardFile> {
        let planned = &self.plan.files[file];
        let shard = ShardFile::create(target, planned.len)?;
        planned
            .pieces
            .iter()
            .try_for_each(|(at, piece)| shard.write_at(file, *at, piece))?;
        let outputs = self.plan.outputs_of(file);
        run::Run::new(self.plan, outputs, &self.options.run, done).run(&shard)?;
        self.options.run.cancel.check()?;
        Ok(shard)
    }

    /// Writes the files beside the shards: copies of the input's other files, the config and the index.
    fn write_companion_files(&self, partial: &Path, sidecars: Option<&Sidecars>) -> Result<()> {
        // The config's dtype is that of the weights. It changes only if weights were decoded.
        let dtype = (self.plan.report.recovered() > 0).then_some(self.options.run.to);
        let edits = sidecars::ConfigEdits {
            dtype,
            quantization: self.plan.quantization.as_ref(),
        };
        if let Some(sidecars) = sidecars {
            sidecars.copy(partial, &edits)?;
        }
        sidecars::write_config(partial, &edits)?;
        if let Some(index) = index_name(self.names) {
            let outputs = self.plan.outputs.iter();
            let map: BTreeMap<&str, &str> = outputs
                .map(|o| (o.name.as_str(), self.names[o.file].as_str()))
                .collect();
            sidecars::write_index(&partial.join(index), &map, self.plan.data_len)?;
        }
        Ok(())
    }
}
