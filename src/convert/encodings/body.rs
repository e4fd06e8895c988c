//! The body of a tensor that is encoded: first its survey, if it needs one, then bands of tiles.

use crate::Result;
use crate::convert::cut::Cut;
use crate::convert::encode::Encoding;
use crate::convert::output::{Body, Job, Worker};

/// Encodes a tensor. Writes its own output and the outputs directly behind it, such as the scales
/// of the codes.
pub(super) struct EncodeBody<'m>(pub Encoding<'m>);

impl<'m> Body<'m> for EncodeBody<'m> {
    fn jobs(&self, _cut: &Cut) -> usize {
        self.0.jobs()
    }

    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64> {
        let (encoding, level) = (&self.0, job.options.level);
        let (input, scratch) = (&mut worker.input, &mut worker.encode);
        let survey_jobs = encoding.survey_jobs();
        if job.no < survey_jobs {
            encoding.survey_tile(job.no, input, scratch, level)?;
            if encoding.survey_result().is_some() {
                job.outcome.notify();
            }
            return Ok(0);
        }
        // Waiting for the survey cannot deadlock. Its jobs come before the jobs that encode, and
        // jobs are handed out in order: when a worker waits here, each survey job has been taken,
        // or was not begun because a job before it had failed. A survey job never waits itself, so
        // one that has been taken ends, with a result, an error or a panic. All three wake this
        // worker. After an error or a panic nothing is left to do: the run has failed.
        let Some(survey) = job
            .outcome
            .wait_for(job.number, || encoding.survey_result())
        else {
            return Ok(0);
        };
        let mut written = 0;
        let mut write = |part: usize, at, bytes: &[u8]| {
            written += bytes.len() as u64;
            job.put_beside(part, at, bytes)
        };
        encoding.encode_band(job.no - survey_jobs, survey, input, scratch, level, &mut write)?;
        Ok(written)
    }

    fn is_encoded(&self) -> bool {
        true
    }

    fn encoding(&self) -> Option<&Encoding<'m>> {
        Some(&self.0)
    }

    fn encoding_mut(&mut self) -> Option<&mut Encoding<'m>> {
        Some(&mut self.0)
    }
}

/// The body of a stored tensor that the [`EncodeBody`] before it writes.
pub(super) struct WrittenWithAnother;

impl<'m> Body<'m> for WrittenWithAnother {
    fn jobs(&self, _cut: &Cut) -> usize {
        0
    }

    fn run(&self, _job: &Job<'_, 'm>, _worker: &mut Worker) -> Result<u64> {
        Ok(0)
    }

    fn is_encoded(&self) -> bool {
        true
    }

    fn is_written_with_another(&self) -> bool {
        true
    }
}
