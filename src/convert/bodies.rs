//! The bodies of tensors that are not encoded: copied, streamed, gathered or decoded.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::ahead::DecodedTiles;
use super::cut::{SLAB_VALUES, round_down};
use super::output::{Body, Job, ValueSource, Worker};
use super::overflow::Overflow;
use crate::element::Out;
use crate::model::Part;
use crate::remember::{Decode, Tile};
use crate::{Result, TargetDtype};

/// Copies stored bytes in pieces, with their byte order swapped if they are big-endian.
pub(super) struct CopyBody<'m>(pub Part<'m>);

impl<'m> Body<'m> for CopyBody<'m> {
    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64> {
        let (output, bytes) = (job.output(), &mut worker.input.bytes);
        let range = output.cut.tile(job.no).cols;
        let (at, len) = (range.start as u64, range.len() as u64);
        if job.copy(&self.0, at, len) {
            return Ok(len);
        }
        bytes.load_at(&self.0, at, range.len())?;
        // The pieces cover exactly the bytes of the checksum, so it needs no reading of its own.
        if self.0.exact_check().is_some() {
            job.checksums[0].input.add(at, bytes);
        }
        job.put(at, bytes)?;
        Ok(bytes.len() as u64)
    }

    fn summed_input(&self) -> Option<&Part<'m>> {
        self.0.exact_check().map(|_| &self.0)
    }

    fn values(&self) -> ValueSource<'_, 'm> {
        ValueSource::Stored(&self.0)
    }
}

/// Copies stored tensors of the same length one behind the other.
pub(super) struct StackBody<'m>(pub Vec<Part<'m>>);

impl<'m> Body<'m> for StackBody<'m> {
    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64> {
        let (output, bytes) = (job.output(), &mut worker.input.bytes);
        let Range { start, end } = output.cut.tile(job.no).cols;
        let each = output.cut.cols / self.0.len().max(1);
        let mut at = start;
        while let Some(part) = at.checked_div(each).and_then(|no| self.0.get(no)) {
            if at >= end {
                break;
            }
            let (inside, left) = (at % each, each - at % each);
            let len = left.min(end - at);
            bytes.load_at(part, inside as u64, len)?;
            job.put(at as u64, bytes)?;
            at += len;
        }
        Ok((end - start) as u64)
    }
}

/// Writes bytes that are in memory.
pub(super) struct BytesBody(pub Vec<u8>);

impl<'m> Body<'m> for BytesBody {
    fn run(&self, job: &Job<'_, 'm>, _worker: &mut Worker) -> Result<u64> {
        job.put(0, &self.0)?;
        Ok(self.0.len() as u64)
    }
}

/// Copies a compressed archive member. It can only be read from its beginning, so there is one job.
pub(super) struct StreamBody<'m>(pub Part<'m>);

impl<'m> Body<'m> for StreamBody<'m> {
    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64> {
        self.0.stream(worker.input.bytes.buffer(), |at, piece| {
            job.options.cancel.check()?;
            job.put(at, piece)
        })?;
        Ok(self.0.len())
    }

    fn values(&self) -> ValueSource<'_, 'm> {
        ValueSource::Stored(&self.0)
    }
}

/// Copies elements that are not adjacent in the input: views of a storage, arrays in Fortran order.
/// The columns of a tile are the last `inner` dimensions.
pub(super) struct GatherBody<'m> {
    pub part: Part<'m>,
    pub inner: usize,
}

impl<'m> Body<'m> for GatherBody<'m> {
    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64> {
        let (cut, bytes) = (&job.output().cut, worker.input.bytes.buffer());
        let tile = cut.tile(job.no);
        let element_size = (self.part.len() as usize / (cut.rows * cut.cols).max(1)).max(1);
        bytes.resize(tile.values() * element_size, 0);
        self.part
            .gather_rows(self.inner, tile.rows.clone(), bytes)?;
        job.put((tile.rows.start * cut.cols * element_size) as u64, bytes)?;
        Ok(bytes.len() as u64)
    }
}

/// Decodes values to the type `target`.
pub(super) struct DecodeBody<'m> {
    pub decoder: Box<dyn Decode + 'm>,
    pub target: TargetDtype,
    pub overflow: Overflow,
}

