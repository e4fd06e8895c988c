//! AutoRound's `nvfp4_v2`: `W_packed` U8 `[…, in / 2]`, low nibble first, and `W_scale` U8 `[…, in
//! / 16]` in E5M3, without a global scale. The format for compressed-tensors is
//! `nvfp4-e5m3-pack-quantized`.
//!
//! Layout: auto-round 0.16.1 `experimental/qmodules/nvfp4_e5m3.py`,
//! `export/export_to_llmcompressor/config.py`.

use super::AUTO_ROUND;
use crate::Result;
use crate::model::Tensor;
use crate::remember::kernels::grouped::E2M1;
use crate::remember::kernels::nvfp4::BLOCK;
use crate::remember::layout::e5m3::E5M3Scales;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::{
    CodeType, Granularity, Group, Index, QuantScheme, TensorRole, module_of, wrong,
};

/// Whether the config says that the scales of `name` are E5M3.
pub(super) fn is_stated(name: &str, all: &Index<'_>) -> bool {
    let module = all.config.at(module_of(name));
    let says = |key: &str, text: &str| module.text(&[key]).is_some_and(|(found, _)| found == text);
    says("data_type", "nvfp4_v2") || says("format", "nvfp4-e5m3-pack-quantized")
}

/// Claims such blocks.
///
/// # Errors
/// There is not one scale for 16 values of a row.
pub(super) fn claim<'m>(t: &Tensor<'m>, name: &str, scale: &Tensor<'m>) -> Result<Group<'m>> {
    let misfit = || {
        let (name, shape) = (scale.name(), scale.shape());
        let what = format!("its scales `{name}` {shape:?} are not one for {BLOCK} values of a row");
        wrong(t, what)
    };
    let (Some((&bytes, leading)), Some((&blocks, of_scales))) =
        (t.shape().split_last(), scale.shape().split_last())
    else {
        return Err(misfit());
    };
    let cols = bytes.checked_mul(2).ok_or_else(misfit)?;
    if leading.is_empty() || leading != of_scales || blocks.checked_mul(BLOCK) != Some(cols) {
        return Err(misfit());
    }
    let shape: Vec<usize> = leading.iter().copied().chain([cols]).collect();
    let codes = Codes::Rows { part: t.part(), row_bytes: bytes };
    let code_format = CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: false });
    let (grid, scales) = (row_groups(cols, BLOCK), E5M3Scales::new(scale, blocks)?);
    let size = rows_and_cols(&shape).into();
    let decoder = Grouped::scaled(codes, 4, code_format, size, grid, Box::new(scales));
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    let scheme = QuantScheme::Grouped {
        family: AUTO_ROUND,
        codes: CodeType::Fp4,
        scales: Granularity::Group(BLOCK),
    };
    Ok(Group::new(name.to_owned(), shape, scheme, parts, Box::new(decoder)))
}
