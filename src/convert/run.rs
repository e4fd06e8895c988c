//! The workers. Each takes the next job from a shared cursor, reads and decodes or encodes, and
//! writes at the planned offset.
//!
//! No two jobs write the same bytes, so the output does not depend on the number of threads. The
//! jobs of an output file are handed out in ascending order. Only a job that encodes can depend on
//! others: on those of the survey pass of the same tensor, which come before it.
//!
//! Several files are written side by side, since the system lets one thread at a time write to a
//! file. Each worker begins with a file of its own and goes on with another when no job of the file
//! is left ([`Lane`]).
//!
//! Nor does the error depend on the threads: of several failures the one of the lowest job is
//! returned. When a job fails, higher ones are not begun, and all lower ones are done, also those
//! of other files. So the lowest failure is the one that a single thread would have met first.

#[cfg(test)]
#[cfg(feature = "lethe")]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ahead::AheadSlot;
use super::checksum::{ChecksumAccumulator, TensorChecksums, checksum_of_pieces};
use super::held::HeldWrites;
use super::options::RememberOptions;
use super::outcome::Outcome;
use super::output::{Job, Worker};
use super::plan::Plan;
use super::progress::ProgressSum;
use crate::Result;
use crate::model::Part;
use crate::threads::on_threads;
use crate::write::Sink;

