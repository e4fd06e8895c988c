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
mod shard;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use self::finish::finish;
pub use self::finish::finish_parts;
use self::shard::{ShardCommit, ShardFile};
use super::checksum::checksum_of_file;
use super::container::index_name;
use super::destination::{
    MARKER_FILE, check_destination, is_unfinished_conversion, manifests, partial_path,
};
use super::manifest::{
    self, ConversionParameters, FinishedShard, InputRecord, Manifest, changed_input,
    path as manifest_path,
};
use super::options::ConvertOptions;
use super::overlap::require_apart;
use super::plan::{Plan, PlannedFile};
use super::{run, sidecars};
use crate::containers::model::ParsedModel;
use crate::containers::write::Sink;
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
        check_destination(output, self.options.run.replaces())?;
        self.check_input(output)?;
        let partial = partial_path(output)?;
        let path = manifest_path(&partial, (part, parts));
        let mut manifest = self.open_manifest(&partial, &path, parts)?;
        // Every `parts`-th shard: all parts get the same number of shards, give or take one.
        let mine: Vec<usize> = (0..self.names.len())
            .filter(|file| file % parts == part - 1)
            .collect();
        self.check_space(&partial, &mine, &manifest)?;
        let mut notes = self.write_shards(&mine, &partial, &mut manifest, &path)?;
        if part == 1 {
            notes.extend(self.write_companion_files(&partial, output)?);
        }
        self.require_unchanged(&manifest)?;
        manifest.done = true;
        manifest.write(&path)?;
        if parts == 1 {
            // The shards were made in this run, or summed at its begin.
            finish(output, self.options.run.replaces(), false)?;
        } else {
            notes.push(format!(
                "part {part} of {parts}; when all are there, `amn remember --finish` ends it"
            ));
        }
        Ok(notes)
    }

    /// Refuses an output that is the input or contains a part of it.
    fn check_input(&self, output: &Path) -> Result<()> {
        let directory = self.model.directory.as_ref();
        let directory = directory.map(|directory| directory.path.clone());
        let inputs: Vec<PathBuf> = directory
            .into_iter()
            .chain(manifest::files(self.model))
            .collect();
        let replaced = [output.to_path_buf(), partial_path(output)?];
        require_apart(output, &replaced, &inputs)
    }

    /// Opens the manifest of this part at `path` to resume it, or begins a new one.
    ///
    /// Before that, the manifests of all parts in `partial` are compared with this run: a directory in which two sets of
    /// parameters, or two states of the input, have made shards would be a model that nobody asked for.
    ///
    /// # Errors
    /// `Io` if `partial` is no unfinished conversion; if it was begun with other parameters or before the input changed; if
    /// this part was begun and the options do not resume it; if the operating system fails.
    fn open_manifest(&self, partial: &Path, path: &Path, parts: usize) -> Result<Manifest> {
        let new = Manifest {
            parameters: self.parameters(parts),
            inputs: self.inputs()?,
            finished: vec![],
            done: false,
        };
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
            if let Some(what) = changed_input(&theirs.inputs, &new.inputs) {
                return refuse(format!(
                    "the input has changed since the conversion was begun ({what}); {anew}"
                ));
            }
        }
        match Manifest::read(path)? {
            Some(_) if !self.options.resume => refuse(format!(
                "an unfinished conversion is there; --resume continues it, {anew}"
            )),
            Some(there) => Ok(there),
            None => {
                // The marker comes before anything else, so that a directory that is not empty can be recognized as ours
                // from its first file on.
                let made = std::fs::create_dir_all(partial)
                    .and_then(|()| File::create(partial.join(MARKER_FILE)));
                made.map_err(|e| AnamnesisError::io_at(partial, &e))?;
                new.write(path)?;
                Ok(new)
            }
        }
    }

    /// The state of the input's files as they are now.
    fn inputs(&self) -> Result<Vec<InputRecord>> {
        manifest::inputs(self.model, &[])
    }

    /// Fails with `Io` unless the input's files are as they were when the part was begun.
    fn require_unchanged(&self, manifest: &Manifest) -> Result<()> {
        self.model.require_unchanged()?;
        match changed_input(&manifest.inputs, &self.inputs()?) {
            None => Ok(()),
            Some(what) => {
                let what = format!("the input has changed since the conversion was begun: {what}");
                Err(AnamnesisError::Io(Error::other(what)))
            }
        }
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

    /// Fails with `Io` unless the disk has room for the shards `mine` that are not finished. Shards of other parts are not
    /// counted: the processes that write them check for them.
    fn check_space(&self, partial: &Path, mine: &[usize], manifest: &Manifest) -> Result<()> {
        let left = mine
            .iter()
            .filter(|&&file| manifest.finished(&self.names[file]).is_none());
        let needed: u64 = left.map(|&file| self.plan.files[file].len).sum();
        let free = available_space(partial).map_err(|e| AnamnesisError::io_at(partial, &e))?;
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
    /// one before. Returns a note for each finished shard that has to be made again.
    ///
    /// # Errors
    /// The error of the lowest job that failed, or `Io`. Shards that were finished before stay in the manifest.
    fn write_shards(
        &self,
        mine: &[usize],
        partial: &Path,
        manifest: &mut Manifest,
        path: &Path,
    ) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        let done = AtomicU64::new(0);
        let mut pending: Option<ShardCommit> = None;
        for &file in mine {
            let (name, planned) = (&self.names[file], &self.plan.files[file]);
            let target = partial.join(name);
            // The manifest names only durable shards, but a user or a disk may have damaged one since.
            let finished = manifest.finished(name).map(|shard| shard.crc);
            let is_whole = match finished {
                Some(crc) => self.is_whole(&target, planned.len, crc)?,
                None => false,
            };
            if finished.is_some() && !is_whole {
                notes.push(format!(
                    "shard `{name}` was not as it had been written, and was made again"
                ));
            }
            if is_whole {
                // Counted as done, so that progress ends at its total.
                let header: usize = planned.pieces.iter().map(|(_, piece)| piece.len()).sum();
                done.fetch_add(planned.len - header as u64, Ordering::Relaxed);
                continue;
            }
            let shard = ShardFile::create(&target, planned.len)?;
            planned
                .pieces
                .iter()
                .try_for_each(|(at, piece)| shard.write_at(file, *at, piece))?;
            let outputs = self.plan.outputs_of(file);
            let run = run::Run::new(self.plan, outputs, &self.options.run, &done);
            let run = run.with_file_checksum();
            let made = run.run(&shard);
            // At most one shard is being synced, so at most two are in the page cache. Its result comes before that of the
            // shard just made: even if this one has failed, the one before is finished and a later run can skip it.
            if let Some(before) = pending.take() {
                before.wait(manifest, path)?;
            }
            made?;
            self.model.require_unchanged()?;
            self.options.run.cancel.check()?;
            let finished = FinishedShard {
                name: name.clone(),
                crc: run.file_checksum(file),
            };
            pending = Some(ShardCommit::start(shard, finished)?);
        }
        if let Some(last) = pending {
            last.wait(manifest, path)?;
        }
        Ok(notes)
    }

    /// Whether the shard at `path` has `len` bytes with the checksum `crc`. One that cannot be read has not.
    ///
    /// # Errors
    /// `Cancelled`.
    fn is_whole(&self, path: &Path, len: u64, crc: u32) -> Result<bool> {
        let options = &self.options.run;
        let file = File::open(path).ok();
        let file = file.filter(|file| file.metadata().is_ok_and(|there| there.len() == len));
        let sum = |file| checksum_of_file(&file, len, run::threads(options), &options.cancel);
        match file.map(sum) {
            Some(Err(AnamnesisError::Cancelled)) => Err(AnamnesisError::Cancelled),
            Some(Ok(found)) => Ok(found == crc),
            _ => Ok(false),
        }
    }

    /// Writes the files beside the shards: copies of the input's other files, the config and the index. Returns a note for
    /// each file of the input that was left out.
    fn write_companion_files(&self, partial: &Path, output: &Path) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        // The config's dtype is that of the weights. It changes only if weights were decoded.
        let dtype = (self.plan.report.recovered() > 0).then_some(self.options.run.to);
        let edits = sidecars::ConfigEdits {
            dtype,
            quantization: self.plan.quantization.as_ref(),
        };
        if let Some(directory) = &self.model.directory {
            notes = sidecars::copy(&directory.path, partial, &edits, &[partial, output])?;
        }
        sidecars::write_config(partial, &edits)?;
        if let Some(index) = index_name(self.names) {
            let outputs = self.plan.outputs.iter();
            let map: BTreeMap<&str, &str> = outputs
                .map(|o| (o.name.as_str(), self.names[o.file].as_str()))
                .collect();
            sidecars::write_index(&partial.join(index), &map, self.plan.data_len)?;
        }
        Ok(notes)
    }
}
