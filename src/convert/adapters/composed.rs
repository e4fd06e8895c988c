//! LoHa and LoKr: the Hadamard or the Kronecker product of two matrices, each of which is stored as
//! it is or as its factors.
//!
//! - LoHa: `hada_w1_a` `[out, rank]` and `hada_w1_b` `[rank, in]`, `hada_w2_a` and `hada_w2_b`.
//!   With cores `hada_t1` and `hada_t2` `[rank, rank, k…]` they are kernels, and the `a` are
//!   `[rank, out]`.
//! - LoKr: `lokr_w1`, or `lokr_w1_a` and `lokr_w1_b`; `lokr_w2`, or `lokr_w2_a` and `lokr_w2_b`, as
//!   a kernel with `lokr_t2`.
//!
//! Source: lycoris-lora 4.1.3 `functional/loha.py`, `functional/lokr.py`; peft 0.21.2
//! `tuners/loha/layer.py`, `tuners/lokr/layer.py`.

use std::sync::Arc;

use super::factors::without_ones;
use super::matrices::AdapterMatrix;
use super::spread::{Spread, spread};
use super::tensor::AdapterTensor;
use super::three_factors::ThreeFactors;
use crate::remember::layout::adapted::{AddedMatrix, ScaledProduct};
use crate::remember::seam::wrong;
use crate::{AnamnesisError, ParsedModel, Result};

/// How two matrices make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ComposedForm {
    Hadamard,
    Kronecker,
}

/// What a tensor is to its matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MatrixPart {
    Whole,
    Left,
    Right,
    Core,
}

/// What a tensor is to its module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ComposedRole {
    form: ComposedForm,
    /// Number of the matrix.
    matrix: usize,
    part: MatrixPart,
}

/// Ends of names.
const ENDINGS: &[(&str, ComposedForm, usize, MatrixPart)] = &[
    (".hada_w1_a", ComposedForm::Hadamard, 0, MatrixPart::Left),
    (".hada_w1_b", ComposedForm::Hadamard, 0, MatrixPart::Right),
    (".hada_t1", ComposedForm::Hadamard, 0, MatrixPart::Core),
    (".hada_w2_a", ComposedForm::Hadamard, 1, MatrixPart::Left),
    (".hada_w2_b", ComposedForm::Hadamard, 1, MatrixPart::Right),
    (".hada_t2", ComposedForm::Hadamard, 1, MatrixPart::Core),
    (".lokr_w1", ComposedForm::Kronecker, 0, MatrixPart::Whole),
    (".lokr_w1_a", ComposedForm::Kronecker, 0, MatrixPart::Left),
    (".lokr_w1_b", ComposedForm::Kronecker, 0, MatrixPart::Right),
    (".lokr_w2", ComposedForm::Kronecker, 1, MatrixPart::Whole),
    (".lokr_w2_a", ComposedForm::Kronecker, 1, MatrixPart::Left),
    (".lokr_w2_b", ComposedForm::Kronecker, 1, MatrixPart::Right),
    (".lokr_t2", ComposedForm::Kronecker, 1, MatrixPart::Core),
];

impl ComposedRole {
    /// The module that a tensor of this name belongs to, and what it is to it.
    pub(super) fn of(name: &str) -> Option<(&str, Self)> {
        ENDINGS.iter().find_map(|&(ending, form, matrix, part)| {
            Some((name.strip_suffix(ending)?, Self { form, matrix, part }))
        })
    }
}

/// Numbers of the tensors of a matrix.
#[derive(Default, Clone, Copy)]
pub(super) struct MatrixTensors {
    pub whole: Option<usize>,
    pub left: Option<usize>,
    pub right: Option<usize>,
    pub core: Option<usize>,
}

impl MatrixTensors {
    fn all(&self) -> impl Iterator<Item = usize> {
        let Self { whole, left, right, core } = *self;
        [whole, left, right, core].into_iter().flatten()
    }
}

/// Numbers of the tensors of a module.
#[derive(Clone, Copy)]
pub(super) struct ComposedTensors {
    pub form: ComposedForm,
    matrices: [MatrixTensors; 2],
}

impl ComposedTensors {
    /// Sorts tensor `index` into `all`. Returns whether its place was free.
    pub(super) fn add(all: &mut Option<Self>, role: ComposedRole, index: usize) -> bool {
        let empty = Self { form: role.form, matrices: [MatrixTensors::default(); 2] };
        let all = all.get_or_insert(empty);
        let matrix = &mut all.matrices[role.matrix];
        let place = match role.part {
            MatrixPart::Whole => &mut matrix.whole,
            MatrixPart::Left => &mut matrix.left,
            MatrixPart::Right => &mut matrix.right,
            MatrixPart::Core => &mut matrix.core,
        };
        all.form == role.form && place.replace(index).is_none()
    }