/// A run of the jobs of some output tensors of a plan, with the checksums that it accumulates.
///
/// A plan can be run several times, also at once: nothing of a run is kept in the plan but the
/// statistics of encoders.
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
    /// Whether the first job of a tensor compares the checksums of its
    /// [`Checks`](super::output::Checks).
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
                .place
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

    /// Leaves it to the caller to compare the checksums of [`Checks`](super::output::Checks).
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
    /// Jobs write in any order, so that each piece is summed when it is written, and the sums are
    /// combined by position. To read the file again would cost as much as its size, and would sum
    /// what the disk has and not what was meant.
    ///
    /// # Errors
    /// Those of [`Plan::pieces`].
    pub(super) fn file_checksum(&self, file: usize) -> Result<u32> {
        let pieces = self.plan.pieces(file)?;
        let headers = pieces
            .iter()
            .map(|(at, piece)| (*at, (piece.len() as u64, crc32fast::hash(piece))));
        let outputs = self.plan.outputs[self.outputs.clone()].iter();
        let tensors = outputs
            .zip(&self.checksums)
            .filter(|(output, _)| output.place.file == file)
            .filter_map(|(output, sums)| Some(sums.output.as_ref()?.pieces(output.place.offset)));
        let all = headers.chain(tensors.flatten()).collect();
        Ok(checksum_of_pieces(all, self.plan.files[file].len))
    }

    /// Does all jobs, and compares the checksums of copied inputs.
    ///
    /// # Errors
    /// The error of the lowest job that failed, or `Parse` for the first input whose checksum
    /// differs.
    pub(super) fn run(&self, sink: &dyn Sink) -> Result<()> {
        let plan = self.plan;
        let outputs = &plan.outputs[self.outputs.clone()];
        let mut first = self.outputs.start;
        let files = outputs
            .chunk_by(|a, b| a.place.file == b.place.file)
            .map(|outputs| {
                let jobs = plan.first_job[first]..plan.first_job[first + outputs.len()];
                first += outputs.len();
                jobs
            });
        let files: Vec<Range<usize>> = files.collect();
        for files in files.chunks(files_side_by_side(self.options)) {
            let lanes = files.iter();
            let lanes = lanes.map(|jobs| Lane::new(self, jobs.clone(), sink, files.len()));
            run_lanes(&lanes.collect::<Vec<_>>(), self.options)?;
        }
        self.finish()
    }

    /// All jobs of the run as one of `lanes` lanes, to be done beside those of other runs.
    /// [`finish`](Self::finish) is called when they are done.
    pub(super) fn lane<'l>(&'l self, sink: &'l dyn Sink, lanes: usize) -> Lane<'l, 'm> {
        let first_job = &self.plan.first_job;
        let jobs = first_job[self.outputs.start]..first_job[self.outputs.end];
        Lane::new(self, jobs, sink, lanes)
    }

    /// Counts what has no jobs, and compares the checksums of copied inputs. All jobs are done.
    ///
    /// # Errors
    /// `Parse` for the first input whose checksum differs.
    pub(super) fn finish(&self) -> Result<()> {
        self.count_tensors_without_jobs();
        self.check()
    }

    /// Counts as done the tensors that are empty, and those that the jobs of others have written.
    fn count_tensors_without_jobs(&self) {
        let first_job = &self.plan.first_job;
        let has_none = |i: &usize| first_job[*i] == first_job[i + 1];
        let without = self.outputs.clone().filter(has_none).count();
        if without > 0 {
            let file = self.plan.outputs[self.outputs.start].place.file;
            self.done.add(0, without, file);
        }
    }

    /// Does the jobs `jobs` of the plan without comparing checksums. [`check`](Self::check) does
    /// that once all jobs are done.
    ///
    /// # Errors
    /// The error of the lowest job that failed.
    pub(super) fn run_jobs(&self, jobs: Range<usize>, sink: &dyn Sink) -> Result<()> {
        run_lanes(&[Lane::new(self, jobs, sink, 1)], self.options)
    }

    /// Does the jobs `jobs` of the plan on the calling thread, one after another, without comparing
    /// checksums.
    ///
    /// # Errors
    /// The error of the first job that failed.
    pub(super) fn run_here(
        &self,
        mut jobs: Range<usize>,
        sink: &dyn Sink,
        worker: &mut Worker,
    ) -> Result<()> {
        let outcome = Outcome::new();
        let lane = Lane {
            ahead: AheadSlot::new(1, 1, jobs.start),
            ..Lane::new(self, jobs.clone(), sink, 1)
        };
        jobs.try_for_each(|job| lane.run_job(job, worker, &outcome).map(drop))?;
        lane.finish()
    }

    /// Compares the checksums of the inputs that were copied, and those that empty tensors leave to
    /// their first job, which they do not have. All jobs are done.
    ///
    /// # Errors
    /// `Parse` for the first input whose checksum differs from the one that its container stores.
    pub(super) fn check(&self) -> Result<()> {
        let mut outputs = self.outputs.clone().zip(&self.checksums);
        outputs.try_for_each(|(i, sums)| {
            let output = &self.plan.outputs[i];
            if self.verifies && self.plan.first_job[i] == self.plan.first_job[i + 1] {
                output.checks.own().iter().try_for_each(Part::verify)?;
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

    /// Writes the checksum of each output tensor at the places in the container's headers. All jobs
    /// are done.
    ///
    /// # Errors
    /// The sink cannot write.
    pub(super) fn patch(&self, sink: &dyn Sink) -> Result<()> {
        let outputs = self.plan.outputs[self.outputs.clone()].iter();
        for (output, sums) in outputs.zip(&self.checksums) {
            let (Some(sum), Some(patch)) = (&sums.output, &output.place.patch) else {
                continue;
            };
            let crc = sum.total(patch.before).to_le_bytes();
            patch
                .places
                .iter()
                .try_for_each(|&place| sink.write_at(output.place.file, place, &crc))?;
        }
        Ok(())
    }
}

/// Output files that are written side by side: one for each thread, as far as that gains time. Each
/// takes its length of the page cache, and what an interrupted run has written of it is lost.
pub(super) fn files_side_by_side(options: &RememberOptions) -> usize {
    options.worker_threads().clamp(1, 4)
}

/// Does the jobs of all `lanes`, which are in ascending order, without comparing checksums.
///
/// # Errors
/// The error of the lowest job that failed.
pub(super) fn run_lanes(lanes: &[Lane<'_, '_>], options: &RememberOptions) -> Result<()> {
    let jobs: usize = lanes.iter().map(Lane::len).sum();
    let threads = options.worker_threads().clamp(1, jobs.max(1));
    let queue = JobQueue { lanes, outcome: Outcome::new() };
    on_threads(threads, |worker| queue.work(worker));
    // Files that are whole are kept even if jobs of others have failed.
    let finished = lanes.iter().filter(|lane| lane.is_done());
    let finished: Vec<Result<()>> = finished.map(Lane::finish).collect();
    queue.outcome.into_result()?;
    finished.into_iter().collect()
}

/// Jobs of one run that are handed out in ascending order: those of an output file.
pub(super) struct Lane<'a, 'm> {
    run: &'a Run<'a, 'm>,
    sink: &'a dyn Sink,
    /// Number of the next job.
    next: AtomicUsize,
    jobs: Range<usize>,
    /// Number of jobs that are done.
    done: AtomicUsize,
    ahead: AheadSlot,
    held: HeldWrites,
}

impl<'a, 'm> Lane<'a, 'm> {
    /// One of `lanes` lanes that are done side by side.
    fn new(run: &'a Run<'a, 'm>, jobs: Range<usize>, sink: &'a dyn Sink, lanes: usize) -> Self {
        Self {
            ahead: AheadSlot::new(run.options.worker_threads(), lanes, jobs.start),
            held: HeldWrites::default(),
            run,
            sink,
            next: AtomicUsize::new(jobs.start),
            jobs,
            done: AtomicUsize::new(0),
        }
    }

    /// Whether all jobs are done and written, once the workers have ended.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.jobs.len()
    }

    /// Writes what jobs have held. All are done.
    ///
    /// # Errors
    /// The sink cannot write. Then the file is not whole.
    fn finish(&self) -> Result<()> {
        let finished = self.held.finish(self.sink);
        finished.inspect_err(|_| self.done.store(0, Ordering::Release))
    }

    /// Number of jobs.
    fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Does job `number` of the plan. Returns the number of bytes written.
    fn run_job(&self, number: usize, worker: &mut Worker, outcome: &Outcome) -> Result<u64> {
        let run = self.run;
        let (index, no) = run.plan.job(number);
        let outputs = &run.plan.outputs[index..];
        if no == 0 && run.verifies {
            outputs[0].checks.own().iter().try_for_each(Part::verify)?;
        }
        let (first, end) = (number - no, run.plan.first_job[index + 1]);
        let job = Job {
            no,
            of_tensor: self.jobs.start.max(first) - first..self.jobs.end.min(end) - first,
            ahead: &self.ahead,
            held: &self.held,
            outputs,
            checksums: &run.checksums[index - run.outputs.start..],
            sink: self.sink,
            options: run.options,
            number,
            outcome,
        };
        outputs[0].body.run(&job, worker)
    }

    /// Counts job `number`, which has written `written` bytes, and reports the progress.
    fn advance(&self, number: usize, written: u64) {
        let run = self.run;
        self.done.fetch_add(1, Ordering::Release);
        if run.jobs_left.is_empty() {
            return;
        }
        let (index, _) = run.plan.job(number);
        let left = &run.jobs_left[index - run.outputs.start];
        let is_last = left.fetch_sub(1, Ordering::Relaxed) == 1;
        let file = run.plan.outputs[index].place.file;
        run.done.add(written, usize::from(is_last), file);
    }
}

struct JobQueue<'a, 'm> {
    lanes: &'a [Lane<'a, 'm>],
    outcome: Outcome,
}

impl JobQueue<'_, '_> {
    /// Does jobs until none is left, or a lower one than all that are left has failed. Worker `i`
    /// begins with lane `i`.
    fn work(&self, i: usize) {
        let _stop = self.outcome.stop_on_panic();
        let mut worker = Worker::default();
        let (before, from) = self.lanes.split_at(i % self.lanes.len().max(1));
        for lane in from.iter().chain(before) {
            self.work_on(lane, &mut worker);
        }
    }

    /// Does jobs of `lane` until none is left or a lower one has failed.
    fn work_on(&self, lane: &Lane<'_, '_>, worker: &mut Worker) {
        loop {
            // Relaxed suffices: each job number is handed out once, and jobs share no data that the
            // cursor would have to order.
            let job = lane.next.fetch_add(1, Ordering::Relaxed);
            if job >= lane.jobs.end || self.outcome.is_stopped_at(job) {
                return;
            }
            let cancel = &lane.run.options.cancel;
            let result = cancel.check();
            match result.and_then(|()| lane.run_job(job, worker, &self.outcome)) {
                Ok(written) => lane.advance(job, written),
                Err(error) => self.outcome.fail(job, error),
            }
        }
    }
}
