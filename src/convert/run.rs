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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::checksum::{ChecksumAccumulator, TensorChecksums, checksum_of_pieces};
use super::options::RememberOptions;
use super::outcome::Outcome;
use super::output::{Job, Worker};
use super::plan::Plan;
use super::progress::ProgressSum;
use crate::Result;
use crate::containers::model::Part;
use crate::containers::write::Sink;

/// A run of the jobs of some output tensors of a plan, with the checksums that it accumulates.
///
/// A plan can be run several times, also at once: nothing of a run is kept in the plan but the statistics of encoders.
pub(super) struct Run<'a, 'm> {
    plan: &'a Plan<'m>,
    /// The output tensors that are made.
    outputs: Range<usize>,
    options: &'a RememberOptions,
    /// What is done so far, over all runs of one output.
    done: &'a ProgressSum,
    /// Of each of `outputs`, how many jobs are not done; empty if nobody is told of the progress.
    jobs_left: Vec<AtomicUsize>,
    /// One for each of `outputs`.
    checksums: Vec<TensorChecksums>,
    /// Whether the first job of a tensor compares the checksums of [`Output::verify`](super::output::Output).
    verifies: bool,
}

impl<'a, 'm> Run<'a, 'm> {
    /// A run of the output tensors `outputs` of `plan`. Adds what is done to `done`.
    pub(super) fn new(
        plan: &'a Plan<'m>,
        outputs: Range<usize>,
        options: &'a RememberOptions,
        done: &'a ProgressSum,
    ) -> Self {
        let jobs = |i: usize| plan.first_job[i + 1] - plan.first_job[i];
        let jobs_left = outputs.clone().filter(|_| done.is_heard());
        let jobs_left = jobs_left.map(|i| AtomicUsize::new(jobs(i)));
        let checksums = plan.outputs[outputs.clone()].iter();
        let checksums = checksums.map(|output| TensorChecksums {
            input: ChecksumAccumulator::default(),
            output: output
                .patch
                .as_ref()
                .map(|_| ChecksumAccumulator::default()),
        });
        Self {
            plan,
            options,
            done,
            checksums: checksums.collect(),
            jobs_left: jobs_left.collect(),
            outputs,
            verifies: true,
        }
    }

    /// Leaves [`Output::verify`](super::output::Output) to the caller.
    pub(super) fn without_verifying(mut self) -> Self {
        self.verifies = false;
        self
    }

    /// Sums all bytes that are written, for [`file_checksum`](Self::file_checksum).
    pub(super) fn with_file_checksum(mut self) -> Self {
        for sums in &mut self.checksums {
            sums.output.get_or_insert_default();
        }
        self
    }

    /// CRC-32 of output file `file`, as the run and its plan write it. All jobs are done, and
    /// [`with_file_checksum`](Self::with_file_checksum) was called before.
    ///
    /// Jobs write in any order, so that each piece is summed when it is written, and the sums are combined by position. To read
    /// the file again would cost as much as its size, and would sum what the disk has and not what was meant.
    pub(super) fn file_checksum(&self, file: usize) -> u32 {
        let planned = &self.plan.files[file];
        let headers = planned
            .pieces
            .iter()
            .map(|(at, piece)| (*at, (piece.len() as u64, crc32fast::hash(piece))));
        let outputs = self.plan.outputs[self.outputs.clone()].iter();
        let tensors = outputs
            .zip(&self.checksums)
            .filter(|(output, _)| output.file == file)
            .filter_map(|(output, sums)| Some(sums.output.as_ref()?.pieces(output.offset)));
        checksum_of_pieces(headers.chain(tensors.flatten()).collect(), planned.len)
    }

    /// Does all jobs, and compares the checksums of copied inputs.
    ///
    /// # Errors
    /// The error of the lowest job that failed, or `Parse` for the first input whose checksum differs.
    pub(super) fn run(&self, sink: &dyn Sink) -> Result<()> {
        let first_job = &self.plan.first_job;
        let jobs = first_job[self.outputs.start]..first_job[self.outputs.end];
        self.run_jobs(jobs, sink)?;
        self.count_tensors_without_jobs();
        self.check()
    }

    /// Counts as done the tensors that are empty, and those that the jobs of others have written.
    fn count_tensors_without_jobs(&self) {
        let first_job = &self.plan.first_job;
        let has_none = |i: &usize| first_job[*i] == first_job[i + 1];
        let without = self.outputs.clone().filter(has_none).count();
        if without > 0 {
            let file = self.plan.outputs[self.outputs.start].file;
            self.done.add(0, without, file);
        }
    }

