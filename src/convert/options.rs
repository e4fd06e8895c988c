//! The options of a conversion.

use std::fmt;
use std::sync::Arc;

use super::adapters::Adapter;
use super::encode;
use super::names::NameChanges;
#[cfg(feature = "gguf")]
use crate::containers::model::gguf::GgufMetadataValue;
#[cfg(feature = "lethe")]
use crate::forget::Forget;
use crate::simd::Level;
use crate::{CancelToken, ConvertTarget, ParsedModel, Result, TargetDtype};

/// The progress of a conversion, or of reading the values of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of tensor data written or compared so far.
    pub done_bytes: u64,
    /// Bytes of tensor data in the whole output; of a comparison or a check, all bytes that it reads or decodes.
    pub total_bytes: u64,
    /// Tensors that are done.
    pub done_tensors: usize,
    /// Tensors of the whole output, or all that are compared or checked.
    pub total_tensors: usize,
    /// Index of the output's file that was written to last, as in [`Recovery::paths`](crate::Recovery::paths).
    pub file: usize,
    /// Bytes that the last job added.
    pub(crate) step_bytes: u64,
}

pub(super) type Callback = Arc<dyn Fn(Progress) + Send + Sync>;

/// What becomes of tensors that hold floats and are not quantized: F64, F32, F16 and BF16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FloatCast {
    /// They keep their dtype.
    #[default]
    Keep,
    /// They are rounded to [`RememberOptions::to`], to nearest even as torch's `.to()` does. A finite value beyond its range is an
    /// error.
    Checked,
    /// They are rounded, and a finite value beyond the range becomes the largest finite value. Infinities and NaN stay.
    Saturating,
}

/// Options of [`remember`](crate::ParsedModel::remember). A [`TargetDtype`] converts into them, with defaults for the rest.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct RememberOptions {
    /// Element type of decoded weights.
    pub to: TargetDtype,
    /// Whether tensors of plain floats are converted to `to`, too. Integers, booleans and complex numbers never are; FP8
    /// without scales is decoded like quantized tensors. Of a model whose dtypes follow from its class (between GGUF and
    /// Hugging Face), tensors of the class are as without it, and of a GGUF output vectors become F32, as llama.cpp wants them.
    pub cast: FloatCast,
    /// Worker threads; one for each core by default.
    pub threads: Option<usize>,
    /// Whether an existing output is replaced even if `no_replace` is set, and an unfinished directory that is not resumed is
    /// begun anew.
    pub force: bool,
    /// Whether an existing output is an error. By default it is replaced when the new one is complete.
    pub no_replace: bool,
    /// Whether nothing of input and output stays in the system's cache, where it can be told (Linux).
    pub uncached: bool,
    /// Token that stops the conversion from another thread.
    pub cancel: CancelToken,
    pub(crate) progress: Option<Callback>,
    /// Instruction set that the kernels use. The output does not depend on it.
    pub(crate) level: Level,
}

impl RememberOptions {
    /// Returns default options with the element type `to`.
    #[must_use]
    pub fn new(to: TargetDtype) -> Self {
        Self {
            to,
            ..Self::default()
        }
    }

    /// Sets whether tensors of plain floats are converted to the element type, too.
    #[must_use]
    pub fn with_cast(mut self, cast: FloatCast) -> Self {
        self.cast = cast;
        self
    }

    /// Sets the number of worker threads; 0 counts as 1. The output does not depend on it.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Makes an existing output an error: nothing is replaced. `with_force(false)` says the same.
    #[must_use]
    pub fn no_replace(self) -> Self {
        self.with_force(false)
    }

    /// Sets whether an existing output is replaced. With `true`, an unfinished directory that is not resumed is also begun
    /// anew, which by default is an error.
    #[must_use]
    pub fn with_force(mut self, force: bool) -> Self {
        (self.force, self.no_replace) = (force, !force);
        self
    }

    /// Whether an existing output is replaced.
    pub(crate) fn replaces(&self) -> bool {
        self.force || !self.no_replace
    }

    /// Sets whether nothing of input and output stays in the system's cache, so that other programs keep what they have there.
    #[must_use]
    pub fn with_uncached(mut self, uncached: bool) -> Self {
        self.uncached = uncached;
        self
    }

    /// Sets the token that stops the conversion.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sets a function that is called after every job, on the worker thread that did it.
    #[must_use]
    pub fn with_progress(mut self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }
}

impl From<TargetDtype> for RememberOptions {
    fn from(to: TargetDtype) -> Self {
        Self::new(to)
    }
}

