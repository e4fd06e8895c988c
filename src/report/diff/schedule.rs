//! [`Schedule`]: jobs of many items, done by several threads and folded in order.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::threads::on_threads;
use crate::{RememberOptions, Result};

/// Bytes of a stored tensor that one job reads.
const JOB_BYTES: u64 = 4 << 20;

/// Bytes of a stored tensor that are read at once; those of two tensors stay in the L2 cache.
const PIECE_BYTES: u64 = 128 << 10;

/// Number of jobs that read `len` bytes. At least one, because the first job may compare a
/// checksum.
pub(crate) fn jobs_of_bytes(len: u64) -> usize {
    len.div_ceil(JOB_BYTES).max(1) as usize
}

/// The ranges of bytes that job `job` of [`jobs_of_bytes`] reads one after another.
pub(crate) fn pieces_of_job(len: u64, job: usize) -> impl Iterator<Item = Range<u64>> {
    let start = job as u64 * JOB_BYTES;
    let end = (start + JOB_BYTES).min(len);
    let starts = (start..end).step_by(PIECE_BYTES as usize);
    starts.map(move |at| at..(at + PIECE_BYTES).min(end))
}

/// The jobs of a list of items.
pub(crate) struct Schedule {
    /// Number of the first job of each item; the last entry is the number of all jobs.
    first_job: Vec<usize>,
}

/// Results that are folded in the order of their jobs.
struct InOrder<T, F> {
    /// Number of the next job to fold.
    next: usize,
    /// Results of later jobs: about as many as there are threads, because jobs are handed out in
    /// order.
    pending: HashMap<usize, Result<T>>,
    fold: F,
    outcome: Result<()>,
}

impl Schedule {
    /// The jobs of items that have so many jobs each.
    pub(crate) fn new(jobs: impl Iterator<Item = usize>) -> Self {
        let mut first_job = vec![0];
        let mut sum = 0;
        for jobs in jobs {
            sum += jobs;
            first_job.push(sum);
        }
        Self { first_job }
    }

    /// The item that job `job` belongs to, and the job's number among the jobs of that item.
    fn job(&self, job: usize) -> (usize, usize) {
        // Items without jobs share their first job with the item behind them, which the partition
        // point finds.
        let item = self.first_job.partition_point(|&first| first <= job) - 1;
        (item, job - self.first_job[item])
    }

    /// Does all jobs with `work`, which gets the item, the number of the job in it and the thread's
    /// scratch, and passes the results to `fold` with their items. Results are folded in the order
    /// of the jobs, so sums do not depend on the number of threads.
    ///
    /// # Errors
    /// The error of the lowest job that failed; `Cancelled`.
    pub(crate) fn run<S: Default, T: Send>(
        &self,
        options: &RememberOptions,
        work: impl Fn(usize, usize, &mut S) -> Result<T> + Sync,
        fold: impl FnMut(usize, T) + Send,
    ) -> Result<()> {
        let end = self.first_job.last().copied().unwrap_or(0);
        let threads = options
            .threads
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        let next = AtomicUsize::new(0);
        let folded =
            Mutex::new(InOrder { next: 0, pending: HashMap::new(), fold, outcome: Ok(()) });
        let worker = |_| {
            let mut scratch = S::default();
            loop {
                // Relaxed suffices: each number is handed out once, and the lock orders the
                // results.
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= end {
                    return;
                }
                let (item, no) = self.job(job);
                let cancel = options.cancel.check();
                let result = cancel.and_then(|()| work(item, no, &mut scratch));
                if result.is_err() {
                    // Lower jobs have been handed out already and are finished; none above is
                    // begun.
                    next.store(end, Ordering::Relaxed);
                }
                let mut folded = folded.lock().unwrap_or_else(PoisonError::into_inner);
                folded.add(job, result, |job| self.job(job).0);
            }
        };
        on_threads(threads.min(end), worker);
        let folded = folded.into_inner().unwrap_or_else(PoisonError::into_inner);
        folded.outcome
    }
}

impl<T, F: FnMut(usize, T)> InOrder<T, F> {
    /// Keeps the result of job `job`, and folds all results up to the first job that is not done.
    fn add(&mut self, job: usize, result: Result<T>, item: impl Fn(usize) -> usize) {
        self.pending.insert(job, result);
        while let Some(result) = self.pending.remove(&self.next) {
            match result {
                Ok(value) if self.outcome.is_ok() => (self.fold)(item(self.next), value),
                Err(error) if self.outcome.is_ok() => self.outcome = Err(error),
                _ => {}
            }
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AnamnesisError;

    /// Items without jobs are skipped; results arrive in order for any number of threads.
    #[test]
    fn in_order() {
        let schedule = Schedule::new([0, 3, 0, 0, 5, 1].into_iter());
        for threads in 1..5 {
            let options = RememberOptions::default().with_threads(threads);
            let mut seen = Vec::new();
            let run = schedule.run(
                &options,
                |item, no, _: &mut ()| Ok((item, no)),
                |item, value| seen.push((item, value)),
            );
            run.unwrap();
            let expected = [(1, 0), (1, 1), (1, 2), (4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (5, 0)];
            assert_eq!(seen, expected.map(|(item, no)| (item, (item, no))));
        }
    }

    #[test]
    fn lowest_error() {
        let schedule = Schedule::new([100].into_iter());
        for threads in 1..5 {
            let options = RememberOptions::default().with_threads(threads);
            let work = |_: usize, no: usize, _: &mut ()| match no {
                0..20 => Ok(()),
                _ => Err(AnamnesisError::parse(no.to_string())),
            };
            let mut folded = 0;
            let error = schedule
                .run(&options, work, |_, ()| folded += 1)
                .unwrap_err();
            assert_eq!((folded, &*error.to_string()), (20, "parse error: 20"));
        }
    }
}
