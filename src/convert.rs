//! The pipeline: options, a plan that fixes every output byte, the workers that fill it, and the report.

mod bodies;
mod checksum;
mod container;
mod cut;
mod destination;
mod directory;
mod draft;
mod drafts;
#[cfg(feature = "lethe")]
mod encode;
#[cfg(not(feature = "lethe"))]
#[path = "convert/no_encode.rs"]
mod encode;
mod manifest;
mod options;
mod output;
mod plan;
mod report;
mod run;
mod sidecars;
mod stream;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

pub use self::directory::finish_parts;
pub use self::options::{ConvertOptions, Progress, RememberOptions};
pub use self::report::{Distance, Encoded, Errors, Kept, Report, TensorErrors};
pub use self::stream::Panel;
use crate::containers::model::ParsedModel;
use crate::containers::write::Sink;
use crate::containers::write::atomic::{OutputFile, OutputPlace};
use crate::limits::{Budget, zeroed};
use crate::source::Source;
use crate::{AnamnesisError, Result};
use plan::{Plan, PlannedFile};

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
    pub fn remember(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<RememberOptions>,
    ) -> Result<Report> {
        self.recovery(options.into())?.write(output)
    }

    /// As [`remember`](Self::remember), into memory: the bytes of a safetensors file.
    ///
    /// # Errors
    /// As [`remember`](Self::remember), without the I/O of an output.
    pub fn remember_to_bytes(&self, options: impl Into<RememberOptions>) -> Result<Vec<u8>> {
        let mut options = ConvertOptions::from(options.into());
        options.single_file = true;
        self.recovery(options)?.to_bytes()
    }

    /// Writes the model into the container that the options name, in constant memory.
    ///
    /// GGUF blocks go from GGUF to GGUF as they are, unless the options want them decoded; every other
    /// quantized tensor is decoded.
    ///
    /// # Errors
    /// As [`remember`](Self::remember); a tensor that the container cannot hold.
    pub fn convert(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<ConvertOptions>,
    ) -> Result<Report> {
        self.recovery(options)?.write(output)
    }

    /// Encodes a model into another precision: the scheme says which, and which container it takes. What is quantized
    /// already is decoded on the way; the report says what was encoded, what was not, and what it cost.
    ///
    /// # Errors
    /// As [`remember`](Self::remember); a value that the scheme cannot hold.
    #[cfg(feature = "lethe")]
    pub fn forget(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<ConvertOptions>,
    ) -> Result<Report> {
        self.recovery(options)?.write(output)
    }

    /// Plans a recovery or a conversion: everything that can be known before the work.
    ///
    /// # Errors
    /// The first problem of the model.
    pub fn recovery(&self, options: impl Into<ConvertOptions>) -> Result<Recovery<'_>> {
        let options = options.into().with_default_encoding()?;
        let plan = Plan::new(self, &options)?;
        Budget::new(&self.limits).grow(plan.data_len, "the output's tensors")?;
        Ok(Recovery {
            plan,
            model: self,
            options,
        })
    }
}

/// A planned recovery: what [`ParsedModel::remember`] does, in two steps.
pub struct Recovery<'m> {
    plan: Plan<'m>,
    model: &'m ParsedModel,
    options: ConvertOptions,
}

