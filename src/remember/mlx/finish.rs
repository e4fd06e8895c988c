//! What becomes of an MLX weight after its codes: mlx-vlm's second scale of NVFP4, and the
//! rotations of PrismML's models.
//!
//! mlx-vlm keeps the scale of a whole matrix under the name of the model that it has converted:
//! `P.weight_scale_2` multiplies (ModelOpt), and `P.weight_global_scale` divides
//! (compressed-tensors). Formula: mlx-vlm `dequantize_model`.
//!
//! A layer of a model of type `prism_hadamard_…` multiplies its inputs by `P.signs` `[in]` and then
//! blocks of them by Sylvester's matrix over the root of its size; so the weight's blocks of
//! columns are multiplied by the matrix, and then by the signs. Formula: mlx-lm
//! `HadamardQuantizedLinear`; an embedding is rotated back, which is the same weight.

use std::sync::Arc;

use super::MlxLayer;
use crate::Result;
use crate::model::Tensor;
use crate::remember::layout::rescaled::{Rescale, Rescaled};
use crate::remember::layout::transformed::{BlockTransform, SharedMatrix, Transformed};
use crate::remember::seam::grouped::Grouped;
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::scale_matrix::NestedOp;
use crate::remember::seam::{CodeType, Decode, Floats, Index, TensorRole, refused, wrong};
use crate::remember::transforms::check_block;

/// Names of mlx-vlm's scale of a whole matrix, and what it does.
pub(super) const MATRIX_SCALES: [(&str, NestedOp); 2] =
    [("weight_scale_2", NestedOp::Multiply), ("weight_global_scale", NestedOp::Divide)];

/// What errors are about.
const FEATURE: &str = "MLX with rotated inputs";

impl<'m> MlxLayer<'_, 'm> {
    /// The decoder of the weight whose codes `decoder` decodes to `codes`. Adds the tensors that it
    /// needs to `parts`.
    ///
    /// # Errors
    /// They do not fit, or it is not known what they do.
    pub(super) fn finish(
        &self,
        decoder: Grouped<'m>,
        codes: CodeType,
        all: &Index<'m>,
        parts: &mut Vec<(TensorRole, Tensor<'m>)>,
    ) -> Result<Box<dyn Decode + 'm>> {
        if self.names.is_of_ollama {
            return Ok(Box::new(decoder));
        }
        let found = MATRIX_SCALES.map(|(name, op)| Some((all.at(self.base, name)?, op)));
        let cols = decoder.cols;
        let decoder: Box<dyn Decode + 'm> = Box::new(decoder);
        let decoder = match found {
            [None, None] => decoder,
            [Some((one, _)), Some(_)] => {
                return Err(wrong(&one, "its layer has another scale of whole matrices"));
            }
            [Some((numbers, op)), None] | [None, Some((numbers, op))] => {
                let has_other = parts
                    .iter()
                    .any(|(_, part)| part.name().ends_with(".global_scale"));
                if codes != CodeType::Nvfp4 || has_other {
                    let what =
                        format!("beside `{}`, a layer of {codes}, it means nothing", self.t.name());
                    return Err(wrong(&numbers, what));
                }
                parts.push((TensorRole::Scale, numbers));
                self.rescaled(decoder, numbers, op)?
            }
        };
        let Some((signs, size)) = self.rotation(cols, all)? else {
            return Ok(decoder);
        };
        parts.push((TensorRole::Scale, signs));
        let columns = BlockTransform {
            matrix: Arc::new(SharedMatrix::Sylvester),
            size,
            is_transposed: true,
            is_normalized: true,
        };
        let grid = decoder.grid();
        let columns = Some(columns);
        check_block([&None, &columns], [grid.row_align, grid.col_align], &self.t)?;
        Ok(Box::new(Rescaled {
            values: Box::new(Transformed { stored: decoder, columns, rows: None }),
            by: Rescale::Signs(signs),
        }))
    }

    /// `decoder` with the scale of each matrix, or of all.
    fn rescaled(
        &self,
        decoder: Box<dyn Decode + 'm>,
        numbers: Tensor<'m>,
        op: NestedOp,
    ) -> Result<Box<dyn Decode + 'm>> {
        Floats::ieee(&numbers)?;
        let (rows, _) = rows_and_cols(self.t.shape());
        let each = match self.t.shape() {
            [.., rows, _] => (*rows).max(1),
            _ => 1,
        };
        let rows = match numbers.elements() {
            1 => rows.max(1),
            count if count == rows / each => each,
            _ => {
                let what = format!("`{}` has {} matrices", self.t.name(), rows / each);
                return Err(wrong(&numbers, what));
            }
        };
        let by = Rescale::Matrices { numbers, rows, op };
        Ok(Box::new(Rescaled { values: decoder, by }))
    }

    /// The signs of the inputs, and how many inputs are rotated together; `None` if they are not
    /// rotated.
    fn rotation(&self, cols: usize, all: &Index<'m>) -> Result<Option<(Tensor<'m>, usize)>> {
        let module = self.base.trim_end_matches('.');
        let stated = all.config.hadamard_block(module);
        let stated = stated.map_err(|what| refused(&self.t, FEATURE, what))?;
        let (size, signs) = match (stated, all.at(self.base, "signs")) {
            (None | Some(0), None) => return Ok(None),
            (None, Some(_)) => {
                let what = format!(
                    "`{}signs` are there, and only config.json's `modules` tells how many inputs are rotated together",
                    self.base
                );
                return Err(refused(&self.t, FEATURE, what));
            }
            (Some(0), Some(signs)) => {
                let what = "config.json's `modules` say that its layer is not rotated";
                return Err(wrong(&signs, what));
            }
            (Some(size), None) => {
                let what = format!(
                    "config.json's `modules` say that {size} inputs are rotated together, and `{}signs` is missing",
                    self.base
                );
                return Err(wrong(&self.t, what));
            }
            (Some(size), Some(signs)) => (size, signs),
        };
        if !size.is_power_of_two() || !cols.is_multiple_of(size) {
            let what = format!(
                "config.json's `modules` say that {size} of its {cols} inputs are rotated together"
            );
            return Err(wrong(&self.t, what));
        }
        Floats::ieee(&signs)?;
        if signs.elements() != cols {
            return Err(wrong(&signs, format!("`{}` has {cols} inputs", self.t.name())));
        }
        Ok(Some((signs, size)))
    }
}
