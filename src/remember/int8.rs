//! INT8: `W` I8 with `W_scale`, per tensor, row, group or block, and with `W_zero_point` I8 if it
//! is asymmetric. ModelOpt may have divided the columns of a weight by [`pre_quant_scale`].
//!
//! Layouts: compressed-tensors `compressors/naive_quantized`, modelopt `export/quant_utils.py`.

use super::modelopt::pre_quant_scale;
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::rotated::LEAST_GROUP;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped};
use crate::remember::seam::scale_layout::{fit, granularity, rows_and_cols};
use crate::remember::seam::scale_matrix::{Integers, Matrix};
use crate::remember::seam::{
    CodeType, Floats, Group, Identity, Index, QuantScheme, Scheme, Sibling, TensorRole, base_of,
    module_of, wrong,
};
use crate::{Dtype, Result};

pub(super) struct Int8;

static IDENTITY: Identity = Identity {
    name: "INT8",
    over: &[],
    methods: &[
        QuantMethod::W8a8Int8,
        QuantMethod::AutoRound,
        QuantMethod::CompressedTensors,
        QuantMethod::ModelOpt,
        QuantMethod::Quark,
    ],
    codes: &[],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends(".weight_zero_point"), TensorRole::ZeroPoint),
        (Ends("pre_quant_scale"), TensorRole::Scale),
    ],
    optional: &[Sibling::OfWeight("_zero_point"), Sibling::OfModule("pre_quant_scale")],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Int8 {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        // SDNQ's zero points may be codes with a scale of their own.
        let is_zero_point = base_of(t.name(), "zero_point")
            .is_some_and(|_| all.config.quant_method() == Some(&QuantMethod::Sdnq));
        if t.dtype() != Dtype::I8 || is_zero_point {
            return Ok(None);
        }
        // MX formats store exponents under the same name; those weights are not plain integers
        // times a float.
        let scale = all
            .at(t.name(), "_scale")
            .filter(|scale| scale.dtype().is_floating_point());
        let Some(scale) = scale else { return Ok(None) };
        let grid = fit(t, t.shape(), &scale, all)?;
        let (rows, cols) = rows_and_cols(t.shape());
        let module = all.config.at(module_of(t.name()));
        // The shapes prove the group size: the config is only checked, and only for scales of
        // groups.
        let is_grouped = grid.block_rows == 1 && grid.block_cols < cols;
        if let Some((size, place)) = module
            .int(&["group_size"])
            .filter(|(n, _)| is_grouped && *n > 0)
            && usize::try_from(size) != Ok(grid.block_cols)
        {
            return Err(wrong(
                t,
                format!(
                    "{place} says groups of {size}, and the shapes groups of {}",
                    grid.block_cols
                ),
            ));
        }
        let codes = Codes::Rows { part: t.part(), row_bytes: cols };
        let scales = Box::new(Matrix { floats: Floats::ieee(&scale)?, cols: grid.cols });
        let code_format = CodeFormat::Int(Int::signed(8));
        let mut decoder = Grouped::scaled(codes, 8, code_format, [rows, cols], grid, scales);
        let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scale)];
        if let Some(zero) = all.at(t.name(), "_zero_point") {
            // Zero points of other shapes would be read at the wrong places without a complaint.
            if zero.elements() != scale.elements() || zero.dtype() != Dtype::I8 {
                return Err(wrong(&zero, format!("it is no I8 for each scale of `{}`", t.name())));
            }
            let zero_points = Box::new(Integers::new(&zero, grid.cols, 0.0)?);
            decoder.formula = GroupFormula::ShiftScale(GroupOffsets::new(zero_points));
            parts.push((TensorRole::ZeroPoint, zero));
        } else if module.flag("symmetric") == Some(false) {
            let what = format!(
                "the config says that it is asymmetric, and `{}_zero_point` is missing",
                t.name()
            );
            return Err(wrong(t, what));
        }
        if let Some(scale) = pre_quant_scale(t, cols, all)? {
            decoder.columns = Some(Matrix::of_columns(&scale)?);
            parts.push((TensorRole::Scale, scale));
        }
        // The layouts are equal, so only the config tells whose file it is. The name is for
        // listings alone.
        let family = match all.config.quant_method() {
            Some(QuantMethod::ModelOpt) => "ModelOpt",
            Some(QuantMethod::Quark) => "Quark",
            _ => "compressed-tensors",
        };
        let scheme = QuantScheme::Grouped {
            family,
            codes: CodeType::Int(8),
            scales: granularity(&grid, cols),
        };
        let (name, shape) = (t.name(), t.shape());
        Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
    }

    fn assumption(&self, group: &Group<'_>, all: &Index<'_>) -> Option<&'static str> {
        // ComfyUI rotates columns in groups of at least so many, and has one scale or one for each
        // row.
        let [(_, codes), (_, scale)] = &*group.parts else {
            return None;
        };
        let (rows, cols) = rows_and_cols(codes.shape());
        let is_open = !all.config.is_quantized()
            && [1, rows].contains(&scale.elements())
            && cols.is_multiple_of(LEAST_GROUP);
        is_open.then_some("nothing says whose INT8 it is: read as compressed-tensors', while ComfyUI's rotated INT8 and INT4 (`convrot`) without their description `comfy_quant` have the same names and shapes")
    }
}
