//! The body of a tensor that is encoded: first its survey, if it needs one, then bands of tiles.

use super::Encoding;
use super::bands::Pieces;
use crate::Result;
use crate::convert::cut::Cut;
use crate::convert::output::{Body, Job, Worker};

/// Encodes a tensor, and writes it and the stored tensors behind it that belong to it.
pub(in crate::convert) struct EncodeBody<'m>(pub Encoding<'m>);

impl<'m> Body<'m> for EncodeBody<'m> {
    fn jobs(&self, _cut: &Cut) -> usize {
        self.0.looks() + self.0.bands.jobs()
    }

    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64> {
        let (encoding, level) = (&self.0, job.options.level);
        let (input, scratch) = (&mut worker.input, &mut worker.encode.scratch);
        let pieces: &mut Pieces = &mut worker.encode.pieces;
        pieces.clear();
        let looks = encoding.looks();
        if job.no < looks {
            encoding.look(job.no, input, scratch, level)?;
            return Ok(0);
        }
        // All tiles of the survey have been taken by some worker: they are jobs before this one.
        let survey = loop {
            match encoding.survey() {
                Some(survey) => break survey,
                None if (job.is_abandoned)() => return Ok(0),
                None => std::thread::sleep(std::time::Duration::from_micros(50)),
            }
        };
        let mut written = 0;
        let mut write = |part: usize, at, bytes: &[u8]| {
            written += bytes.len() as u64;
            job.put_in(part, at, bytes)
        };
        let tiles = encoding.bands.tiles(job.no - looks);
        // A lone tile needs no putting together.
        if let (1, Some(tile)) = (tiles.len(), tiles.clone().next()) {
            encoding.run(tile, survey, input, scratch, level, &mut write)?;
            return Ok(written);
        }
        for tile in tiles {
            let mut collect = |part: usize, at, bytes: &[u8]| {
                pieces.add(part, at, bytes);
                Ok(())
            };
            encoding.run(tile, survey, input, scratch, level, &mut collect)?;
        }
        pieces.flush(write)?;
        Ok(written)
    }

    fn encoding(&self) -> Option<&Encoding<'m>> {
        Some(&self.0)
    }

    fn encoding_mut(&mut self) -> Option<&mut Encoding<'m>> {
        Some(&mut self.0)
    }
}

/// The body of a stored tensor that the [`EncodeBody`] before it writes.
pub(in crate::convert) struct WrittenWithAnother;

impl<'m> Body<'m> for WrittenWithAnother {
    fn jobs(&self, _cut: &Cut) -> usize {
        0
    }

    fn run(&self, _job: &Job<'_, 'm>, _worker: &mut Worker) -> Result<u64> {
        Ok(0)
    }

    fn is_written_with_another(&self) -> bool {
        true
    }
}
