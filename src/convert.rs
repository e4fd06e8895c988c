//! The conversion pipeline: options, a plan of every output tensor and its offset, workers that write the data, and a report.

mod bodies;
mod cast;
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
#[cfg(feature = "cli")]
mod footprint;
pub(crate) mod hashed;
mod manifest;
mod names;
mod options;
mod outcome;
mod output;
mod overlap;
pub(crate) mod pair;
mod plan;
pub(crate) mod progress;
mod report;
mod run;
mod sidecars;
mod stream;
mod summary;
mod tensors;
#[cfg(feature = "models")]
mod whole;
#[cfg(not(feature = "models"))]
#[path = "convert/no_whole.rs"]
mod whole;
mod window;

use std::path::{Path, PathBuf};

pub(crate) use self::cast::coordinates;
#[cfg(feature = "cli")]
pub(crate) use self::destination::partial_path;
pub use self::directory::finish_parts;
#[cfg(feature = "cli")]
pub(crate) use self::directory::{finish, is_input_of, settle};
pub use self::names::{NameChanges, parse_renames};
pub use self::options::{ConvertOptions, FloatCast, ModelScope, Progress, RememberOptions};
pub use self::report::{Distance, Encoded, Errors, FileSum, Kept, Report, TensorErrors};
pub use self::stream::Panel;
pub use self::tensors::OutputTensor;
use self::tensors::VerifiedInputs;
use self::window::OutputWindow;
use crate::containers::model::{NameIndex, ParsedModel};
use crate::containers::write::Sink;
use crate::containers::write::atomic::{OutputFile, OutputPlace};
use crate::limits::{Budget, zeroed};
use crate::source::Source;
use crate::{AnamnesisError, Result};
use hashed::HashingSink;
use plan::{Plan, PlannedFile};
use progress::ProgressSum;

impl ParsedModel {
    /// Decodes every quantized tensor and writes a safetensors file. Other tensors are copied unchanged.
    ///
    /// The file appears under its name only when it is complete and synced; it then replaces an older file. Besides the
    /// header, a thread needs at most 4 MiB of memory, whatever the size of the model. A model in a directory becomes a
    /// directory, which replaces an older one if that has weights.
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
    /// - `Parse`, `Unsupported` or `LimitExceeded`: the first tensor that cannot be decoded. It is found before
    ///   anything is written, unless the fault is in the tensor's data.
    /// - `Io`: the output is the input, or does not fit on the disk; it exists and the options say
    ///   [`no_replace`](RememberOptions::no_replace); a file of the input has changed since it was parsed; or the operating
    ///   system fails.
    /// - `Cancelled`: the token of the options is set.
    ///
    /// After an error there is no output under its name. An unfinished directory stays beside it, hidden, and
    /// can be resumed.
    pub fn remember(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<RememberOptions>,
    ) -> Result<Report> {
        self.recovery(options.into())?.write(output)
    }

    /// Decodes every quantized tensor and returns the bytes of a safetensors file, the same bytes that
    /// [`remember`](Self::remember) writes to one file.
    ///
    /// # Errors
    /// - `Parse`, `Unsupported` or `LimitExceeded`: a tensor that cannot be decoded, or no memory for the file.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed.
    /// - `Cancelled`: the token of the options is set.
    pub fn remember_to_bytes(&self, options: impl Into<RememberOptions>) -> Result<Vec<u8>> {
        let mut options = ConvertOptions::from(options.into());
        options.single_file = true;
        self.recovery(options)?.to_bytes()
    }

    /// Writes the model into the container that the options name, in constant memory.
    ///
    /// From GGUF to GGUF, quantized blocks are copied, unless the options ask for decoding. Every other quantized
    /// tensor is decoded.
    ///
    /// # Errors
    /// - `Unsupported`: the container cannot hold a tensor, or this build leaves it out.
    /// - The errors of [`remember`](Self::remember).
    pub fn convert(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<ConvertOptions>,
    ) -> Result<Report> {
        self.recovery(options)?.write(output)
    }

    /// Encodes the model's weights to a quantization scheme, which also determines the container.
    ///
    /// Tensors that are quantized already are decoded first. The report lists the tensors that were encoded, those that were
    /// not with the reason, and the error that encoding introduced.
    ///
    /// ```
    /// use anamnesis::ForgetScheme;
    ///
    /// # fn main() -> anamnesis::Result<()> {
    /// # let directory = tempfile::tempdir()?;
    /// # let output = directory.path().join("model-nf4.safetensors");
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let report = model.forget(output, ForgetScheme::NF4)?;
    /// println!("{} tensors encoded", report.encoded.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Unsupported`: a value that the scheme cannot hold, such as NaN.
    /// - The errors of [`remember`](Self::remember).
    #[cfg(feature = "lethe")]
    pub fn forget(
        &self,
        output: impl AsRef<Path>,
        options: impl Into<ConvertOptions>,
    ) -> Result<Report> {
        self.recovery(options)?.write(output)
    }

