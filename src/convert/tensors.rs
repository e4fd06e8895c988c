//! Single output tensors of a planned conversion: what they are, and their bytes, by name.
//!
//! One tensor is made by the jobs that it has in the plan, with a window of memory as their sink.
//! Rows of it are made by the jobs of the tiles that hold them; the window leaves out the rest of
//! these tiles.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::Conversion;
use super::output::Output;
use super::progress::ProgressSum;
use super::run::Run;
use super::stream::{BYTES_PER_THREAD, OutputStream, Panel};
use super::window::OutputWindow;
use crate::error::InTensor;
use crate::limits::{Budget, zeroed};
use crate::model::Part;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// An output tensor as planned, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputTensor<'a> {
    /// Name in the output.
    pub name: &'a str,
    /// Shape, outermost dimension first.
    pub shape: &'a [usize],
    /// Element type.
    pub dtype: Dtype,
    /// Length of the data in bytes.
    pub byte_len: u64,
}

/// The stored bytes whose checksums have been compared since the plan was made, by source and
/// offset. Each is read for this once, however many tensors, or rows of a tensor, are made of it.
#[derive(Default)]
pub(super) struct VerifiedInputs(Mutex<HashSet<(usize, u64)>>);

impl VerifiedInputs {
    fn has(&self, part: &Part<'_>) -> bool {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.contains(&part.checksum_key())
    }

    fn add(&self, part: &Part<'_>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(part.checksum_key());
    }

    /// Compares the checksum of `part`, unless that was done. The lock is not held meanwhile: two
    /// threads may both compare it.
    pub(super) fn verify(&self, part: &Part<'_>) -> Result<()> {
        if !self.has(part) {
            part.verify()?;
            self.add(part);
        }
        Ok(())
    }
}

impl<'a> From<&'a Output<'_>> for OutputTensor<'a> {
    fn from(output: &'a Output<'_>) -> Self {
        Self { name: &output.name, shape: &output.shape, dtype: output.dtype, byte_len: output.len }
    }
}

