//! An output that is a directory: shards are written, some side by side, into a hidden sibling of
//! the output, which gets its name at the end.
//!
//! The sibling is called `.NAME.partial`. Its dot keeps a model that is not whole out of listings
//! and of patterns such as `*`, and it is in the same directory because a rename cannot cross file
//! systems. Nothing under `NAME` changes before everything is durable.
//!
//! A directory may be made in several parts, by as many processes: part `i` of `n` makes every
//! `n`-th shard and records in its own manifest which of them are finished. The first part also
//! makes the files beside the weights. Only [`finish`] touches what all parts share.

mod finish;
mod part;
mod replacement;
mod shard;

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use self::finish::finish_claimed;
pub use self::finish::finish_parts;
pub(crate) use self::finish::{finish, is_input_of};
use self::part::{MadePart, PartWork};
pub use self::replacement::Settled;
pub(crate) use self::replacement::settle;
use super::adapters::Adapter;
use super::destination::{check_destination, partial_path};
use super::hashed::sums_of_directory;
use super::manifest::{self, ConversionParameters, Manifest, changed_input};
use super::options::{ConvertOptions, FloatCast, Replace};
use super::plan::Plan;
use super::sidecars::Sidecars;
use super::unfinished::{Claimant, UnfinishedDirectory, manifest_name};
use crate::model::ParsedModel;
use crate::parse::directory::is_zero_state;
use crate::source::platform::available_space;
use crate::write::atomic::directory_of;
use crate::{AnamnesisError, Container, Result};

/// Writes one part of an output directory; the whole of it, if there is only one part.
pub(super) struct PartWriter<'a, 'm> {
    pub plan: &'a Plan<'m>,
    pub model: &'m ParsedModel,
    pub options: &'a ConvertOptions,
    /// File names of the shards, in order.
    pub names: &'a [String],
}

impl PartWriter<'_, '_> {
    /// Writes the part, and finishes the directory if it is the only part.
    ///
    /// # Errors
    /// `Unsupported` if the options name a part that does not exist. `Io` if the output or the
    /// unfinished directory may not be replaced or continued, if the input has changed, if the disk
    /// is too small, or if the operating system fails. Also the errors of the jobs.
    pub(super) fn write(&self, output: &Path) -> Result<MadePart> {
        let (part, parts) = self.options.part.unwrap_or((1, 1));
        if part == 0 || part > parts {
            return Err(AnamnesisError::usage(format!(
                "--part: {part} of {parts}: parts count from 1"
            )));
        }
        if self.options.sha256 && self.options.part.is_some() {
            let what = "--sha256: a part has none; `amn remember OUT --finish --sha256` sums the whole directory";
            return Err(AnamnesisError::usage(what));
        }
        let settled = settle(output)?;
        check_destination(output, self.options.run.replaces())?;
        self.check_input(output)?;
        let partial = partial_path(output)?;
        let record = manifest_name((part, parts));
        let sidecars = self.find_sidecars(output)?;
        let new = Manifest {
            parameters: self.parameters(parts)?,
            inputs: manifest::inputs(self.model, &sidecars.files)?,
            finished: vec![],
            done: false,
        };
        // Every `parts`-th shard: all parts get the same number of shards, give or take one.
        let mine: Vec<usize> = (0..self.names.len())
            .filter(|file| file % parts == part - 1)
            .collect();
        let sidecar_bytes = if part == 1 { sidecars.size() } else { 0 };
        let claimant = match parts {
            1 if self.begins_anew() => Claimant::Anew,
            1 => Claimant::Sole,
            _ => Claimant::Part,
        };
        let mut directory = match UnfinishedDirectory::claim(&partial, claimant)? {
            Some(directory) => directory,
            None => {
                // Before anything is made, so that a refusal leaves nothing behind.
                self.check_space(&partial, &mine, &new, sidecar_bytes)?;
                UnfinishedDirectory::create(&partial, claimant)?
            }
        };
        let begun = self.find_manifest(&mut directory, &record, &new);
        if begun.is_err() && directory.is_new() && parts == 1 {
            let _ = directory.remove();
        }
        let mut manifest = begun?.unwrap_or(new);
        if !directory.is_new() {
            self.check_space(&partial, &mine, &manifest, sidecar_bytes)?;
        }
        let directory = Arc::new(directory);
        let work = PartWork { writer: self, output, directory: &directory, record: &record };
        let made = work.make(&mine, &sidecars, &mut manifest);
        if made.is_err() && manifest.finished.is_empty() {
            // There is nothing to resume, and the record of it would be in the way of the next run.
            // Of several parts, others may be in the directory.
            let _ = match parts {
                1 => directory.remove(),
                _ => directory.remove_file(&record),
            };
        }
        let mut notes: Vec<String> = settled.into_iter().map(|settled| settled.note).collect();
        let MadePart { notes: more, sha256 } = made?;
        notes.extend(more);
        notes.extend(directory.lock_note());
        if part == 1 {
            notes.extend(sidecars.notes);
        }
        if parts == 1 {
            directory.require_at(&partial)?;
            // A link to what is replaced may have come since.
            self.check_input(output)?;
            // The shards were made in this run, or read and summed in it.
            let force = self.options.run.replaces();
            notes.extend(finish_claimed(&directory, output, force, false)?);
        } else {
            notes.push(format!(
                "part {part} of {parts}; when all are there, `amn remember {} --finish` ends it",
                output.display()
            ));
        }
        let sha256 = match self.options.sha256 {
            true => sums_of_directory(output, sha256, &self.options.run.cancel)?,
            false => vec![],
        };
        Ok(MadePart { notes, sha256 })
    }

