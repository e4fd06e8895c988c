//! [`Output`], a planned output tensor, and [`Body`], which makes its bytes in independent jobs.

use std::borrow::Cow;
use std::ops::Range;

use super::ahead::AheadSlot;
use super::checksum::TensorChecksums;
use super::cut::{Cut, TRANSPOSED_VALUES};
#[cfg(feature = "lethe")]
use super::encode::{EncodeScratch, Encoding};
use super::held::HeldWrites;
use super::options::RememberOptions;
use super::outcome::Outcome;
use crate::model::{Part, Shape, ShortList, Tensor};
use crate::remember::{Buffers, Decode};
use crate::write::{ChecksumPatch, Sink};
use crate::{Dtype, Result, TargetDtype};

/// Outputs whose bytes are at most one in so many of the job's own are held until there is more of
/// them.
const SMALL: u64 = 4;

/// An output tensor: its type, its shape, and the [`Body`] that makes its bytes. A draft is one
/// that the container has not given a place yet.
pub(super) struct Output<'m> {
    pub name: Cow<'m, str>,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Shape,
    /// Length of the data in bytes.
    pub len: u64,
    pub body: Box<dyn Body<'m> + 'm>,
    /// How the tensor is cut into tiles.
    pub cut: Cut,
    pub checks: Checks<'m>,
    /// Numbers of the input files that the tensor is made from, first of all the one with its data
    /// or codes.
    pub sources: ShortList,
    pub place: PlannedPlace,
}

/// An output tensor in the memory that its group leaves: one list of hundreds of thousands would
/// take as much again.
pub(super) type BoxedOutput<'m> = Box<Output<'m>>;

/// Where an output tensor goes.
#[derive(Default)]
pub(super) struct PlannedPlace {
    /// Number of the output file, from 0.
    pub file: usize,
    /// Offset of the tensor's first byte in that file.
    pub offset: u64,
    /// Where the checksum of the tensor's bytes goes, if the output's container stores one.
    pub patch: Option<Box<ChecksumPatch>>,
}

/// Input tensors whose stored checksum the jobs of an output tensor do not compute while they work,
/// because they do not read all bytes exactly once. Few models have any.
#[derive(Default)]
pub(super) struct Checks<'m>(Option<Box<Unsummed<'m>>>);

#[derive(Default)]
struct Unsummed<'m> {
    own: Vec<Part<'m>>,
    before: Vec<Part<'m>>,
}

impl<'m> Checks<'m> {
    /// Those of `tensors` that have a checksum.
    pub(super) fn of<'a>(tensors: impl Iterator<Item = &'a Tensor<'m>>) -> Self
    where
        'm: 'a,
    {
        let parts = tensors.map(Tensor::part);
        Self::of_parts(parts.filter(|part| part.has_checksum()).collect())
    }

    pub(super) fn of_parts(own: Vec<Part<'m>>) -> Self {
        let before = vec![];
        Self((!own.is_empty()).then(|| Box::new(Unsummed { own, before })))
    }

    /// What the first job reads once more to compare the checksums. For a tensor without jobs
    /// [`Run::check`](super::run::Run::check) does so.
    pub(super) fn own(&self) -> &[Part<'m>] {
        self.0.as_ref().map_or(&[], |unsummed| &unsummed.own)
    }

    /// Further inputs, which an earlier output tensor verifies when the whole output is made:
    /// several tensors can be views of one storage. If this tensor is made alone, they are verified
    /// for it.
    pub(super) fn before(&self) -> &[Part<'m>] {
        self.0.as_ref().map_or(&[], |unsummed| &unsummed.before)
    }

    /// What is verified if this tensor is made alone.
    pub(super) fn all(&self) -> impl Iterator<Item = &Part<'m>> {
        self.own().iter().chain(self.before())
    }

    /// Leaves to earlier output tensors what they verify: all for which `is_first` is false.
    pub(super) fn leave(&mut self, is_first: impl FnMut(&Part<'m>) -> bool) {
        let Some(unsummed) = &mut self.0 else {
            return;
        };
        let all = std::mem::take(&mut unsummed.own).into_iter();
        (unsummed.own, unsummed.before) = all.partition(is_first);
    }
}

