//! [`Conversion`]: a planned conversion, and how it is carried out.

use std::path::{Path, PathBuf};

use super::directory::PartWriter;
use super::hashed::HashingSink;
use super::plan::Plan;
use super::progress::ProgressSum;
use super::run::Run;
use super::tensors::VerifiedInputs;
use super::window::OutputWindow;
use super::{ConvertOptions, FileSum, Report, container, encodings, overflow};
use crate::limits::zeroed;
use crate::model::{NameIndex, ParsedModel};
use crate::source::Source;
use crate::source::inputs::Inputs;
use crate::write::Sink;
use crate::write::atomic::{OutputFile, OutputPlace, commit_all};
use crate::{AnamnesisError, QuantScheme, Result};

/// A planned conversion, made by [`ParsedModel::plan`]. It can be inspected before
/// [`write`](Self::write) carries it out, and makes single tensors by name
/// ([`tensor`](Self::tensor)).
///
/// Planning is the expensive part of a small request, so a program that loads tensors one by one
/// keeps one `Conversion`. Threads may share it.
pub struct Conversion<'m> {
    pub(super) plan: Plan<'m>,
    pub(super) model: &'m ParsedModel,
    pub(super) options: ConvertOptions,
    /// The output tensors by name.
    pub(super) names: NameIndex,
    pub(super) verified: VerifiedInputs,
}

impl<'m> Conversion<'m> {
    /// The report as far as it is known before the work: which tensors are decoded, copied, encoded
    /// and left out.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.plan.report
    }

    /// Upper bound in bytes of the memory that the work takes: the buffers of its threads and the
    /// tables of tensors.
    #[must_use]
    pub fn peak_memory(&self) -> u64 {
        let threads = self.options.run.worker_threads() as u64;
        let tables = self.plan.outputs.len() as u64 * 1024 + self.model.header_size as u64 * 2;
        let schemes = &mut self.plan.report.schemes.iter();
        let has_codebooks = schemes.any(|s| matches!(s.scheme, QuantScheme::Vectors { .. }));
        // Codes that are packed across rows take 8 MiB, all others half of it. To these come
        // codebooks of 16 MiB, or the right factors of products of low rank, of 8 MiB.
        let of_thread = if has_codebooks { 20 } else { 12 };
        threads * (of_thread << 20) + tables + (4 << 20)
    }

    /// What the output is made from.
    pub(crate) fn inputs(&self) -> Inputs<'_> {
        self.plan.inputs(self.model, &self.options)
    }

    /// Whether the output is a directory of shards rather than one file.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.plan.shard_names.is_some()
    }

    /// Paths of the weight files that [`write`](Self::write) creates for `output`.
    ///
    /// One file is `output` itself. A split GGUF is `NAME-00001-of-0000N.gguf` and so on, beside
    /// `output`. A directory has its shards in `output`.
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

    /// Carries out the plan and writes the output file, files or directory. Returns the complete
    /// report.
    ///
    /// # Errors
    /// - `Io`: the output is the input, or does not fit on the disk; it exists and the options say
    ///   [`no_replace`](super::RememberOptions::no_replace); an unfinished directory is there; a
    ///   file of the input has changed since it was parsed; or the operating system fails.
    /// - `Unsupported`: the options ask for a part, or to resume, and the output is no directory.
    /// - `Parse`: a tensor's data is malformed, or does not match its checksum.
    /// - `Cancelled`: the token of the options is set.
    pub fn write(&self, output: impl AsRef<Path>) -> Result<Report> {
        let output = output.as_ref();
        let written = match &self.plan.shard_names {
            Some(names) => self.write_directory(output, names),
            None => self.write_files(output),
        };
        if self.options.run.uncached {
            self.model.sources.iter().for_each(Source::forget_cached);
        }
        written
    }

    fn write_directory(&self, output: &Path, names: &[String]) -> Result<Report> {
        let writer =
            PartWriter { plan: &self.plan, model: self.model, options: &self.options, names };
        let made = writer.write(output)?;
        let mut report = self.final_report();
        report.notes.extend(made.notes);
        report.sha256 = made.sha256;
        Ok(report)
    }

    /// Writes the output as a file, or as several beside each other.
    fn write_files(&self, output: &Path) -> Result<Report> {
        self.require_no_directory()?;
        let (plan, options) = (&self.plan, &self.options.run);
        let paths = self.paths(output);
        let files = self.create_files(&paths)?;
        let done = ProgressSum::new(options, plan.data_len, plan.outputs.len());
        let run = Run::new(plan, plan.all(), options, &done);
        let all = (0, files.len());
        let hashing = self.options.sha256;
        let hashing = hashing.then(|| HashingSink::new(&files, plan, all, &options.cancel));
        let hashing = hashing.transpose()?;
        match &hashing {
            Some(hashing) => run.run(hashing)?,
            None => run.run(&files)?,
        }
        run.patch(&files)?;
        let sums = hashing.map_or(Ok(vec![]), HashingSink::finish)?;
        for (i, file) in files.iter().enumerate() {
            verify_header(plan, i, file)?;
        }
        self.model.require_unchanged()?;
        plan.require_unchanged()?;
        options.cancel.check()?;
        commit_all(files)?;
        let mut report = self.final_report();
        let sums = paths.into_iter().zip(sums);
        report.sha256 = sums
            .map(|(file, sha256)| FileSum { file, sha256 })
            .collect();
        Ok(report)
    }

    /// Fails if the options ask for what a directory alone can do.
    fn require_no_directory(&self) -> Result<()> {
        for (is_set, what, can_be) in [
            (self.options.part.is_some(), "--part", "is made in parts"),
            (self.options.resume, "--resume", "can be continued"),
        ] {
            if is_set {
                let those = container::titles(|container| container.directory().is_some());
                return Err(AnamnesisError::usage(format!(
                    "{what}: only a directory of {those} {can_be}"
                )));
            }
        }
        Ok(())
    }

    /// Creates all files, at their full length, before the first job: what is wrong with a path
    /// shows at once.
    fn create_files(&self, paths: &[PathBuf]) -> Result<Vec<OutputFile>> {
        let (plan, model) = (&self.plan, self.model);
        let place = OutputPlace {
            force: self.options.run.replaces(),
            inputs: &plan.inputs(model, &self.options),
            space: plan.report.output_bytes,
            is_uncached: self.options.run.uncached,
        };
        let mut files = Vec::with_capacity(plan.files.len());
        for (i, (path, planned)) in paths.iter().zip(&plan.files).enumerate() {
            let file = OutputFile::create(path, planned.len, &place)?;
            plan.pieces(i)?
                .iter()
                .try_for_each(|(at, piece)| file.write_at(*at, piece))?;
            files.push(file);
        }
        Ok(files)
    }

    /// The report with what only the work has shown: the error of encoding, the warnings of
    /// encoders, and values that F16 does not hold.
    fn final_report(&self) -> Report {
        let (mut report, outputs) = (self.plan.report.clone(), &*self.plan.outputs);
        report.distance = encodings::distance(outputs);
        report.notes.extend(encodings::warnings(outputs));
        report.notes.extend(overflow::notes(outputs));
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
        plan.pieces(0)?
            .iter()
            .try_for_each(|(at, piece)| sink.write_at(0, *at, piece))?;
        let done = ProgressSum::new(&self.options.run, plan.data_len, plan.outputs.len());
        let run = Run::new(plan, plan.all(), &self.options.run, &done);
        run.run(&sink)?;
        run.patch(&sink)?;
        self.model.require_unchanged()?;
        plan.require_unchanged()?;
        Ok(bytes)
    }
}

