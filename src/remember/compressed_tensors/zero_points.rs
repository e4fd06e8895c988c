//! Zero points of compressed-tensors' packed integers.

use crate::model::Tensor;
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::{ColumnPackedInts, Integers, ScaleMatrix};
use crate::remember::seam::wrong;
use crate::{Dtype, Result};

/// How the codes of a weight are packed, of which its zero points are packed alike.
#[derive(Clone, Copy)]
pub(super) struct RowPacking {
    pub bits: usize,
    /// As [`PackQuantized::per_word`].
    pub per_word: Option<usize>,
    /// Whether the codes tell a bit stream from whole codes in each word.
    pub is_certain: bool,
}

/// Zero points, packed as the codes are but along the rows, or as one I8 each.
///
/// # Errors
/// Their dtype or shape fits neither.
pub(super) fn zero_points<'m>(
    zero: &Tensor<'m>,
    shape: &[usize],
    scales: usize,
    groups: usize,
    packing: RowPacking,
) -> Result<Box<dyn ScaleMatrix + 'm>> {
    let bits = packing.bits;
    let (rows, _) = rows_and_cols(shape);
    if zero.dtype() == Dtype::I8 && zero.elements() == scales {
        return Ok(Box::new(Integers::new(zero, groups, 0.0)?));
    }
    // Zero points of a stack are packed for each matrix by itself, so the rows of one matrix are
    // what is counted.
    let matrix_rows = shape.iter().nth_back(1).copied().unwrap_or(1);
    let word_rows = zero.shape().iter().nth_back(1).copied().unwrap_or(0);
    // Both packings are computed; for widths that divide 32 they are the same, and only `dense` is
    // set.
    let dense = (matrix_rows * bits).div_ceil(32) == word_rows;
    let word_aligned = (!32usize.is_multiple_of(bits)).then(|| 32 / bits);
    let word_aligned = word_aligned.filter(|n| {
        (packing.per_word.is_some() || !dense) && matrix_rows.div_ceil(*n) == word_rows
    });
    // Codes in one packing with zero points in the other are zero points of another weight.
    let agrees = !packing.is_certain || word_aligned.is_some() == packing.per_word.is_some();
    // A matrix without rows has no stack either.
    let stack = rows.checked_div(matrix_rows).unwrap_or(0);
    let fits = zero.elements() == stack.saturating_mul(word_rows).saturating_mul(groups);
    if !(matches!(zero.dtype(), Dtype::I32 | Dtype::U32)
        && fits
        && agrees
        && (dense || word_aligned.is_some()))
    {
        return Err(wrong(
            zero,
            format!("{groups} groups of {rows} rows want another shape of zero points"),
        ));
    }
    // Packed values are offset to be non-negative, as the codes are.
    let offset = (1u32 << (bits - 1)) as f32;
    let (part, per_word) = (zero.part(), word_aligned);
    Ok(Box::new(ColumnPackedInts {
        part,
        cols: groups,
        bits,
        per_word,
        offset,
        rows: matrix_rows,
        word_rows,
    }))
}