impl Conversion<'_> {
    /// Name, shape, element type and size of every output tensor, in the order of the output's
    /// files. Decodes nothing.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let conversion = model.plan(anamnesis::TargetDtype::BF16)?;
    /// for tensor in conversion.outputs() {
    ///     println!("{} {} {:?}: {} bytes", tensor.name, tensor.dtype, tensor.shape, tensor.byte_len);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = OutputTensor<'_>> + Clone {
        self.plan.outputs.iter().map(|o| OutputTensor::from(&**o))
    }

    /// The output tensor called `name`, without its data; `None` if there is none. Takes the same
    /// time for any number of tensors.
    #[must_use]
    pub fn output(&self, name: &str) -> Option<OutputTensor<'_>> {
        self.find(name).map(|i| (&*self.plan.outputs[i]).into())
    }

    /// Makes the output tensor called `name` and returns its bytes, little-endian and row-major:
    /// those that [`write`](Self::write) puts into the output. Only this tensor's data is read; a
    /// large tensor uses several threads.
    ///
    /// A stored checksum is compared, as in a whole conversion. The callback for progress is not
    /// called.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let conversion = model.plan(anamnesis::TargetDtype::F32)?;
    /// for tensor in conversion.outputs() {
    ///     assert_eq!(conversion.tensor(tensor.name)?.len() as u64, tensor.byte_len);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Parse`: the output has no tensor of this name; the tensor's data is malformed, or does
    ///   not match its checksum.
    /// - `Unsupported`: the tensor is encoded ([`ConvertOptions::forget`](crate::ConvertOptions));
    ///   only whole outputs are.
    /// - `LimitExceeded`: the tensor is larger than the limits of the model allow, or there is no
    ///   memory for it.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed.
    /// - `Cancelled`: the token of the options is set.
    pub fn tensor(&self, name: &str) -> Result<Vec<u8>> {
        let i = self.decodable(name)?;
        self.to_vec(i, 0..self.plan.outputs[i].len)
    }

    /// Makes the output tensor called `name` as [`tensor`](Self::tensor) does, in the caller's
    /// memory.
    ///
    /// # Errors
    /// - `Unsupported`: `out` has not [`byte_len`](OutputTensor::byte_len) bytes.
    /// - The errors of [`tensor`](Self::tensor).
    pub fn decode_into(&self, name: &str, out: &mut [u8]) -> Result<()> {
        let i = self.decodable(name)?;
        self.fill(i, 0..self.plan.outputs[i].len, out)
    }

    /// Makes rows of the output tensor called `name`: the range `rows` of its first dimension, with
    /// all that is below. Returns their bytes, little-endian and row-major.
    ///
    /// Tiles that hold a row are decoded as a whole, at most some MiB of values for each end of the
    /// range; of a compressed archive member, the whole tensor. If the container stores a checksum,
    /// the first call for a tensor reads all of its stored data to compare it.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let conversion = model.plan(anamnesis::TargetDtype::BF16)?;
    /// let matrix = conversion.outputs().find(|tensor| tensor.shape.len() == 2).unwrap();
    /// let rows = conversion.rows(matrix.name, 3..5)?;
    /// assert_eq!(rows.len(), 2 * matrix.shape[1] * 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Unsupported`: the range exceeds the first dimension or is reversed; the tensor has no
    ///   dimensions; a row is no whole number of bytes.
    /// - The errors of [`tensor`](Self::tensor).
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let i = self.decodable(name)?;
        self.to_vec(i, self.bytes_of_rows(i, &rows)?)
    }

    /// Makes rows of the output tensor called `name` as [`rows`](Self::rows) does, in the caller's
    /// memory.
    ///
    /// # Errors
    /// - `Unsupported`: `out` has not as many bytes as the rows.
    /// - The errors of [`rows`](Self::rows).
    pub fn decode_rows_into(&self, name: &str, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        let i = self.decodable(name)?;
        self.fill(i, self.bytes_of_rows(i, &rows)?, out)
    }

    /// Makes the output tensor called `name` and passes it to `take` in panels, as
    /// [`ParsedModel::for_each_panel`](crate::ParsedModel::for_each_panel) passes all tensors. A
    /// tensor without elements has no panel.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let conversion = model.plan(anamnesis::TargetDtype::BF16)?;
    /// let mut bytes = 0;
    /// conversion.for_each_panel("layers.0.attention.wq.weight", |panel| {
    ///     bytes += panel.bytes.len();
    ///     Ok(())
    /// })?;
    /// assert_eq!(bytes, 256 * 256 * 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - The errors of [`tensor`](Self::tensor).
    /// - Any error that `take` returns; no further panel is passed.
    pub fn for_each_panel(
        &self,
        name: &str,
        mut take: impl FnMut(Panel<'_>) -> Result<()>,
    ) -> Result<()> {
        let i = self.decodable(name)?;
        let output = &self.plan.outputs[i];
        // Of parts that several tensors share, the first tensor compares the checksum, and it may
        // not be asked for.
        let mut inputs = output.checks.before().iter();
        inputs.try_for_each(|part| self.verified.verify(part))?;
        OutputStream::new(self).for_each_piece(i, BYTES_PER_THREAD, |at, bytes| {
            take(Panel { name: &output.name, shape: &output.shape, dtype: output.dtype, at, bytes })
        })?;
        let mut sources = output.sources.iter().map(|&i| &self.model.sources[i]);
        sources.try_for_each(Source::require_unchanged)
    }

    /// Index of the output tensor called `name`.
    fn find(&self, name: &str) -> Option<usize> {
        let outputs = &self.plan.outputs;
        let name_at = |i: usize| &*outputs[i].name;
        self.names.find(name, outputs.len(), name_at)
    }

    /// Index of the output tensor called `name`, which is made by jobs of its own.
    ///
    /// # Errors
    /// `Parse` if there is none; `Unsupported` if it is encoded. An encoder writes several output
    /// tensors at once, and keeps the statistics of a whole run.
    fn decodable(&self, name: &str) -> Result<usize> {
        let Some(i) = self.find(name) else {
            let what = format!("{}: the output has no tensor of this name", InTensor(&name));
            return Err(AnamnesisError::parse(what));
        };
        if self.plan.outputs[i].body.is_encoded() {
            let what =
                format!("{}: it is encoded, which is done for a whole output", InTensor(&name));
            return Err(AnamnesisError::unsupported("a single encoded tensor", what));
        }
        Ok(i)
    }

    /// The bytes that rows `rows` of the first dimension take in output tensor `i`.
    fn bytes_of_rows(&self, i: usize, rows: &Range<usize>) -> Result<Range<u64>> {
        let output = &self.plan.outputs[i];
        let refuse = |what: String| {
            let detail = format!("{}: {what}", InTensor(&output.name));
            Err(AnamnesisError::unsupported("rows of a tensor", detail))
        };
        let Some((&count, inner)) = output.shape.split_first() else {
            return refuse("it has no dimensions".to_owned());
        };
        if rows.start > rows.end || rows.end > count {
            return refuse(format!("rows {}..{} of {count}", rows.start, rows.end));
        }
        // Elements of less than a byte, and blocks of several values, may straddle rows.
        let row = output.dtype.byte_len(inner).map(|len| len as u64);
        match row.filter(|row| row.checked_mul(count as u64) == Some(output.len)) {
            Some(row) => Ok(row * rows.start as u64..row * rows.end as u64),
            None => refuse(format!(
                "a row of {} {:?} is no whole number of bytes or blocks",
                output.dtype, output.shape
            )),
        }
    }

    /// The bytes `bytes` of output tensor `i`.
    fn to_vec(&self, i: usize, bytes: Range<u64>) -> Result<Vec<u8>> {
        let (len, name) = (bytes.end - bytes.start, &self.plan.outputs[i].name);
        Budget::new(&self.model.limits).alloc(len, InTensor(&name))?;
        let mut out = zeroed(len, "a tensor")?;
        self.fill(i, bytes, &mut out)?;
        Ok(out)
    }

    /// Fills `out` with the bytes `bytes` of output tensor `i`.
    fn fill(&self, i: usize, bytes: Range<u64>, out: &mut [u8]) -> Result<()> {
        let output = &self.plan.outputs[i];
        let len = bytes.end - bytes.start;
        if out.len() as u64 != len {
            let (name, given) = (&output.name, out.len());
            let what =
                format!("{}: {given} bytes of memory for {len} bytes of data", InTensor(&name));
            return Err(AnamnesisError::unsupported("a buffer for a tensor", what));
        }
        output
            .checks
            .all()
            .try_for_each(|part| self.verified.verify(part))?;
        let summed = output.body.summed_input();
        let summed = summed.filter(|part| !self.verified.has(part));
        let is_whole = len == output.len;
        // The jobs of a whole tensor compute the checksum on the way.
        if let Some(part) = summed.filter(|_| !is_whole) {
            self.verified.verify(part)?;
        }
        let done = ProgressSum::silent();
        let run = Run::new(&self.plan, i..i + 1, &self.options.run, &done).without_verifying();
        let (first, tiles) = (self.plan.first_job[i], output.tiles_of(&bytes));
        let window = OutputWindow::new(output.place.offset + bytes.start, out);
        run.run_jobs(first + tiles.start..first + tiles.end, &window)?;
        if let Some(part) = summed.filter(|_| is_whole) {
            run.check()?;
            self.verified.add(part);
        }
        let mut sources = output.sources.iter().map(|&i| &self.model.sources[i]);
        sources.try_for_each(Source::require_unchanged)
    }
}