impl<'m> Recovery<'m> {
    /// What will be done.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.plan.report
    }

    fn part_writer(&self) -> directory::PartWriter<'_, 'm> {
        directory::PartWriter {
            plan: &self.plan,
            model: self.model,
            options: &self.options,
        }
    }

    /// Bytes of memory that the work takes at most: its threads, and what describes the tensors.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        let threads = run::threads(&self.options.run) as u64;
        let tables = self.plan.outputs.len() as u64 * 1024 + self.model.header_size as u64 * 2;
        threads * (4 << 20) + tables + (8 << 20)
    }

    /// Whether the output is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.plan.is_directory
    }

    /// The files that [`write`](Self::write) makes of `output`: itself, or `NAME-00001-of-0000N.gguf` and so on.
    #[must_use]
    pub fn paths(&self, output: impl AsRef<Path>) -> Vec<PathBuf> {
        let (output, count) = (output.as_ref(), self.plan.files.len());
        if self.plan.is_directory {
            return self
                .part_writer()
                .shard_names()
                .iter()
                .map(|name| output.join(name))
                .collect();
        }
        if count == 1 {
            return vec![output.to_path_buf()];
        }
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        (1..=count)
            .map(|no| output.with_file_name(format!("{stem}-{no:05}-of-{count:05}.gguf")))
            .collect()
    }

    /// Does it, into a file (or several); see [`ParsedModel::remember`].
    ///
    /// # Errors
    /// Whatever is wrong with the output's place; I/O; cancellation.
    pub fn write(&self, output: impl AsRef<Path>) -> Result<Report> {
        let Self {
            plan,
            model,
            options,
        } = self;
        if plan.is_directory {
            let notes = self.part_writer().write(output.as_ref())?;
            let mut report = self.done();
            report.notes.extend(notes);
            return Ok(report);
        }
        if options.part.is_some() {
            return Err(AnamnesisError::unsupported(
                "part",
                "only a directory of safetensors is made in parts",
            ));
        }
        if options.resume {
            return Err(AnamnesisError::unsupported(
                "resume",
                "only a directory of safetensors can be continued",
            ));
        }
        let (inputs, options): (Vec<_>, _) = (model.sources.iter().collect(), &options.run);
        let mut files = Vec::with_capacity(plan.files.len());
        for (path, planned) in self.paths(output).iter().zip(&plan.files) {
            let place = OutputPlace {
                force: options.force,
                inputs: &inputs,
                space: plan.report.output_bytes,
            };
            let file = OutputFile::create(path, planned.len, &place)?;
            planned
                .pieces
                .iter()
                .try_for_each(|(at, piece)| file.write_at(*at, piece))?;
            files.push(file);
        }
        run::run(plan, plan.all(), &files, options, &AtomicU64::new(0))?;
        run::patch(plan, &files)?;
        for (file, planned) in files.iter().zip(&plan.files) {
            verify(planned, file)?;
        }
        options.cancel.check()?;
        // The first file of several comes last: without it nobody opens the others.
        files.into_iter().rev().try_for_each(OutputFile::commit)?;
        Ok(self.done())
    }

    /// The report of what is done.
    fn done(&self) -> Report {
        let mut report = self.plan.report.clone();
        report.distance = encode::distance(&self.plan);
        report.notes.extend(encode::warnings(&self.plan));
        report
    }

    /// Does it, into memory.
    ///
    /// # Errors
    /// If there is no room, or the output is in several files; I/O of the input; cancellation.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let plan = &self.plan;
        let [file] = plan.files.as_slice() else {
            return Err(AnamnesisError::unsupported(
                "an output in several files",
                "it cannot be made in memory",
            ));
        };
        let sink = Mutex::new(zeroed(file.len, "an output")?);
        file.pieces
            .iter()
            .try_for_each(|(at, piece)| sink.write_at(0, *at, piece))?;
        run::run(
            plan,
            plan.all(),
            &sink,
            &self.options.run,
            &AtomicU64::new(0),
        )?;
        run::patch(plan, &sink)?;
        Ok(sink
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

#[cfg(feature = "benchmarks")]
impl Recovery<'_> {
    /// Does everything on one thread at `level`, and writes nothing.
    pub(crate) fn decode_only(&self, level: crate::simd::Level) -> Result<()> {
        struct Nowhere;
        impl Sink for Nowhere {
            fn write_at(&self, _file: usize, _offset: u64, bytes: &[u8]) -> Result<()> {
                std::hint::black_box(bytes);
                Ok(())
            }
        }
        let options = RememberOptions {
            level,
            threads: Some(1),
            ..self.options.run.clone()
        };
        run::run(
            &self.plan,
            self.plan.all(),
            &Nowhere,
            &options,
            &AtomicU64::new(0),
        )
    }
}

/// Reads the header back: what was written must be what was planned.
fn verify(planned: &PlannedFile, file: &OutputFile) -> Result<()> {
    let source = Source::from_file(file.file())?;
    // Of a file with checksums among its headers, the end is left out: those places were patched.
    let (at, piece) = &planned.pieces[0];
    let mut header = vec![
        0;
        if planned.pieces.len() == 1 {
            piece.len()
        } else {
            14
        }
    ];
    source.read_at(*at, &mut header)?;
    if !piece.starts_with(&header) || source.len() != Some(planned.len) {
        return Err(std::io::Error::other(
            "the output reads back differently from what was written",
        )
        .into());
    }
    Ok(())
}
