//! Recovery tensor by tensor, in pieces that are passed to the caller in order.
//!
//! Pieces consist of whole rows. A tile of a wide tensor covers only a part of its columns, so its
//! bytes lie apart in the output. A row of tiles side by side covers whole rows of the tensor, and
//! their bytes are contiguous. Such a piece can be passed on, or written to a stream that cannot
//! seek, while the rest of the tensor is not decoded yet.

use std::io::{Read, Write};
use std::ops::Range;

use super::Conversion;
use super::options::ConvertOptions;
use super::progress::ProgressSum;
use super::report::Report;
use super::run::Run;
use super::window::OutputWindow;
use crate::error::InTensor;
use crate::limits::{Budget, zeroed};
use crate::sort::sort_by_key;
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// Bytes of a piece for each thread: large enough that all threads have several tiles to do, small
/// enough for constant memory.
pub(super) const BYTES_PER_THREAD: u64 = 4 << 20;

/// Consecutive rows of a recovered tensor.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Panel<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Shape of the whole tensor, outermost dimension first.
    pub shape: &'a [usize],
    /// Element type of the tensor.
    pub dtype: Dtype,
    /// Offset of `bytes` in the data of the tensor, in bytes.
    pub at: u64,
    /// The elements, little-endian and row-major.
    pub bytes: &'a [u8],
}

impl ParsedModel {
    /// Decodes every quantized tensor and passes each tensor to `take` in the order of the model:
    /// name, shape, element type and data. Other tensors are passed unchanged. One tensor is in
    /// memory at a time.
    ///
    /// `options` are a [`TargetDtype`](crate::TargetDtype),
    /// [`RememberOptions`](crate::RememberOptions) or [`ConvertOptions`] with patterns of names, or
    /// whether to decode what the container could hold. Those of files have no effect.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let mut norms = Vec::new();
    /// model.for_each_tensor(anamnesis::TargetDtype::F32, |name, shape, dtype, bytes| {
    ///     assert_eq!(shape.iter().product::<usize>() * dtype.bits() / 8, bytes.len());
    ///     norms.extend(name.contains("norm").then(|| (name.to_owned(), bytes.to_vec())));
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Parse`, `Unsupported` or `LimitExceeded`: a tensor that cannot be decoded, or is too
    ///   large for memory.
    /// - `Unsupported`: the options ask for encoding.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed.
    /// - `Cancelled`: the token of the options is set.
    /// - Any error that `take` returns; no further tensor is passed. An error of another type can
    ///   be wrapped with `std::io::Error::other`.
    pub fn for_each_tensor(
        &self,
        options: impl Into<ConvertOptions>,
        mut take: impl FnMut(&str, &[usize], Dtype, &[u8]) -> Result<()>,
    ) -> Result<Report> {
        let conversion = self.plan_stream(options.into())?;
        let mut stream = OutputStream::new(&conversion);
        for (i, output) in conversion.plan.outputs.iter().enumerate() {
            let mut empty = true;
            stream.for_each_piece(i, u64::MAX, |_, bytes| {
                empty = false;
                take(&output.name, &output.shape, output.dtype, bytes)
            })?;
            if empty {
                take(&output.name, &output.shape, output.dtype, &[])?;
            }
        }
        self.require_unchanged()?;
        Ok(conversion.plan.report)
    }

    /// Decodes every quantized tensor and passes all tensors to `take` in panels: a few MiB of
    /// whole rows at a time, in ascending order. It serves tensors that are too large for memory. A
    /// tensor without elements has no panel. `options` are those of
    /// [`for_each_tensor`](Self::for_each_tensor).
    ///
    /// A stored checksum is compared when the last panel of its tensor is made, so earlier panels
    /// have been passed on unchecked.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let mut sizes = std::collections::HashMap::new();
    /// model.for_each_panel(anamnesis::TargetDtype::BF16, |panel| {
    ///     let size: &mut u64 = sizes.entry(panel.name.to_owned()).or_default();
    ///     assert_eq!(*size, panel.at);
    ///     *size += panel.bytes.len() as u64;
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Parse`, `Unsupported` or `LimitExceeded`: a tensor that cannot be decoded.
    /// - `Unsupported`: the options ask for encoding.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed.
    /// - `Cancelled`: the token of the options is set.
    /// - Any error that `take` returns; no further panel is passed.
    pub fn for_each_panel(
        &self,
        options: impl Into<ConvertOptions>,
        mut take: impl FnMut(Panel<'_>) -> Result<()>,
    ) -> Result<Report> {
        let conversion = self.plan_stream(options.into())?;
        let mut stream = OutputStream::new(&conversion);
        for (i, output) in conversion.plan.outputs.iter().enumerate() {
            stream.for_each_piece(i, BYTES_PER_THREAD, |at, bytes| {
                take(Panel {
                    name: &output.name,
                    shape: &output.shape,
                    dtype: output.dtype,
                    at,
                    bytes,
                })
            })?;
        }
        self.require_unchanged()?;
        Ok(conversion.plan.report)
    }

    /// Decodes every quantized tensor and writes a file to `writer`, from the first byte to the
    /// last: safetensors, or the container that `options` name. The writer need not seek. `options`
    /// are those of [`for_each_tensor`](Self::for_each_tensor).
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let mut out = Vec::new();
    /// model.remember_to_writer(&mut out, anamnesis::TargetDtype::BF16)?;
    /// assert_eq!(out, model.remember_to_bytes(anamnesis::TargetDtype::BF16)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Parse`, `Unsupported` or `LimitExceeded`: a tensor that cannot be decoded.
    /// - `Unsupported`: the options ask for encoding, or for NPZ, which has checksums before the
    ///   data.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed; or
    ///   the writer fails.
    /// - `Cancelled`: the token of the options is set.
    ///
    /// After an error the writer may have received a part of the file.
    pub fn remember_to_writer(
        &self,
        writer: impl Write,
        options: impl Into<ConvertOptions>,
    ) -> Result<Report> {
        self.plan_stream(options.into())?.write_in_order(writer)
    }

    /// Plans one file, whatever the input is.
    ///
    /// # Errors
    /// `Unsupported` if the options ask for encoding: encoders write several tensors at once.
    /// Otherwise those of [`plan`](Self::plan).
    fn plan_stream(&self, options: ConvertOptions) -> Result<Conversion<'_>> {
        let options = ConvertOptions { single_file: true, max_shard_size: None, ..options };
        let conversion = self.plan(options)?;
        conversion.require_unencoded()?;
        Ok(conversion)
    }
}

