//! The work of one part of an output directory: its shards, and the files beside the weights.

use std::collections::BTreeMap;
use std::io::Error;
use std::path::Path;
use std::sync::Arc;

use super::PartWriter;
use super::shard::{ShardCommit, ShardFile};
use crate::convert::checksum::checksum_of_file;
use crate::convert::container::index_name;
use crate::convert::hashed::HashingSink;
use crate::convert::manifest::{self, InputRecord, Manifest, changed_input};
use crate::convert::progress::ProgressSum;
use crate::convert::run;
use crate::convert::sidecars::{self, Sidecars};
use crate::convert::unfinished::UnfinishedDirectory;
use crate::convert::whole::WholeModel;
use crate::records::info;
use crate::write::Sink;
use crate::{AnamnesisError, FileSum, Result};

/// What the report says of a part.
#[derive(Default)]
pub(in crate::convert) struct MadePart {
    pub notes: Vec<String>,
    /// SHA-256 of the shards that this run made, if the options ask for it.
    pub sha256: Vec<FileSum>,
}

/// A shard whose bytes are all written, under its temporary name.
struct MadeShard<'a> {
    shard: ShardFile,
    name: &'a str,
    crc: u32,
    /// If the options ask for it.
    sha256: Option<String>,
}

/// A part in its unfinished directory.
pub(super) struct PartWork<'a, 'm> {
    pub writer: &'a PartWriter<'a, 'm>,
    pub output: &'a Path,
    pub directory: &'a Arc<UnfinishedDirectory>,
    /// Name of the part's manifest.
    pub record: &'a str,
}

impl PartWork<'_, '_> {
    /// Makes everything of the part: the shards `mine`, and of the first part the files beside the
    /// weights.
    pub(super) fn make(
        &self,
        mine: &[usize],
        sidecars: &Sidecars,
        manifest: &mut Manifest,
    ) -> Result<MadePart> {
        self.directory.make_private()?;
        manifest.write(self.directory, self.record)?;
        let made = self.write_shards(mine, manifest)?;
        if self.writer.options.part.is_none_or(|(part, _)| part == 1) {
            self.write_companion_files(sidecars)?;
        }
        self.require_unchanged(&manifest.inputs)?;
        manifest.done = true;
        manifest.write(self.directory, self.record)?;
        Ok(made)
    }

    /// Fails with `Io` unless the input's files are as they were when the part was begun, as
    /// `inputs` has them.
    fn require_unchanged(&self, inputs: &[InputRecord]) -> Result<()> {
        let writer = self.writer;
        writer.model.require_unchanged()?;
        writer.plan.require_unchanged()?;
        let sidecars = writer.find_sidecars(self.output)?;
        let now = manifest::inputs(writer.model, &sidecars.files)?;
        changed_input(inputs, &now).map_or(Ok(()), |what| {
            let what = format!("the input has changed since the conversion was begun: {what}");
            Err(AnamnesisError::Io(Error::other(what)))
        })
    }

    /// Writes the shards `mine`, except those that are finished. While the workers make some
    /// shards, other threads sync those before. Notes each finished shard that has to be made
    /// again.
    ///
    /// # Errors
    /// The error of the lowest job that failed, or `Io`. Shards that were finished before stay in
    /// the manifest.
    fn write_shards(&self, mine: &[usize], manifest: &mut Manifest) -> Result<MadePart> {
        let (plan, names) = (self.writer.plan, self.writer.names);
        let mut all = MadePart::default();
        let data_len = |&file: &usize| -> u64 {
            let outputs = plan.outputs[plan.outputs_of(file)].iter();
            outputs.map(|output| output.len).sum()
        };
        let tensors = mine.iter().map(|&file| plan.outputs_of(file).len());
        let (bytes, options) = (mine.iter().map(data_len).sum(), &self.writer.options.run);
        let done = ProgressSum::new(options, bytes, tensors.sum());
        let mut left = Vec::new();
        for &file in mine {
            let (name, planned) = (&names[file], &plan.files[file]);
            // The manifest names only durable shards, but a user or a disk may have damaged one
            // since.
            if let Some(finished) = manifest.finished(name) {
                if self.is_whole(name, planned.len, finished.crc)? {
                    info!("shard `{name}`: finished by an earlier run");
                    // Counted as done, so that progress ends at its total.
                    done.add(data_len(&file), plan.outputs_of(file).len(), file);
                    continue;
                }
                all.notes.push(format!(
                    "shard `{name}` was not as it had been written, and was made again"
                ));
            }
            left.push(file);
        }
        let mut pending: Vec<ShardCommit> = Vec::new();
        for files in left.chunks(run::files_side_by_side(options)) {
            let made = self.write_side_by_side(files, &done);
            // As many shards are being synced as are made at once, so twice as many are in the page
            // cache. Their results come before those of the shards just made: even if these have
            // failed, a later run can skip the ones before.
            self.wait(&mut pending, manifest)?;
            let (made, failure) = made?;
            for MadeShard { shard, name, crc, sha256 } in made {
                let file = self.output.join(name);
                all.sha256
                    .extend(sha256.map(|sha256| FileSum { file, sha256 }));
                pending.push(ShardCommit::start(shard, crc));
            }
            if let Some(failure) = failure {
                self.wait(&mut pending, manifest)?;
                return Err(failure);
            }
        }
        self.wait(&mut pending, manifest)?;
        Ok(all)
    }

    /// Waits until all of `pending` are durable, and records them. After an error, too: no thread
    /// renames a shard once the run has ended and its directory may be removed.
    ///
    /// # Errors
    /// The first of [`ShardCommit::wait`].
    fn wait(&self, pending: &mut Vec<ShardCommit>, manifest: &mut Manifest) -> Result<()> {
        let ends = pending.drain(..);
        let ends = ends.map(|shard| shard.wait(manifest, self.record));
        // All of them, before the first error is looked for.
        let ends: Vec<Result<()>> = ends.collect();
        ends.into_iter().collect()
    }

