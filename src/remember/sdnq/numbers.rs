//! The scales, codebooks and zero points of a weight of SDNQ, which may be codes themselves.

use super::codebook::CodebookWeight;
use super::codes::StoredCodes;
use super::scales::DecodedMatrix;
use super::shape::SdnqShape;
use super::{FAMILY, SdnqWeight, decoder};
use crate::Result;
use crate::config::SdnqDtype;
use crate::model::Tensor;
use crate::remember::seam::scale_layout::per_tensor;
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{Decode, Floats, refused, wrong};

/// Tensors of numbers that may be codes themselves: names of the numbers, of their scale and of
/// their zero point, and their dtype.
struct NumberNames {
    numbers: &'static str,
    scale: &'static str,
    zero: &'static str,
    dtype: Option<SdnqDtype>,
}

/// Numbers and the stored tensors that they come from.
type Numbers<'m> = (Box<dyn ScaleMatrix + 'm>, Vec<Tensor<'m>>);

/// [`Numbers`], if there are any.
type OptionalNumbers<'m> = (Option<Box<dyn ScaleMatrix + 'm>>, Vec<Tensor<'m>>);

impl<'m> SdnqWeight<'_, 'm> {
    /// The tensor `X.part`, which the config says is there or not.
    pub(super) fn part(&self, part: &str, is_there: bool) -> Result<Option<Tensor<'m>>> {
        match (self.all.at(self.base, part), is_there) {
            (None, true) => self.all.need(&self.t, self.base, part).map(Some),
            (Some(found), false) => {
                let what =
                    format!("its `{}` is there, and by the config it has none", found.name());
                Err(wrong(&self.t, what))
            }
            (found, _) => Ok(found),
        }
    }

    /// Rows of the weight, as far as factors, a bias or config.json tell.
    pub(super) fn rows_hint(&self) -> Option<usize> {
        let rank = self.settings.svd_rank;
        let factor = self
            .all
            .at(self.base, "svd_up")
            .and_then(|up| match *up.shape() {
                [rows, r] if Some(r) == rank => Some(rows),
                [r, rows] if Some(r) == rank => Some(rows),
                _ => None,
            });
        let bias = self.all.at(self.base, "bias");
        let bias = bias.filter(|bias| bias.shape().len() == 1);
        let module = self.base.trim_end_matches('.');
        factor
            .or_else(|| bias.map(|bias| bias.elements()))
            .or_else(|| self.all.config.layer_sizes(module)[0])
    }

    /// The shape of the scales, with 1 in place of the entries of codebooks.
    pub(super) fn scale_dims(&self, codes: &StoredCodes<'m>) -> Result<Vec<usize>> {
        let numbers = |t: &Tensor<'m>, dtype: Option<SdnqDtype>| -> Result<_> {
            Ok(match dtype {
                None => (Some(t.shape().to_vec()), t.elements()),
                Some(dtype) => {
                    let stored = StoredCodes::new(t, dtype)?;
                    (stored.has_shape().then(|| t.shape().to_vec()), stored.count)
                }
            })
        };
        let (mut dims, mut count) = numbers(&self.scale, self.settings.scales)?;
        if self.settings.has_codebook {
            let entries = 1usize << self.settings.weights.bits();
            let of_entries = |dims: &mut Vec<usize>| match dims.last_mut() {
                Some(last) if *last == entries => {
                    *last = 1;
                    true
                }
                _ => false,
            };
            if !dims.as_mut().is_none_or(of_entries) || !count.is_multiple_of(entries) {
                let what =
                    format!("its `{}` has no codebooks of {entries} entries", self.scale.name());
                return Err(wrong(&self.t, what));
            }
            count /= entries;
        }
        let zeros = self.part("zero_point", self.has_zero_points())?;
        if dims.is_none()
            && let Some(zeros) = zeros
        {
            dims = numbers(&zeros, self.settings.zero_points)?.0;
        }
        if let Some(dims) = dims {
            return Ok(dims);
        }
        // Packed scales have no shape. Of a matrix they are a number for each group of each row.
        let rows = self
            .rows_hint()
            .filter(|&n| n > 0 && count.is_multiple_of(n));
        match rows {
            // One for each row has no dimension of groups.
            Some(rows) if count == rows && !self.settings.has_convolutions => Ok(vec![rows, 1]),
            Some(rows) if !self.settings.has_convolutions => Ok(vec![rows, count / rows, 1]),
            _ => {
                let what = format!(
                    "its {} codes have packed scales, and nothing tells its shape",
                    codes.count
                );
                Err(refused(&self.t, FAMILY, what))
            }
        }
    }

    /// Whether values have zero points.
    fn has_zero_points(&self) -> bool {
        self.settings.weights.is_unsigned() && !self.settings.has_codebook
    }

    /// Scales, or codebooks.
    pub(super) fn scales(&self, shape: &SdnqShape) -> Result<Numbers<'m>> {
        let entries = match self.settings.has_codebook {
            true => 1 << self.settings.weights.bits(),
            false => 1,
        };
        let names = NumberNames {
            numbers: "scale",
            scale: "scale_2",
            zero: "scale_zero_point",
            dtype: self.settings.scales,
        };
        self.numbers(&names, shape, entries)
    }

    /// Zero points, if values have any.
    pub(super) fn zero_points(&self, shape: &SdnqShape) -> Result<OptionalNumbers<'m>> {
        let names = NumberNames {
            numbers: "zero_point",
            scale: "zero_point_scale",
            zero: "zero_point_2",
            dtype: self.settings.zero_points,
        };
        if self.has_zero_points() {
            let (numbers, parts) = self.numbers(&names, shape, 1)?;
            return Ok((Some(numbers), parts));
        }
        for part in [names.numbers, names.scale, names.zero] {
            self.part(part, false)?;
        }
        Ok((None, vec![]))
    }

    /// Scales or zero points, a row for each row of the weight, or one number or codebook.
    fn numbers(
        &self,
        names: &NumberNames,
        shape: &SdnqShape,
        entries: usize,
    ) -> Result<Numbers<'m>> {
        let numbers = self.all.need(&self.t, self.base, names.numbers)?;
        let (rows, groups) = match shape.groups {
            0 => (1, 1),
            groups => (shape.rows, groups * shape.kernel_size()),
        };
        let cols = groups
            .checked_mul(entries)
            .filter(|n| n.checked_mul(rows).is_some());
        let cols = cols.ok_or_else(|| wrong(&self.t, "its size overflows"))?;
        let misfit = |count: usize| {
            let what = format!(
                "its `{}` has {count} numbers, and not {rows} rows of {cols}",
                numbers.name()
            );
            wrong(&self.t, what)
        };
        let is_nested = names.dtype.is_some();
        let has_codebook = self.settings.has_scale_codebook;
        let scale = self.part(names.scale, is_nested)?;
        let has_zero = names.dtype.is_some_and(SdnqDtype::is_unsigned) && !has_codebook;
        let zero = self.part(names.zero, has_zero)?;
        let (Some(dtype), Some(scale)) = (names.dtype, scale) else {
            if numbers.elements() != rows * cols {
                return Err(misfit(numbers.elements()));
            }
            let floats = Floats::ieee(&numbers)?;
            return Ok((Box::new(Matrix { floats, cols }), vec![numbers]));
        };
        let codes = StoredCodes::new(&numbers, dtype)?;
        if codes.count != rows * cols {
            return Err(misfit(codes.count));
        }
        let decoder = self.nested(&codes, [rows, cols], (&scale, zero.as_ref()))?;
        let all = [numbers, scale].into_iter().chain(zero).collect();
        Ok((Box::new(DecodedMatrix(decoder)), all))
    }

    /// The decoder of `[rows, cols]` numbers that are codes, with one scale and zero point, or one
    /// codebook, for all of them.
    fn nested(
        &self,
        codes: &StoredCodes<'m>,
        [rows, cols]: [usize; 2],
        (scale, zero): (&Tensor<'m>, Option<&Tensor<'m>>),
    ) -> Result<Box<dyn Decode + 'm>> {
        let has_codebook = self.settings.has_scale_codebook;
        let expected = if has_codebook {
            1 << codes.dtype.bits()
        } else {
            1
        };
        let mut stored = [scale].into_iter().chain(zero);
        if let Some(odd) = stored.find(|t| t.elements() != expected) {
            let what = format!("its `{}` {:?} has not {expected} numbers", odd.name(), odd.shape());
            return Err(wrong(&self.t, what));
        }
        let scale = Matrix::of_columns(scale)?;
        if !has_codebook {
            let zero = zero.map(Matrix::of_columns).transpose()?;
            let grid = per_tensor(&[rows, cols]);
            let codes_of_rows = codes.rows(cols);
            return Ok(decoder::grouped(codes_of_rows, codes, [rows, cols], grid, scale, zero));
        }
        if !matches!(codes.dtype, SdnqDtype::Uint(..=8)) {
            let what = "`use_codebook_scale` is decoded only for unsigned integer dtypes of up to eight bits";
            return Err(refused(&self.t, FAMILY, what));
        }
        Ok(Box::new(CodebookWeight {
            codes: codes.unpacked(cols),
            rows,
            cols,
            group: cols.max(1),
            entries: expected,
            codebooks: scale,
            has_row_codebooks: false,
        }))
    }
}
