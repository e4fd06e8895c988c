//! How a conversion is to run.

use std::fmt;
use std::sync::Arc;

use crate::simd::Level;
use crate::{CancelToken, TargetDtype};

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
        Self { to, ..Self::default() }
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

impl fmt::Debug for RememberOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { to, threads, force, cancel, progress, level } = self;
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