impl From<&RememberOptions> for RememberOptions {
    fn from(options: &RememberOptions) -> Self {
        options.clone()
    }
}

/// How much of a model an output has beside its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ModelScope {
    /// A Hugging Face model becomes a whole GGUF model if its config names a class; everything else is written as tensors.
    #[default]
    Auto,
    /// The tensors, under the names that they have.
    Tensors,
    /// A model that runs: tensors under the other side's names, settings and tokenizer. What cannot be one is an error.
    Model,
}

/// Options of [`convert`](crate::ParsedModel::convert). A [`ConvertTarget`] converts into them, with defaults for the rest.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// Container of the output.
    pub target: ConvertTarget,
    /// Element type of decoded tensors, threads, replacement, cancellation and progress.
    pub run: RememberOptions,
    /// Whether quantized tensors that the container could hold unchanged are decoded: GGUF blocks, FP8 without scales.
    pub decode: bool,
    /// Metadata of a GGUF output. Each key replaces that of the input.
    #[cfg(feature = "gguf")]
    pub gguf_metadata: Vec<(String, GgufMetadataValue)>,
    /// Whether arrays that no tensor can hold (text, objects, …) are left out. By default they are an error.
    pub skip_unsupported: bool,
    /// Most bytes of tensor data in a file of the output; a larger tensor gets a file of its own. With a limit,
    /// safetensors files are written to a directory with an index. `None`: a directory of safetensors is split as the input
    /// is, and everything else is one file.
    pub max_shard_size: Option<u64>,
    /// Whether a model in many files becomes one file. By default a directory becomes a directory of safetensors.
    pub single_file: bool,
    /// Names of the output tensors to keep: patterns with `*` and `?`, or `re:` and a regular expression. With the
    /// feature `patterns` they have `[a-c]`, `[!a]`, `{a,b}` and, in expressions, look-around, too. If empty, all are kept.
    pub include: Vec<String>,
    /// Names of the output tensors to leave out, in the same notation. It takes precedence over `include`.
    pub exclude: Vec<String>,
    /// Tensors that get other names, and tensors that are left out.
    pub names: NameChanges,
    /// Which part of a directory is made, and the number of parts; parts count from 1. When all parts are done,
    /// [`finish_parts`](crate::finish_parts) gives the directory its name.
    pub part: Option<(usize, usize)>,
    /// Whether the SHA-256 of each output file is computed while it is written; see [`Report::sha256`](crate::Report). It takes
    /// the feature `check`, and does not concern outputs in memory and streams.
    pub sha256: bool,
    /// Whether an unfinished directory is continued. It must have been begun with the same options and input.
    pub resume: bool,
    /// Whether the output is a model that other programs run, or only its tensors.
    pub scope: ModelScope,
    /// llama.cpp's name of the pre-tokenizer, for a GGUF file of a whole model; `None`: the one that fits.
    pub pre_tokenizer: Option<String>,
    /// Adapters that are merged into the weights, in this order. A weight that one changes is decoded, and keeps its dtype or,
    /// if it is quantized, gets that of decoded tensors.
    pub adapters: Vec<Adapter>,
    /// Whether every tensor is copied as it is stored, whatever scheme it belongs to.
    pub(crate) copies_all: bool,
    /// The scheme that tensors are encoded to, and which tensors. `None`: nothing is encoded.
    #[cfg(feature = "lethe")]
    pub forget: Option<Forget>,
}

impl ConvertOptions {
    /// Returns default options with the container `target`.
    #[must_use]
    pub fn new(target: ConvertTarget) -> Self {
        Self {
            target,
            ..Self::default()
        }
    }

    /// Options that copy every tensor to the container `target` as it is stored.
    #[cfg_attr(not(feature = "pth"), allow(dead_code))]
    pub(crate) fn copying(target: ConvertTarget) -> Self {
        Self {
            copies_all: true,
            ..Self::new(target)
        }
    }

    /// Sets the element type, threads, replacement, cancellation and progress.
    #[must_use]
    pub fn with_run(mut self, run: RememberOptions) -> Self {
        self.run = run;
        self
    }

    /// Sets whether quantized tensors are decoded that the container could hold unchanged.
    #[must_use]
    pub fn with_decode(mut self, decode: bool) -> Self {
        self.decode = decode;
        self
    }

    /// Sets metadata of a GGUF output. Each key replaces that of the input.
    #[cfg(feature = "gguf")]
    #[must_use]
    pub fn with_gguf_metadata(mut self, metadata: Vec<(String, GgufMetadataValue)>) -> Self {
        self.gguf_metadata = metadata;
        self
    }

