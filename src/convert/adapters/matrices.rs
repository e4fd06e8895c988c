//! Tensors of an adapter as matrices that a product reads.

use std::ops::Range;
use std::sync::Arc;

use crate::containers::model::Tensor;
use crate::scheme::seam::numbers::{Matrix, ScaleMatrix, Transposed};
use crate::scheme::seam::{Floats, wrong};
use crate::{ParsedModel, Result};

/// A tensor of an adapter, which it keeps alive.
#[derive(Clone)]
pub(super) struct AdapterTensor {
    pub model: Arc<ParsedModel>,
    pub index: usize,
}

impl AdapterTensor {
    pub(super) fn get(&self) -> Tensor<'_> {
        Tensor {
            model: &self.model,
            index: self.index,
        }
    }
}

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
    /// `Parse` if the tensor is not F32, F16 or BF16.
    pub(super) fn boxed(
        tensor: AdapterTensor,
        size: [usize; 2],
        is_transposed: bool,
    ) -> Result<Box<dyn ScaleMatrix>> {
        require_ieee(&tensor.get())?;
        Ok(Box::new(Self {
            tensor,
            size,
            is_transposed,
        }))
    }

    /// Matrices of `height` rows, one below the other, whose elements lie apart: that of matrix m at row i and column j lies at m, i
    /// and j times `strides`.
    ///
    /// # Errors
    /// `Parse` if the tensor is not F32, F16 or BF16.
    pub(super) fn stacked(
        tensor: AdapterTensor,
        height: usize,
        strides: [usize; 3],
    ) -> Result<Box<dyn ScaleMatrix>> {
        require_ieee(&tensor.get())?;
        Ok(Box::new(StackedMatrices {
            tensor,
            height,
            strides,
        }))
    }
}

fn require_ieee(t: &Tensor<'_>) -> Result<()> {
    match Floats::ieee(t) {
        Ok(_) => Ok(()),
        Err(_) => Err(wrong(t, "adapters are F32, F16 or BF16")),
    }
}

/// Matrices of a stack whose elements lie apart in a tensor of an adapter.
struct StackedMatrices {
    tensor: AdapterTensor,
    height: usize,
    strides: [usize; 3],
}

impl ScaleMatrix for StackedMatrices {
    /// Reads element by element: a tile has many more values than a row or a column of its factors.
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let floats = Floats::ieee(&self.tensor.get())?;
        let [matrix, row, col] = self.strides;
        for at in rows {
            let first = at / self.height * matrix + at % self.height * row;
            for place in cols.clone().map(|at| first + at * col) {
                floats.extend(1, place..place + 1, 0..1, staging, out)?;
            }
        }
        Ok(())
    }
}

/// 1 in all places.
pub(super) struct Ones;

impl ScaleMatrix for Ones {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        _staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        out.resize(out.len() + rows.len() * cols.len(), 1.0);
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
            false => Matrix {
                floats,
                cols: width,
            }
            .extend(rows, cols, staging, out),
        }
    }
}
