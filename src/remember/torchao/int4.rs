//! torchao's Int4Tensor and Int4PlainInt32Tensor: rows of nibbles, low nibble first, with scales
//! and zero points `[…, groups, out]`. Int4Tensor, in two's complement: `q * scale + zero`.
//! Int4PlainInt32Tensor: `(q - zero) * scale`.

use super::{FAMILY, TorchaoDecoder, TorchaoLayer};
use crate::Result;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::{Integers, Matrix, ScaleMatrix, Transposed};
use crate::remember::seam::{CodeType, Floats, Granularity, TensorRole, refused, wrong};

impl<'m> TorchaoLayer<'_, 'm> {
    /// Decoder of nibbles in rows. `is_signed`: Int4Tensor, else Int4PlainInt32Tensor.
    pub(super) fn int4(&mut self, is_signed: bool) -> Result<TorchaoDecoder<'m>> {
        // Int4PlainInt32Tensor has words of four bytes, in whose little-endian bytes the low nibble
        // comes first, too.
        let size = self.t.dtype().bits() / 8;
        let row_bytes = self.t.shape().last().and_then(|&n| n.checked_mul(size));
        let (shape, row_bytes) = self.unpacked_shape(row_bytes)?;
        let (rows, cols) = rows_and_cols(&shape);
        // The stored shape proves the width. A shape in the metadata is only checked.
        let declared = self.dims("shape");
        if !declared.is_empty() && declared != shape {
            return Err(wrong(&self.t, format!("its metadata say that its shape is {declared:?}")));
        }
        let (group, outputs) = (self.group_size()?, shape.iter().nth_back(1).copied().unwrap_or(1));
        let (scale, zero) = (
            self.need_part(TensorRole::Scale, "scale")?,
            self.need_part(TensorRole::ZeroPoint, "zero_point")?,
        );
        // The last group may be short: scales are `[ceil(in / group), out]`.
        let groups = cols.div_ceil(group);
        let leading = shape.iter().rev().skip(2).rev().copied();
        let expected: Vec<usize> = leading.chain([groups, outputs]).collect();
        for part in [&scale, &zero] {
            if part.shape() != expected {
                return Err(self.misfit(part));
            }
        }
        // Scales are stored as [groups, out]; the decoder takes [out, groups].
        let transposed = |inner| {
            Box::new(Transposed { inner, rows: outputs, cols: groups }) as Box<dyn ScaleMatrix + 'm>
        };
        let floats = |t: &Tensor<'m>| {
            Floats::ieee(t).map(|floats| Box::new(Matrix { floats, cols: outputs }))
        };
        let code_format = CodeFormat::Int(if is_signed {
            Int::signed(4)
        } else {
            Int::UNSIGNED
        });
        let stored = Codes::Rows { part: self.t.part(), row_bytes };
        let grid = row_groups(cols, group);
        let mut decoder = Grouped::scaled(
            stored,
            4,
            code_format,
            [rows, cols],
            grid,
            transposed(floats(&scale)?),
        );
        decoder.formula = if is_signed {
            GroupFormula::ScaleShift(GroupOffsets::new(transposed(floats(&zero)?)))
        } else if zero.dtype().is_floating_point() {
            let what = format!(
                "the zero points of `{}` are floats: Ascend's packing, which is not published",
                self.name
            );
            return Err(refused(&self.t, FAMILY, what));
        } else {
            let zero_points = transposed(Box::new(Integers::new(&zero, outputs, 0.0)?));
            GroupFormula::ShiftScale(GroupOffsets::new(zero_points))
        };
        Ok(TorchaoDecoder {
            codes: CodeType::Int(4),
            scales: Granularity::Group(group),
            shape,
            decoder,
        })
    }

    /// The shape of a weight with two codes in each of the `row_bytes` bytes of a row, and
    /// `row_bytes` itself.
    ///
    /// # Errors
    /// `row_bytes` or the columns overflow (`None`), or the weight has fewer than two dimensions.
    pub(super) fn unpacked_shape(&self, row_bytes: Option<usize>) -> Result<(Vec<usize>, usize)> {
        let row = row_bytes.and_then(|n| Some((n, n.checked_mul(2)?)));
        let Some(((row_bytes, cols), rows)) =
            row.zip(self.t.shape().split_last().map(|(_, rows)| rows))
        else {
            return Err(wrong(&self.t, "its rows cannot be counted"));
        };
        if rows.is_empty() {
            return Err(wrong(&self.t, "weights have two dimensions or more"));
        }
        Ok((rows.iter().copied().chain([cols]).collect(), row_bytes))
    }
}
