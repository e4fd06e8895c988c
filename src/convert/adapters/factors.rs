//! How the two factors of a product of low rank are stored.

use super::peft_tensors::{AdapterMatrix, AdapterTensor};
use crate::containers::model::Tensor;
use crate::scheme::layout::adapted::ScaledProduct;
use crate::scheme::seam::wrong;
use crate::{AnamnesisError, Result};

/// The shapes of the factors A and B of what is added to a weight `[rows, columns]`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FactorForm {
    /// A `[rank, columns]`, B `[rows, rank]`: B · A is added.
    OutIn,
    /// A `[rank, rows]`, B `[columns, rank]`: (B · A)ᵀ is added. PEFT's embeddings and modules with weights `[in, out]`.
    InOut,
    /// A `[rows, rank]`, B `[columns, rank]`: A · Bᵀ is added. llama.cpp's embeddings.
    #[cfg(feature = "gguf")]
    Rows,
}

/// The factors of a product.
pub(super) struct Factors {
    pub form: FactorForm,
    pub a: AdapterTensor,
    pub b: AdapterTensor,
}

impl Factors {
    /// Rows, columns and rank of the product.
    ///
    /// # Errors
    /// `Unsupported` if a factor is no matrix; `Parse` if the factors have different ranks, or the product does not fit
    /// the weight of this name and shape.
    pub(super) fn fit(&self, (weight, shape): (&str, &[usize])) -> Result<[usize; 3]> {
        let (a, b) = (&self.a.get(), &self.b.get());
        let (&[a_rows, a_cols], &[b_rows, b_cols]) = (a.shape(), b.shape()) else {
            let what = format!(
                "tensors `{}` {:?} and `{}` {:?}: LoRA is merged into matrices alone",
                a.name(),
                a.shape(),
                b.name(),
                b.shape()
            );
            return Err(AnamnesisError::unsupported("an adapter", what));
        };
        let (product, rank) = match self.form {
            FactorForm::OutIn => ([b_rows, a_cols], a_rows),
            FactorForm::InOut => ([a_cols, b_rows], a_rows),
            #[cfg(feature = "gguf")]
            FactorForm::Rows => ([a_rows, b_rows], a_cols),
        };
        if rank != b_cols {
            let what = format!("its rank is {rank}, and that of `{}` {b_cols}", b.name());
            return Err(wrong(a, what));
        }
        if shape != product {
            return Err(unfit(a, b, product, (weight, shape)));
        }
        let [rows, cols] = product;
        Ok([rows, cols, rank])
    }

    /// The product with the factor `scale`. Its size is that of [`fit`](Self::fit).
    ///
    /// # Errors
    /// `Parse` if a factor is not F32, F16 or BF16.
    pub(super) fn scaled(
        self,
        [rows, cols, rank]: [usize; 3],
        scale: f64,
    ) -> Result<ScaledProduct> {
        let Self { form, a, b } = self;
        let (a, b) = match form {
            FactorForm::OutIn => (
                AdapterMatrix::boxed(a, [rank, cols], false)?,
                AdapterMatrix::boxed(b, [rows, rank], false)?,
            ),
            // (B · A)ᵀ is Aᵀ · Bᵀ.
            FactorForm::InOut => (
                AdapterMatrix::boxed(b, [cols, rank], true)?,
                AdapterMatrix::boxed(a, [rank, rows], true)?,
            ),
            #[cfg(feature = "gguf")]
            FactorForm::Rows => (
                AdapterMatrix::boxed(b, [cols, rank], true)?,
                AdapterMatrix::boxed(a, [rows, rank], false)?,
            ),
        };
        Ok(ScaledProduct { a, b, rank, scale })
    }
}

/// The error that the product of `a` and `b` does not have the shape of a weight.
fn unfit(
    a: &Tensor<'_>,
    b: &Tensor<'_>,
    product: [usize; 2],
    (weight, shape): (&str, &[usize]),
) -> AnamnesisError {
    let what = format!(
        "with `{}` {:?} it makes {product:?}, and `{weight}` is {shape:?}",
        b.name(),
        b.shape()
    );
    wrong(a, what)
}