/// A section of an output file.
enum FileSection<'a> {
    Piece(&'a [u8]),
    /// The data of an output tensor, by index.
    Tensor(usize),
}

/// Writes `len` zeros: what lies between tensors that are aligned.
fn pad(writer: &mut impl Write, len: u64) -> Result<()> {
    std::io::copy(&mut std::io::repeat(0).take(len), writer)?;
    Ok(())
}

/// Makes the output tensors of a plan one after another, in memory.
pub(super) struct OutputStream<'a, 'm> {
    conversion: &'a Conversion<'m>,
    done: ProgressSum,
    bytes: Vec<u8>,
}

impl<'a, 'm> OutputStream<'a, 'm> {
    pub(super) fn new(conversion: &'a Conversion<'m>) -> Self {
        let plan = &conversion.plan;
        Self {
            conversion,
            done: ProgressSum::new(&conversion.options.run, plan.data_len, plan.outputs.len()),
            bytes: Vec::new(),
        }
    }

    /// Makes output tensor `i` and passes it to `take` in pieces, each with its offset in the
    /// tensor.
    ///
    /// A piece has at most `max_bytes` bytes for each thread, or a row of tiles for each thread if
    /// that is more. Checksums are compared before the last piece is passed on, so a tensor in one
    /// piece is checked.
    ///
    /// # Errors
    /// The error of the lowest job that failed, a checksum that differs, or the error of `take`.
    pub(super) fn for_each_piece(
        &mut self,
        i: usize,
        max_bytes: u64,
        mut take: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Self { conversion, done, bytes } = self;
        let Conversion { plan, options, .. } = conversion;
        let output = &plan.outputs[i];
        let (tiles, threads) = (output.cut.tiles(), options.run.worker_threads());
        let step = output.tiles_of_piece();
        let max_bytes = max_bytes.saturating_mul(threads as u64);
        let run = Run::new(plan, i..i + 1, &options.run, done);
        let mut no = 0;
        while no < tiles {
            let (start, mut end) = (output.tile_offset(no), (no + step).min(tiles));
            let fits = |end: usize| {
                output.tile_offset(end) - start <= max_bytes || end - no <= step * threads
            };
            while end < tiles && fits(end + step) {
                end = (end + step).min(tiles);
            }
            conversion.make_tiles(&run, i, no..end, bytes)?;
            if end == tiles {
                run.check()?;
            }
            take(start, bytes)?;
            no = end;
        }
        match tiles {
            0 => run.check(),
            _ => Ok(()),
        }
    }
}

