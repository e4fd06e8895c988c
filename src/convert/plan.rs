//! The plan: every output tensor with its offset, and every job, before the first byte of data is
//! read.
//!
//! The size of every output tensor follows from its shape and type, so no data is needed to lay out
//! the output. The exception is an encoding whose size depends on the values (`encode/counted`):
//! its tensors are read once to plan, and once to encode them. This has three uses. The header,
//! which all containers but NPZ have before the data, is written once and never moved. Workers
//! write at fixed offsets, in any order and without waiting for each other. And what is wrong with
//! the model, or does not fit on the disk, shows before any work is done.

use std::collections::HashSet;
use std::ops::Range;

use super::adapters::{Adapter, ConfigField};
use super::container::{self, LayoutRequest, check_file_names};
use super::drafts::{Drafts, draft_outputs};
use super::options::ConvertOptions;
use super::output::{BoxedOutput, PlannedPlace};
use super::report::Report;
use super::whole::WholeModel;
use crate::error::InTensor;
use crate::model::ParsedModel;
use crate::source::CompanionFile;
use crate::source::inputs::Inputs;
use crate::write::{FilePieces, Framing};
use crate::{AnamnesisError, ConvertTarget, Result};

/// One file of the output, as planned.
pub(crate) struct PlannedFile {
    framing: Framing,
    /// Length of the whole file in bytes.
    pub len: u64,
}

/// A planned conversion: its files, its output tensors and its jobs.
pub(crate) struct Plan<'m> {
    pub files: Vec<PlannedFile>,
    pub report: Report,
    /// The quantization config of the output: the keys under which `config.json` has it, and its
    /// value.
    pub(super) quantization: Option<(Vec<&'static str>, serde_json::Value)>,
    /// What a whole model has beside its tensors, if the output is one.
    pub(super) whole: Option<WholeModel>,
    /// What adapters change in `config.json`.
    pub(super) config_fields: Vec<ConfigField>,
    /// The adapters that are merged into the weights.
    adapters: Vec<Adapter>,
    /// Bytes of data in all output tensors.
    pub(super) data_len: u64,
    /// Names of the files in the output directory; `None` if the output is no directory.
    pub shard_names: Option<Vec<String>>,
    /// The output tensors, in ascending order of their files.
    pub(super) outputs: Vec<BoxedOutput<'m>>,
    /// Number of the first job of each output tensor; the last entry is the number of all jobs.
    pub(super) first_job: Vec<usize>,
}

