//! The workers: each takes the next job from one cursor, reads, decodes, and writes at the planned place.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::options::{Progress, RememberOptions};
use super::plan::{Body, Output, Plan, SLAB_VALUES};
use crate::containers::model::Part;
use crate::containers::write::Sink;
use crate::element::Out;
use crate::scheme::{Buffers, Tile};
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
    let shared = Shared {
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
                .spawn_scoped(scope, || shared.work())?;
        }
        shared.work();
        Ok(())
    })?;
    let failed = shared
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

struct Shared<'a> {
    plan: &'a Plan<'a>,
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

/// What a worker keeps from job to job.
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
                .and_then(|()| self.one(job, &mut worker));
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

    /// Does one job: a tile of an output, as a rule; the number of bytes written.
    fn one(&self, job: usize, worker: &mut Worker) -> Result<u64> {
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

    /// Does a tile of what is encoded: looks at it, or writes what it becomes into output `index` and those behind it.
    #[cfg(feature = "lethe")]
    fn encode(
        &self,
        encoding: &super::encode::Encoding<'_>,
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
        let (looks, level) = (encoding.looks(), self.options.level);
        if no < looks {
            encoding.look(no, input, scratch, level)?;
            return Ok(0);
        }
        // All tiles of the first pass have been taken by some worker: they are jobs before this one.
        let survey = loop {
            match encoding.survey() {
                Some(survey) => break survey,
                None if job > self.stop_at.load(Ordering::Acquire) => return Ok(0),
                None => thread::sleep(std::time::Duration::from_micros(50)),
            }
        };
        let mut written = 0;
        let mut write = |part: usize, at, bytes: &[u8]| {
            written += bytes.len() as u64;
            self.put(&self.plan.outputs[index + part], at, bytes)
        };
        let tiles = encoding.bands.tiles(no - looks);
        if let (1, Some(tile)) = (tiles.len(), tiles.clone().next()) {
            encoding.run(tile, survey, input, scratch, level, &mut write)?;
            return Ok(written);
        }
        for tile in tiles {
            encoding.run(
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

    /// Writes rows of a tile: at once if they are whole rows of the output, else one by one.
    fn write(
        &self,
        output: &Output<'_>,
        tile: &Tile,
        rows: std::ops::Range<usize>,
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

    /// Writes bytes of a tensor, from its byte `at` on.
    fn put(&self, output: &Output<'_>, at: u64, bytes: &[u8]) -> Result<()> {
        if let Some((sum, _)) = &output.sums.output {
            sum.add(at, bytes);
        }
        self.sink.write_at(output.file, output.offset + at, bytes)
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

/// Compares the checksums of what was copied as it is.
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