    /// Sets whether arrays that no tensor can hold are left out.
    #[must_use]
    pub fn with_skip_unsupported(mut self, skip: bool) -> Self {
        self.skip_unsupported = skip;
        self
    }

    /// Sets which tensors get other names, and which are left out.
    #[must_use]
    pub fn with_names(mut self, names: NameChanges) -> Self {
        self.names = names;
        self
    }

    /// Splits the output into files of at most `bytes` bytes of tensor data.
    #[must_use]
    pub fn with_max_shard_size(mut self, bytes: u64) -> Self {
        self.max_shard_size = Some(bytes);
        self
    }

    /// Makes an existing output an error: nothing is replaced.
    #[must_use]
    pub fn no_replace(mut self) -> Self {
        self.run = self.run.no_replace();
        self
    }

    /// Makes only part `part` of `of` of an output directory. Parts count from 1.
    #[must_use]
    pub fn with_part(mut self, part: usize, of: usize) -> Self {
        self.part = Some((part, of));
        self
    }

    /// Sets whether the output is a model that other programs run, or only its tensors.
    #[must_use]
    pub fn with_scope(mut self, scope: ModelScope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets whether the SHA-256 of each output file is computed.
    #[must_use]
    pub fn with_sha256(mut self, sha256: bool) -> Self {
        self.sha256 = sha256;
        self
    }

    /// Sets the adapters that are merged into the weights.
    ///
    /// ```no_run
    /// use anamnesis::{Adapter, ConvertOptions, TargetDtype};
    ///
    /// # fn main() -> anamnesis::Result<()> {
    /// let adapter = Adapter::open("my-lora")?.with_weight(0.8);
    /// let options = ConvertOptions::from(TargetDtype::BF16).with_adapters(vec![adapter]);
    /// anamnesis::parse("base")?.convert("merged", options)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_adapters(mut self, adapters: Vec<Adapter>) -> Self {
        self.adapters = adapters;
        self
    }

    /// Sets whether an unfinished directory is continued.
    #[must_use]
    pub fn with_resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Fills in the scheme of a container that holds nothing else, if the caller named only the container.
    pub(crate) fn with_default_encoding(self) -> Result<Self> {
        match self.target.container().default_scheme {
            Some(scheme) if !self.encodes() => encode::with_scheme(self, scheme),
            _ => Ok(self),
        }
    }

    /// Whether the output of `model` is a directory.
    pub(crate) fn is_directory(&self, model: &ParsedModel) -> bool {
        let directory = self.target.container().directory();
        directory.is_some_and(|directory| (directory.is_made)(self, model))
    }

    /// Whether the GGUF blocks of `model` are copied to the output unchanged.
    pub(crate) fn carries_blocks(&self, model: &ParsedModel) -> bool {
        let writer = self.target.container().writer();
        let copies = writer.is_some_and(|writer| (writer.copies_blocks_of)(model));
        copies && !self.decode && !self.encodes() && self.adapters.is_empty()
    }

    /// All encoding options as text, to compare two runs; `None` if nothing is encoded.
    pub(crate) fn encoding_fingerprint(&self) -> Option<String> {
        encode::fingerprint(self)
    }

    /// Whether tensors are encoded.
    pub(crate) fn encodes(&self) -> bool {
        encode::is_asked_for(self)
    }
}

impl From<RememberOptions> for ConvertOptions {
    fn from(run: RememberOptions) -> Self {
        Self::default().with_run(run).with_decode(true)
    }
}

impl From<&RememberOptions> for ConvertOptions {
    fn from(run: &RememberOptions) -> Self {
        run.clone().into()
    }
}

impl From<&ConvertOptions> for ConvertOptions {
    fn from(options: &ConvertOptions) -> Self {
        options.clone()
    }
}

impl From<TargetDtype> for ConvertOptions {
    fn from(to: TargetDtype) -> Self {
        RememberOptions::new(to).into()
    }
}

impl From<ConvertTarget> for ConvertOptions {
    fn from(target: ConvertTarget) -> Self {
        Self::new(target)
    }
}

impl fmt::Debug for RememberOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            to,
            cast,
            threads,
            force,
            no_replace,
            uncached,
            cancel,
            progress,
            level,
        } = self;
        f.debug_struct("RememberOptions")
            .field("to", to)
            .field("cast", cast)
            .field("threads", threads)
            .field("force", force)
            .field("no_replace", no_replace)
            .field("uncached", uncached)
            .field("cancel", cancel)
            .field("progress", &progress.is_some())
            .field("level", level)
            .finish()
    }
}
