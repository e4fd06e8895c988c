//! [`Part`]: one stored tensor as the conversion pipeline reads it, positionally and into the
//! caller's buffer.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::ops::Range;

use super::strided::{self, StridedDim};
use super::{Check, TensorInfo};
use crate::error::{InTensor, printable};
pub(crate) use crate::source::SharedBytes;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// One stored tensor and the source of its bytes.
///
/// Readers see elements in row-major order and little-endian, however the file has them: strides
/// and byte order are undone here. "Byte `n`" below is a position in that sequence of `len` bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part<'m> {
    pub(super) source: &'m Source,
    pub(super) info: &'m TensorInfo,
}

impl<'m> Part<'m> {
    /// Bytes of the tensor in row-major order.
    pub(crate) fn len(&self) -> u64 {
        self.info.len
    }

    /// The tensor's name.
    pub(crate) fn name(&self) -> &'m str {
        &self.info.name
    }

    fn dtype(&self) -> Dtype {
        self.info.dtype
    }

    /// What tells the tensor from all others while their models live.
    pub(crate) fn identity(&self) -> usize {
        std::ptr::from_ref(self.info).addr()
    }

    /// Whether the tensor has `len` bytes from `at` on.
    fn has(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Whether positional reads are copies of memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.shared_at(0, 0).is_some()
    }

    /// Whether the elements are stored with gaps, or in an order other than row-major.
    pub(crate) fn is_strided(&self) -> bool {
        self.info.strides.is_some()
    }

    /// Whether the tensor lies in a compressed member, where a positional read costs a temporary
    /// file. [`stream`](Self::stream) reads it without one.
    pub(crate) fn is_deflated(&self) -> bool {
        matches!(self.source, Source::Deflated(_))
    }

    /// The checksum that covers the stored bytes, and maybe others around them.
    pub(crate) fn check(&self) -> Option<&'m Check> {
        self.info.check.as_deref()
    }

    /// Whether [`verify`](Self::verify) of an uncompressed tensor compares anything: the tensor has
    /// a checksum, or one of its pieces has.
    pub(crate) fn has_checksum(&self) -> bool {
        let has_pieces_with = matches!(self.source, Source::Pieced(t) if t.has_checksums());
        has_pieces_with || self.check().is_some()
    }

    /// Whether no file has the tensor's bytes at one place: it lies in several pieces, or is made
    /// while it is read.
    pub(crate) fn has_no_place(&self) -> bool {
        self.source.is_made_of_others()
    }

    /// The checksum, if it covers exactly the bytes that readers of this tensor see. A copy can
    /// then sum the bytes that it writes, in place of reading them twice.
    pub(crate) fn exact_check(&self) -> Option<&'m Check> {
        let (offset, len) = (self.info.offset, self.len());
        self.check()
            .filter(|check| self.is_verbatim() && (check.start, check.len) == (offset, len))
    }

    /// Whether readers see the stored bytes unchanged: contiguous, row-major and little-endian.
    pub(crate) fn is_verbatim(&self) -> bool {
        !self.is_strided() && !self.info.big_endian
    }

    /// `len` of the tensor's bytes from `at` on, without a copy. `None` if they are not in memory
    /// as readers see them.
    pub(crate) fn shared_at(&self, at: u64, len: u64) -> Option<SharedBytes> {
        if !self.has(at, len) || !self.is_verbatim() {
            return None;
        }
        self.source.shared(self.info.offset.checked_add(at)?, len)
    }

    /// Fills `out` with the tensor's bytes from `at` on. Both ends must be at the bounds of
    /// elements, or of blocks.
    ///
    /// # Errors
    /// `Parse` if the range exceeds the tensor; `Io` if the file cannot be read. Both name the
    /// tensor.
    pub(crate) fn read_at(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.require(at, out.len())?;
        match &self.info.strides {
            None => self
                .source
                .read_at(self.info.offset + at, out)
                .map_err(|error| self.named(error))?,
            // The whole tensor is gathered at once, along the dimension of the smallest stride. Row
            // by row, the reads of a transposed matrix would be single elements.
            Some(strides) if at == 0 && out.len() as u64 == self.len() => {
                let dims = self
                    .info
                    .shape
                    .iter()
                    .zip(strides.iter())
                    .map(|(&len, &stride)| StridedDim { len, stride });
                self.gather(0, &dims.collect::<Vec<_>>(), out)?;
            }
            Some(strides) => self.read_strided(strides, at, out)?,
        }
        if self.info.big_endian {
            self.dtype().swap_bytes(out);
        }
        Ok(())
    }

    /// Fills each of `pieces` with the tensor's bytes from its offset on, as
    /// [`read_at`](Self::read_at) does, in less time.
    ///
    /// # Errors
    /// Those of [`read_at`](Self::read_at), for the first piece that has one.
    pub(crate) fn read_each<'o>(
        &self,
        mut pieces: impl Iterator<Item = (u64, &'o mut [u8])>,
    ) -> Result<()> {
        if !self.is_verbatim() {
            return pieces.try_for_each(|(at, out)| self.read_at(at, out));
        }
        let mut outside = Ok(());
        let pieces = pieces.map_while(|(at, out)| {
            outside = self.require(at, out.len());
            let is_inside = outside.is_ok();
            is_inside.then(|| (self.info.offset + at, out))
        });
        let read = self.source.read_each(pieces);
        read.map_err(|error| self.named(error))?;
        outside
    }

    /// Fails if `len` bytes from `at` on exceed the tensor.
    fn require(&self, at: u64, len: usize) -> Result<()> {
        if self.has(at, len as u64) {
            return Ok(());
        }
        Err(AnamnesisError::parse(format!(
            "{}: {len} bytes at {at} of {}",
            InTensor(&self.name()),
            self.len()
        )))
    }

    /// Has the system copy `len` of the tensor's bytes from `at` on to `to.1` of a file. `false` if
    /// it cannot, or readers see other bytes than are stored.
    pub(crate) fn copy_to(&self, at: u64, to: (&File, u64), len: u64) -> bool {
        self.has(at, len)
            && self.is_verbatim()
            && self.source.copy_to(self.info.offset + at, to, len)
    }

    /// Reads all stored bytes that the checksum covers, compressed or not, and compares it. Does
    /// nothing without a checksum.
    ///
    /// # Errors
    /// `Parse` if it differs or a compressed member is malformed; `Io`.
    pub(crate) fn verify(&self) -> Result<()> {
        if self.is_deflated() {
            // The stream of a member verifies itself.
            return self.stream(&mut Vec::new(), |_, _| Ok(()));
        }
        if let Source::Pieced(tensor) = self.source {
            return match tensor
                .checksums_agree()
                .map_err(|error| self.named(error))?
            {
                true => Ok(()),
                false => Err(self.checksum_mismatch()),
            };
        }
        let Some(check) = &self.info.check else {
            return Ok(());
        };
        // The sum begins with that of an NPY header, which the CRC of the archive's member
        // includes.
        let sum = self.source.crc32(check.start, check.len, check.before);
        match sum.map_err(|error| self.named(error))? == check.crc {
            true => Ok(()),
            false => Err(self.checksum_mismatch()),
        }
    }

    /// Identifies the bytes that the tensor's checksum covers: their source, and where they begin
    /// in it. A compressed member is a source of its own.
    pub(crate) fn checksum_key(&self) -> (usize, u64) {
        let start = self.check().map_or(0, |check| check.start);
        (self.info.source, start)
    }

    /// Decompresses the tensor front to back and passes it to `put` in pieces of at most 256 KiB,
    /// each with its position in the tensor. `buffer` is scratch. Does nothing if the tensor is not
    /// compressed.
    ///
    /// # Errors
    /// `Parse` if the member is malformed or its length or CRC-32 is wrong, which may show after
    /// the last piece.
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
        while skip > 0 || at < self.len() {
            let n = if skip > 0 { skip } else { self.len() - at }.min(256 << 10) as usize;
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
        // The member's checksum also covers bytes behind the tensor, so the stream is read to its
        // end.
        std::io::copy(&mut stream, &mut std::io::sink()).map_err(|e| self.named(e.into()))?;
        Ok(())
    }

    /// The error for a checksum that does not match.
    pub(crate) fn checksum_mismatch(&self) -> AnamnesisError {
        AnamnesisError::parse(format!(
            "{}: its data has the wrong checksum",
            InTensor(&self.name())
        ))
    }

    /// Fills `out` with elements of a strided tensor from byte `at` on. Whole rows of the last dimension
    /// are gathered together: of a transposed matrix each row by itself would read all of it.
    fn read_strided(&self, strides: &[usize], at: u64, mut out: &mut [u8]) -> Result<()> {
        let size = self.dtype().bits() / 8;
        let cols = self.info.shape.last().copied().unwrap_or(1).max(1);
        let mut element = at as usize / size;
        while !out.is_empty() {
            let (row, col) = (element / cols, element % cols);
            let rows = out.len() / (cols * size);
            if col == 0 && rows > 0 {
                let (now, rest) = out.split_at_mut(rows * cols * size);
                self.gather_matrix(strides, 1, row..row + rows, now)?;
                (element, out) = (element + rows * cols, rest);
                continue;
            }
            let n = (cols - col).min(out.len() / size);
            let (now, rest) = out.split_at_mut(n * size);
            let start = strided::offset(row * cols, &self.info.shape, strides)
                + col * strides.last().unwrap_or(&1);
            let dims = [StridedDim { len: n, stride: *strides.last().unwrap_or(&1) }];
            self.gather(start, &dims, now)?;
            (element, out) = (element + n, rest);
        }
        Ok(())
    }

    /// Fills `out` with rows `rows` of a strided tensor, seen as a matrix: its last `inner`
    /// dimensions are the columns, the others the rows. Does nothing if the tensor is not strided.
    pub(crate) fn gather_rows(
        &self,
        inner: usize,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let Some(strides) = &self.info.strides else {
            return Ok(());
        };
        self.gather_matrix(strides, inner, rows, out)?;
        if self.info.big_endian {
            self.dtype().swap_bytes(out);
        }
        Ok(())
    }

    /// As [`gather_rows`](Self::gather_rows), with bytes in the order of the file.
    fn gather_matrix(
        &self,
        strides: &[usize],
        inner: usize,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<()> {
        let shape = &self.info.shape;
        let size = self.dtype().bits() / 8;
        let outer = shape.len().saturating_sub(inner);
        let cols: usize = shape[outer..].iter().product();
        // Consecutive rows have a common stride as long as only the innermost of the outer
        // dimensions changes. Such a group of rows is gathered together.
        let group = outer.checked_sub(1).map_or(1, |d| shape[d]).max(1);
        let (mut row, mut left) = (rows.start, out);
        while row < rows.end {
            let n = (group - row % group).min(rows.end - row);
            let (now, rest) = left.split_at_mut(n * cols * size);
            let row_dim = outer
                .checked_sub(1)
                .map(|d| StridedDim { len: n, stride: strides[d] });
            let columns = shape[outer..]
                .iter()
                .zip(&strides[outer..])
                .map(|(&len, &stride)| StridedDim { len, stride });
            let dims: Vec<StridedDim> = row_dim.into_iter().chain(columns).collect();
            self.gather(strided::offset(row * cols, shape, strides), &dims, now)?;
            (row, left) = (row + n, rest);
        }
        Ok(())
    }

    fn gather(&self, start: usize, dims: &[StridedDim], out: &mut [u8]) -> Result<()> {
        let size = self.dtype().bits() / 8;
        let read = |element: usize, out: &mut [u8]| {
            self.source
                .read_at(self.info.offset + element as u64 * size as u64, out)
                .map_err(|error| self.named(error))
        };
        strided::gather(&read, start, dims, size, out)
    }

    /// Adds the tensor's name to an error of reading its bytes. An `Io` error becomes `Parse` if it
    /// says that the compressed data is malformed: the file is to blame then, not the device.
    pub(crate) fn named(&self, error: AnamnesisError) -> AnamnesisError {
        match error {
            AnamnesisError::Io(e)
                if is_malformed(&e)
                    || self.is_deflated() && e.kind() == ErrorKind::UnexpectedEof =>
            {
                AnamnesisError::parse(format!("{}: {e}", InTensor(&self.name())))
            }
            AnamnesisError::Io(e) => {
                let name = printable(self.name());
                AnamnesisError::io_in(format_args!("reading tensor `{name}`"), &e)
            }
            other => other.about(InTensor(&self.name())),
        }
    }

    /// Reads the whole tensor.
    ///
    /// # Errors
    /// `Parse` if it has more than `max` bytes; otherwise as [`read_at`](Self::read_at).
    pub(crate) fn read_small(&self, max: u64) -> Result<Vec<u8>> {
        if self.len() > max {
            let (name, len) = (self.name(), self.len());
            return Err(AnamnesisError::parse(format!(
                "{}: {len} bytes where at most {max} make sense",
                InTensor(&name)
            )));
        }
        let mut out = vec![0; self.len() as usize];
        self.read_at(0, &mut out)?;
        Ok(out)
    }

    /// Whether the data can be read; it cannot if only the header was parsed.
    pub(crate) fn is_readable(&self) -> bool {
        self.source.len().is_some()
    }
}

