//! The options of decoding, which those of every conversion contain.

use std::fmt;
use std::sync::Arc;
use std::thread;

use crate::simd::Level;
use crate::{CancelToken, TargetDtype};

/// The progress of a conversion, or of reading the values of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Bytes of tensor data written or compared so far.
    pub done_bytes: u64,
    /// Bytes of tensor data in the whole output; of a comparison or a check, all bytes that it
    /// reads or decodes.
    pub total_bytes: u64,
    /// Tensors that are done.
    pub done_tensors: usize,
    /// Tensors of the whole output, or all that are compared or checked.
    pub total_tensors: usize,
    /// Index of the output's file that was written to last, as in
    /// [`Conversion::paths`](crate::Conversion::paths).
    pub file: usize,
    /// Bytes that the last job added.
    pub step_bytes: u64,
}

pub(in crate::convert) type Callback = Arc<dyn Fn(Progress) + Send + Sync>;

/// What becomes of tensors that hold floats and are not quantized: F64, F32, F16 and BF16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FloatCast {
    /// They keep their dtype.
    #[default]
    Keep,
    /// They are rounded to [`RememberOptions::to`], to nearest even as torch's `.to()` does. A
    /// finite value beyond its range is an error.
    Checked,
    /// They are rounded, and a finite value beyond the range becomes the largest finite value, of
    /// quantized tensors, too. Infinities and NaN stay.
    Saturating,
}

/// What a conversion replaces that an earlier one has left at the place of its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Replace {
    /// Nothing: an existing output is an error.
    Nothing,
    /// An existing output, when the new one is complete. An unfinished directory that is not resumed is
    /// an error.
    #[default]
    Finished,
    /// An existing output, and an unfinished directory that is not resumed: it is begun anew.
    Everything,
}

/// Options of [`remember`](crate::ParsedModel::remember). A [`TargetDtype`] converts into them,
/// with defaults for the rest.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct RememberOptions {
    /// Element type of decoded weights.
    pub to: TargetDtype,
    /// Whether tensors of plain floats are converted to `to`, too. Integers, booleans and complex
    /// numbers never are; FP8 without scales is decoded like quantized tensors. Of a model whose
    /// dtypes follow from its class (between GGUF and Hugging Face), tensors of the class are as
    /// without it, and of a GGUF output vectors become F32, as llama.cpp wants them.
    pub cast: FloatCast,
    /// Worker threads; one for each core by default.
    pub threads: Option<usize>,
    /// What is replaced at the place of the output.
    pub replace: Replace,
    /// Whether nothing of input and output stays in the system's cache, where it can be told
    /// (Linux).
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
        Self { to, ..Self::default() }
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

    /// Number of threads that the options ask for; by default one for each available CPU.
    pub(in crate::convert) fn worker_threads(&self) -> usize {
        self.threads
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
    }

    /// Makes an existing output an error: [`Replace::Nothing`].
    #[must_use]
    pub fn no_replace(self) -> Self {
        self.with_force(false)
    }

    /// Sets what is replaced: with `true` [`Replace::Everything`], else [`Replace::Nothing`].
    #[must_use]
    pub fn with_force(mut self, force: bool) -> Self {
        self.replace = match force {
            true => Replace::Everything,
            false => Replace::Nothing,
        };
        self
    }

    /// Whether an existing output is replaced.
    pub(crate) fn replaces(&self) -> bool {
        self.replace != Replace::Nothing
    }

    /// Sets whether nothing of input and output stays in the system's cache, so that other programs
    /// keep what they have there.
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

impl fmt::Debug for RememberOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, cast, threads, replace, uncached, cancel, progress, level } = self;
        f.debug_struct("RememberOptions")
            .field("to", to)
            .field("cast", cast)
            .field("threads", threads)
            .field("replace", replace)
            .field("uncached", uncached)
            .field("cancel", cancel)
            .field("progress", &progress.is_some())
            .field("level", level)
            .finish()
    }
}
