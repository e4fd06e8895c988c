//! Checking a model: structure, companions, configs, checksums; on request every value, and the
//! SHA-256 of its files.

mod digest;
mod input_scales;
#[cfg(feature = "models")]
mod loading;
mod tally;
mod templates;
mod values;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use crate::convert::progress::ProgressSum;
use crate::model::Tensor;
use crate::{AnamnesisError, Container, ParsedModel, RememberOptions, Result};

/// Options of [`ParsedModel::check`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CheckOptions {
    /// Threads and cancellation. The element type has no effect: quantized values are decoded to
    /// F32.
    pub run: RememberOptions,
    /// Whether every value is read: NaN, infinities, scales, and codes that cannot be decoded.
    /// Files in the caches of Hugging Face and Ollama, which are named by their SHA-256, are
    /// compared with it.
    pub data: bool,
    /// A list of SHA-256 sums as `sha256sum` writes it, with paths relative to its directory.
    pub manifest: Option<PathBuf>,
}

impl CheckOptions {
    /// Sets threads and cancellation.
    #[must_use]
    pub fn with_run(mut self, run: RememberOptions) -> Self {
        self.run = run;
        self
    }

    /// Sets whether every value is read.
    #[must_use]
    pub fn with_data(mut self, data: bool) -> Self {
        self.data = data;
        self
    }

    /// Sets the list of SHA-256 sums.
    #[must_use]
    pub fn with_manifest(mut self, manifest: impl Into<PathBuf>) -> Self {
        self.manifest = Some(manifest.into());
        self
    }
}

/// What a check has found in one model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CheckReport {
    /// File format; `None` if the model could not be parsed.
    pub container: Option<Container>,
    /// Number of stored tensors.
    pub tensors: usize,
    /// Bytes of the stored tensors.
    pub bytes: u64,
    /// Number of files whose SHA-256 was compared.
    pub hashed_files: usize,
    /// Everything that is wrong or suspicious; empty if the model is clean.
    pub findings: Vec<Finding>,
}

/// How grave a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Severity {
    /// Unusual, and possible in a model that works.
    Warning,
    /// The model is damaged, or cannot be decoded.
    Error,
}

/// Something that is wrong with a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How grave it is.
    pub severity: Severity,
    /// The file, if one is to blame.
    #[serde(serialize_with = "path_as_text")]
    pub file: Option<PathBuf>,
    /// The tensor, if one is to blame.
    pub tensor: Option<String>,
    /// What is wrong.
    pub message: String,
}

/// Paths need not be UTF-8, and JSON is: what is not becomes `U+FFFD`.
fn path_as_text<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let text = path.as_ref().map(|path| path.to_string_lossy());
    text.serialize(serializer)
}

impl Finding {
    fn new(severity: Severity, message: impl Into<String>) -> Self {
        Self { severity, file: None, tensor: None, message: message.into() }
    }

    /// A finding about a tensor.
    fn of_tensor(severity: Severity, t: &Tensor<'_>, message: impl Into<String>) -> Self {
        Self {
            file: t.file().map(Path::to_path_buf),
            tensor: Some(t.name().to_owned()),
            ..Self::new(severity, message)
        }
    }

    /// A finding about a file.
    fn of_file(severity: Severity, file: &Path, message: impl Into<String>) -> Self {
        Self { file: Some(file.to_path_buf()), ..Self::new(severity, message) }
    }

    /// An error of this crate, which says itself which tensor it is about.
    fn of_error(error: &AnamnesisError) -> Self {
        Self {
            tensor: error.tensor().map(str::to_owned),
            ..Self::new(Severity::Error, error.to_string())
        }
    }
}

/// Keeps the text of an error for a finding: only `Cancelled` ends a check.
fn unless_cancelled<T>(result: Result<T>) -> Result<std::result::Result<T, String>> {
    match result {
        Err(AnamnesisError::Cancelled) => Err(AnamnesisError::Cancelled),
        other => Ok(other.map_err(|error| error.to_string())),
    }
}

impl CheckReport {
    /// The report on a model at `path` that cannot be parsed.
    #[must_use]
    pub fn of_unreadable(path: &Path, error: &AnamnesisError) -> Self {
        Self {
            container: None,
            tensors: 0,
            bytes: 0,
            hashed_files: 0,
            findings: vec![Finding { file: Some(path.to_path_buf()), ..Finding::of_error(error) }],
        }
    }
}