    /// The second matrix, if it is stored as it is.
    pub(super) fn second_whole(&self) -> Option<usize> {
        self.matrices[1].whole
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = usize> {
        self.matrices
            .into_iter()
            .flat_map(|matrix| matrix.all().collect::<Vec<_>>())
    }
}

/// A matrix that tensors of an adapter make.
pub(super) struct ComposedMatrix {
    pub matrix: AddedMatrix,
    /// Rows and columns, or the axes of a kernel.
    pub shape: Vec<usize>,
    /// `None`: it has no factors of a rank.
    pub rank: Option<usize>,
    /// A tensor of it, for errors.
    pub tensor: AdapterTensor,
}

impl ComposedMatrix {
    /// The product of the two matrices of a module of the adapter `model`.
    ///
    /// # Errors
    /// `Parse` if a tensor is missing, or shapes or ranks do not fit each other.
    pub(super) fn new(model: &Arc<ParsedModel>, tensors: &ComposedTensors) -> Result<Self> {
        let (form, [first, second]) = (tensors.form, tensors.matrices);
        let all: Vec<usize> = tensors.all().collect();
        let of = |matrix: MatrixTensors| {
            let is_transposed = matrix.core.is_some();
            Self::of_matrix(model, matrix, is_transposed)?.ok_or_else(|| {
                let what = "the other matrix of the product is missing in the adapter";
                missing(model, &all, what)
            })
        };
        let (first, second) = (of(first)?, of(second)?);
        if let (Some(one), Some(other)) = (first.rank, second.rank)
            && one != other
        {
            let what = format!(
                "its rank is {one}, and that of `{}` {other}: nothing tells the scale",
                second.tensor.get().name()
            );
            return Err(wrong(&first.tensor.get(), what));
        }
        match form {
            ComposedForm::Hadamard => first.hadamard(second),
            ComposedForm::Kronecker => first.kronecker(second),
        }
    }

    fn hadamard(self, other: Self) -> Result<Self> {
        if self.shape != other.shape {
            let other_tensor = other.tensor.get();
            let what = format!(
                "it makes {:?}, and `{}` {:?}",
                self.shape,
                other_tensor.name(),
                other.shape
            );
            return Err(wrong(&self.tensor.get(), what));
        }
        let matrix = AddedMatrix::Hadamard(Box::new([self.matrix, other.matrix]));
        Ok(Self { matrix, ..self })
    }

    fn kronecker(self, other: Self) -> Result<Self> {
        let too_large = || wrong(&self.tensor.get(), "it makes a matrix that is too large");
        let (&[height, width], &[rows, cols, ref taps @ ..]) =
            (without_ones(&self.shape), &*other.shape)
        else {
            return Err(wrong(&self.tensor.get(), "it is no matrix"));
        };
        // A kernel is multiplied as the matrix of all its values for an output.
        let of_row = taps.iter().try_fold(cols, |n, &taps| n.checked_mul(taps));
        let of_row = of_row.ok_or_else(too_large)?;
        let (all_rows, all_cols) = (height.checked_mul(rows), width.checked_mul(cols));
        let (all_rows, all_cols) =
            (all_rows.ok_or_else(too_large)?, all_cols.ok_or_else(too_large)?);
        let shape = [&[all_rows, all_cols], taps].concat();
        let first = spread(self.matrix, Spread::Repeated(rows), Spread::Repeated(of_row));
        let second = spread(other.matrix, Spread::Cycled(rows), Spread::Cycled(of_row));
        let matrix = AddedMatrix::Hadamard(Box::new([first, second]));
        let rank = other.rank.or(self.rank);
        Ok(Self { matrix, shape, rank, tensor: self.tensor })
    }

    /// The matrix of `tensors`, if there are any; its left factor is stored as `[rank, rows]` if it
    /// `is_transposed`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn of_matrix(
        model: &Arc<ParsedModel>,
        tensors: MatrixTensors,
        is_transposed: bool,
    ) -> Result<Option<Self>> {
        let tensor = |index| AdapterTensor { model: model.clone(), index };
        let all: Vec<usize> = tensors.all().collect();
        let empty = all
            .iter()
            .find(|&&index| tensor(index).get().shape().contains(&0));
        if let Some(&index) = empty {
            return Err(wrong(&tensor(index).get(), "it has no values"));
        }
        match (tensors.whole, tensors.left, tensors.right, tensors.core) {
            (None, None, None, None) => Ok(None),
            (Some(whole), None, None, None) => Self::whole(tensor(whole)).map(Some),
            (None, Some(left), Some(right), None) => {
                Self::pair(&tensor(left), &tensor(right)).map(Some)
            }
            (None, Some(left), Some(right), Some(core)) => {
                Self::three([left, core, right].map(tensor), is_transposed).map(Some)
            }
            (Some(_), ..) => {
                let what = "the adapter has the matrix and factors of it, too";
                Err(missing(model, &all, what))
            }
            _ => Err(missing(model, &all, "one of the factors of the module is missing")),
        }
    }

