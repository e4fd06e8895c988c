//! An output tensor and its body: what its bytes are made from, and the jobs that make them.

use super::cut::Cut;
#[cfg(feature = "lethe")]
use super::encode::{EncodeScratch, Encoding};
use super::options::RememberOptions;
use super::run::Outcome;
use super::sum::TensorSums;
use crate::containers::model::Part;
use crate::containers::write::Sink;
use crate::scheme::Buffers;
use crate::{Dtype, Result};

/// One output tensor at its place.
pub(super) struct Output<'m> {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub body: Box<dyn Body<'m> + 'm>,
    /// Number of the output file that it is in.
    pub file: usize,
    /// Offset of its first byte in that file.
    pub offset: u64,
    /// How it is cut into tiles.
    pub cut: Cut,
    /// Inputs whose checksum no job computes on the way: the first job reads them once more for it.
    pub verify: Vec<Part<'m>>,
    pub sums: TensorSums,
}

/// What the bytes of an output tensor are made from. Jobs are independent of each other and may run in any order, except
/// that a job may wait for lower-numbered jobs of its own tensor.
pub(super) trait Body<'m>: Send + Sync {
    /// Number of jobs of a tensor that is cut like `cut`.
    fn jobs(&self, cut: &Cut) -> usize {
        cut.tiles()
    }

    /// Does one job and writes its bytes; returns how many.
    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64>;

    /// Compares the checksum that the jobs have summed, when all of them are done.
    fn check(&self, sums: &TensorSums) -> Result<()> {
        let _ = sums;
        Ok(())
    }

    /// Whether the jobs of the output before it, or of one before that, write its bytes as well.
    fn is_written_with_another(&self) -> bool {
        false
    }

    /// The encoding, if the tensor's values are encoded.
    #[cfg(feature = "lethe")]
    fn encoding(&self) -> Option<&Encoding<'m>> {
        None
    }

    /// The encoding, to be completed while planning.
    #[cfg(feature = "lethe")]
    fn encoding_mut(&mut self) -> Option<&mut Encoding<'m>> {
        None
    }
}

/// One job of one output tensor.
pub(super) struct Job<'a, 'm> {
    /// Number of the job among those of its tensor.
    pub no: usize,
    /// The tensor, and the outputs behind it: some bodies write those as well.
    pub outputs: &'a [Output<'m>],
    pub sink: &'a dyn Sink,
    pub options: &'a RememberOptions,
    /// Number of the job among all jobs of the plan.
    #[cfg_attr(
        not(feature = "lethe"),
        expect(dead_code, reason = "only encoders wait")
    )]
    pub number: usize,
    /// Where a job waits for lower jobs of its tensor.
    #[cfg_attr(
        not(feature = "lethe"),
        expect(dead_code, reason = "only encoders wait")
    )]
    pub outcome: &'a Outcome,
}

impl<'m> Job<'_, 'm> {
    /// The tensor that the job belongs to.
    pub(super) fn output(&self) -> &Output<'m> {
        &self.outputs[0]
    }

    /// Writes `bytes` at byte `at` of the tensor.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.put_in(0, at, bytes)
    }

    /// Writes `bytes` at byte `at` of the `index`-th tensor from the job's own.
    pub(super) fn put_in(&self, index: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let output = &self.outputs[index];
        if let Some((sum, _)) = &output.sums.output {
            sum.add(at, bytes);
        }
        self.sink.write_at(output.file, output.offset + at, bytes)
    }
}

/// What a worker keeps from job to job, so that buffers are allocated once.
#[derive(Default)]
pub(super) struct Worker {
    pub input: Buffers,
    /// Decoded values. `u32` is aligned for every output element type.
    pub output: Vec<u32>,
    #[cfg(feature = "lethe")]
    pub encode: EncodeScratch,
}
