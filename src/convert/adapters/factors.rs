//! How the two factors of a product of low rank are stored.

use super::matrices::AdapterMatrix;
use super::tensor::AdapterTensor;
use crate::model::Tensor;
use crate::remember::layout::adapted::{AddedMatrix, ScaledProduct};
use crate::remember::seam::wrong;
use crate::{AnamnesisError, Result};

/// The shapes of the factors A and B of what is added to a weight `[rows, columns]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FactorForm {
    /// A `[rank, columns]`, B `[rows, rank]`: B · A is added. For the kernel of a convolution,
    /// `[out, in, k…]`, A is `[rank, in, k…]` and B `[out, rank, 1…]`.
    OutIn,
    /// A `[rank, rows]`, B `[columns, rank]`: (B · A)ᵀ is added. PEFT's embeddings and modules with
    /// weights `[in, out]`.
    InOut,
    /// As [`InOut`](Self::InOut), of a weight `[out, in]`: mlx-lm, where A is `lora_b` and B `lora_a`.
    Transposed,
    /// A `[rows, rank]`, B `[columns, rank]`: A · Bᵀ is added. llama.cpp's embeddings.
    #[cfg(feature = "gguf")]
    Rows,
    /// Factors of a stack of n matrices. A has `rank` rows for each of them, one matrix after the
    /// other. B has n columns for each rank, one for each matrix. B · A is added to a matrix, or
    /// its transpose if `is_transposed`.
    Stack { is_transposed: bool },
}

/// The factors of a product.
pub(super) struct Factors {
    pub form: FactorForm,
    pub a: AdapterTensor,
    pub b: AdapterTensor,
}

/// Size of a product: that of `matrices` matrices below each other, each of `rows` rows.
#[derive(Clone, Copy)]
pub(super) struct ProductSize {
    pub matrices: usize,
    pub rows: usize,
    pub cols: usize,
    pub rank: usize,
}

impl ProductSize {
    /// Rows and columns of all matrices.
    pub(super) fn whole(self) -> [usize; 2] {
        [self.matrices * self.rows, self.cols]
    }

    /// Whether no number of values overflows. Those of a tensor without values may.
    fn is_countable(self) -> bool {
        let rows = self.matrices.checked_mul(self.rows);
        rows.is_some_and(|rows| rows.checked_mul(self.cols).is_some())
    }
}

impl Factors {
    /// The size of the product, which is that of the weight of this name and shape.
    ///
    /// # Errors
    /// `Unsupported` if a factor is no matrix and no kernel of a convolution; `Parse` if the
    /// factors have different ranks, or the product does not fit the weight.
    pub(super) fn fit(&self, (weight, shape): (&str, &[usize])) -> Result<ProductSize> {
        let (a, b) = (&self.a.get(), &self.b.get());
        let (&[a_rows, ref a_rest @ ..], &[b_rows, b_cols, ref b_rest @ ..]) =
            (a.shape(), b.shape())
        else {
            return Err(no_matrices(a, b));
        };
        let is_kernel = self.form == FactorForm::OutIn && a_rest.len() > 1;
        if a_rest.len() != b_rest.len() + 1
            || !(is_kernel || b_rest.is_empty())
            || b_rest.iter().any(|&size| size != 1)
        {
            return Err(no_matrices(a, b));
        }
        let a_cols = a_rest
            .iter()
            .try_fold(1_usize, |n, &size| n.checked_mul(size));
        let a_cols = a_cols.ok_or_else(|| no_matrices(a, b))?;
        let matrices = match (self.form, shape) {
            (FactorForm::Stack { .. }, &[matrices, ..]) => matrices,
            _ => 1,
        };
        let (rows, cols, rank) = match self.form {
            FactorForm::OutIn | FactorForm::Stack { is_transposed: false } => {
                (b_rows, a_cols, a_rows)
            }
            FactorForm::InOut
            | FactorForm::Transposed
            | FactorForm::Stack { is_transposed: true } => (a_cols, b_rows, a_rows),
            #[cfg(feature = "gguf")]
            FactorForm::Rows => (a_rows, b_rows, a_cols),
        };
        if rank != b_cols {
            let what = format!("its rank is {rank}, and that of `{}` {b_cols}", b.name());
            return Err(wrong(a, what));
        }
        let product = match self.form {
            FactorForm::Stack { .. } => vec![matrices, rows, cols],
            _ if is_kernel => [&[rows], a_rest].concat(),
            _ => vec![rows, cols],
        };
        if without_ones(shape) != without_ones(&product) {
            return Err(unfit(a, b, &product, (weight, shape)));
        }
        if rank % matrices.max(1) != 0 {
            let what =
                format!("its {rank} rows are not of {matrices} matrices, which `{weight}` has");
            return Err(wrong(a, what));
        }
        let size = ProductSize { matrices, rows, cols, rank: rank / matrices.max(1) };
        match size.is_countable() {
            true => Ok(size),
            false => Err(no_matrices(a, b)),
        }
    }

