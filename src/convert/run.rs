//! The workers. Each takes the next job from one cursor, reads, decodes or encodes, and writes at the planned place.
//!
//! Jobs are handed out in the order of their numbers, and each writes bytes that no other job writes. Only a job that
//! encodes can depend on others, on those of the survey pass of the same tensor, which come before it.

mod outcome;
#[cfg(all(test, feature = "lethe"))]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use self::outcome::Outcome;
#[cfg(feature = "lethe")]
use super::encode::Encoding;
use super::options::{Progress, RememberOptions};
use super::plan::{Body, Output, Plan, SLAB_VALUES};
use crate::Result;
use crate::containers::model::Part;
use crate::containers::write::Sink;
use crate::element::Out;
use crate::scheme::{Buffers, Tile};

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

/// Runs jobs `jobs` of `plan` without comparing checksums: that is [`check`]'s, once all jobs of an output are done.
///
/// # Errors
/// As documented at [`run`], except for checksums.
pub(super) fn run_jobs(
    plan: &Plan<'_>,
    jobs: Range<usize>,
    sink: &dyn Sink,
    options: &RememberOptions,
    done: &AtomicU64,
) -> Result<()> {
    let threads = threads(options).clamp(1, jobs.len().max(1));
    let shared = Shared {
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
                .spawn_scoped(scope, || shared.work())?;
        }
        shared.work();
        Ok(())
    })?;
    shared.outcome.into_result()
}

/// Number of threads that the options ask for; by default one for each CPU.
pub(super) fn threads(options: &RememberOptions) -> usize {
    options
        .threads
        .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
}

/// What the workers share.
struct Shared<'a> {
    plan: &'a Plan<'a>,
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

/// Buffers that a worker reuses from job to job.
#[derive(Default)]
struct Worker {
    input: Buffers,
    output: Vec<u32>,
    #[cfg(feature = "lethe")]
    encoding: super::encode::Scratch,
    #[cfg(feature = "lethe")]
    pieces: super::bands::Pieces,
}