impl ParsedModel {
    /// Looks for everything that is wrong with the model.
    ///
    /// Parsing has compared offsets with the files, and the index of a directory with its shards.
    /// This also finds tensors that cannot be decoded, parts of quantized weights that are missing
    /// or belong to nothing, contradictions of configs, bytes behind the last tensor, and wrong
    /// checksums of NPZ and PyTorch archives. The options can ask for every value and for the
    /// SHA-256 of files. Memory does not grow with the model.
    ///
    /// ```
    /// # fn main() -> anamnesis::Result<()> {
    /// use anamnesis::CheckOptions;
    ///
    /// let model = anamnesis::parse("tests/data/demo/model-fp8.safetensors")?;
    /// let report = model.check(&CheckOptions::default().with_data(true))?;
    /// assert!(report.findings.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `Io`: the manifest cannot be read, or a file has changed since it was parsed.
    /// - `Parse`: the manifest is malformed.
    /// - `Cancelled`: the token of the options is set.
    ///
    /// What is wrong with the model is no error, but a finding.
    pub fn check(&self, options: &CheckOptions) -> Result<CheckReport> {
        let mut findings = self.check_structure(options)?;
        let mut found_in_files = Vec::new();
        let expected = digest::expected(self, options, &mut found_in_files)?;
        let hashed_files = expected.len();
        let hashed_bytes = digest::byte_len(&expected);
        let done = match options.data {
            true => values::check(self, &options.run, hashed_bytes, &mut findings)?,
            false => ProgressSum::new(&options.run, hashed_bytes, 0),
        };
        findings.extend(found_in_files);
        digest::check(&expected, &options.run, &done, &mut findings)?;
        self.require_unchanged()?;
        Ok(CheckReport {
            container: Some(self.container()),
            tensors: self.tensors().len(),
            bytes: self.tensor_bytes(),
            hashed_files,
            findings,
        })
    }

    /// What the headers, the configs and the stored checksums show.
    fn check_structure(&self, options: &CheckOptions) -> Result<Vec<Finding>> {
        let resolution = self.resolve();
        let problems = resolution.problems.iter().map(|problem| Finding {
            file: problem.tensor.file().map(Path::to_path_buf),
            ..Finding::of_error(&problem.error)
        });
        let mut findings: Vec<Finding> = problems.collect();
        for assumption in &resolution.assumptions {
            let first = assumption.tensors.first();
            findings.extend(
                first.map(|t| Finding::of_tensor(Severity::Warning, t, assumption.to_string())),
            );
        }
        input_scales::check(self, &resolution, &mut findings);
        findings.extend(self.skipped_arrays().map(|(name, what)| Finding {
            tensor: Some(name.to_owned()),
            ..Finding::new(Severity::Warning, format!("no tensor can hold it: {what}"))
        }));
        self.check_ends(&mut findings);
        #[cfg(feature = "models")]
        if let Some(gguf) = self.gguf() {
            loading::check(self, gguf, &mut findings);
        }
        templates::check(self, &mut findings);
        // Each member once, however many tensors are views of it.
        let mut seen = HashSet::new();
        for t in self
            .tensors()
            .filter(|t| seen.insert(t.part().checksum_key()))
        {
            options.run.cancel.check()?;
            if let Err(error) = t.verify_checksum() {
                findings.push(Finding::of_tensor(Severity::Error, &t, error.to_string()));
            }
        }
        Ok(findings)
    }

    /// Adds the files of which bytes lie behind the last tensor. Archives have a directory there, and a
    /// graph or a tree is around its tensors.
    fn check_ends(&self, findings: &mut Vec<Finding>) {
        const AROUND: [Container; 15] = [
            Container::Npz,
            Container::Pth,
            Container::Onnx,
            Container::Msgpack,
            Container::Hdf5,
            Container::Tflite,
            Container::OpenVino,
            Container::TensorFlow,
            Container::CoreMl,
            Container::ExecuTorch,
            Container::Ggml,
            Container::MindSpore,
            Container::Mlc,
            Container::Paddle,
            Container::Zarr,
        ];
        if AROUND.contains(&self.container()) {
            return;
        }
        // GGUF writers may pad the last tensor, too.
        #[cfg(feature = "gguf")]
        let padding = self.gguf().map_or(0, |gguf| gguf.alignment().into());
        #[cfg(not(feature = "gguf"))]
        let padding = 0;
        let mut ends = vec![0; self.sources.len()];
        for t in &self.tensors {
            ends[t.source] = (t.offset + t.len).max(ends[t.source]);
        }
        for (source, &end) in self.sources.iter().zip(&ends) {
            let (Some(len), Some(path)) = (source.len(), source.path()) else {
                continue;
            };
            // A file without tensors has a header alone, of a length that is not kept for each
            // file.
            if end > 0 && len >= end + padding.max(1) {
                let what = format!("{} bytes lie behind the last tensor", len - end);
                findings.push(Finding::of_file(Severity::Warning, path, what));
            }
        }
    }
}