    /// Whether shard `name` has `len` bytes with the checksum `crc`. One that cannot be read has
    /// not.
    ///
    /// # Errors
    /// `Cancelled`.
    fn is_whole(&self, name: &str, len: u64, crc: u32) -> Result<bool> {
        let options = &self.writer.options.run;
        let file = self.directory.open_file(name).ok().flatten();
        let file = file.filter(|file| file.metadata().is_ok_and(|there| there.len() == len));
        let sum = |file| checksum_of_file(&file, len, options.worker_threads(), &options.cancel);
        match file.map(sum) {
            Some(Err(AnamnesisError::Cancelled)) => Err(AnamnesisError::Cancelled),
            Some(Ok(found)) => Ok(found == crc),
            _ => Ok(false),
        }
    }

    /// Writes the shards number `files` under their temporary names, side by side. Adds what is
    /// done to `done`. Returns the shards, and the error of the lowest job if one has failed: then
    /// only those shards of which all jobs are done.
    ///
    /// # Errors
    /// A shard cannot be created, a checksum differs, or the input has changed: no shard can be
    /// kept.
    fn write_side_by_side(
        &self,
        files: &[usize],
        done: &ProgressSum,
    ) -> Result<(Vec<MadeShard<'_>>, Option<AnamnesisError>)> {
        let PartWriter { plan, model, options, names } = self.writer;
        let shards = files.iter().map(|&file| self.begin_shard(file));
        let shards: Vec<ShardFile> = shards.collect::<Result<_>>()?;
        let runs = files.iter().map(|&file| {
            run::Run::new(plan, plan.outputs_of(file), &options.run, done).with_file_checksum()
        });
        let runs: Vec<run::Run<'_, '_>> = runs.collect();
        let hashing = files.iter().zip(&shards).filter(|_| options.sha256);
        let hashing = hashing.map(|(&file, shard)| {
            HashingSink::new(shard, plan, (file, 1), &options.run.cancel).map(Some)
        });
        let mut hashing: Vec<Option<HashingSink<'_>>> = hashing.collect::<Result<_>>()?;
        hashing.resize_with(files.len(), || None);
        let lanes = runs.iter().zip(&shards).zip(&hashing);
        let lanes = lanes.map(|((run, shard), hashing)| match hashing {
            Some(hashing) => run.lane(hashing, files.len()),
            None => run.lane(shard, files.len()),
        });
        let lanes: Vec<run::Lane<'_, '_>> = lanes.collect();
        let failure = run::run_lanes(&lanes, &options.run).err();
        let are_done: Vec<bool> = lanes.iter().map(run::Lane::is_done).collect();
        drop(lanes);
        // `None` for a shard that is not whole.
        let (mut sums, mut is_behind) = (Vec::new(), false);
        for ((run, hashing), is_done) in runs.iter().zip(hashing).zip(are_done) {
            let finish = || -> Result<Option<String>> {
                run.finish()?;
                Ok(hashing.map_or(Ok(vec![]), HashingSink::finish)?.pop())
            };
            sums.push(match is_done.then(finish) {
                // The jobs of the shards before are done, so this is the error that a single thread
                // would meet.
                Some(Err(error)) if !is_behind => return Err(error),
                Some(sum) => sum.ok(),
                None => None,
            });
            is_behind |= !is_done;
        }
        model.require_unchanged()?;
        if failure.is_none() {
            options.run.cancel.check()?;
        }
        let made = files.iter().zip(shards).zip(runs.iter().zip(sums));
        let made = made.filter_map(|((&file, shard), (run, sum))| {
            let made = |sha256| {
                Ok(MadeShard { crc: run.file_checksum(file)?, shard, name: &names[file], sha256 })
            };
            sum.map(made)
        });
        Ok((made.collect::<Result<_>>()?, failure))
    }

    /// Creates the shard number `file` with what it has beside its tensors.
    fn begin_shard(&self, file: usize) -> Result<ShardFile> {
        let (planned, name) = (&self.writer.plan.files[file], &self.writer.names[file]);
        info!("shard `{name}`: made now");
        let is_uncached = self.writer.options.run.uncached;
        let shard = ShardFile::create(self.directory, name, planned.len, is_uncached)?;
        (self.writer.plan.pieces(file)?.iter())
            .try_for_each(|(at, piece)| shard.write_at(file, *at, piece))?;
        Ok(shard)
    }

    /// Writes the files beside the shards: copies of the input's other files, the config and the
    /// index.
    fn write_companion_files(&self, sidecars: &Sidecars) -> Result<()> {
        let PartWriter { plan, options, names, .. } = self.writer;
        // The config's dtype is that of the weights. It changes only if weights were decoded or
        // cast.
        let is_made = plan.report.recovered() + plan.report.cast > 0;
        let dtype = is_made.then_some(options.run.to);
        let edits = sidecars::ConfigEdits {
            dtype,
            quantization: plan.quantization.as_ref(),
            fields: &plan.config_fields,
        };
        sidecars.copy(self.directory, &edits)?;
        for (name, text) in plan.whole.iter().flat_map(WholeModel::files) {
            sidecars::write_made(self.directory, (name, text), &edits)?;
        }
        sidecars::write_config(self.directory, &edits)?;
        if let Some(index) = index_name(names) {
            let outputs = plan.outputs.iter();
            let map: BTreeMap<&str, &str> = outputs
                .map(|o| (&*o.name, names[o.place.file].as_str()))
                .collect();
            sidecars::write_index(self.directory, &index, &map, plan.data_len)?;
        }
        Ok(())
    }
}