impl Shared<'_> {
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

    /// Does one job, mostly a tile of an output, and returns the number of bytes written.
    fn run_job(&self, job: usize, worker: &mut Worker) -> Result<u64> {
        let (index, no) = self.plan.job(job);
        let output = &self.plan.outputs[index];
        if no == 0 {
            output.verify.iter().try_for_each(Part::verify)?;
        }
        #[cfg(feature = "lethe")]
        if let Body::Encode(encoding) = &output.body {
            return self.encode(encoding, index, (job, no), worker);
        }
        let tile = &output.cut.tile(no);
        let bytes = &mut worker.input.bytes;
        match &output.body {
            Body::Copy(part) => {
                let at = tile.cols.start as u64;
                bytes.resize(tile.cols.len(), 0);
                part.read_at(at, bytes)?;
                if part.own_check().is_some() {
                    output.sums.input.add(at, bytes);
                }
                self.put(output, at, bytes)?;
                Ok(bytes.len() as u64)
            }
            Body::Stream(part) => {
                part.stream(bytes, |at, piece| {
                    self.options
                        .cancel
                        .check()
                        .and_then(|()| self.put(output, at, piece))
                })?;
                Ok(part.len)
            }
            Body::Gather(part, inner) => {
                let size = (part.len as usize / (output.cut.rows * output.cut.cols).max(1)).max(1);
                bytes.resize(tile.values() * size, 0);
                part.gather_rows(*inner, tile.rows.clone(), bytes)?;
                self.put(
                    output,
                    (tile.rows.start * output.cut.cols * size) as u64,
                    bytes,
                )?;
                Ok(bytes.len() as u64)
            }
            #[cfg(feature = "lethe")]
            Body::Encode(_) | Body::Encoded => Ok(0),
            Body::Decode(decoder) => {
                decoder.load(tile, &mut worker.input)?;
                let height = (SLAB_VALUES / tile.cols.len().max(1)).max(1);
                let size = output.target.byte_size();
                for first in tile.rows.clone().step_by(height) {
                    let rows = first..(first + height).min(tile.rows.end);
                    let values = rows.len() * tile.cols.len();
                    worker.output.resize((values * size).div_ceil(4), 0);
                    let out = Out::new(output.target, &mut worker.output).first(values);
                    decoder.decode(tile, rows.clone(), &worker.input, self.options.level, out);
                    let bytes = &bytemuck::cast_slice(&worker.output)[..values * size];
                    self.write(output, tile, rows, bytes)?;
                }
                Ok((tile.values() * size) as u64)
            }
        }
    }

    /// Does job `no` of an encoding: surveys a tile, or encodes the tiles of a band and writes them into output `index`
    /// and those behind it. `job` is its number in the plan. Returns the number of bytes written.
    #[cfg(feature = "lethe")]
    fn encode(
        &self,
        encoding: &Encoding<'_>,
        index: usize,
        (job, no): (usize, usize),
        worker: &mut Worker,
    ) -> Result<u64> {
        let Worker {
            input,
            encoding: scratch,
            pieces,
            ..
        } = worker;
        pieces.clear();
        let (survey_jobs, level) = (encoding.survey_jobs(), self.options.level);
        if no < survey_jobs {
            encoding.survey_tile(no, input, scratch, level)?;
            if encoding.survey_result().is_some() {
                self.outcome.notify();
            }
            return Ok(0);
        }
        // Waiting for the survey cannot deadlock. The survey jobs of an encoding come before the jobs that encode, and jobs
        // are handed out in order: when a worker waits here, each survey job has been taken, or was not begun because a job
        // before it had failed. A survey job never waits itself, so one that has been taken ends, with a result, an error
        // or a panic. All three wake this worker. After an error or a panic nothing is left to do: the run has failed.
        let Some(survey) = self.outcome.wait_for(job, || encoding.survey_result()) else {
            return Ok(0);
        };
        let mut written = 0;
        let mut write = |part: usize, at, bytes: &[u8]| {
            written += bytes.len() as u64;
            self.put(&self.plan.outputs[index + part], at, bytes)
        };
        let tiles = encoding.bands.tiles(no - survey_jobs);
        // The bytes of a single tile need no collecting: neighbours that could be merged are in other jobs.
        if let (1, Some(tile)) = (tiles.len(), tiles.clone().next()) {
            encoding.encode_tile(tile, survey, input, scratch, level, &mut write)?;
            return Ok(written);
        }
        for tile in tiles {
            encoding.encode_tile(
                tile,
                survey,
                input,
                scratch,
                level,
                &mut |part, at, bytes| {
                    pieces.add(part, at, bytes);
                    Ok(())
                },
            )?;
        }
        pieces.flush(write)?;
        Ok(written)
    }

    /// Writes rows `rows` of a tile: at once if they are whole rows of the output, else one by one.
    fn write(
        &self,
        output: &Output<'_>,
        tile: &Tile,
        rows: Range<usize>,
        bytes: &[u8],
    ) -> Result<()> {
        let size = output.target.byte_size();
        let at = |row: usize| {
            ((row as u64 * output.cut.cols as u64) + tile.cols.start as u64) * size as u64
        };
        if tile.cols.len() == output.cut.cols || rows.len() == 1 {
            return self.put(output, at(rows.start), bytes);
        }
        for (row, bytes) in rows.zip(bytes.chunks_exact(tile.cols.len() * size)) {
            self.put(output, at(row), bytes)?;
        }
        Ok(())
    }

    /// Writes bytes of an output tensor, from its byte `at` on, and adds them to its checksum if it has one.
    fn put(&self, output: &Output<'_>, at: u64, bytes: &[u8]) -> Result<()> {
        if let Some((sum, _)) = &output.sums.output {
            sum.add(at, bytes);
        }
        self.sink.write_at(output.file, output.offset + at, bytes)
    }
}

/// Writes the checksums of the output's tensors at the places that their container has for them. All jobs are done.
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

/// Compares the checksums of the outputs that are copies of stored bytes.
///
/// # Errors
/// The first output whose input has another checksum than its container says.
pub(super) fn check(outputs: &[Output<'_>]) -> Result<()> {
    for output in outputs {
        if let Body::Copy(part) = &output.body
            && let Some(check) = part.own_check()
            && output.sums.input.total(check.before) != check.crc
        {
            return Err(part.wrong_sum());
        }
    }
    Ok(())
}
