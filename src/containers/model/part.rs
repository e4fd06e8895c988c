//! A tensor's bytes as the pipeline reads them: positionally, into the caller's buffer.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use super::strided::{self, Dim};
use super::{Check, TensorInfo};
use crate::error::printable;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// Where a tensor's bytes are, and in what form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'m> {
    pub(super) source: &'m Source,
    pub(super) info: &'m TensorInfo,
    pub len: u64,
    pub name: &'m str,
}

impl<'m> Part<'m> {
    fn dtype(&self) -> Dtype {
        self.info.dtype
    }

    /// Whether the elements lie apart, or in another order.
    pub(crate) fn is_strided(&self) -> bool {
        self.info.strides.is_some()
    }

    /// Whether the bytes can only be read from the beginning on, at least without a detour.
    pub(crate) fn is_deflated(&self) -> bool {
        matches!(self.source, Source::Deflated(_))
    }

    /// What the stored bytes are checked by.
    pub(crate) fn check(&self) -> Option<&'m Check> {
        self.info.check.as_ref()
    }

    /// Which of the model's sources has the bytes.
    pub(crate) fn source_index(&self) -> usize {
        self.info.source
    }

    /// The same, if the bytes that it is about are the tensor's, as they are read.
    pub(crate) fn own_check(&self) -> Option<&'m Check> {
        let (offset, len) = (self.info.offset, self.len);
        self.check()
            .filter(|check| self.is_verbatim() && (check.start, check.len) == (offset, len))
    }

    /// Whether the output's bytes are the stored ones.
    pub(crate) fn is_verbatim(&self) -> bool {
        !self.is_strided() && !self.info.big_endian
    }

    /// Fills `out` from byte `at` of the tensor on, both at the bounds of elements (or blocks).
    pub(crate) fn read_at(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let end = at
            .checked_add(out.len() as u64)
            .filter(|&end| end <= self.len);
        if end.is_none() {
            let (n, name, len) = (out.len(), self.name, self.len);
            return Err(AnamnesisError::parse(format!(
                "tensor `{name}`: {n} bytes at {at} of {len}"
            )));
        }
        match &self.info.strides {
            None => self
                .source
                .read_at(self.info.offset + at, out)
                .map_err(|error| self.named(error))?,
            // All of it is read along whichever dimension lies closest, and not row by row, which can be short.
            Some(strides) if at == 0 && end == Some(self.len) => {
                let dims = self
                    .info
                    .shape
                    .iter()
                    .zip(strides)
                    .map(|(&len, &stride)| Dim { len, stride });
                self.gather(0, &dims.collect::<Vec<_>>(), out)?;
            }
            Some(strides) => self.read_strided(strides, at, out)?,
        }
        if self.info.big_endian {
            self.dtype().swap_bytes(out);
        }
        Ok(())
    }

    /// Reads all stored bytes and compares their checksum, if they have one. Compressed data checks itself.
    pub(crate) fn verify(&self) -> Result<()> {
        if let Some(check) = &self.info.check {
            let mut sum = crc32fast::Hasher::new_with_initial_len(check.before.1, check.before.0);
            let mut piece = vec![0; (256 << 10).min(check.len as usize)];
            let mut at = 0;
            while at < check.len {
                let n = (check.len - at).min(piece.len() as u64) as usize;
                self.source
                    .read_at(check.start + at, &mut piece[..n])
                    .map_err(|error| self.named(error))?;
                sum.update(&piece[..n]);
                at += n as u64;
            }
            if sum.finalize() != check.crc {
                return Err(self.wrong_sum());
            }
        }
        Ok(())
    }

    /// Passes a compressed tensor to `put` in pieces, with their places, and checks it on the way.
    pub(crate) fn stream(
        &self,
        buffer: &mut Vec<u8>,
        mut put: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Source::Deflated(member) = self.source else {
            return Ok(());
        };
        let mut stream = member.stream();
        let mut skip = self.info.offset;
        let mut at = 0;
        while skip > 0 || at < self.len {
            let n = if skip > 0 { skip } else { self.len - at }.min(256 << 10) as usize;
            buffer.resize(n, 0);
            stream
                .read_exact(buffer)
                .map_err(|e| self.named(e.into()))?;
            if skip > 0 {
                skip -= n as u64;
                continue;
            }
            if self.info.big_endian {
                self.dtype().swap_bytes(buffer);
            }
            put(at, buffer)?;
            at += n as u64;
        }
        // What no tensor shows is checked with the rest.
        std::io::copy(&mut stream, &mut std::io::sink()).map_err(|e| self.named(e.into()))?;
        Ok(())
    }

    /// What a wrong checksum is.
    pub(crate) fn wrong_sum(&self) -> AnamnesisError {
        AnamnesisError::parse(format!(
            "tensor `{}`: its data has the wrong checksum",
            self.name
        ))
    }

    /// Elements of a strided tensor in their order, row by row of the last dimension.
    fn read_strided(&self, strides: &[usize], at: u64, mut out: &mut [u8]) -> Result<()> {
        let size = self.dtype().bits() / 8;
        let cols = self.info.shape.last().copied().unwrap_or(1).max(1);
        let mut element = at as usize / size;
        while !out.is_empty() {
            let (row, col) = (element / cols, element % cols);
            let n = (cols - col).min(out.len() / size);
            let (now, rest) = out.split_at_mut(n * size);
            let start = strided::offset(row * cols, &self.info.shape, strides)
                + col * strides.last().unwrap_or(&1);
            let dims = [Dim {
                len: n,
                stride: *strides.last().unwrap_or(&1),
            }];
            self.gather(start, &dims, now)?;
            (element, out) = (element + n, rest);
        }
        Ok(())
    }

    /// Rows `rows` of a strided tensor whose last `inner` dimensions are the columns.
    pub(crate) fn gather_rows(
        &self,
        inner: usize,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let (Some(strides), shape) = (&self.info.strides, &self.info.shape) else {
            return Ok(());
        };
        let size = self.dtype().bits() / 8;
        let outer = shape.len() - inner;
        let cols: usize = shape[outer..].iter().product();
        // Rows that differ only in the innermost of the outer dimensions are gathered together.
        let run = outer.checked_sub(1).map_or(1, |d| shape[d]).max(1);
        let (mut row, mut left) = (rows.start, &mut *out);
        while row < rows.end {
            let n = (run - row % run).min(rows.end - row);
            let (now, rest) = std::mem::take(&mut left).split_at_mut(n * cols * size);
            let own = outer.checked_sub(1).map(|d| Dim {
                len: n,
                stride: strides[d],
            });
            let columns = shape[outer..]
                .iter()
                .zip(&strides[outer..])
                .map(|(&len, &stride)| Dim { len, stride });
            let dims: Vec<Dim> = own.into_iter().chain(columns).collect();
            self.gather(strided::offset(row * cols, shape, strides), &dims, now)?;
            (row, left) = (row + n, rest);
        }
        if self.info.big_endian {
            self.dtype().swap_bytes(out);
        }
        Ok(())
    }

    fn gather(&self, start: usize, dims: &[Dim], out: &mut [u8]) -> Result<()> {
        let size = self.dtype().bits() / 8;
        let read = |element: usize, out: &mut [u8]| {
            self.source
                .read_at(self.info.offset + element as u64 * size as u64, out)
                .map_err(|error| self.named(error))
        };
        strided::gather(&read, start, dims, size, out)
    }

    /// The same error, naming the tensor.
    pub(crate) fn named(&self, error: AnamnesisError) -> AnamnesisError {
        match error {
            AnamnesisError::Io(e)
                if is_malformed(&e)
                    || self.is_deflated() && e.kind() == ErrorKind::UnexpectedEof =>
            {
                AnamnesisError::parse(format!("tensor `{}`: {e}", self.name))
            }
            AnamnesisError::Io(e) => {
                let name = printable(self.name);
                AnamnesisError::Io(std::io::Error::new(
                    e.kind(),
                    format!("reading tensor `{name}`: {e}"),
                ))
            }
            other => other.about(format_args!("tensor `{}`", self.name)),
        }
    }

    /// The whole tensor, if it is at most `max` bytes.
    pub(crate) fn read_small(&self, max: u64) -> Result<Vec<u8>> {
        if self.len > max {
            let (name, len) = (self.name, self.len);
            return Err(AnamnesisError::parse(format!(
                "tensor `{name}`: {len} bytes where at most {max} make sense"
            )));
        }
        let mut out = vec![0; self.len as usize];
        self.read_at(0, &mut out)?;
        Ok(out)
    }

    /// Whether data can be read at all, or only the header is known.
    pub(crate) fn is_readable(&self) -> bool {
        self.source.len().is_some()
    }
}

/// Whether an error of a decoder's is about the data rather than the device.
fn is_malformed(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput
    )
}
