//! The workers. Each takes the next job from a shared cursor, reads and decodes or encodes, and writes at the planned offset.
//!
//! Jobs are handed out in ascending order, and no two write the same bytes, so the output does not depend on the number of
//! threads. Only a job that encodes can depend on others: on those of the survey pass of the same tensor, which come
//! before it.
//!
//! Nor does the error depend on it: of several failures the one of the lowest job is returned. When a job fails, all lower jobs
//! have been handed out already. They are finished, and higher ones are not begun. So the lowest failure is
//! the one that a single thread would have met first.

#[cfg(test)]
#[cfg(feature = "lethe")]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use super::options::{Progress, RememberOptions};
use super::outcome::Outcome;
use super::output::{Job, Output, Worker};
use super::plan::Plan;
use crate::Result;
use crate::containers::model::Part;
use crate::containers::write::Sink;

/// Runs the jobs of the output tensors `outputs` of `plan`, and compares the checksums of copied inputs. Adds the written
/// bytes to `done`.
///
/// # Errors
/// The error of the lowest job that failed, or `Parse` for the first input whose checksum differs.
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

/// Runs the jobs `jobs` of `plan` without comparing checksums. [`check`] does that once all jobs of an output are done.
///
/// # Errors
/// The error of the lowest job that failed, or `Io` if a thread cannot be started.
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
        outcome: Outcome::new(),
        done,
    };
    thread::scope(|scope| -> Result<()> {
        // The calling thread is the last worker.
        for _ in 1..threads {
            thread::Builder::new()
                .name("anamnesis".to_owned())
                .spawn_scoped(scope, || queue.work())?;
        }
        queue.work();
        Ok(())
    })?;
    queue.outcome.into_result()
}

/// Number of threads that the options ask for; by default one for each available CPU.
pub(super) fn threads(options: &RememberOptions) -> usize {
    options
        .threads
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

struct JobQueue<'a, 'm> {
    plan: &'a Plan<'m>,
    sink: &'a dyn Sink,
    options: &'a RememberOptions,
    /// Number of the next job.
    next: AtomicUsize,
    /// Number behind the last job.
    end: usize,
    outcome: Outcome,
    /// Bytes of data written so far, over all calls for one plan.
    done: &'a AtomicU64,
}

impl JobQueue<'_, '_> {
    /// Does jobs until none is left or a lower one has failed.
    fn work(&self) {
        let _stop = self.outcome.stop_on_panic();
        let mut worker = Worker::default();
        loop {
            // Relaxed suffices: each job number is handed out once, and jobs share no data that the cursor would have to order.
            let job = self.next.fetch_add(1, Ordering::Relaxed);
            if job >= self.end || self.outcome.is_stopped_at(job) {
                return;
            }
            let result = self
                .options
                .cancel
                .check()
                .and_then(|()| self.run_job(job, &mut worker));
            match result {
                Ok(written) => self.advance(written),
                Err(error) => self.outcome.fail(job, error),
            }
        }
    }

    /// Counts `written` bytes and reports the progress.
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

    /// Does job `number` of the plan. Returns the number of bytes written.
    fn run_job(&self, number: usize, worker: &mut Worker) -> Result<u64> {
        let (index, no) = self.plan.job(number);
        let outputs = &self.plan.outputs[index..];
        if no == 0 {
            outputs[0].verify.iter().try_for_each(Part::verify)?;
        }
        let job = Job {
            no,
            outputs,
            sink: self.sink,
            options: self.options,
            number,
            outcome: &self.outcome,
        };
        outputs[0].body.run(&job, worker)
    }
}

/// Writes the checksum of each output tensor at the places in the container's headers. All jobs are done.
///
/// # Errors
/// The sink cannot write.
pub(super) fn patch(plan: &Plan<'_>, sink: &dyn Sink) -> Result<()> {
    for output in &plan.outputs {
        let Some((sum, patch)) = &output.checksums.output else {
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

/// Compares the checksums of the inputs that were copied to `outputs`. All jobs of these are done.
///
/// # Errors
/// `Parse` for the first input whose checksum differs from the one that its container stores.
pub(super) fn check(outputs: &[Output<'_>]) -> Result<()> {
    outputs
        .iter()
        .try_for_each(|output| output.body.check(&output.checksums))
}
