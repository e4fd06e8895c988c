//! The workers: each takes the next job from one cursor, reads, decodes, and writes at the planned place.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::options::{Progress, RememberOptions};
use super::output::{Job, Output, Worker};
use super::plan::Plan;
use crate::containers::model::Part;
use crate::containers::write::Sink;
use crate::{AnamnesisError, Result};

/// Runs jobs of `plan`: those of the outputs in `outputs`. The result does not depend on the number of threads: jobs are independent,
/// and of several errors the one of the lowest job counts.
pub(super) fn run(
    plan: &Plan<'_>,
    outputs: Range<usize>,
    sink: &dyn Sink,
    options: &RememberOptions,
    done: &AtomicU64,
) -> Result<()> {
    run_jobs(
        plan,
        plan.first_job[outputs.start]..plan.first_job[outputs.end],
        sink,
        options,
        done,
    )?;
    check(&plan.outputs[outputs])
}

/// Runs some jobs, and leaves [`check`] to the caller.
pub(super) fn run_jobs(
    plan: &Plan<'_>,
    jobs: Range<usize>,
    sink: &dyn Sink,
    options: &RememberOptions,
    done: &AtomicU64,
) -> Result<()> {
    let threads = threads(options).clamp(1, jobs.len().max(1));
    let queue = JobQueue {
        plan,
        sink,
        options,
        next: AtomicUsize::new(jobs.start),
        end: jobs.end,
        failed: Mutex::new(None),
        stop_at: AtomicUsize::new(usize::MAX),
        done,
    };
    thread::scope(|scope| -> Result<()> {
        for _ in 1..threads {
            thread::Builder::new()
                .name("anamnesis".to_owned())
                .spawn_scoped(scope, || queue.work())?;
        }
        queue.work();
        Ok(())
    })?;
    let failed = queue
        .failed
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), |(_, error)| Err(error))
}

/// Threads that the options ask for.
pub(super) fn threads(options: &RememberOptions) -> usize {
    options
        .threads
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

struct JobQueue<'a, 'm> {
    plan: &'a Plan<'m>,
    sink: &'a dyn Sink,
    options: &'a RememberOptions,
    next: AtomicUsize,
    /// Number of the first job that is not to be done.
    end: usize,
    /// The lowest job that failed.
    failed: Mutex<Option<(usize, AnamnesisError)>>,
    /// Its number; no job above it is begun. All below it have been, so the lowest failure is always found.
    stop_at: AtomicUsize,
    /// Bytes that are written.
    done: &'a AtomicU64,
}

impl JobQueue<'_, '_> {
    fn work(&self) {
        let mut worker = Worker::default();
        loop {
            let job = self.next.fetch_add(1, Ordering::Relaxed);
            if job >= self.end || job >= self.stop_at.load(Ordering::Acquire) {
                return;
            }
            let result = self
                .options
                .cancel
                .check()
                .and_then(|()| self.run_job(job, &mut worker));
            match result {
                Ok(written) => self.advance(written),
                Err(error) => self.fail(job, error),
            }
        }
    }

    fn fail(&self, job: usize, error: AnamnesisError) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.as_ref().is_none_or(|(other, _)| job < *other) {
            *failed = Some((job, error));
        }
        self.stop_at.fetch_min(job, Ordering::AcqRel);
    }

    fn advance(&self, written: u64) {
        let done_bytes = self.done.fetch_add(written, Ordering::Relaxed) + written;
        if let Some(progress) = &self.options.progress {
            let total_bytes = self.plan.data_len;
            progress(Progress {
                done_bytes,
                total_bytes,
            });
        }
    }

    /// Does job number `job` of the plan; returns the number of bytes written.
    fn run_job(&self, job: usize, worker: &mut Worker) -> Result<u64> {
        let (index, no) = self.plan.job(job);
        let outputs = &self.plan.outputs[index..];
        if no == 0 {
            outputs[0].verify.iter().try_for_each(Part::verify)?;
        }
        let job = Job {
            no,
            outputs,
            sink: self.sink,
            options: self.options,
            is_abandoned: &|| job > self.stop_at.load(Ordering::Acquire),
        };
        outputs[0].body.run(&job, worker)
    }
}

/// Writes the checksums, once all data is written.
pub(super) fn patch(plan: &Plan<'_>, sink: &dyn Sink) -> Result<()> {
    for output in &plan.outputs {
        let Some((sum, patch)) = &output.sums.output else {
            continue;
        };
        let crc = sum.total(patch.before).to_le_bytes();
        patch
            .places
            .iter()
            .try_for_each(|&place| sink.write_at(output.file, place, &crc))?;
    }
    Ok(())
}

/// Compares the checksums of the inputs of `outputs`, when all their jobs are done.
pub(super) fn check(outputs: &[Output<'_>]) -> Result<()> {
    outputs
        .iter()
        .try_for_each(|output| output.body.check(&output.sums))
}
