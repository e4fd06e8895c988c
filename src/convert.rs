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
    /// The file appears under its name only when it is whole and synced. Memory stays within a few MiB a
    /// thread, whatever the model's size.
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
        let options = options.into();
        let plan = Plan::new(self, options.to)?;
        let file = OutputFile::create(output.as_ref(), plan.file_len, options.force, self.path())?;
        file.write_at(0, &plan.header)?;
        run::run(&plan, &file, &options)?;
        verify(&plan, &file)?;
        options.cancel.check()?;
        file.commit()?;
        Ok(plan.report)
    }

    /// As [`remember`](Self::remember), into memory: the bytes of a safetensors file.
    ///
    /// # Errors
    /// As [`remember`](Self::remember), without the I/O of an output.
    pub fn remember_to_bytes(&self, options: impl Into<RememberOptions>) -> Result<Vec<u8>> {
        let options = options.into();
        let plan = Plan::new(self, options.to)?;
        let len = usize::try_from(plan.file_len).ok();
        let mut out = Vec::new();
        let reserved = len.is_some_and(|len| out.try_reserve_exact(len).is_ok());
        let Some(len) = len.filter(|_| reserved) else {
            let message = format!("no room for an output of {} bytes", plan.file_len);
            return Err(AnamnesisError::LimitExceeded { limit: "available_memory", message });
        };
        out.extend_from_slice(&plan.header);
        out.resize(len, 0);
        let sink = Mutex::new(out);
        run::run(&plan, &sink, &options)?;
        Ok(sink.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// What [`remember`](Self::remember) would do and how much it would write, without doing it.
    ///
    /// # Errors
    /// The first problem of the model.
    pub fn plan(&self, options: impl Into<RememberOptions>) -> Result<Report> {
        Ok(Plan::new(self, options.into().to)?.report)
    }

    pub(crate) fn resolve(&self) -> Resolution<'_> {
        Resolution::new(self)
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
