//! Recovery tensor by tensor, in pieces that are passed to the caller in order.
//!
//! Pieces consist of whole rows. A tile of a wide tensor covers only a part of its columns, so its bytes lie apart in the output.
//! A row of tiles side by side covers whole rows of the tensor, and their bytes are contiguous. Such a piece can be passed on, or
//! written to a stream that cannot seek, while the rest of the tensor is not decoded yet.

use std::io::Write;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use super::options::{ConvertOptions, RememberOptions};
use super::output::Output;
use super::plan::Plan;
use super::report::Report;
use super::run;
use crate::containers::write::Sink;
use crate::limits::{Budget, zeroed};
use crate::{Dtype, ParsedModel, Result};

/// Bytes of a piece for each thread: large enough that all threads have several tiles to do, small enough for constant memory.
const BYTES_PER_THREAD: u64 = 4 << 20;

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
    /// Decodes every quantized tensor and passes each tensor to `take` in the order of the model: name, shape, element
    /// type and data. Other tensors are passed unchanged. One tensor is in memory at a time.
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
    /// - `Parse`, `Unsupported` or `LimitExceeded`: a tensor that cannot be decoded, or is too large for memory.
    /// - `Io`: the input cannot be read.
    /// - `Cancelled`: the token of the options is set.
    /// - Any error that `take` returns; no further tensor is passed. An error of another type can be wrapped with
    ///   `std::io::Error::other`.
    pub fn for_each_tensor(
        &self,
        options: impl Into<RememberOptions>,
        mut take: impl FnMut(&str, &[usize], Dtype, &[u8]) -> Result<()>,
    ) -> Result<Report> {
        let (plan, options) = self.plan_stream(options.into())?;
        let mut stream = OutputStream::new(&plan, &options, self);
        for (i, output) in plan.outputs.iter().enumerate() {
            let mut empty = true;
            stream.for_each_piece(i, u64::MAX, |_, bytes| {
                empty = false;
                take(&output.name, &output.shape, output.dtype, bytes)
            })?;
            if empty {
                take(&output.name, &output.shape, output.dtype, &[])?;
            }
        }
        Ok(plan.report)
    }

    /// Decodes every quantized tensor and passes all tensors to `take` in panels: a few MiB of whole rows at a time, in
    /// ascending order. It serves tensors that are too large for memory. A tensor without elements has no panel.
    ///
    /// A stored checksum is compared when the last panel of its tensor is made, so earlier panels have been passed on unchecked.
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
    /// - `Io`: the input cannot be read.
    /// - `Cancelled`: the token of the options is set.
    /// - Any error that `take` returns; no further panel is passed.
    pub fn for_each_panel(
        &self,
        options: impl Into<RememberOptions>,
        mut take: impl FnMut(Panel<'_>) -> Result<()>,
    ) -> Result<Report> {
        let (plan, options) = self.plan_stream(options.into())?;
        let mut stream = OutputStream::new(&plan, &options, self);
        for (
            i,
            Output {
                name, shape, dtype, ..
            },
        ) in plan.outputs.iter().enumerate()
        {
            stream.for_each_piece(i, BYTES_PER_THREAD, |at, bytes| {
                take(Panel {
                    name,
                    shape,
                    dtype: *dtype,
                    at,
                    bytes,
                })
            })?;
        }
        Ok(plan.report)
    }

    /// Decodes every quantized tensor and writes a safetensors file to `writer`, from the first byte to the last. The writer
    /// need not seek.
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
    /// - `Io`: the input cannot be read, or the writer fails.
    /// - `Cancelled`: the token of the options is set.
    ///
    /// After an error the writer may have received a part of the file.
    pub fn remember_to_writer(
        &self,
        mut writer: impl Write,
        options: impl Into<RememberOptions>,
    ) -> Result<Report> {
        let (plan, options) = self.plan_stream(options.into())?;
        let pieces = plan.files.iter().flat_map(|file| &file.pieces);
        pieces
            .into_iter()
            .try_for_each(|(_, piece)| writer.write_all(piece))?;
        // A layout may sort the data by element size, so offsets do not always ascend with the outputs.
        let mut order: Vec<usize> = plan.all().collect();
        order.sort_by_key(|&i| plan.outputs[i].offset);
        let mut stream = OutputStream::new(&plan, &options, self);
        for i in order {
            stream.for_each_piece(i, BYTES_PER_THREAD, |_, bytes| Ok(writer.write_all(bytes)?))?;
        }
        writer.flush()?;
        Ok(plan.report)
    }

    /// Plans one safetensors file, whatever the input is.
    fn plan_stream(&self, run: RememberOptions) -> Result<(Plan<'_>, RememberOptions)> {
        let options = ConvertOptions {
            single_file: true,
            ..run.into()
        };
        let super::Recovery { plan, options, .. } = self.recovery(options)?;
        Ok((plan, options.run))
    }
}

