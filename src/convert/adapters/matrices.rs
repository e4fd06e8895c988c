//! Tensors of an adapter as matrices that a product reads.

use std::ops::Range;

#[cfg(feature = "gguf")]
use super::blocks::FactorBlocks;
use super::tensor::AdapterTensor;
use crate::Result;
use crate::model::Tensor;
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix, Transposed};
use crate::remember::seam::{Floats, wrong};

/// A matrix of an adapter.
pub(super) struct AdapterMatrix {
    tensor: AdapterTensor,
    /// Rows and columns, as they are stored.
    size: [usize; 2],
    is_transposed: bool,
}

impl AdapterMatrix {
    /// The matrix that is stored as `size`.
    ///
    /// # Errors
    /// `Parse` if the tensor is not F32, F16, BF16 or in blocks of ggml.
    pub(super) fn boxed(
        tensor: AdapterTensor,
        size: [usize; 2],
        is_transposed: bool,
    ) -> Result<Box<dyn ScaleMatrix>> {
        #[cfg(feature = "gguf")]
        if let Some(blocks) = FactorBlocks::new(&tensor, size[1]) {
            let inner = Box::new(blocks);
            return Ok(match is_transposed {
                true => Box::new(Transposed { inner, rows: size[1], cols: size[0] }),
                false => inner,
            });
        }
        require_ieee(&tensor.get())?;
        Ok(Box::new(Self { tensor, size, is_transposed }))
    }

    /// `matrices` matrices of `size`, one below the other, whose elements take turns in a row: the
    /// one of matrix m in column j is number `j * matrices + m`.
    ///
    /// # Errors
    /// `Parse` if the tensor is not F32, F16 or BF16.
    pub(super) fn interleaved(
        tensor: AdapterTensor,
        matrices: usize,
        [rows, cols]: [usize; 2],
        is_transposed: bool,
    ) -> Result<Box<dyn ScaleMatrix>> {
        require_ieee(&tensor.get())?;
        let inner = Box::new(InterleavedMatrices { tensor, matrices, rows, cols });
        Ok(match is_transposed {
            true => Box::new(Transposed { inner, rows: cols, cols: rows }),
            false => inner,
        })
    }
}

/// Rows of a matrix elsewhere, where all others are zeros.
pub(super) struct PlacedMatrix {
    inner: Box<dyn ScaleMatrix>,
    from: usize,
    to: usize,
    rows: usize,
}

impl PlacedMatrix {
    /// The `rows` rows of `inner` from `from` on, as rows from `to` on.
    pub(super) fn boxed(
        inner: Box<dyn ScaleMatrix>,
        (from, to): (usize, usize),
        rows: usize,
    ) -> Box<dyn ScaleMatrix> {
        Box::new(Self { inner, from, to, rows })
    }
}

impl ScaleMatrix for PlacedMatrix {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let own = rows.start.max(self.to)..rows.end.min(self.to + self.rows);
        let zeros = |out: &mut Vec<f32>, n: usize| out.resize(out.len() + n * cols.len(), 0.0);
        if own.is_empty() {
            zeros(out, rows.len());
            return Ok(());
        }
        zeros(out, own.start - rows.start);
        let inner = own.start - self.to + self.from..own.end - self.to + self.from;
        self.inner.extend(inner, cols.clone(), staging, out)?;
        zeros(out, rows.end - own.end);
        Ok(())
    }
}

/// The rows of a stack of matrices as some rows of each matrix of a stack of larger ones, where all
/// others are zeros.
pub(super) struct StackedRows {
    pub inner: Box<dyn ScaleMatrix>,
    /// Rows of a matrix of `inner`.
    pub rows: usize,
    /// Rows of a larger one, and the first of those that are in it.
    pub height: usize,
    pub first: usize,
}

impl ScaleMatrix for StackedRows {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut row = rows.start;
        while row < rows.end {
            let (matrix, within) = (row / self.height, row % self.height);
            let own = self.first..self.first + self.rows;
            let end = match within {
                at if own.contains(&at) => own.end,
                at if at < own.start => own.start,
                _ => self.height,
            };
            let n = (end - within).min(rows.end - row);
            match own.contains(&within) {
                true => {
                    let first = matrix * self.rows + within - own.start;
                    self.inner
                        .extend(first..first + n, cols.clone(), staging, out)?;
                }
                false => out.resize(out.len() + n * cols.len(), 0.0),
            }
            row += n;
        }
        Ok(())
    }
}

fn require_ieee(t: &Tensor<'_>) -> Result<()> {
    match Floats::ieee(t) {
        Ok(_) => Ok(()),
        Err(_) => Err(wrong(t, "adapters are F32, F16 or BF16, or in blocks of ggml")),
    }
}

/// Matrices of a stack whose elements take turns in the rows of a tensor.
struct InterleavedMatrices {
    tensor: AdapterTensor,
    matrices: usize,
    rows: usize,
    cols: usize,
}

impl ScaleMatrix for InterleavedMatrices {
    /// Reads a row from the first wanted element to the last, with those of other matrices in
    /// between: a read for each element would take far longer.
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        if cols.is_empty() {
            return Ok(());
        }
        let floats = Floats::ieee(&self.tensor.get())?;
        let mut run = vec![];
        for at in rows {
            let (matrix, row) = (at / self.rows, at % self.rows);
            let first = cols.start * self.matrices + matrix;
            let last = (cols.end - 1) * self.matrices + matrix;
            run.clear();
            let width = self.cols * self.matrices;
            floats.extend(width, row..row + 1, first..last + 1, staging, &mut run)?;
            out.extend(run.iter().step_by(self.matrices));
        }
        Ok(())
    }
}

impl ScaleMatrix for AdapterMatrix {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (floats, [height, width]) = (Floats::ieee(&self.tensor.get())?, self.size);
        match self.is_transposed {
            true => Transposed::of_floats(floats, width, height).extend(rows, cols, staging, out),
            false => Matrix { floats, cols: width }.extend(rows, cols, staging, out),
        }
    }
}