impl Output<'_> {
    /// The number of consecutive tiles whose bytes are contiguous: a row of tiles, which covers
    /// whole rows of the tensor. The tiles of a tensor of one row are contiguous by themselves.
    pub(super) fn tiles_of_rows(&self) -> usize {
        match self.cut.rows {
            1 => 1,
            _ => self.cut.across(),
        }
    }

    /// The number of tiles whose bytes are contiguous and that are best made together.
    pub(super) fn tiles_of_piece(&self) -> usize {
        let cut = &self.cut;
        let most = TRANSPOSED_VALUES / cut.tile_rows.saturating_mul(cut.cols).max(1);
        self.tiles_of_rows() * cut.together(1).min(most).max(1)
    }

    /// Bytes of one value of the cut: an element, or a byte where the cut counts bytes.
    fn value_size(&self) -> u64 {
        let values = self.cut.rows as u64 * self.cut.cols as u64;
        self.len / values.max(1)
    }

    /// Offset of tile `no` in the tensor's data, in bytes; the length of the data if there is no
    /// such tile. The tile must be the first of a row of tiles, or the tensor must have only one
    /// row.
    pub(super) fn tile_offset(&self, no: usize) -> u64 {
        if no >= self.cut.tiles() {
            return self.len;
        }
        let tile = self.cut.tile(no);
        let value = tile.rows.start as u64 * self.cut.cols as u64 + tile.cols.start as u64;
        value * self.value_size()
    }

    /// The tiles that hold the bytes `bytes` of the tensor's data, in whole rows of tiles.
    pub(super) fn tiles_of(&self, bytes: &Range<u64>) -> Range<usize> {
        if bytes.is_empty() {
            return 0..0;
        }
        let cut = &self.cut;
        let tile_row = |byte: u64| {
            let value = (byte / self.value_size().max(1)) as usize;
            match cut.rows {
                1 => value / cut.tile_cols,
                _ => value / cut.cols.max(1) / cut.tile_rows,
            }
        };
        let step = self.tiles_of_rows();
        tile_row(bytes.start) * step..(tile_row(bytes.end - 1) + 1) * step
    }
}

/// What the values of an output tensor are read from.
#[derive(Clone, Copy)]
pub(super) enum ValueSource<'a, 'm> {
    /// The bytes of a stored tensor, at any element.
    Stored(&'a Part<'m>),
    /// A decoder, in tiles of its grid.
    Decoded(&'a (dyn Decode + 'm), TargetDtype),
    /// The jobs alone know.
    Jobs,
}

/// Makes the bytes of an output tensor from the input, in jobs.
///
/// Jobs are independent of each other and may run in any order, with one exception: a job may wait
/// for lower-numbered jobs of the same tensor.
pub(super) trait Body<'m>: Send + Sync {
    /// Number of jobs for a tensor that is cut by `cut`.
    fn jobs(&self, cut: &Cut) -> usize {
        cut.tiles()
    }

    /// Does one job and writes its bytes. Returns the number of bytes written.
    ///
    /// # Errors
    /// Reading or writing fails, the data is malformed, or a value cannot be encoded.
    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64>;

    /// The input whose stored checksum the jobs compute on the way, in [`TensorChecksums::input`],
    /// because together they read exactly the bytes that it covers.
    fn summed_input(&self) -> Option<&Part<'m>> {
        None
    }

    /// How the values can be read without the jobs, in any range.
    fn values(&self) -> ValueSource<'_, 'm> {
        ValueSource::Jobs
    }

    /// The note on values beyond the range of F16 that the jobs have found, of the tensor called
    /// `name`; `None` if there are none.
    fn overflow_note(&self, _name: &str) -> Option<String> {
        None
    }

    /// Whether the jobs encode values, or those of an earlier output tensor do it for this one.
    fn is_encoded(&self) -> bool {
        false
    }

    /// Whether the jobs of an earlier output tensor write the bytes of this one. Such tensors
    /// directly follow that tensor.
    fn is_written_with_another(&self) -> bool {
        false
    }

    /// The encoding, if the body encodes values.
    #[cfg(feature = "lethe")]
    fn encoding(&self) -> Option<&Encoding<'m>> {
        None
    }

    /// The encoding, to be completed while planning; `None` if the body does not encode values.
    #[cfg(feature = "lethe")]
    fn encoding_mut(&mut self) -> Option<&mut Encoding<'m>> {
        None
    }
}

