//! The workers. Each takes the next job from one cursor, reads, decodes or encodes, and writes at the planned place.
//!
//! Jobs are handed out in the order of their numbers, and each writes bytes that no other job writes. Only a job that
//! encodes can depend on others: on those of the survey pass of the same tensor, which come before it.

mod outcome;
#[cfg(test)]
#[cfg(feature = "lethe")]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

pub(super) use self::outcome::Outcome;
use super::options::{Progress, RememberOptions};
use super::output::{Job, Output, Worker};
use super::plan::Plan;
use crate::Result;
use crate::containers::model::Part;
use crate::containers::write::Sink;

/// Runs the jobs of outputs `outputs` of `plan`, and compares the checksums of what was copied. The result does not depend
/// on the number of threads.
///
/// # Errors
/// Of several jobs that fail, the error of the one with the lowest number.
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

/// Runs jobs `jobs` of `plan` without comparing checksums: [`check`] does that, once all jobs of an output are done.
///
/// # Errors
/// Of several jobs that fail, the error of the one with the lowest number.
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

/// Number of threads that the options ask for; by default one for each CPU.
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
    /// Number of the first job that is not to be done.
    end: usize,
    outcome: Outcome,
    /// Bytes written.
    done: &'a AtomicU64,
}

impl JobQueue<'_, '_> {
    fn work(&self) {
        let _stop = self.outcome.stop_on_panic();
        let mut worker = Worker::default();
        loop {
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

    /// Does job number `number` of the plan; returns the number of bytes written.
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

/// Writes the checksums of the outputs at the places that their container has for them. All jobs are done.
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

/// Compares the checksums of the inputs of `outputs`. All their jobs are done.
///
/// # Errors
/// The first input that has another checksum than its container says.
pub(super) fn check(outputs: &[Output<'_>]) -> Result<()> {
    outputs
        .iter()
        .try_for_each(|output| output.body.check(&output.checksums))
}
