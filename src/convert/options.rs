//! How a conversion is to run.

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "gguf")]
use crate::containers::model::gguf::GgufMetadataValue;
#[cfg(feature = "lethe")]
use crate::forget::{Forget, ForgetScheme};
use crate::simd::Level;
use crate::{CancelToken, ConvertTarget, ParsedModel, Result, TargetDtype};

/// How far a conversion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of the output's data that are written.
    pub done_bytes: u64,
    /// Bytes of the output's data.
    pub total_bytes: u64,
}

type Callback = Arc<dyn Fn(Progress) + Send + Sync>;

/// Options of [`remember`](crate::ParsedModel::remember). A [`TargetDtype`] alone will do for most.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct RememberOptions {
    /// Element type of decoded weights.
    pub to: TargetDtype,
    /// Worker threads; one for each core by default.
    pub threads: Option<usize>,
    /// Whether an existing output is replaced.
    pub force: bool,
    /// Stops the conversion from outside.
    pub cancel: CancelToken,
    pub(crate) progress: Option<Callback>,
    /// Instruction set of the kernels; the output does not depend on it.
    pub(crate) level: Level,
}

impl RememberOptions {
    /// Options with `to` as the element type, and defaults.
    #[must_use]
    pub fn new(to: TargetDtype) -> Self {
        Self {
            to,
            ..Self::default()
        }
    }

    /// Runs on `threads` threads, at least one. The output does not depend on it.
    #[must_use]
    pub fn with_threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads.max(1));
        self
    }

    /// Replaces an existing output.
    #[must_use]
    pub fn with_force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Stops when `cancel` is set.
    #[must_use]
    pub fn with_cancel(mut self, cancel: CancelToken) -> Self {
        self.cancel = cancel;
        self
    }

    /// Calls `progress` after every job, from any of the worker threads.
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

/// Options of [`convert`](crate::ParsedModel::convert). A [`ConvertTarget`] alone will do for most.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConvertOptions {
    /// The container.
    pub target: ConvertTarget,
    /// Element type of what is decoded, threads, and the rest.
    pub run: RememberOptions,
    /// Whether what the target could carry is decoded all the same: GGUF blocks, FP8 without scales.
    pub decode: bool,
    /// Metadata for GGUF: it replaces the source's, key by key.
    #[cfg(feature = "gguf")]
    pub gguf_metadata: Vec<(String, GgufMetadataValue)>,
    /// Whether what no tensor can hold (arrays of text, of objects, …) is left out rather than an error.
    pub skip_unsupported: bool,
    /// Splits the output into files of at most so many bytes of tensors; a larger tensor is alone. safetensors files
    /// are then in a directory, with their index.
    pub max_shard_size: Option<u64>,
    /// Whether a model in many files becomes one file. By default safetensors of a directory are a directory.
    pub single_file: bool,
    /// Output tensors that are wanted: patterns with `*` and `?`, or `re:` and an expression. None: all.
    pub include: Vec<String>,
    /// Output tensors that are not wanted, likewise.
    pub exclude: Vec<String>,
    /// Which part of a directory is made, and of how many, from 1 on; [`finish_parts`](crate::finish_parts) joins them.
    pub part: Option<(usize, usize)>,
    /// Whether an unfinished directory with the same parameters is continued.
    pub resume: bool,
    /// What tensors are encoded to, and which.
    #[cfg(feature = "lethe")]
    pub forget: Option<Forget>,
}

impl ConvertOptions {
    /// Options with `target` as the container, and defaults.
    #[must_use]
    pub fn new(target: ConvertTarget) -> Self {
        Self {
            target,
            ..Self::default()
        }
    }

    /// Runs as `run` says.
    #[must_use]
    pub fn with_run(mut self, run: RememberOptions) -> Self {
        self.run = run;
        self
    }

    /// Decodes what the target could carry.
    #[must_use]
    pub fn with_decode(mut self, decode: bool) -> Self {
        self.decode = decode;
        self
    }