impl Conversion<'_> {
    /// Carries out the plan of one file and writes it to `writer`, from the first byte to the last.
    ///
    /// # Errors
    /// - `Unsupported`: the output has several files.
    /// - Those of [`ParsedModel::remember_to_writer`].
    pub fn write_in_order(&self, mut writer: impl Write) -> Result<Report> {
        self.require_unencoded()?;
        let plan = &self.plan;
        let [_] = plan.files.as_slice() else {
            let what = "only one file can be written in order";
            return Err(AnamnesisError::unsupported("an output in several files", what));
        };
        if plan
            .outputs
            .iter()
            .any(|output| output.place.patch.is_some())
        {
            let what = "it has checksums before the data; write it to a file or to bytes";
            return Err(AnamnesisError::unsupported("writing NPZ in order", what));
        }
        // A layout may sort the data by element size, so offsets do not always ascend with the
        // outputs. Of a piece and an empty tensor at one offset either may come first.
        let pieces = plan.pieces(0)?;
        let pieces = pieces
            .iter()
            .map(|(at, piece)| (*at, FileSection::Piece(piece)));
        let tensors = plan.outputs.iter().enumerate();
        let tensors = tensors.map(|(i, output)| (output.place.offset, FileSection::Tensor(i)));
        let mut sections: Vec<_> = pieces.chain(tensors).collect();
        sort_by_key(&mut sections, |(at, _)| *at);
        let mut stream = OutputStream::new(self);
        let mut written = 0;
        for (at, section) in sections {
            pad(&mut writer, at - written)?;
            written = at;
            let mut put = |bytes: &[u8]| -> Result<()> {
                written += bytes.len() as u64;
                Ok(writer.write_all(bytes)?)
            };
            match section {
                FileSection::Piece(piece) => put(piece)?,
                FileSection::Tensor(i) => {
                    stream.for_each_piece(i, BYTES_PER_THREAD, |_, bytes| put(bytes))?;
                }
            }
        }
        pad(&mut writer, plan.files[0].len - written)?;
        writer.flush()?;
        self.model.require_unchanged()?;
        plan.require_unchanged()?;
        Ok(plan.report.clone())
    }

    /// Fails if tensors are encoded: encoders write several at once.
    fn require_unencoded(&self) -> Result<()> {
        if self.options.encodes() {
            let what =
                "tensors are encoded only for a whole output; write it to a file or to bytes";
            return Err(AnamnesisError::unsupported("encoding tensor by tensor", what));
        }
        Ok(())
    }

    /// Makes the tiles `jobs` of output tensor `i` in `bytes`. Nothing is encoded here, so each
    /// tile is one job.
    ///
    /// # Errors
    /// `LimitExceeded` if there is no memory for the bytes, or the error of the lowest job that
    /// failed.
    fn make_tiles(
        &self,
        run: &Run<'_, '_>,
        i: usize,
        jobs: Range<usize>,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let output = &self.plan.outputs[i];
        let (start, end) = (output.tile_offset(jobs.start), output.tile_offset(jobs.end));
        // The memory is reused while it is large enough. Larger memory replaces it, and the old is
        // freed first.
        if bytes.capacity() as u64 >= end - start {
            bytes.resize((end - start) as usize, 0);
        } else {
            Budget::new(&self.model.limits).alloc(end - start, InTensor(&output.name))?;
            *bytes = Vec::new();
            *bytes = zeroed(end - start, "a tensor")?;
        }
        let window = OutputWindow::new(output.place.offset + start, bytes);
        let first = self.plan.first_job[i];
        run.run_jobs(first + jobs.start..first + jobs.end, &window)
    }
}