impl<'m> Body<'m> for DecodeBody<'m> {
    fn run(&self, job: &Job<'_, 'm>, worker: &mut Worker) -> Result<u64> {
        let (cut, ahead, level) = (job.output().cut, job.ahead, job.options.level);
        let tile = &cut.tile(job.no);
        let tensor = DecodedTiles {
            decoder: &*self.decoder,
            cut,
            first_job: job.number - job.no,
            tiles: job.of_tensor.clone(),
        };
        let next = ahead.load((&tensor, job.no), decoded_behind(job), &mut worker.input)?;
        // A tile is loaded at once but decoded in slabs of rows, whose output is still in the cache
        // when it is written.
        let slab_rows = slab_rows(tile.cols.len(), self.decoder.rows_together());
        let element_size = self.target.byte_size();
        for first in tile.rows.clone().step_by(slab_rows) {
            let rows = first..(first + slab_rows).min(tile.rows.end);
            let values = rows.len() * tile.cols.len();
            worker.output.resize((values * element_size).div_ceil(4), 0);
            let out = Out::new(self.target, &mut worker.output).first(values);
            self.decoder
                .decode(tile, rows.clone(), &worker.input, level, out);
            if self.target == TargetDtype::F16 {
                self.overflow
                    .check(&*self.decoder, tile, rows.clone(), worker, level);
            }
            let bytes = &worker.output.as_bytes()[..values * element_size];
            put_rows(job, tile, rows.clone(), bytes, element_size)?;
            if let Some(next) = &next {
                let made = (rows.end - tile.rows.start, tile.rows.len());
                ahead.fill_next(next, made, &mut worker.input.staging);
            }
        }
        Ok((tile.values() * element_size) as u64)
    }

    fn values(&self) -> ValueSource<'_, 'm> {
        ValueSource::Decoded(&*self.decoder, self.target)
    }

    fn overflow_note(&self, name: &str) -> Option<String> {
        self.overflow.note(name)
    }
}

/// Outputs behind that of a job that are looked through for what is read next.
const MOST_SKIPPED: usize = 16;

/// The tensors that jobs of the same file decode behind that of `job`, as far as the run makes them.
fn decoded_behind<'a>(job: &'a Job<'_, '_>) -> impl Iterator<Item = DecodedTiles<'a>> {
    let output = job.output();
    let jobs = output.body.jobs(&output.cut);
    // A lane that ends within a tensor does not come to those behind it.
    let most = match job.of_tensor.end < jobs {
        true => 0,
        false => MOST_SKIPPED,
    };
    let mut first_job = job.number - job.no + jobs;
    // There are as many checksums as the run makes tensors.
    let made = job.outputs.iter().zip(job.checksums).skip(1).take(most);
    made.map(|(output, _)| output)
        .take_while(|behind| behind.place.file == output.place.file)
        .filter_map(move |output| {
            let (jobs, first) = (output.body.jobs(&output.cut), first_job);
            first_job += jobs;
            match output.body.values() {
                ValueSource::Decoded(decoder, _) => Some(DecodedTiles {
                    decoder,
                    cut: output.cut,
                    first_job: first,
                    tiles: 0..jobs,
                }),
                _ => None,
            }
        })
}

/// Rows of `width` values that are decoded at once, by a decoder that wants a multiple of
/// `together`. A slab may be twice as large for that.
fn slab_rows(width: usize, together: usize) -> usize {
    let rows = (SLAB_VALUES / width.max(1)).max(1);
    match rows >= together {
        true => round_down(rows, together),
        false => together.min(2 * rows),
    }
}

/// Writes rows `rows` of a tile, whose elements have `element_size` bytes: at once if they are
/// adjacent in the output, else row by row.
pub(super) fn put_rows(
    job: &Job<'_, '_>,
    tile: &Tile,
    rows: Range<usize>,
    bytes: &[u8],
    element_size: usize,
) -> Result<()> {
    let cols = job.output().cut.cols;
    let at = |row: usize| (row as u64 * cols as u64 + tile.cols.start as u64) * element_size as u64;
    if tile.cols.len() == cols || rows.len() == 1 {
        return job.put(at(rows.start), bytes);
    }
    for (row, bytes) in rows.zip(bytes.chunks_exact(tile.cols.len() * element_size)) {
        job.put(at(row), bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_hold_whole_groups_of_rows_where_they_may() {
        assert_eq!(slab_rows(SLAB_VALUES / 40, 1), 40);
        assert_eq!(slab_rows(SLAB_VALUES / 40, 16), 32);
        assert_eq!(slab_rows(SLAB_VALUES / 9, 16), 16);
    }

    #[test]
    fn slabs_are_at_most_twice_as_large_for_it() {
        assert_eq!(slab_rows(SLAB_VALUES / 4, 16), 8);
        assert_eq!(slab_rows(SLAB_VALUES * 4, 16), 2);
        assert_eq!(slab_rows(SLAB_VALUES * 4, 1), 1);
        assert_eq!(slab_rows(0, 16), round_down(SLAB_VALUES, 16));
    }
}