    /// The product with the factor `scale`. Its size is that of [`fit`](Self::fit).
    ///
    /// # Errors
    /// `Parse` if a factor is not F32, F16 or BF16.
    pub(super) fn scaled(self, size: ProductSize, scale: f64) -> Result<AddedMatrix> {
        let ProductSize { matrices, rows, cols, rank } = size;
        let Self { form, a, b } = self;
        let (a, b) = match form {
            FactorForm::OutIn => (
                AdapterMatrix::boxed(a, [rank, cols], false)?,
                AdapterMatrix::boxed(b, [rows, rank], false)?,
            ),
            // (B · A)ᵀ is Aᵀ · Bᵀ.
            FactorForm::InOut | FactorForm::Transposed => (
                AdapterMatrix::boxed(b, [cols, rank], true)?,
                AdapterMatrix::boxed(a, [rank, rows], true)?,
            ),
            #[cfg(feature = "gguf")]
            FactorForm::Rows => (
                AdapterMatrix::boxed(b, [cols, rank], true)?,
                AdapterMatrix::boxed(a, [rows, rank], false)?,
            ),
            FactorForm::Stack { is_transposed: false } => (
                AdapterMatrix::boxed(a, [matrices * rank, cols], false)?,
                AdapterMatrix::interleaved(b, matrices, [rows, rank], false)?,
            ),
            FactorForm::Stack { is_transposed: true } => (
                AdapterMatrix::interleaved(b, matrices, [cols, rank], true)?,
                AdapterMatrix::boxed(a, [rank, rows], true)?,
            ),
        };
        let matrix_rows = match form {
            FactorForm::Stack { .. } => rows,
            _ => usize::MAX,
        };
        Ok(AddedMatrix::LowRank(ScaledProduct { a, b, rank, scale, matrix_rows }))
    }
}

/// `shape` without the sizes of 1 at its end: a convolution of size 1 is a matrix.
pub(super) fn without_ones(shape: &[usize]) -> &[usize] {
    let ones = shape.iter().skip(2).rev().take_while(|&&size| size == 1);
    &shape[..shape.len() - ones.count()]
}

fn no_matrices(a: &Tensor<'_>, b: &Tensor<'_>) -> AnamnesisError {
    let what = format!(
        "tensors `{}` {:?} and `{}` {:?}: they are neither matrices nor a convolution of any size and one of size 1",
        a.name(),
        a.shape(),
        b.name(),
        b.shape()
    );
    AnamnesisError::unsupported("an adapter", what)
}

/// The error that the product of `a` and `b` does not have the shape of a weight.
fn unfit(
    a: &Tensor<'_>,
    b: &Tensor<'_>,
    product: &[usize],
    (weight, shape): (&str, &[usize]),
) -> AnamnesisError {
    let what = format!(
        "with `{}` {:?} it makes {product:?}, and `{weight}` is {shape:?}",
        b.name(),
        b.shape()
    );
    wrong(a, what)
}
