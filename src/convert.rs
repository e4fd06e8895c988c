//! The pipeline: options, a plan that fixes every output byte, the workers that fill it, and the report.

mod options;
mod plan;
mod report;
mod run;

use std::path::Path;
use std::sync::Mutex;

pub use self::options::{Progress, RememberOptions};
pub(crate) use self::report::count;
pub use self::report::{Report, SchemeCount};
use crate::model::ParsedModel;
use crate::scheme::Resolution;
use crate::write::Sink;
use crate::write::atomic::OutputFile;
use crate::{AnamnesisError, Result};
use plan::Plan;

impl ParsedModel {
    /// Decodes every quantized tensor and writes a safetensors file; the rest is copied as it is.
    ///
    /// The file appears under its name only when it is whole and synced. Memory stays within 4 MiB a thread
    /// and the header, whatever the model's size.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// # let dir = tempfile::tempdir()?;
    /// # let output = dir.path().join("model-bf16.safetensors");
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let report = model.remember(&output, anamnesis::TargetDtype::BF16)?;
    /// println!("{} tensors recovered, {} bytes", report.recovered(), report.output_bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The first problem of the model, before anything is written; whatever is wrong with the output's
    /// place; I/O; cancellation. No output is left behind.
    pub fn remember(&self, output: impl AsRef<Path>, options: impl Into<RememberOptions>) -> Result<Report> {
        self.recovery(options)?.write(output)
    }

    /// As [`remember`](Self::remember), into memory: the bytes of a safetensors file.
    ///
    /// # Errors
    /// As [`remember`](Self::remember), without the I/O of an output.
    pub fn remember_to_bytes(&self, options: impl Into<RememberOptions>) -> Result<Vec<u8>> {
        self.recovery(options)?.to_bytes()
    }

    /// Plans a recovery: everything that can be known before the work.
    ///
    /// # Errors
    /// The first problem of the model.
    pub fn recovery(&self, options: impl Into<RememberOptions>) -> Result<Recovery<'_>> {
        let options = options.into();
        Ok(Recovery { plan: Plan::new(self, options.to)?, input: self.path(), options })
    }

    pub(crate) fn resolve(&self) -> Resolution<'_> {
        Resolution::new(self)
    }
}

/// A planned recovery: what [`ParsedModel::remember`] does, in two steps.
pub struct Recovery<'m> {
    plan: Plan<'m>,
    input: Option<&'m Path>,
    options: RememberOptions,
}

impl Recovery<'_> {
    /// What will be done.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.plan.report
    }

    /// Does it, into a file; see [`ParsedModel::remember`].
    ///
    /// # Errors
    /// Whatever is wrong with the output's place; I/O; cancellation.
    pub fn write(&self, output: impl AsRef<Path>) -> Result<Report> {
        let Self { plan, input, options } = self;
        let file = OutputFile::create(output.as_ref(), plan.file_len, options.force, *input)?;
        file.write_at(0, &plan.header)?;
        run::run(plan, &file, options)?;
        verify(plan, &file)?;
        options.cancel.check()?;
        file.commit()?;
        Ok(plan.report.clone())
    }

    /// Does it, into memory.
    ///
    /// # Errors
    /// If there is no room; I/O of the input; cancellation.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let plan = &self.plan;
        let len = usize::try_from(plan.file_len).ok();
        let mut out = Vec::new();
        let Some(len) = len.filter(|&len| out.try_reserve_exact(len).is_ok()) else {
            let message = format!("no room for an output of {} bytes", plan.file_len);
            return Err(AnamnesisError::LimitExceeded { limit: "available_memory", message });
        };
        out.extend_from_slice(&plan.header);
        out.resize(len, 0);
        let sink = Mutex::new(out);
        run::run(plan, &sink, &self.options)?;
        Ok(sink.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(feature = "benchmarks")]
impl Recovery<'_> {
    /// Decodes everything on one thread at `level`, and writes nothing.
    pub(crate) fn decode_only(&self, level: crate::simd::Level) -> Result<()> {
        struct Nowhere;
        impl Sink for Nowhere {
            fn write_at(&self, _offset: u64, bytes: &[u8]) -> Result<()> {
                std::hint::black_box(bytes);
                Ok(())
            }
        }
        let options = RememberOptions { level, threads: Some(1), ..self.options.clone() };
        run::run(&self.plan, &Nowhere, &options)
    }
}

/// Reads the header back: what was written must be what was planned.
fn verify(plan: &Plan<'_>, file: &OutputFile) -> Result<()> {
    let mut header = vec![0; plan.header.len()];
    let source = crate::source::Source::from_file(file.file())?;
    source.read_at(0, &mut header)?;
    if header != plan.header || source.len() != Some(plan.file_len) {
        return Err(std::io::Error::other("the output reads back differently from what was written").into());
    }
    Ok(())
}
