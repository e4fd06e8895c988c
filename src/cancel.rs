//! [`CancelToken`]: a flag that stops a conversion from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{AnamnesisError, Result};

/// Stops a running conversion. Clones share the flag; once set it stays set.
///
/// Workers check it before every job, so a conversion ends within a few milliseconds. It returns
/// [`AnamnesisError::Cancelled`] and leaves no output file. An unfinished directory stays and can
/// be resumed.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks every conversion that holds this token to stop.
    pub fn cancel(&self) {
        // Relaxed suffices: the flag orders no other memory access, and workers check it again and
        // again.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`cancel`](Self::cancel) was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for a signal handler that may do nothing but set it.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Checks the token.
    ///
    /// # Errors
    /// [`AnamnesisError::Cancelled`] if it is set.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(AnamnesisError::Cancelled)
        } else {
            Ok(())
        }
    }
}