    /// Plans a conversion: every output tensor with its type, size and place. Reads no tensor data except the small
    /// tensors that describe a quantization.
    ///
    /// # Errors
    /// - `Parse` or `Unsupported`: the first tensor that cannot be converted, or options that contradict each other.
    /// - `LimitExceeded`: the output's tensors are larger than the limits of the model allow.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed.
    pub fn recovery(&self, options: impl Into<ConvertOptions>) -> Result<Recovery<'_>> {
        let options = options.into().with_default_encoding()?;
        let plan = Plan::new(self, &options)?;
        Budget::new(&self.limits).grow(plan.data_len, "the output's tensors")?;
        Ok(Recovery {
            plan,
            model: self,
            options,
            names: NameIndex::default(),
            verified: VerifiedInputs::default(),
        })
    }
}

/// A planned conversion, made by [`ParsedModel::recovery`]. It can be inspected before [`write`](Self::write) carries it out,
/// and makes single tensors by name ([`tensor`](Self::tensor)).
///
/// Planning is the expensive part of a small request, so a program that loads tensors one by one keeps one `Recovery`. Threads
/// may share it.
pub struct Recovery<'m> {
    plan: Plan<'m>,
    model: &'m ParsedModel,
    options: ConvertOptions,
    /// The output tensors by name.
    names: NameIndex,
    verified: VerifiedInputs,
}

