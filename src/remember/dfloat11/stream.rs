//! The stream of a module's exponents, by chunks.

use std::ops::Range;
use std::sync::OnceLock;

use crate::model::Tensor;
use crate::remember::kernels::dfloat11::{ExponentCode, MAX_LEN, MAX_TABLES, TABLE};
use crate::remember::seam::wrong;
use crate::{Dtype, Result};

/// The stored tensors of a module.
pub(super) struct StoredStream<'m> {
    pub codes: Tensor<'m>,
    pub rest: Tensor<'m>,
    pub tables: Tensor<'m>,
    pub positions: Tensor<'m>,
    pub gaps: Tensor<'m>,
}

impl<'m> StoredStream<'m> {
    /// The stream, with chunks of `chunk_bytes`.
    ///
    /// # Errors
    /// A tensor has another dtype or size than the others ask for.
    pub fn checked(self, chunk_bytes: usize) -> Result<Stream<'m>> {
        let t = &self.codes;
        for part in [&self.codes, &self.rest, &self.tables, &self.positions, &self.gaps] {
            if part.dtype() != Dtype::U8 {
                return Err(wrong(part, "the parts of DFloat11 are U8"));
            }
        }
        let (len, n) = (self.codes.elements(), self.rest.elements());
        if len == 0 || n == 0 {
            return Err(wrong(t, "there is nothing in it"));
        }
        if u32::try_from(n).is_err() {
            return Err(wrong(&self.rest, "places of so many values take more than 32 bits"));
        }
        match self.tables.shape() {
            &[rows, TABLE] if (2..=MAX_TABLES + 1).contains(&rows) => {}
            _ => {
                let what = format!("tables are [2 to {}, {TABLE}]", MAX_TABLES + 1);
                return Err(wrong(&self.tables, what));
            }
        }
        let chunks = len.div_ceil(chunk_bytes);
        // A gap of five bits for each 8 bytes of whole chunks.
        let gaps = chunks
            .checked_mul(chunk_bytes / 8 * 5)
            .map(|bits| bits.div_ceil(8));
        for (part, want) in [
            (&self.positions, chunks.checked_add(1).and_then(|n| n.checked_mul(4))),
            (&self.gaps, gaps),
        ] {
            if Some(part.elements()) != want {
                let what = format!(
                    "its `{}` {:?} is not for {chunks} chunks of {chunk_bytes} bytes",
                    part.name(),
                    part.shape()
                );
                return Err(wrong(t, what));
            }
        }
        let stream = Stream { len, chunk_bytes, chunks, code: OnceLock::new(), stored: self };
        let ends = [stream.position(0)?, stream.position(chunks)?];
        if ends != [0, n] {
            let what = format!("its places go from {} to {} of {n}", ends[0], ends[1]);
            return Err(wrong(&stream.stored.positions, what));
        }
        Ok(stream)
    }
}

/// The stream of a module's exponents.
pub(super) struct Stream<'m> {
    pub stored: StoredStream<'m>,
    /// Bytes of codes.
    len: usize,
    chunk_bytes: usize,
    chunks: usize,
    /// The code, made when it is first needed.
    code: OnceLock<ExponentCode>,
}

impl Stream<'_> {
    fn code(&self) -> Result<&ExponentCode> {
        if let Some(code) = self.code.get() {
            return Ok(code);
        }
        let mut tables = vec![0; self.stored.tables.elements()];
        self.stored.tables.part().read_at(0, &mut tables)?;
        // Two threads may make it at once; both results are alike.
        Ok(self.code.get_or_init(|| ExponentCode::new(tables)))
    }

    /// Index of the first value of chunk `chunk`; behind the last chunk that of all values.
    fn position(&self, chunk: usize) -> Result<usize> {
        let mut bytes = [0; 4];
        let part = self.stored.positions.part();
        part.read_at(chunk as u64 * 4, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes) as usize)
    }

    /// The chunk that has value `value`. Of positions that are in no order it is any chunk.
    fn chunk_of(&self, value: usize) -> Result<usize> {
        let (mut low, mut high) = (0, self.chunks);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.position(middle)? <= value {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The bit of chunk `chunk` at which its first code begins.
    fn gap(&self, chunk: usize) -> Result<usize> {
        // A chunk has `chunk_bytes / 8` gaps of five bits. They may lie in two bytes.
        let bit = chunk * (self.chunk_bytes / 8) * 5;
        let mut bytes = [0; 2];
        let len = 2.min(self.stored.gaps.elements() - bit / 8);
        let part = self.stored.gaps.part();
        part.read_at(bit as u64 / 8, &mut bytes[..len])?;
        Ok(usize::from(u16::from_be_bytes(bytes) << (bit % 8) >> 11))
    }

    /// Replaces `out` with the exponents of values `range`. `staging` is scratch.
    ///
    /// Codes follow each other across the bounds of chunks, so that all chunks of the range are one
    /// run. Where a chunk ends, the number of its values and the place of the next code must be
    /// those that are stored.
    pub fn exponents(
        &self,
        range: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let code = self.code()?;
        out.clear();
        if range.is_empty() {
            return Ok(());
        }
        let (first, last) = (self.chunk_of(range.start)?, self.chunk_of(range.end - 1)?);
        let chunk_bits = self.chunk_bytes * 8;
        let malformed = |chunk: usize, what: &str| {
            wrong(&self.stored.codes, format!("the codes of chunk {chunk} {what}"))
        };
        let start = self.position(first)?;
        // A range within one chunk is decoded up to the chunk's end, where its place is checked;
        // any other passes such an end.
        let stop = if first == last {
            self.position(first + 1)?.max(range.end)
        } else {
            range.end
        };
        // Before anything is allocated, chunks are known to hold about as many values as codes fit.
        let held = (last + 1).saturating_sub(first);
        let values = stop.saturating_sub(start);
        if start > range.start
            || values > held * chunk_bits
            || held > values * MAX_LEN / chunk_bits + 2
        {
            return Err(malformed(first, "are not as many as its place says"));
        }
        let end = self.len.min((last + 1) * self.chunk_bytes + MAX_LEN / 8);
        let begin = first * self.chunk_bytes;
        staging.resize(end - begin, 0);
        self.stored.codes.part().read_at(begin as u64, staging)?;
        out.resize(values, 0);
        let (mut at, mut done) = (self.gap(first)?, 0);
        for chunk in first..=last {
            let next = self.position(chunk + 1)?;
            let target = next
                .min(stop)
                .checked_sub(start)
                .and_then(|end| out.get_mut(done..end));
            let Some(target) = target else {
                return Err(malformed(chunk, "are not as many as its place says"));
            };
            let wanted = target.len();
            if code.decode(staging, &mut at, target) != wanted || at > staging.len() * 8 {
                return Err(malformed(chunk, "are not those of its tables"));
            }
            done += wanted;
            // Where the next chunk's first code begins, or the last byte ends.
            let is_sound = match chunk + 1 {
                _ if start + done != next => true,
                next if next == self.chunks => begin + at.div_ceil(8) == self.len,
                next => at == (next - first) * chunk_bits + self.gap(next)?,
            };
            if !is_sound {
                return Err(malformed(chunk, "end elsewhere than the next begin"));
            }
        }
        if start + done != stop {
            return Err(malformed(last, "are not as many as its place says"));
        }
        out.truncate(range.end - start);
        out.drain(..range.start - start);
        Ok(())
    }
}