impl<'m> Plan<'m> {
    /// Plans the conversion of `model`.
    ///
    /// # Errors
    /// `Parse` or `Unsupported` for the first tensor that cannot be converted, for two output
    /// tensors of one name, and for what the container cannot hold.
    pub(crate) fn new(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Self> {
        let Drafts {
            mut drafts,
            mut report,
            quantization,
            #[cfg(feature = "gguf")]
            gguf_keys,
            whole,
            config_fields,
        } = draft_outputs(model, options)?;
        require_unique_names(&drafts)?;
        let layouts = container::layout(&mut LayoutRequest {
            model,
            drafts: &drafts,
            quantization: quantization.as_ref().map(|(_, config)| config),
            #[cfg(feature = "gguf")]
            gguf_keys: &gguf_keys,
            options,
            #[cfg(feature = "gguf")]
            whole_metadata: whole.as_ref().map(WholeModel::metadata),
            framework: whole.as_ref().map(WholeModel::format),
            report: &mut report,
        })?;
        report.output_bytes = layouts.iter().map(|l| l.file_len).sum();
        // A layout has the offsets of its tensors in the order of the drafts, and files ascend with
        // the drafts. So one pass over both gives each draft its place.
        let mut first_job = Vec::with_capacity(drafts.len() + 1);
        first_job.push(0);
        let places = layouts
            .iter()
            .enumerate()
            .flat_map(|(file, layout)| layout.offsets.iter().map(move |&offset| (file, offset)));
        // Either every tensor has a checksum to be patched (NPZ) or none has.
        let mut patches = layouts
            .iter()
            .flat_map(|layout| layout.patches.iter().cloned());
        let data_len = drafts.iter().map(|d| d.len).sum();
        for (draft, (file, offset)) in drafts.iter_mut().zip(places) {
            first_job.push(first_job[first_job.len() - 1] + draft.body.jobs(&draft.cut));
            draft.place = PlannedPlace { file, offset, patch: patches.next().map(Box::new) };
        }
        let files: Vec<_> = layouts
            .into_iter()
            .map(|l| PlannedFile { framing: l.framing, len: l.file_len })
            .collect();
        let mut plan = Self {
            files,
            report,
            quantization,
            whole,
            config_fields,
            adapters: options.adapters.clone(),
            data_len,
            shard_names: None,
            outputs: drafts,
            first_job,
        };
        let is_directory = options.is_directory(model);
        if is_directory || plan.files.len() != 1 {
            let names = plan.file_names(options.target, shard_stem(model, options));
            check_file_names(options.target.container(), &names, plan.files.len())?;
            plan.shard_names = Some(names).filter(|_| is_directory);
        }
        Ok(plan)
    }

    /// The files of the input that settings and tokenizer of a whole model were made of, and those
    /// of adapters.
    pub(super) fn companions(&self) -> impl Iterator<Item = &CompanionFile> {
        let whole = self.whole.iter().flat_map(WholeModel::companions);
        whole.chain(self.adapters.iter().flat_map(Adapter::companions))
    }

    /// What is read to make the plan of `model`: its files or its directory, the files beside it,
    /// and those that the options name.
    pub(super) fn inputs<'s>(
        &self,
        model: &'s ParsedModel,
        options: &ConvertOptions,
    ) -> Inputs<'s> {
        let mut paths = options.files();
        let directory = model.directory.iter();
        paths.extend(directory.map(|directory| directory.path.clone()));
        paths.extend(model.beside.iter().map(|file| file.path.clone()));
        let companions = model.companions().chain(self.companions());
        paths.extend(companions.map(|companion| companion.path.clone()));
        Inputs { sources: &model.sources, paths }
    }

    /// Compares the companions with their states when they were read.
    ///
    /// # Errors
    /// `Io` that names the first that has changed.
    pub(super) fn require_unchanged(&self) -> Result<()> {
        self.companions()
            .try_for_each(CompanionFile::require_unchanged)
    }

    /// Names of several files of the output, in order; a numbered name begins with `stem`. Empty
    /// for a container that is always one file.
    pub(super) fn file_names(&self, target: ConvertTarget, stem: &str) -> Vec<String> {
        let tensors = (0..self.files.len()).map(|file| &self.outputs[self.outputs_of(file)]);
        let tensors: Vec<_> = tensors.collect();
        let sharding = target.container().sharding();
        sharding.map_or(vec![], |sharding| (sharding.file_names)(stem, &tensors))
    }

    /// The indices of all output tensors.
    pub(super) fn all(&self) -> Range<usize> {
        0..self.outputs.len()
    }

    /// The indices of the output tensors in file `file`.
    pub(super) fn outputs_of(&self, file: usize) -> Range<usize> {
        let start = self
            .outputs
            .partition_point(|output| output.place.file < file);
        start
            ..self
                .outputs
                .partition_point(|output| output.place.file <= file)
    }

    /// All bytes of file `file` besides the tensors' data, such as the header, with their offsets.
    ///
    /// # Errors
    /// Those of [`Framing::pieces`].
    pub(super) fn pieces(&self, file: usize) -> Result<FilePieces<'_>> {
        let outputs = &self.outputs[self.outputs_of(file)];
        let entries = || outputs.iter().map(container::entry).collect();
        self.files[file].framing.pieces(entries)
    }

    /// The index of the output tensor that job `job` belongs to, and the job's number among the
    /// jobs of that tensor.
    pub(super) fn job(&self, job: usize) -> (usize, usize) {
        // Tensors without jobs share their first job with the tensor behind them. The partition
        // point skips them, because it is behind the last entry that is not above `job`.
        let i = self.first_job.partition_point(|&first| first <= job) - 1;
        (i, job - self.first_job[i])
    }
}

/// What numbered names in an output directory begin with: the stem of the input's first file if a
/// library looks for it (`diffusion_pytorch_model`: diffusers, `consolidated`: Mistral,
/// `adapter_model`: PEFT), else `model`.
fn shard_stem(model: &ParsedModel, options: &ConvertOptions) -> &'static str {
    // An adapter of GGUF has no directory.
    if options.base.is_some() {
        return "adapter_model";
    }
    let directory = model.directory.as_ref();
    let first = directory.and_then(|directory| directory.files.first());
    let known = ["diffusion_pytorch_model", "consolidated", "adapter_model"];
    let stem = known
        .into_iter()
        .find(|stem| first.is_some_and(|first| first.starts_with(stem)));
    stem.unwrap_or("model")
}

/// Fails with `Parse` if two output tensors have the same name.
///
/// A decoded tensor gets the name of its weight, which the input may also have as a stored tensor.
/// Containers look tensors up by name: of two, a reader would find one, and the other would be lost
/// without a word.
fn require_unique_names(drafts: &[BoxedOutput<'_>]) -> Result<()> {
    // Of names alone: with more, the table would take as much memory as all decoders of a large
    // model.
    let mut seen = HashSet::with_capacity(drafts.len());
    for (i, d) in drafts.iter().enumerate() {
        if seen.insert(&*d.name) {
            continue;
        }
        let other = drafts[..i].iter().find(|other| other.name == d.name);
        let other = other.unwrap_or(d);
        let what = format!(
            "the output would have it twice, as {} {:?} and as {} {:?}",
            other.dtype, other.shape, d.dtype, d.shape
        );
        return Err(AnamnesisError::parse(format!("{}: {what}", InTensor(&d.name))));
    }
    Ok(())
}
