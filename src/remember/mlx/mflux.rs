//! mflux, MLX's models of images: files without a config, whose metadata say `quantization_level`,
//! the bits of most weights.
//!
//! Groups are of 64, and in models of odd widths of 32. Single layers of a model of fewer bits
//! have 8. Ideogram 4 that is saved without quantizing it has E4M3 as U8 `X.weight` `[out, in]`,
//! and F32 `X.weight_scale` `[out]`.
//!
//! Source: mflux `models/common/weights/saving/model_saver.py`, `loading/weight_applier.py`,
//! `QwenWeightDefinition`; `ideogram4_transformer/fp8_linear.py`.

use crate::config::{MFLUX_LEVEL, Module};
use crate::model::Tensor;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{Floats, Group, Index, QuantScheme, TensorRole, wrong};
use crate::{Dtype, Fp8Format, Result};

/// Key of the metadata of its files.
const VERSION: &str = "mflux_version";

/// Bits of single layers.
const MORE_BITS: usize = 8;

/// Bits and group of a weight whose groups have `bits_per_group` bits; `None` if the metadata do
/// not tell.
pub(super) fn size(module: &Module<'_>, bits_per_group: usize) -> Option<(usize, usize)> {
    let (level, _) = module.int(&[MFLUX_LEVEL])?;
    let level = usize::try_from(level).ok()?;
    let sizes = [(level, 64), (level, 32), (MORE_BITS, 64)];
    sizes
        .into_iter()
        .find(|&(bits, group)| bits.checked_mul(group) == Some(bits_per_group))
}

/// Claims E4M3 as U8 with a scale for each row. `None` if `t` is something else, or the file is not
/// mflux's.
///
/// # Errors
/// There is not one scale for each row.
pub(super) fn fp8<'m>(t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
    let scale = match t.dtype() {
        Dtype::U8 if all.model.metadata.contains_key(VERSION) => all.at(t.name(), "_scale"),
        _ => None,
    };
    let Some(scale) = scale else { return Ok(None) };
    let (&[rows, cols], Dtype::F32) = (t.shape(), scale.dtype()) else {
        return Err(wrong(t, "weights of mflux in FP8 are [out, in], and their scales F32"));
    };
    if scale.shape() != [rows] {
        let what = format!("`{}` has {rows} rows", t.name());
        return Err(wrong(&scale, what));
    }
    let codes = Codes::Rows { part: t.part(), row_bytes: cols };
    let scales = Box::new(Matrix { floats: Floats::ieee(&scale)?, cols: 1 });
    let (format, grid) = (CodeFormat::E4M3, row_groups(cols, cols));
    let decoder = Grouped::scaled(codes, 8, format, [rows, cols], grid, scales);
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scale)];
    let scheme = QuantScheme::PerChannelFp8 { format: Fp8Format::E4M3 };
    let (name, shape) = (t.name(), t.shape());
    Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
}
