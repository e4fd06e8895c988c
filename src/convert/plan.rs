//! The plan: every output tensor with its offset, and every job, before the first byte is read.

use std::collections::HashMap;
use std::ops::Range;

use super::checksum::TensorChecksums;
use super::container;
use super::draft::Draft;
use super::drafts::{Drafts, draft_outputs};
use super::options::ConvertOptions;
use super::output::Output;
use super::report::Report;
use crate::containers::model::ParsedModel;
use crate::{AnamnesisError, Dtype, Result};

/// One file of the output.
pub(crate) struct PlannedFile {
    /// Bytes that are known up front, with their offsets.
    pub pieces: Vec<(u64, Vec<u8>)>,
    pub len: u64,
}

/// Everything about an output that is known before the work.
pub(crate) struct Plan<'m> {
    pub files: Vec<PlannedFile>,
    pub report: Report,
    /// What `config.json` says of how the output is quantized: keys and their value.
    pub(super) quantization: Option<(Vec<&'static str>, serde_json::Value)>,
    /// Bytes that the workers write.
    pub(super) data_len: u64,
    /// Whether the files are the shards of a directory.
    pub is_directory: bool,
    pub(super) outputs: Vec<Output<'m>>,
    /// Number of the first job of each output, and at the end the number of jobs.
    pub(super) first_job: Vec<usize>,
}

impl<'m> Plan<'m> {
    /// Plans the conversion of `model`, or says why it cannot be converted.
    pub(crate) fn new(model: &'m ParsedModel, options: &ConvertOptions) -> Result<Self> {
        let Drafts {
            drafts,
            mut report,
            quantization,
        } = draft_outputs(model, options)?;
        require_unique_names(&drafts)?;
        let (layouts, files_of) =
            container::layout(model, &drafts, quantization.as_ref(), options, &mut report)?;
        report.output_bytes = layouts.iter().map(|l| l.file_len).sum();
        let mut outputs = Vec::with_capacity(drafts.len());
        let mut first_job = vec![0];
        let mut places = layouts.iter().map(|layout| layout.offsets.iter());
        let mut offsets = places.next().unwrap_or_default();
        let mut last = 0;
        let mut patches = layouts
            .iter()
            .flat_map(|layout| layout.patches.iter().cloned());
        let data_len = drafts.iter().map(|d| d.len).sum();
        for (draft, file) in drafts.into_iter().zip(files_of) {
            if file != last {
                (last, offsets) = (file, places.next().unwrap_or_default());
            }
            let offset = offsets.next().copied().unwrap_or_default();
            let Draft {
                name,
                dtype,
                shape,
                body,
                cut,
                verify,
                ..
            } = draft;
            first_job.push(first_job[first_job.len() - 1] + body.jobs(&cut));
            outputs.push(Output {
                name,
                dtype,
                shape,
                body,
                file,
                offset,
                cut,
                verify,
                checksums: TensorChecksums::new(patches.next()),
            });
        }
        let files = layouts
            .into_iter()
            .map(|l| PlannedFile {
                pieces: l.pieces,
                len: l.file_len,
            })
            .collect();
        let is_directory = options.is_directory(model);
        Ok(Self {
            files,
            report,
            quantization,
            data_len,
            is_directory,
            outputs,
            first_job,
        })
    }

    /// Every output.
    pub(super) fn all(&self) -> Range<usize> {
        0..self.outputs.len()
    }

    /// The outputs in file `file`.
    pub(super) fn outputs_of(&self, file: usize) -> Range<usize> {
        let start = self.outputs.partition_point(|output| output.file < file);
        start..self.outputs.partition_point(|output| output.file <= file)
    }

    /// The number of the output that job `job` is about, and the job's number there.
    pub(super) fn job(&self, job: usize) -> (usize, usize) {
        let i = self.first_job.partition_point(|&first| first <= job) - 1;
        (i, job - self.first_job[i])
    }
}

fn require_unique_names(drafts: &[Draft<'_>]) -> Result<()> {
    let mut seen = HashMap::with_capacity(drafts.len());
    for d in drafts {
        let this: (Dtype, &[usize]) = (d.dtype, &d.shape);
        if let Some((dtype, shape)) = seen.insert(d.name.as_str(), this) {
            let what = format!(
                "the output would have it twice, as {dtype} {shape:?} and as {} {:?}",
                d.dtype, d.shape
            );
            return Err(AnamnesisError::parse(format!(
                "tensor `{}`: {what}",
                d.name
            )));
        }
    }
    Ok(())
}