impl<'m> Recovery<'m> {
    /// The report as far as it is known before the work: which tensors are decoded, copied, encoded and left out.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.plan.report
    }

    /// Upper bound in bytes of the memory that the work takes: the buffers of its threads and the tables of tensors.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        let threads = run::threads(&self.options.run) as u64;
        let tables = self.plan.outputs.len() as u64 * 1024 + self.model.header_size as u64 * 2;
        threads * (4 << 20) + tables + (8 << 20)
    }

    /// Whether the output is a directory of shards rather than one file.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.plan.shard_names.is_some()
    }

    /// Paths of the weight files that [`write`](Self::write) creates for `output`.
    ///
    /// One file is `output` itself. A split GGUF is `NAME-00001-of-0000N.gguf` and so on, beside `output`. A directory has its
    /// shards in `output`.
    #[must_use]
    pub fn paths(&self, output: impl AsRef<Path>) -> Vec<PathBuf> {
        let (output, target) = (output.as_ref(), self.options.target);
        if let Some(names) = &self.plan.shard_names {
            return names.iter().map(|name| output.join(name)).collect();
        }
        if self.plan.files.len() == 1 {
            return vec![output.to_path_buf()];
        }
        // The stem need not be Unicode: the numbers are made alone, and follow it.
        let has_extension = output.extension().is_some_and(|e| e == target.extension());
        let stem = match has_extension {
            true => output.file_stem(),
            false => output.file_name(),
        };
        let stem = stem.unwrap_or_default();
        let numbers = self.plan.file_names(target, "");
        let named = numbers.iter().map(|number| {
            let mut name = stem.to_owned();
            name.push(number);
            output.with_file_name(name)
        });
        named.collect()
    }

    /// Carries out the plan and writes the output file, files or directory. Returns the complete report.
    ///
    /// # Errors
    /// - `Io`: the output is the input, or does not fit on the disk; it exists and the options say
    ///   [`no_replace`](RememberOptions::no_replace); an unfinished directory is there; a file of the input has changed since
    ///   it was parsed; or the operating system fails.
    /// - `Unsupported`: the options ask for a part, or to resume, and the output is no directory.
    /// - `Parse`: a tensor's data is malformed, or does not match its checksum.
    /// - `Cancelled`: the token of the options is set.
    pub fn write(&self, output: impl AsRef<Path>) -> Result<Report> {
        let Self {
            plan,
            model,
            options,
            ..
        } = self;
        if let Some(names) = &plan.shard_names {
            let writer = directory::PartWriter {
                plan,
                model,
                options,
                names,
            };
            let made = writer.write(output.as_ref())?;
            let mut report = self.final_report();
            report.notes.extend(made.notes);
            report.sha256 = made.sha256;
            return Ok(report);
        }
        for (is_set, what, can_be) in [
            (options.part.is_some(), "part", "is made in parts"),
            (options.resume, "resume", "can be continued"),
        ] {
            if is_set {
                let those = container::titles(|container| container.directory().is_some());
                let detail = format!("only a directory of {those} {can_be}");
                return Err(AnamnesisError::unsupported(what, detail));
            }
        }
        let (inputs, options): (Vec<_>, _) = (model.sources.iter().collect(), &options.run);
        // All files are created, at their full length, before the first job: what is wrong with a path shows at once.
        let mut files = Vec::with_capacity(plan.files.len());
        let paths = self.paths(output);
        for (path, planned) in paths.iter().zip(&plan.files) {
            let mut companions = model.companions().chain(plan.companions());
            if let Some(read) = companions.find(|companion| companion.is_at(path)) {
                let what = format!("the output is `{}`, which is read", read.path.display());
                let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
                return Err(AnamnesisError::io_at(path, &error));
            }
            let place = OutputPlace {
                force: options.replaces(),
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
        let done = ProgressSum::new(options, plan.data_len, plan.outputs.len());
        let run = run::Run::new(plan, plan.all(), options, &done);
        let hashing = match self.options.sha256 {
            true => Some(HashingSink::new(
                &files,
                plan,
                (0, files.len()),
                &options.cancel,
            )?),
            false => None,
        };
        match &hashing {
            Some(hashing) => run.run(hashing)?,
            None => run.run(&files)?,
        }
        run.patch(&files)?;
        let sums = hashing.map_or(Ok(vec![]), HashingSink::finish)?;
        for (file, planned) in files.iter().zip(&plan.files) {
            verify_header(planned, file)?;
        }
        model.require_unchanged()?;
        plan.require_unchanged()?;
        options.cancel.check()?;
        // The first file of several is named last. Readers of a split model open the first file, so until then nobody sees a
        // model of which a part is missing.
        files.into_iter().rev().try_for_each(OutputFile::commit)?;
        let mut report = self.final_report();
        let sums = paths.into_iter().zip(sums);
        report.sha256 = sums
            .map(|(file, sha256)| FileSum { file, sha256 })
            .collect();
        Ok(report)
    }

    /// The report with what only the work has shown: the error of encoding and the warnings of encoders.
    fn final_report(&self) -> Report {
        let mut report = self.plan.report.clone();
        report.distance = encode::distance(&self.plan);
        report.notes.extend(encode::warnings(&self.plan));
        report
    }

    /// Carries out the plan in memory and returns the bytes of the output file.
    ///
    /// # Errors
    /// - `Unsupported`: the output has several files.
    /// - `LimitExceeded`: there is no memory for the output.
    /// - `Io`: the input cannot be read, or one of its files has changed since it was parsed.
    /// - `Parse`: a tensor's data is malformed, or does not match its checksum.
    /// - `Cancelled`: the token of the options is set.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let plan = &self.plan;
        let [file] = plan.files.as_slice() else {
            return Err(AnamnesisError::unsupported(
                "an output in several files",
                "it cannot be made in memory",
            ));
        };
        let mut bytes = zeroed(file.len, "an output")?;
        let sink = OutputWindow::new(0, &mut bytes);
        file.pieces
            .iter()
            .try_for_each(|(at, piece)| sink.write_at(0, *at, piece))?;
        let done = ProgressSum::new(&self.options.run, plan.data_len, plan.outputs.len());
        let run = run::Run::new(plan, plan.all(), &self.options.run, &done);
        run.run(&sink)?;
        run.patch(&sink)?;
        self.model.require_unchanged()?;
        plan.require_unchanged()?;
        Ok(bytes)
    }
}

#[cfg(feature = "benchmarks")]
impl Recovery<'_> {
    /// Carries out the plan on one thread with the instruction set `level`, and discards the bytes.
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
        run::Run::new(
            &self.plan,
            self.plan.all(),
            &options,
            &ProgressSum::silent(),
        )
        .run(&Nowhere)
    }

    /// Sets the instruction set that the plan's jobs use.
    pub(crate) fn set_level(&mut self, level: crate::simd::Level) {
        self.options.run.level = level;
    }
}

/// Reads the header of a written file back and compares it with the plan.
///
/// # Errors
/// `Io` if the file has another header or length: the file system has lost a write without an error.
fn verify_header(planned: &PlannedFile, file: &OutputFile) -> Result<()> {
    let source = Source::from_file(file.file())?;
    // A file with several pieces is a ZIP archive: its headers contain CRC-32s, which are zero in the plan and have been patched
    // since. They begin at byte 14 of a local header, so only the bytes before are compared.
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
