//! Recovery in the order of the output, piece by piece, for callers who have their own place for it.

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

/// Bytes of a piece that each thread is given work for.
const BYTES_PER_THREAD: u64 = 4 << 20;

/// Some rows of a recovered tensor.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Panel<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The tensor's shape, outermost dimension first.
    pub shape: &'a [usize],
    /// The tensor's element type.
    pub dtype: Dtype,
    /// Where `bytes` begin, in bytes from the beginning of the tensor.
    pub at: u64,
    /// Elements, little-endian and row-major.
    pub bytes: &'a [u8],
}

impl ParsedModel {
    /// Decodes every quantized tensor, and passes all tensors to `take`, in the order of the model: name, shape, element
    /// type and data. One tensor is in memory at a time.
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
    /// As [`remember`](Self::remember), without an output's; `take`'s own, which ends it. A caller's error goes through
    /// `std::io::Error::other`.
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

    /// As [`for_each_tensor`](Self::for_each_tensor), for tensors that are too large for memory: a few MiB of whole rows
    /// at a time. Empty tensors have none. What has been passed on is not proven right before the end.
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
    /// As there.
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

    /// As [`remember`](Self::remember), to a writer that need not seek: the bytes of a safetensors file, in their order.
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
    /// As there, and the writer's own; then it has got a part of the file.
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
        let mut order: Vec<usize> = plan.all().collect();
        order.sort_by_key(|&i| plan.outputs[i].offset);
        let mut stream = OutputStream::new(&plan, &options, self);
        for i in order {
            stream.for_each_piece(i, BYTES_PER_THREAD, |_, bytes| Ok(writer.write_all(bytes)?))?;
        }
        writer.flush()?;
        Ok(plan.report)
    }

    /// Plans one safetensors file.
    fn plan_stream(&self, run: RememberOptions) -> Result<(Plan<'_>, RememberOptions)> {
        let options = ConvertOptions {
            single_file: true,
            ..run.into()
        };
        let super::Recovery { plan, options, .. } = self.recovery(options)?;
        Ok((plan, options.run))
    }
}

/// Makes outputs of a plan one after the other.
struct OutputStream<'a, 'm> {
    plan: &'a Plan<'m>,
    options: &'a RememberOptions,
    model: &'m ParsedModel,
    done: AtomicU64,
    window: OutputWindow,
}

/// A part of the output in memory.
struct OutputWindow {
    /// Where it begins in the output.
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

    /// Makes output `i`, and passes it on in pieces with their places: of at most `most` bytes for each thread, or of
    /// as few rows as can be made at once. A piece that is all of it has been checked.
    fn for_each_piece(
        &mut self,
        i: usize,
        max_bytes: u64,
        mut take: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let output = &self.plan.outputs[i];
        let (tiles, threads) = (output.cut.tiles(), run::threads(self.options));
        // As many tiles as make whole rows.
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

    /// Does jobs `jobs` of output `i`, into the window.
    fn run_tiles(&mut self, i: usize, jobs: std::ops::Range<usize>) -> Result<()> {
        let output = &self.plan.outputs[i];
        let (start, end) = (output.tile_offset(jobs.start), output.tile_offset(jobs.end));
        let bytes = self
            .window
            .bytes
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
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
    /// Where tile `no`, which begins a row of tiles or is in the only one, begins in the tensor's bytes.
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