    /// Refuses an output that is the input or contains a part of it.
    fn check_input(&self, output: &Path) -> Result<()> {
        let replaced = [output.to_path_buf(), partial_path(output)?];
        let inputs = self.plan.inputs(self.model, self.options);
        inputs.require_apart(output, &replaced)
    }

    /// The files of the input directory that are copied to `output`, or those that belong to an
    /// input file.
    fn find_sidecars(&self, output: &Path) -> Result<Sidecars> {
        match &self.model.directory {
            // What lies beside arrays are others, and what is said of them.
            Some(_) if self.model.container() == Container::Zarr => Ok(Sidecars::default()),
            Some(directory) => {
                // Of a checkpoint of many processes, the first file stands for all.
                let is_zero = directory
                    .files
                    .first()
                    .is_some_and(|name| is_zero_state(name));
                let is_part = |name: &str| is_zero && is_zero_state(name);
                let outputs: [&Path; 2] = [&partial_path(output)?, output];
                Sidecars::find(&directory.path, &outputs, &is_part)
            }
            None => Sidecars::of_files(&self.model.beside),
        }
    }

    /// Whether what an interrupted run has left is not used.
    fn begins_anew(&self) -> bool {
        let parts = self.options.part.map_or(1, |(_, parts)| parts);
        self.options.run.replace == Replace::Everything && !self.options.resume && parts == 1
    }

    /// The manifest of this part, named `record`, to resume it; `None` if the part is to be begun,
    /// with the manifest `new`.
    ///
    /// Before that, the manifests of all parts in `directory` are compared with this run: a
    /// directory in which two sets of parameters, or two states of the input, have made shards
    /// would be a model that nobody asked for.
    ///
    /// # Errors
    /// `Io` if the directory was begun with other parameters or before the input changed; if
    /// another process makes this part; if this part was begun and the options do not resume it; if
    /// the operating system fails.
    fn find_manifest(
        &self,
        directory: &mut UnfinishedDirectory,
        record: &str,
        new: &Manifest,
    ) -> Result<Option<Manifest>> {
        let (part, parts) = self.options.part.unwrap_or((1, 1));
        let partial = directory.path().to_path_buf();
        let refuse = |what: String| {
            Err(AnamnesisError::io_at(&partial, &Error::new(ErrorKind::AlreadyExists, what)))
        };
        // With several parts, none may remove the directory: other processes may be writing to it.
        let anew = if parts == 1 {
            "--force begins anew"
        } else {
            "to begin anew, delete it"
        };
        if self.begins_anew() {
            return directory.empty().map(|()| None);
        }
        for other in directory.manifests()? {
            let Some(theirs) = Manifest::read(directory, &other)? else {
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
        if parts > 1 {
            directory.claim_part((part, parts))?;
        }
        match Manifest::read(directory, record)? {
            Some(_) if !self.options.resume => {
                refuse(format!("an unfinished conversion is there; --resume continues it, {anew}"))
            }
            there => Ok(there),
        }
    }

    /// Everything that the output's bytes depend on, besides the input.
    ///
    /// # Errors
    /// Those of [`Plan::pieces`].
    fn parameters(&self, parts: usize) -> Result<ConversionParameters> {
        // A header holds the name, dtype, shape and offset of every tensor in its shard. Its
        // checksum therefore changes with any decision of the plan.
        let header = |(file, name): (usize, &String)| {
            let pieces = self.plan.pieces(file)?;
            let crc = pieces
                .first()
                .map_or(0, |(_, piece)| crc32fast::hash(piece));
            Ok((name.clone(), self.plan.files[file].len, crc))
        };
        Ok(ConversionParameters {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            to: self.options.run.to.to_string(),
            decode: self.options.decode,
            cast: match self.options.run.cast {
                FloatCast::Keep => None,
                cast => Some(format!("{cast:?}")),
            },
            max_shard_size: self.options.max_shard_size,
            include: self.options.include.clone(),
            exclude: self.options.exclude.clone(),
            names: self.options.names.clone(),
            forget: self.options.encoding_fingerprint(),
            adapters: self
                .options
                .adapters
                .iter()
                .map(Adapter::fingerprint)
                .collect(),
            parts,
            shards: self
                .names
                .iter()
                .enumerate()
                .map(header)
                .collect::<Result<_>>()?,
        })
    }

    /// Fails with `Io` unless the disk has room for the shards `mine` that are not finished, and
    /// for `sidecars` bytes beside them. Shards of other parts are not counted: the processes that
    /// write them check for them.
    fn check_space(
        &self,
        partial: &Path,
        mine: &[usize],
        manifest: &Manifest,
        sidecars: u64,
    ) -> Result<()> {
        let left = mine
            .iter()
            .filter(|&&file| manifest.finished(&self.names[file]).is_none());
        let needed = left.map(|&file| self.plan.files[file].len).sum::<u64>() + sidecars;
        let parent = directory_of(partial);
        let free = available_space(parent).map_err(|e| AnamnesisError::io_at(parent, &e))?;
        if free < needed {
            let what = format!("the output takes {needed} bytes, and {free} are free");
            return Err(AnamnesisError::io_at(partial, &Error::new(ErrorKind::StorageFull, what)));
        }
        Ok(())
    }
}
