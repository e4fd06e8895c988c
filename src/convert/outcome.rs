//! How the jobs of a run have gone: which failed, and which need not be begun any more. Jobs that
//! wait for others wait here, because a failure must wake them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::{AnamnesisError, Result};

pub(in crate::convert) struct Outcome {
    state: Mutex<State>,
    /// Notified when a job fails, when a worker panics, and by [`notify`](Self::notify): whatever
    /// can end [`wait_for`](Self::wait_for).
    changed: Condvar,
    /// The number of the failed job in `state`, to be read without the lock. No job above it is
    /// begun.
    stop_at: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// The lowest job that failed.
    failed: Option<(usize, AnamnesisError)>,
    /// Whether a worker has panicked. Its job is never done.
    has_panicked: bool,
}

impl Outcome {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            stop_at: AtomicUsize::new(usize::MAX),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether job `job` need not be begun: a job before it has failed, or a worker has panicked.
    pub(super) fn is_stopped_at(&self, job: usize) -> bool {
        job >= self.stop_at.load(Ordering::Acquire)
    }

    /// Records that job `job` has failed. Of several failures the one of the lowest job stays: jobs
    /// below it have been begun and will be finished, so this is the error that a single thread
    /// would meet.
    pub(super) fn fail(&self, job: usize, error: AnamnesisError) {
        let mut state = self.lock();
        if state.failed.as_ref().is_none_or(|(other, _)| job < *other) {
            state.failed = Some((job, error));
        }
        self.stop_at.fetch_min(job, Ordering::AcqRel);
        self.changed.notify_all();
    }

    /// Wakes the waiting jobs, after something that one of them can wait for has happened.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub(in crate::convert) fn notify(&self) {
        // Taking the lock orders this after the check of a worker that is about to wait. Without it
        // the notification could come between that check and the wait, and be lost.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Waits until `ready` has a result, and returns it. `None` if a job before job `job` has
    /// failed or a worker has panicked: then the result may never come.
    ///
    /// Whoever makes the result calls [`notify`](Self::notify) afterwards.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub(in crate::convert) fn wait_for<T>(
        &self,
        job: usize,
        ready: impl Fn() -> Option<T>,
    ) -> Option<T> {
        // Most jobs ask when the result is long there, and need no lock.
        let mut result = ready();
        if result.is_some() {
            return result;
        }
        let mut state = self.lock();
        loop {
            result = ready();
            let has_failed = state.failed.as_ref().is_some_and(|(other, _)| *other < job);
            if result.is_some() || has_failed || state.has_panicked {
                return result;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A guard for each worker. If the worker panics, all others stop, so that none waits for its
    /// job. The panic goes on when the threads are joined.
    pub(super) fn stop_on_panic(&self) -> StopOnPanic<'_> {
        StopOnPanic(self)
    }

    /// The end of the run, once all workers have returned.
    ///
    /// # Errors
    /// The error of the lowest job that failed.
    pub(super) fn into_result(self) -> Result<()> {
        let state = self
            .state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        state.failed.map_or(Ok(()), |(_, error)| Err(error))
    }
}

pub(super) struct StopOnPanic<'a>(&'a Outcome);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop_at.store(0, Ordering::Release);
            self.0.lock().has_panicked = true;
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    const WAITING: usize = 3;

    /// What each of some waiting jobs, number 10 and following, returns when `end` happens a little
    /// later.
    fn results_after(
        outcome: &Outcome,
        ready: &AtomicBool,
        end: fn(&Outcome, &AtomicBool),
    ) -> Vec<Option<()>> {
        thread::scope(|scope| {
            let wait = |job| outcome.wait_for(job, || ready.load(Ordering::Acquire).then_some(()));
            let jobs: Vec<_> = (10..10 + WAITING)
                .map(|job| scope.spawn(move || wait(job)))
                .collect();
            let last = scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                end(outcome, ready);
            });
            let _ = last.join();
            jobs.into_iter().map(|job| job.join().unwrap()).collect()
        })
    }

    fn error(what: &str) -> AnamnesisError {
        AnamnesisError::parse(what)
    }

    #[test]
    fn a_result_ends_waiting() {
        let (outcome, ready) = (Outcome::new(), AtomicBool::new(false));
        let results = results_after(&outcome, &ready, |outcome, ready| {
            // A failure of a later job is no reason to stop.
            outcome.fail(20, error("later"));
            ready.store(true, Ordering::Release);
            outcome.notify();
        });
        assert_eq!(results, [Some(()); WAITING]);
        assert!(outcome.is_stopped_at(20) && !outcome.is_stopped_at(19));
    }

    #[test]
    fn a_failure_ends_waiting_and_the_lowest_one_counts() {
        let (outcome, ready) = (Outcome::new(), AtomicBool::new(false));
        let results = results_after(&outcome, &ready, |outcome, _| {
            outcome.fail(20, error("later"));
            outcome.fail(5, error("first"));
            outcome.fail(7, error("second"));
        });
        assert_eq!(results, [None; WAITING]);
        assert!(outcome.is_stopped_at(5) && !outcome.is_stopped_at(4));
        let message = outcome.into_result().unwrap_err().to_string();
        assert!(message.contains("first"), "{message}");
    }

    #[test]
    fn a_panic_ends_waiting() {
        let (outcome, ready) = (Outcome::new(), AtomicBool::new(false));
        let results = results_after(&outcome, &ready, |outcome, _| {
            let _stop = outcome.stop_on_panic();
            std::panic::resume_unwind(Box::new("a worker panics"));
        });
        assert_eq!(results, [None; WAITING]);
        assert!(outcome.is_stopped_at(0));
    }
}