#[cfg(feature = "benchmarks")]
impl Conversion<'_> {
    /// Carries out the plan on one thread with the instruction set `level`, and discards the bytes.
    pub(crate) fn decode_only(&self, level: crate::simd::Level) -> Result<()> {
        struct Nowhere;
        impl Sink for Nowhere {
            fn write_at(&self, _file: usize, _offset: u64, bytes: &[u8]) -> Result<()> {
                std::hint::black_box(bytes);
                Ok(())
            }
        }
        let options =
            super::RememberOptions { level, threads: Some(1), ..self.options.run.clone() };
        Run::new(&self.plan, self.plan.all(), &options, &ProgressSum::silent()).run(&Nowhere)
    }

    /// Sets the instruction set that the plan's jobs use.
    pub(crate) fn set_level(&mut self, level: crate::simd::Level) {
        self.options.run.level = level;
    }
}

/// Reads the header of a written file back and compares it with the plan.
///
/// # Errors
/// `Io` if the file has another header or length: the file system has lost a write without an
/// error.
fn verify_header(plan: &Plan<'_>, no: usize, file: &OutputFile) -> Result<()> {
    let pieces = plan.pieces(no)?;
    let source = Source::from_file(file.file())?;
    // A file with several pieces is a ZIP archive: its headers contain CRC-32s, which are zero in
    // the plan and have been patched since. They begin at byte 14 of a local header, so only the
    // bytes before are compared.
    let (at, piece) = &pieces[0];
    let mut header = vec![0; if pieces.len() == 1 { piece.len() } else { 14 }];
    source.read_at(*at, &mut header)?;
    if !piece.starts_with(&header) || source.len() != Some(plan.files[no].len) {
        return Err(std::io::Error::other(
            "the output reads back differently from what was written",
        )
        .into());
    }
    Ok(())
}
