//! torchao's block formats: NVFP4Tensor and MXTensor, whose scales cover short blocks of a row.
//! Scales are row-major, or in tiles if `is_swizzled_scales`.
//!
//! Formulas: torchao `prototype/mx_formats` (`NVFP4Tensor.dequantize`, `to_dtype`).

use super::{FAMILY, TorchaoDecoder, TorchaoLayer};
use crate::model::Tensor;
use crate::remember::kernels::grouped::E2M1;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::tiled::{self, TiledScales};
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::{Matrix, NestedOp, NestedScales, ScaleMatrix};
use crate::remember::seam::{CodeType, Floats, Granularity, TensorRole, refused, wrong};
use crate::{Dtype, Result};

const FP4: CodeFormat = CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: false });

impl<'m> TorchaoLayer<'_, 'm> {
    pub(super) fn nvfp4(&mut self) -> Result<TorchaoDecoder<'m>> {
        let scale = self.need_part(TensorRole::Scale, "scale")?;
        if self.t.dtype() != Dtype::U8 || scale.dtype() != Dtype::F8E4M3 {
            return Err(wrong(&self.t, "NVFP4 is U8 with scales that are F8_E4M3"));
        }
        // Two codes in a byte: the stored last dimension is half of the logical one.
        let (shape, row_bytes) = self.unpacked_shape(self.t.shape().last().copied())?;
        let (rows, cols) = rows_and_cols(&shape);
        let group = self.block_of(16)?;
        let (mut scales, grid) = self.block_scales(&scale, Floats::fp8(&scale)?, &shape, group)?;
        if let Some(outer) = self.find_part(TensorRole::Scale, "per_tensor_scale")? {
            // One scale for the tensor, or one for each matrix of a stack.
            // The stack is all dimensions but the last two.
            let stack = rows / shape.iter().nth_back(1).copied().unwrap_or(1).max(1);
            // With dimensions it has those of the weight, and one number for each matrix.
            let count = outer.elements();
            let one_for_all = outer.shape().len() < 2 && count == 1;
            let leading = shape.iter().rev().skip(2).rev();
            let each = outer.shape().iter().eq(leading.clone().chain(&[1, 1]))
                || outer.shape().iter().eq(leading);
            if count == 0 || !(one_for_all || each && count == stack) {
                return Err(self.misfit(&outer));
            }
            let (outer, rows_each) = (Floats::ieee(&outer)?, rows.div_ceil(count));
            scales = Box::new(NestedScales {
                inner: scales,
                outer,
                count,
                rows_each,
                op: NestedOp::Multiply,
                unit: 1.0,
            });
        }
        let stored = Codes::Rows { part: self.t.part(), row_bytes };
        let decoder = Grouped::scaled(stored, 4, FP4, [rows, cols], grid, scales);
        Ok(TorchaoDecoder {
            codes: CodeType::Nvfp4,
            scales: Granularity::Group(group),
            shape,
            decoder,
        })
    }

    pub(super) fn mx(&mut self) -> Result<TorchaoDecoder<'m>> {
        let scale = self.need_part(TensorRole::Scale, "scale")?;
        if scale.dtype() != Dtype::F8E8M0 {
            return Err(wrong(&scale, "scales of these blocks are F8_E8M0"));
        }
        // The name in the metadata and the dtype must agree, or codes would be read with the wrong
        // table.
        let (codes, bits, code_format) = match (self.torch_dtype("elem_dtype"), self.t.dtype()) {
            (Some("float8_e4m3fn"), Dtype::F8E4M3) => (CodeType::Mxfp8, 8, CodeFormat::E4M3),
            (Some("float8_e5m2"), Dtype::F8E5M2) => (CodeType::Mxfp8, 8, CodeFormat::E5M2),
            (Some("float4_e2m1fn_x2"), Dtype::U8) => (CodeType::Mxfp4, 4, FP4),
            (dtype, _) => {
                let what = format!(
                    "codes that its metadata call {} are not decoded",
                    dtype.unwrap_or("nothing")
                );
                return Err(refused(&self.t, FAMILY, what));
            }
        };
        let bytes = self.t.shape().last().copied();
        let (unpacked_shape, row_bytes) = self.unpacked_shape(bytes)?;
        let shape = if bits == 4 {
            unpacked_shape
        } else {
            self.t.shape().to_vec()
        };
        let (rows, cols) = rows_and_cols(&shape);
        let group = self.block_of(32)?;
        let (scales, grid) = self.block_scales(&scale, Floats::new(&scale)?, &shape, group)?;
        let stored = Codes::Rows { part: self.t.part(), row_bytes };
        let decoder = Grouped::scaled(stored, bits, code_format, [rows, cols], grid, scales);
        Ok(TorchaoDecoder { codes, scales: Granularity::Group(group), shape, decoder })
    }

    /// The block size of the metadata, which is `size` in the format.
    fn block_of(&self, size: usize) -> Result<usize> {
        let stated = self.group_size()?;
        if stated == size {
            return Ok(size);
        }
        let what = format!("its metadata say blocks of {stated}, and its format has {size}");
        Err(wrong(&self.t, what))
    }

    /// The scales of blocks of `group` columns, row-major or in tiles, and their grid.
    ///
    /// # Errors
    /// The shape of `scale` is not that of the layout which `is_swizzled_scales` says.
    fn block_scales(
        &self,
        scale: &Tensor<'m>,
        floats: Floats<'m>,
        shape: &[usize],
        group: usize,
    ) -> Result<(Box<dyn ScaleMatrix + 'm>, ScaleGrid)> {
        let (rows, cols) = rows_and_cols(shape);
        let blocks = cols / group;
        // In a row of the weight there must be whole blocks, so this division is checked for a
        // remainder below.
        let plain =
            scale.shape().split_last() == shape.split_last().map(|(_, rows)| (&blocks, rows));
        let swizzled = self.flag("is_swizzled_scales");
        let fits = if swizzled {
            // Padded to whole tiles, each of 32 lines of 16 scales: `to_blocked` gives the lines of
            // a row of tiles side by side, and older versions all scales in one dimension.
            tiled::stored_len(rows, blocks) == Some(scale.elements())
                && (scale.shape().len() == 1
                    || scale.shape().last() == Some(&(blocks.div_ceil(tiled::TILE_COLS) * 16)))
        } else {
            plain
        };
        if !(fits && cols.is_multiple_of(group)) {
            return Err(self.misfit(scale));
        }
        let scales: Box<dyn ScaleMatrix + 'm> = if swizzled {
            Box::new(TiledScales { floats, rows, cols: blocks })
        } else {
            Box::new(Matrix { floats, cols: blocks })
        };
        Ok((scales, row_groups(cols, group)))
    }
}