/// Whether an I/O error comes from a decompressor and is about its input. flate2 reports corrupt
/// deflate data as `InvalidInput`, the checked stream reports a wrong length or checksum as
/// `InvalidData`.
pub(crate) fn is_malformed(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput)
}

#[cfg(feature = "npz")]
#[cfg(test)]
mod tests {
    /// Any rows of an array in Fortran order, seen as a matrix in any way, and any elements.
    #[test]
    fn parts_of_an_array_that_is_not_in_order() {
        let dict = "{'descr': '>u2', 'fortran_order': True, 'shape': (3, 4, 5), }";
        let header = format!("{dict:<117}\n");
        let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        file.extend(header.as_bytes());
        // Each value is its place in row-major order.
        let places = (0..60u16).map(|at| at % 3 * 20 + at / 3 % 4 * 5 + at / 12);
        file.extend(places.flat_map(u16::to_be_bytes));
        let model = crate::parse_bytes(file).unwrap();
        let tensor = model.tensors().next().unwrap();
        let part = tensor.part();
        let values = |n: std::ops::Range<usize>| -> Vec<u8> {
            n.flat_map(|place| (place as u16).to_le_bytes()).collect()
        };
        for (inner, cols) in [(1, 5), (2, 20), (3, 60)] {
            let all = 60 / cols;
            for (start, end) in
                (0..all).flat_map(|start| (start..=all).map(move |end| (start, end)))
            {
                let mut out = vec![0; (end - start) * cols * 2];
                part.gather_rows(inner, start..end, &mut out).unwrap();
                assert_eq!(out, values(start * cols..end * cols), "{inner} {start} {end}");
            }
        }
        for (start, end) in (0..60).flat_map(|start| (start..=60).map(move |end| (start, end))) {
            let mut out = vec![0; (end - start) * 2];
            part.read_at(2 * start as u64, &mut out).unwrap();
            assert_eq!(out, values(start..end), "{start} {end}");
        }
    }
}
