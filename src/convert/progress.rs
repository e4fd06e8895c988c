//! [`Progress`] of a conversion or a comparison, added up from what the jobs of all threads have
//! done.

use std::sync::{Mutex, PoisonError};

use super::options::{Callback, Progress, RememberOptions};

/// What has been done so far, reported to the function that the options name.
pub(crate) struct ProgressSum {
    callback: Option<Callback>,
    done: Mutex<Progress>,
}

impl ProgressSum {
    /// Nothing done yet of `total_bytes` bytes in `total_tensors` tensors.
    pub(crate) fn new(options: &RememberOptions, total_bytes: u64, total_tensors: usize) -> Self {
        Self {
            callback: options.progress.clone(),
            done: Mutex::new(Progress { total_bytes, total_tensors, ..Progress::default() }),
        }
    }

    /// A sum that nobody is told of.
    pub(crate) fn silent() -> Self {
        Self { callback: None, done: Mutex::default() }
    }

    /// Whether somebody is told.
    pub(crate) fn is_heard(&self) -> bool {
        self.callback.is_some()
    }

    /// Adds what was done, now in file `file` of the output, and reports the sum.
    pub(crate) fn add(&self, bytes: u64, tensors: usize, file: usize) {
        let Some(callback) = &self.callback else {
            return;
        };
        let now = {
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.done_bytes += bytes;
            done.done_tensors += tensors;
            (done.step_bytes, done.file) = (bytes, file);
            *done
        };
        // Not under the lock: the other threads need not wait for whoever listens.
        callback(now);
    }
}
