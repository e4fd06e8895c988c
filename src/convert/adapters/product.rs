//! What the tensors of a module add to a weight, whatever kind of adapter they are of.

use std::sync::Arc;

use super::composed::{ComposedMatrix, MatrixTensors};
use super::factors::{FactorForm, Factors, ProductSize};
use super::sorted::LoraTensors;
use super::tensor::AdapterTensor;
use crate::remember::layout::adapted::AddedMatrix;
use crate::remember::seam::wrong;
use crate::{AnamnesisError, ParsedModel, Result};

/// A product that is added to a weight `[out, in…]`.
pub(super) enum ModuleProduct {
    /// Two factors.
    LowRank(Factors),
    Composed(ComposedMatrix),
}

impl ModuleProduct {
    /// That of `tensors` of the adapter `model`.
    ///
    /// # Errors
    /// `Parse` if a tensor is missing, or shapes or ranks do not fit each other.
    pub(super) fn new(model: &Arc<ParsedModel>, tensors: &LoraTensors) -> Result<Self> {
        let tensor = |index| AdapterTensor { model: model.clone(), index };
        let half = |what| match tensors.all().min() {
            Some(first) => wrong(&tensor(first).get(), what),
            None => AnamnesisError::parse(what),
        };
        match *tensors {
            LoraTensors { composed: Some(composed), a: None, b: None, core: None, .. } => {
                ComposedMatrix::new(model, &composed).map(Self::Composed)
            }
            LoraTensors { composed: Some(_), .. } => {
                Err(half("the adapter has products of several kinds for the module"))
            }
            LoraTensors { a: Some(a), b: Some(b), core: None, .. } => {
                let (a, b) = (tensor(a), tensor(b));
                Ok(Self::LowRank(Factors { form: FactorForm::OutIn, a, b }))
            }
            LoraTensors { a: right @ Some(_), b: left @ Some(_), core, .. } => {
                let factors = MatrixTensors { left, right, core, ..MatrixTensors::default() };
                let kernel = ComposedMatrix::of_matrix(model, factors, false)?;
                let missing = || AnamnesisError::parse("the module has no factors");
                kernel.map(Self::Composed).ok_or_else(missing)
            }
            _ => Err(half("one of the two factors (A, B) of the module is missing")),
        }
    }

    /// A tensor of it, for errors.
    pub(super) fn tensor(&self) -> &AdapterTensor {
        match self {
            Self::LowRank(factors) => &factors.a,
            Self::Composed(composed) => &composed.tensor,
        }
    }

    pub(super) fn rows(&self) -> usize {
        match self {
            Self::LowRank(factors) => factors.b.get().shape().first().copied().unwrap_or(0),
            Self::Composed(composed) => composed.shape.first().copied().unwrap_or(0),
        }
    }

    /// The rank that alpha is divided by; `None`: it is stored as whole matrices.
    pub(super) fn rank(&self) -> Option<usize> {
        match self {
            Self::LowRank(factors) => factors.a.get().shape().first().copied(),
            Self::Composed(composed) => composed.rank,
        }
    }

    /// The size of the product, which is that of the weight of this name and shape.
    ///
    /// # Errors
    /// As [`Factors::fit`] and [`ComposedMatrix::fit`].
    pub(super) fn fit(&self, weight: (&str, &[usize])) -> Result<ProductSize> {
        match self {
            Self::LowRank(factors) => factors.fit(weight),
            Self::Composed(composed) => {
                let [rows, cols] = composed.fit(weight)?;
                let rank = composed.rank.unwrap_or(0);
                Ok(ProductSize { matrices: 1, rows, cols, rank })
            }
        }
    }

    /// The product with the factor `scale`. Its size is that of [`fit`](Self::fit).
    ///
    /// # Errors
    /// `Parse` if a factor is not F32, F16 or BF16.
    pub(super) fn scaled(self, size: ProductSize, scale: f64) -> Result<AddedMatrix> {
        match self {
            Self::LowRank(factors) => factors.scaled(size, scale),
            Self::Composed(composed) => Ok(composed.matrix.scaled(scale)),
        }
    }
}