    /// Does the jobs `jobs` of the plan without comparing checksums. [`check`](Self::check) does that once all jobs are done.
    ///
    /// # Errors
    /// The error of the lowest job that failed.
    pub(super) fn run_jobs(&self, jobs: Range<usize>, sink: &dyn Sink) -> Result<()> {
        let threads = threads(self.options).clamp(1, jobs.len().max(1));
        let queue = JobQueue {
            run: self,
            sink,
            next: AtomicUsize::new(jobs.start),
            end: jobs.end,
            outcome: Outcome::new(),
        };
        thread::scope(|scope| {
            // The calling thread is the last worker. Any number of workers makes the same output, so threads that cannot be
            // started are done without.
            for _ in 1..threads {
                let thread = thread::Builder::new().name("anamnesis".to_owned());
                if thread.spawn_scoped(scope, || queue.work()).is_err() {
                    break;
                }
            }
            queue.work();
        });
        queue.outcome.into_result()
    }

    /// Does the jobs `jobs` of the plan on the calling thread, one after another, without comparing checksums.
    ///
    /// # Errors
    /// The error of the first job that failed.
    pub(super) fn run_here(
        &self,
        mut jobs: Range<usize>,
        sink: &dyn Sink,
        worker: &mut Worker,
    ) -> Result<()> {
        let queue = JobQueue {
            run: self,
            sink,
            next: AtomicUsize::new(jobs.end),
            end: jobs.end,
            outcome: Outcome::new(),
        };
        jobs.try_for_each(|job| queue.run_job(job, worker).map(drop))
    }

    /// Compares the checksums of the inputs that were copied, and those that empty tensors leave to their first job, which they
    /// do not have. All jobs are done.
    ///
    /// # Errors
    /// `Parse` for the first input whose checksum differs from the one that its container stores.
    pub(super) fn check(&self) -> Result<()> {
        let mut outputs = self.outputs.clone().zip(&self.checksums);
        outputs.try_for_each(|(i, sums)| {
            let output = &self.plan.outputs[i];
            if self.verifies && self.plan.first_job[i] == self.plan.first_job[i + 1] {
                output.verify.iter().try_for_each(Part::verify)?;
            }
            let summed = output.body.summed_input();
            match summed.and_then(|part| Some((part, part.check()?))) {
                Some((part, check)) if sums.input.total(check.before) != check.crc => {
                    Err(part.checksum_mismatch())
                }
                _ => Ok(()),
            }
        })
    }

    /// Writes the checksum of each output tensor at the places in the container's headers. All jobs are done.
    ///
    /// # Errors
    /// The sink cannot write.
    pub(super) fn patch(&self, sink: &dyn Sink) -> Result<()> {
        let outputs = self.plan.outputs[self.outputs.clone()].iter();
        for (output, sums) in outputs.zip(&self.checksums) {
            let (Some(sum), Some(patch)) = (&sums.output, &output.patch) else {
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
}

/// Number of threads that the options ask for; by default one for each available CPU.
pub(super) fn threads(options: &RememberOptions) -> usize {
    options
        .threads
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

struct JobQueue<'a, 'm> {
    run: &'a Run<'a, 'm>,
    sink: &'a dyn Sink,
    /// Number of the next job.
    next: AtomicUsize,
    /// Number behind the last job.
    end: usize,
    outcome: Outcome,
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
            let cancel = &self.run.options.cancel;
            let result = cancel.check().and_then(|()| self.run_job(job, &mut worker));
            match result {
                Ok(written) => self.advance(job, written),
                Err(error) => self.outcome.fail(job, error),
            }
        }
    }

    /// Counts job `number`, which has written `written` bytes, and reports the progress.
    fn advance(&self, number: usize, written: u64) {
        let run = self.run;
        if run.jobs_left.is_empty() {
            return;
        }
        let (index, _) = run.plan.job(number);
        let left = &run.jobs_left[index - run.outputs.start];
        let is_last = left.fetch_sub(1, Ordering::Relaxed) == 1;
        let file = run.plan.outputs[index].file;
        run.done.add(written, usize::from(is_last), file);
    }

    /// Does job `number` of the plan. Returns the number of bytes written.
    fn run_job(&self, number: usize, worker: &mut Worker) -> Result<u64> {
        let run = self.run;
        let (index, no) = run.plan.job(number);
        let outputs = &run.plan.outputs[index..];
        if no == 0 && run.verifies {
            outputs[0].verify.iter().try_for_each(Part::verify)?;
        }
        let job = Job {
            no,
            outputs,
            checksums: &run.checksums[index - run.outputs.start..],
            sink: self.sink,
            options: run.options,
            number,
            outcome: &self.outcome,
        };
        outputs[0].body.run(&job, worker)
    }
}
