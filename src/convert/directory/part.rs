//! The work of one part of an output directory: its shards, and the files beside the weights.

use std::collections::BTreeMap;
use std::io::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::PartWriter;
use super::shard::{ShardCommit, ShardFile};
use super::unfinished::UnfinishedDirectory;
use crate::containers::write::Sink;
use crate::convert::checksum::checksum_of_file;
use crate::convert::container::index_name;
use crate::convert::manifest::{self, InputRecord, Manifest, changed_input};
use crate::convert::run;
use crate::convert::sidecars::{self, Sidecars};
use crate::convert::whole::WholeModel;
use crate::{AnamnesisError, Result};

/// A part in its unfinished directory.
pub(super) struct PartWork<'a, 'm> {
    pub writer: &'a PartWriter<'a, 'm>,
    pub output: &'a Path,
    pub directory: &'a Arc<UnfinishedDirectory>,
    /// Name of the part's manifest.
    pub record: &'a str,
}

impl PartWork<'_, '_> {
    /// Makes everything of the part: the shards `mine`, and of the first part the files beside the weights. Returns notes for
    /// the report.
    pub(super) fn make(
        &self,
        mine: &[usize],
        sidecars: &Sidecars,
        manifest: &mut Manifest,
    ) -> Result<Vec<String>> {
        manifest.write(self.directory, self.record)?;
        let notes = self.write_shards(mine, manifest)?;
        if self.writer.options.part.is_none_or(|(part, _)| part == 1) {
            self.write_companion_files(sidecars)?;
        }
        self.require_unchanged(&manifest.inputs)?;
        manifest.done = true;
        manifest.write(self.directory, self.record)?;
        Ok(notes)
    }

    /// Fails with `Io` unless the input's files are as they were when the part was begun, as `inputs` has them.
    fn require_unchanged(&self, inputs: &[InputRecord]) -> Result<()> {
        let writer = self.writer;
        writer.model.require_unchanged()?;
        let sidecars = writer.find_sidecars(self.output)?;
        let now = manifest::inputs(writer.model, &sidecars.files)?;
        changed_input(inputs, &now).map_or(Ok(()), |what| {
            let what = format!("the input has changed since the conversion was begun: {what}");
            Err(AnamnesisError::Io(Error::other(what)))
        })
    }

    /// Writes the shards `mine`, except those that are finished. While the workers make one shard, another thread syncs the
    /// one before. Returns a note for each finished shard that has to be made again.
    ///
    /// # Errors
    /// The error of the lowest job that failed, or `Io`. Shards that were finished before stay in the manifest.
    fn write_shards(&self, mine: &[usize], manifest: &mut Manifest) -> Result<Vec<String>> {
        let (plan, names) = (self.writer.plan, self.writer.names);
        let mut notes = Vec::new();
        let done = AtomicU64::new(0);
        let mut pending: Option<ShardCommit> = None;
        for &file in mine {
            let (name, planned) = (&names[file], &plan.files[file]);
            // The manifest names only durable shards, but a user or a disk may have damaged one since.
            if let Some(finished) = manifest.finished(name) {
                if self.is_whole(name, planned.len, finished.crc)? {
                    // Counted as done, so that progress ends at its total.
                    let header: usize = planned.pieces.iter().map(|(_, piece)| piece.len()).sum();
                    done.fetch_add(planned.len - header as u64, Ordering::Relaxed);
                    continue;
                }
                notes.push(format!(
                    "shard `{name}` was not as it had been written, and was made again"
                ));
            }
            let made = self.write_shard(file, &done);
            // At most one shard is being synced, so at most two are in the page cache. Its result comes before that of the
            // shard just made: even if this one has failed, the one before is finished and a later run can skip it.
            if let Some(before) = pending.take() {
                before.wait(manifest, self.record)?;
            }
            let (shard, crc) = made?;
            pending = Some(ShardCommit::start(shard, crc));
        }
        if let Some(last) = pending {
            last.wait(manifest, self.record)?;
        }
        Ok(notes)
    }

    /// Whether shard `name` has `len` bytes with the checksum `crc`. One that cannot be read has not.
    ///
    /// # Errors
    /// `Cancelled`.
    fn is_whole(&self, name: &str, len: u64, crc: u32) -> Result<bool> {
        let options = &self.writer.options.run;
        let file = self.directory.open_file(name).ok().flatten();
        let file = file.filter(|file| file.metadata().is_ok_and(|there| there.len() == len));
        let sum = |file| checksum_of_file(&file, len, run::threads(options), &options.cancel);
        match file.map(sum) {
            Some(Err(AnamnesisError::Cancelled)) => Err(AnamnesisError::Cancelled),
            Some(Ok(found)) => Ok(found == crc),
            _ => Ok(false),
        }
    }

    /// Writes the shard number `file` under its temporary name. Adds the written bytes to `done`. Returns the shard with its
    /// CRC-32.
    fn write_shard(&self, file: usize, done: &AtomicU64) -> Result<(ShardFile, u32)> {
        let PartWriter {
            plan,
            model,
            options,
            names,
        } = self.writer;
        let planned = &plan.files[file];
        let shard = ShardFile::create(self.directory, &names[file], planned.len)?;
        planned
            .pieces
            .iter()
            .try_for_each(|(at, piece)| shard.write_at(file, *at, piece))?;
        let run = run::Run::new(plan, plan.outputs_of(file), &options.run, done);
        let run = run.with_file_checksum();
        run.run(&shard)?;
        model.require_unchanged()?;
        options.run.cancel.check()?;
        Ok((shard, run.file_checksum(file)))
    }

    /// Writes the files beside the shards: copies of the input's other files, the config and the index.
    fn write_companion_files(&self, sidecars: &Sidecars) -> Result<()> {
        let PartWriter {
            plan,
            options,
            names,
            ..
        } = self.writer;
        // The config's dtype is that of the weights. It changes only if weights were decoded or cast.
        let is_made = plan.report.recovered() + plan.report.cast > 0;
        let dtype = is_made.then_some(options.run.to);
        let edits = sidecars::ConfigEdits {
            dtype,
            quantization: plan.quantization.as_ref(),
        };
        sidecars.copy(self.directory, &edits)?;
        for (name, text) in plan.whole.iter().flat_map(WholeModel::files) {
            sidecars::write_made(self.directory, (name, text), &edits)?;
        }
        sidecars::write_config(self.directory, &edits)?;
        if let Some(index) = index_name(names) {
            let outputs = plan.outputs.iter();
            let map: BTreeMap<&str, &str> = outputs
                .map(|o| (o.name.as_str(), names[o.file].as_str()))
                .collect();
            sidecars::write_index(self.directory, &index, &map, plan.data_len)?;
        }
        Ok(())
    }
}