/// Makes the output tensors of a plan one after another, in memory.
struct OutputStream<'a, 'm> {
    plan: &'a Plan<'m>,
    options: &'a RememberOptions,
    model: &'m ParsedModel,
    done: AtomicU64,
    window: OutputWindow,
}

/// A section of the output file in memory. It is the sink of the jobs that make the section.
struct OutputWindow {
    /// Offset of the section in the file.
    start: u64,
    bytes: Mutex<Vec<u8>>,
}

impl Sink for OutputWindow {
    fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.bytes.write_at(file, offset - self.start, bytes)
    }
}

impl<'a, 'm> OutputStream<'a, 'm> {
    fn new(plan: &'a Plan<'m>, options: &'a RememberOptions, model: &'m ParsedModel) -> Self {
        let window = OutputWindow {
            start: 0,
            bytes: Mutex::default(),
        };
        Self {
            plan,
            options,
            model,
            done: AtomicU64::new(0),
            window,
        }
    }

    /// Makes output tensor `i` and passes it to `take` in pieces, each with its offset in the tensor.
    ///
    /// A piece has at most `max_bytes` bytes for each thread, or a row of tiles for each thread if that is more. Checksums are
    /// compared before the last piece is passed on, so a tensor in one piece is checked.
    ///
    /// # Errors
    /// The error of the lowest job that failed, a checksum that differs, or the error of `take`.
    fn for_each_piece(
        &mut self,
        i: usize,
        max_bytes: u64,
        mut take: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let output = &self.plan.outputs[i];
        let (tiles, threads) = (output.cut.tiles(), run::threads(self.options));
        // The number of tiles that together make whole rows. The tiles of a tensor of one row are contiguous by themselves.
        let step = if output.cut.rows == 1 {
            1
        } else {
            output.cut.across()
        };
        let max_bytes = max_bytes.saturating_mul(threads as u64);
        let mut no = 0;
        while no < tiles {
            let (start, mut end) = (output.tile_offset(no), no + step);
            let fits = |end: usize| {
                output.tile_offset(end) - start <= max_bytes || end - no <= step * threads
            };
            while end < tiles && fits(end + step) {
                end += step;
            }
            self.run_tiles(i, no..end)?;
            if end == tiles {
                run::check(std::slice::from_ref(output))?;
            }
            take(
                start,
                self.window
                    .bytes
                    .get_mut()
                    .unwrap_or_else(PoisonError::into_inner),
            )?;
            no = end;
        }
        Ok(())
    }

    /// Makes the tiles `jobs` of output tensor `i` in the window. Nothing is encoded here, so each tile is one job.
    ///
    /// # Errors
    /// `LimitExceeded` if there is no memory for the window, or the error of the lowest job that failed.
    fn run_tiles(&mut self, i: usize, jobs: std::ops::Range<usize>) -> Result<()> {
        let output = &self.plan.outputs[i];
        let (start, end) = (output.tile_offset(jobs.start), output.tile_offset(jobs.end));
        let bytes = self
            .window
            .bytes
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // The window is reused while it is large enough. A larger one replaces it, and the old one is freed first.
        if bytes.capacity() as u64 >= end - start {
            bytes.resize((end - start) as usize, 0);
        } else {
            Budget::new(&self.model.limits)
                .alloc(end - start, format_args!("tensor `{}`", output.name))?;
            *bytes = Vec::new();
            *bytes = zeroed(end - start, "a tensor")?;
        }
        self.window.start = output.offset + start;
        let first = self.plan.first_job[i];
        let jobs = first + jobs.start..first + jobs.end;
        run::run_jobs(self.plan, jobs, &self.window, self.options, &self.done)
    }
}

impl Output<'_> {
    /// Offset of tile `no` in the tensor's data, in bytes; the length of the data if there is no such tile. The tile must be the
    /// first of a row of tiles, or the tensor must have only one row.
    fn tile_offset(&self, no: usize) -> u64 {
        let len = self.dtype.byte_len(&self.shape).unwrap_or(0) as u64;
        if no >= self.cut.tiles() {
            return len;
        }
        let (tile, values) = (
            self.cut.tile(no),
            self.cut.rows as u64 * self.cut.cols as u64,
        );
        let value = tile.rows.start as u64 * self.cut.cols as u64 + tile.cols.start as u64;
        value * (len / values.max(1))
    }
}