    fn whole(tensor: AdapterTensor) -> Result<Self> {
        let t = tensor.get();
        let &[rows, ref rest @ ..] = t.shape() else {
            return Err(wrong(&t, "it is no matrix"));
        };
        let shape = t.shape().to_vec();
        let matrix = AdapterMatrix::boxed(tensor.clone(), [rows, rest.iter().product()], false)?;
        if rest.is_empty() {
            return Err(wrong(&t, "it is no matrix"));
        }
        let matrix = AddedMatrix::Stored { matrix, scale: 1.0 };
        Ok(Self { matrix, shape, rank: None, tensor })
    }

    /// The product of `left` `[rows, rank]` and `right` `[rank, cols…]`.
    fn pair(left: &AdapterTensor, right: &AdapterTensor) -> Result<Self> {
        let (l, r) = (left.get(), right.get());
        let (&[rows, rank], &[right_rank, ref rest @ ..]) = (without_ones(l.shape()), r.shape())
        else {
            return Err(wrong(&l, "it is no factor of a matrix"));
        };
        if rank != right_rank || rest.is_empty() {
            let what = format!(
                "its shape is {:?}, and that of `{}` {:?}: they are no factors of a matrix",
                l.shape(),
                r.name(),
                r.shape()
            );
            return Err(wrong(&l, what));
        }
        let shape = [&[rows], rest].concat();
        let product = ScaledProduct {
            a: AdapterMatrix::boxed(right.clone(), [rank, rest.iter().product()], false)?,
            b: AdapterMatrix::boxed(left.clone(), [rows, rank], false)?,
            rank,
            scale: 1.0,
            matrix_rows: usize::MAX,
        };
        let matrix = AddedMatrix::LowRank(product);
        Ok(Self { matrix, shape, rank: Some(rank), tensor: left.clone() })
    }

    /// The kernel of `left`, `core` and `right`.
    fn three([left, core, right]: [AdapterTensor; 3], is_transposed: bool) -> Result<Self> {
        let [l, c, r] = [&left, &core, &right].map(|tensor| tensor.get());
        let unfit = || {
            let what = format!(
                "its shape is {:?}, with `{}` {:?} and `{}` {:?}: they are no factors of a convolution",
                c.shape(),
                l.name(),
                l.shape(),
                r.name(),
                r.shape()
            );
            wrong(&c, what)
        };
        let (&[height, width], &[inner, inputs], &[first, second, ref taps @ ..]) =
            (without_ones(l.shape()), without_ones(r.shape()), c.shape())
        else {
            return Err(unfit());
        };
        let (rows, outer) = if is_transposed {
            (width, height)
        } else {
            (height, width)
        };
        if [outer, inner] != [first, second] {
            return Err(unfit());
        }
        // No size is 0, so these are factors of the number of a tensor's values.
        let of_tap: usize = taps.iter().product();
        let ranks = [outer, inner];
        let factors = ThreeFactors {
            left: AdapterMatrix::boxed(left.clone(), [height, width], is_transposed)?,
            core: AdapterMatrix::boxed(core.clone(), [outer, inner * of_tap], false)?,
            right: AdapterMatrix::boxed(right.clone(), [inner, inputs], false)?,
            ranks,
            taps: of_tap,
        };
        // diffusers and ComfyUI take the rank from the right factor.
        let shape = [&[rows, inputs], taps].concat();
        let matrix = AddedMatrix::LowRank(factors.into_product());
        Ok(Self { matrix, shape, rank: Some(inner), tensor: left })
    }

    /// Rows and columns of the weight of this name and shape, which the matrix is to have.
    ///
    /// # Errors
    /// `Parse` if it has others.
    pub(super) fn fit(&self, (weight, shape): (&str, &[usize])) -> Result<[usize; 2]> {
        let unfit = || {
            let what = format!("it makes {:?}, and `{weight}` is {shape:?}", self.shape);
            wrong(&self.tensor.get(), what)
        };
        let &[rows, ref rest @ ..] = shape else {
            return Err(unfit());
        };
        let cols = rest
            .iter()
            .try_fold(1_usize, |n, &size| n.checked_mul(size))
            .ok_or_else(unfit)?;
        let own = without_ones(&self.shape);
        match own == without_ones(shape) || own == [rows, cols] {
            true => Ok([rows, cols]),
            false => Err(unfit()),
        }
    }
}

/// The error `what` about the first of `tensors`.
fn missing(model: &Arc<ParsedModel>, tensors: &[usize], what: &str) -> AnamnesisError {
    match tensors.iter().min() {
        Some(&index) => wrong(&AdapterTensor { model: model.clone(), index }.get(), what),
        None => AnamnesisError::parse(what),
    }
}