/// One job of one output tensor.
pub(super) struct Job<'a, 'm> {
    /// Number of the job among the jobs of its tensor.
    pub no: usize,
    /// The jobs of its tensor that the lane has.
    pub of_tensor: Range<usize>,
    /// What the jobs of the lane read together.
    pub ahead: &'a AheadSlot,
    /// What jobs of the same file write together.
    pub held: &'a HeldWrites,
    /// The tensor of the job, followed by all later output tensors. Encoders write to several of
    /// them.
    pub outputs: &'a [BoxedOutput<'m>],
    /// The checksums of `outputs`, as many as the run makes.
    pub checksums: &'a [TensorChecksums],
    pub sink: &'a dyn Sink,
    pub options: &'a RememberOptions,
    /// Number of the job among all jobs of the plan.
    pub number: usize,
    /// Lets a job wait for lower-numbered jobs of its tensor.
    #[cfg_attr(not(feature = "lethe"), expect(dead_code, reason = "only encoders wait"))]
    pub outcome: &'a Outcome,
}

impl<'m> Job<'_, 'm> {
    /// The output tensor that the job belongs to.
    pub(super) fn output(&self) -> &Output<'m> {
        &self.outputs[0]
    }

    /// Writes `bytes` at byte `at` of the job's tensor.
    ///
    /// # Errors
    /// The sink cannot write.
    pub(super) fn put(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.put_in(0, at, bytes)
    }

    /// Has the system copy `len` bytes of `part` from `at` on to the same place of the job's
    /// tensor. `false` if they have to be written: the system cannot copy them, or they are summed
    /// on the way.
    pub(super) fn copy(&self, part: &Part<'_>, at: u64, len: u64) -> bool {
        let output = self.output();
        let is_summed = self.checksums[0].output.is_some() || part.exact_check().is_some();
        let file = self.sink.written_file(output.place.file);
        !is_summed && file.is_some_and(|file| file.copy_at(output.place.offset + at, part, at, len))
    }

    /// Writes `bytes` at byte `at` of the output tensor that is `index` places behind the job's
    /// tensor.
    ///
    /// # Errors
    /// The sink cannot write.
    pub(super) fn put_in(&self, index: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let (file, at) = self.sum_in(index, at, bytes);
        self.sink.write_at(file, at, bytes)
    }

    /// As [`put_in`](Self::put_in). What is little beside the job's own tensor, as scales are
    /// beside codes, is held until other jobs have more of it.
    ///
    /// # Errors
    /// The sink cannot write these bytes, or those of jobs before.
    #[cfg_attr(
        not(feature = "lethe"),
        expect(dead_code, reason = "only encoders have several outputs")
    )]
    pub(super) fn put_beside(&self, index: usize, at: u64, bytes: &[u8]) -> Result<()> {
        let (file, at) = self.sum_in(index, at, bytes);
        if self.outputs[index].len <= self.outputs[0].len / SMALL {
            return self.held.write(self.sink, (file, at), bytes);
        }
        self.sink.write_at(file, at, bytes)
    }

    /// Adds to the checksum of the tensor that is `index` places behind the job's. Returns the file
    /// that `bytes` belong to, and their place in it.
    fn sum_in(&self, index: usize, at: u64, bytes: &[u8]) -> (usize, u64) {
        let PlannedPlace { file, offset, .. } = self.outputs[index].place;
        if let Some(sum) = &self.checksums[index].output {
            sum.add(at, bytes);
        }
        (file, offset + at)
    }
}

/// Buffers of one worker, which it reuses from job to job.
#[derive(Default)]
pub(super) struct Worker {
    pub input: Buffers,
    /// Decoded values. The elements are `u32`, because its alignment suits every output element
    /// type.
    pub output: Vec<u32>,
    /// Values in F32 before they are cast.
    pub values: Vec<f32>,
    #[cfg(feature = "lethe")]
    pub encode: EncodeScratch,
}