    /// Sets keys of the GGUF metadata.
    #[cfg(feature = "gguf")]
    #[must_use]
    pub fn with_gguf_metadata(mut self, metadata: Vec<(String, GgufMetadataValue)>) -> Self {
        self.gguf_metadata = metadata;
        self
    }

    /// Leaves out what no tensor can hold.
    #[must_use]
    pub fn with_skip_unsupported(mut self, skip: bool) -> Self {
        self.skip_unsupported = skip;
        self
    }

    /// Splits the output into files of at most `bytes` bytes of tensors.
    #[must_use]
    pub fn with_max_shard_size(mut self, bytes: u64) -> Self {
        self.max_shard_size = Some(bytes);
        self
    }

    /// Makes part `part` of `of`, from 1 on, of a directory.
    #[must_use]
    pub fn with_part(mut self, part: usize, of: usize) -> Self {
        self.part = Some((part, of));
        self
    }

    /// Continues an unfinished directory.
    #[must_use]
    pub fn with_resume(mut self, resume: bool) -> Self {
        self.resume = resume;
        self
    }

    /// Adds the scheme where only the container was named: QNAT holds nothing but NF4 tensors.
    pub(crate) fn complete(self) -> Result<Self> {
        #[cfg(feature = "lethe")]
        if self.target == ConvertTarget::Qnat && self.forget.is_none() {
            let forget = Some("qnat".parse::<ForgetScheme>()?.into());
            let run = RememberOptions {
                to: TargetDtype::F32,
                ..self.run
            };
            return Ok(Self {
                run,
                forget,
                ..self
            });
        }
        Ok(self)
    }

    /// Whether the output is a directory.
    pub(crate) fn is_directory(&self, model: &ParsedModel) -> bool {
        let many = model.directory.is_some() || self.max_shard_size.is_some();
        self.target == ConvertTarget::Safetensors && many && !self.single_file
    }

    /// Whether `model`'s GGUF blocks go into the output as they are.
    pub(crate) fn carries_blocks(&self, model: &ParsedModel) -> bool {
        self.target == ConvertTarget::Gguf && model.is_gguf() && !self.decode && !self.encodes()
    }

    /// What tensors are encoded to, as a text.
    pub(crate) fn forgetting(&self) -> Option<String> {
        #[cfg(feature = "lethe")]
        {
            // Files that it names can change.
            let state = |path: &std::path::PathBuf| {
                let there = std::fs::metadata(path).ok()?;
                Some(format!("{} {:?}", there.len(), there.modified().ok()?))
            };
            let files = |forget: &Forget| {
                [&forget.imatrix, &forget.like].map(|path| path.as_ref().and_then(state))
            };
            self.forget
                .as_ref()
                .map(|forget| format!("{forget:?} {:?}", files(forget)))
        }
        #[cfg(not(feature = "lethe"))]
        None
    }

    /// Whether tensors are encoded.
    pub(crate) fn encodes(&self) -> bool {
        #[cfg(feature = "lethe")]
        return self.forget.is_some();
        #[cfg(not(feature = "lethe"))]
        false
    }
}

impl From<RememberOptions> for ConvertOptions {
    fn from(run: RememberOptions) -> Self {
        Self::default().with_run(run).with_decode(true)
    }
}

#[cfg(feature = "lethe")]
impl From<Forget> for ConvertOptions {
    fn from(forget: Forget) -> Self {
        let run = RememberOptions::new(forget.scheme.dtype());
        Self {
            target: forget.scheme.container(),
            run,
            forget: Some(forget),
            ..Self::default()
        }
    }
}

#[cfg(feature = "lethe")]
impl From<ForgetScheme> for ConvertOptions {
    fn from(scheme: ForgetScheme) -> Self {
        Forget::from(scheme).into()
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
            threads,
            force,
            cancel,
            progress,
            level,
        } = self;
        f.debug_struct("RememberOptions")
            .field("to", to)
            .field("threads", threads)
            .field("force", force)
            .field("cancel", cancel)
            .field("progress", &progress.is_some())
            .field("level", level)
            .finish()
    }
}
