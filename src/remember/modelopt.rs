//! ModelOpt's formats that no other library has. The schemes of FP8, NVFP4 and INT8 decode its
//! other weights.
//!
//! - W4A16_AWQ, W4A8_AWQ: `X.weight` U8 `[out / 2, in]`. A byte of row i has the code of row 2i in
//!   its low nibble and that of row 2i + 1 in its high nibble, in two's complement.
//!   `X.weight_scale` are floats `[out, in / group]`. `X.weight_scale_2` of W4A8 belongs to the
//!   cast of the weight to FP8 at run time, and is not a factor of the weight.
//! - MXFP4: `X.weight` U8 `[out, in / 2]`, `X.weight_scale` U8 `[out, in / 32]`, exponents; of a
//!   stack that is a parameter `X` U8 `[experts, in, out / 2]` and `X_weight_scale` U8 `[experts,
//!   in, out / 32]`.
//! - Types of ggml: [`blocks`].
//!
//! Any weight may have `X.pre_quant_scale` `[in]`, which multiplies the input of the layer. Here it
//! multiplies the columns of the weight, which gives the same product.
//!
//! Layouts: modelopt `export/quant_utils.py` (`pack_int4_in_uint8`, `_update_pre_quant_scale`),
//! `MXFP4QTensor`.

mod blocks;

use super::mxfp4::mx_rows;
use crate::config::{Module, QuantMethod};
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::strided::RowPairs;
use crate::remember::seam::NamePattern::{Ends, Is};
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    CodeType, Dialect, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, Sibling,
    StatedCodes, TensorRole, base_of, module_of, refused, wrong,
};
use crate::{Dtype, Result};

/// Name in listings.
const FAMILY: &str = "ModelOpt";

pub(super) struct ModelOpt;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["NVFP4"],
    methods: &[QuantMethod::ModelOpt],
    codes: &[],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends("weight_scale_2"), TensorRole::Scale),
        (Ends("pre_quant_scale"), TensorRole::Scale),
    ],
    optional: &[Sibling::OfModule("pre_quant_scale")],
    activations: &["k_proj.k_bias", "v_proj.v_bias"],
    markers: &[],
    sidecars: &[Is("hf_quant_config.json")],
    container: None,
};

/// `process_layer_quant_config` in modelopt `export/quant_utils.py`.
static DIALECT: Dialect = Dialect {
    words: &[],
    algorithms: &[
        ("FP8_PER_CHANNEL_PER_TOKEN", StatedCodes::E4M3, Some(Granularity::Channel)),
        ("FP8_PB_WO", StatedCodes::E4M3, Some(Granularity::Block { rows: 128, cols: 128 })),
        // TensorRT-LLM's name for `FP8_PB_WO`.
        ("FP8_BLOCK_SCALES", StatedCodes::E4M3, Some(Granularity::Block { rows: 128, cols: 128 })),
        ("FP8_PB_REAL", StatedCodes::E4M3, Some(Granularity::Block { rows: 128, cols: 128 })),
        ("FP8", StatedCodes::E4M3, Some(Granularity::Tensor)),
        ("MXFP8", StatedCodes::E4M3, Some(Granularity::Group(32))),
        ("NVFP4", StatedCodes::FLOAT4, None),
        ("W4A16_NVFP4", StatedCodes::FLOAT4, None),
        ("W4A8_NVFP4_FP8", StatedCodes::FLOAT4, None),
        ("W4A8_MXFP4_FP8", StatedCodes::FLOAT4, Some(Granularity::Group(32))),
        ("MXFP4", StatedCodes::FLOAT4, Some(Granularity::Group(32))),
        ("W4A16_AWQ", StatedCodes::Int(4), None),
        ("W4A8_AWQ", StatedCodes::Int(4), None),
        ("W8A16", StatedCodes::Int(8), Some(Granularity::Channel)),
        ("W8A8_SQ_PER_CHANNEL", StatedCodes::Int(8), Some(Granularity::Channel)),
    ],
};

impl Scheme for ModelOpt {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if t.dtype() != Dtype::U8 {
            return Ok(None);
        }
        let module = all.config.at(module_of(t.name()));
        // Parameters, which stacks of experts are, have their own name before it.
        let of_parameter = || all.at(t.name(), "_weight_scale").filter(is_exponents);
        let Some(scale) = all.at(t.name(), "_scale").or_else(of_parameter) else {
            return blocks::claim(t, &module);
        };
        // `quant_algo` is in `hf_quant_config.json` as well, which has no `quant_method`.
        let says = module.text(&["quant_algo"]).is_some();
        if !says && all.config.quant_method() != Some(&QuantMethod::ModelOpt) {
            return Ok(None);
        }
        match scale.dtype() {
            _ if is_exponents(&scale) => mxfp4(t, &scale).map(Some),
            dtype if dtype.is_floating_point() => awq(t, &scale, &module, all).map(Some),
            // Block scales in E4M3 are NVFP4's, which comes later.
            _ => Ok(None),
        }
    }
}

/// Whether scales are exponents, as those of MXFP4 are.
fn is_exponents(scale: &Tensor<'_>) -> bool {
    matches!(scale.dtype(), Dtype::U8 | Dtype::F8E8M0)
}

/// Claims MXFP4. FP6, which [`mx_rows`] knows as well, does not occur.
fn mxfp4<'m>(t: &Tensor<'m>, scale: &Tensor<'m>) -> Result<Group<'m>> {
    let last = |t: &Tensor<'m>| t.shape().last().copied().unwrap_or(0);
    // Checked here, as `mx_rows` would also accept three quarters of the bytes as FP6.
    if last(scale).checked_mul(16) != Some(last(t)) {
        let what = format!(
            "its scales `{}` {:?} are not one for 32 values of a row",
            scale.name(),
            scale.shape()
        );
        return Err(wrong(t, what));
    }
    mx_rows(t, t.name(), scale, FAMILY)
}

fn awq<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    module: &Module<'_>,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let misfit = |what: &str| {
        wrong(t, format!("its scale `{}` {:?} does not fit: {what}", scale.name(), scale.shape()))
    };
    let (&[bytes, cols], &[rows, groups]) = (t.shape(), scale.shape()) else {
        return Err(misfit("both have two dimensions"));
    };
    if bytes.checked_mul(2) != Some(rows) || groups == 0 {
        return Err(misfit("it has a row for each row of the weight, of which two lie in a byte"));
    }
    if module.flag("has_zero_point") == Some(true) {
        return Err(refused(
            t,
            "ModelOpt AWQ",
            "the config says that it has zero points, which no file of its has",
        ));
    }
    // The last group may be short only if the config gives the size; shapes alone prove only even
    // groups.
    let width = match module
        .int(&["group_size"])
        .and_then(|(size, _)| usize::try_from(size).ok())
        .filter(|&n| n > 0)
    {
        Some(size)
            if cols.div_ceil(size) == groups && (cols.is_multiple_of(size) || groups == 1) =>
        {
            size
        }
        Some(size) => return Err(misfit(&format!("the config says groups of {size}"))),
        // Weights without columns have groups of width 0 by this, which must not divide.
        None if cols.is_multiple_of(groups) => (cols / groups).max(1),
        None => return Err(misfit("its groups are not whole ones")),
    };
    let codes = Codes::Unpacked(Box::new(RowPairs { part: t.part(), cols, apart: 1 }));
    let scales = Box::new(Matrix { floats: Floats::ieee(scale)?, cols: groups });
    let code_format = CodeFormat::Int(Int::signed(4));
    let mut decoder =
        Grouped::scaled(codes, 4, code_format, [rows, cols], row_groups(cols, width), scales);
    let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    if let Some(columns) = pre_quant_scale(t, cols, all)? {
        decoder.columns = Some(Matrix::of_columns(&columns)?);
        parts.push((TensorRole::Scale, columns));
    }
    // Unused, but a part of the weight: it would be left over and blamed otherwise.
    parts.extend(
        all.at(t.name(), "_scale_2")
            .map(|unused| (TensorRole::Scale, unused)),
    );
    let scheme = QuantScheme::Grouped {
        family: FAMILY,
        codes: CodeType::Int(4),
        scales: Granularity::Group(width),
    };
    Ok(Group::new(t.name(), vec![rows, cols], scheme, parts, Box::new(decoder)))
}

/// The factors of the columns of weight `t`, which are applied last, if there are any.
///
/// The config does not say which layers have them, because ModelOpt merges most of them into the
/// layer before. So none is required.
///
/// # Errors
/// Their number is not that of the columns.
pub(super) fn pre_quant_scale<'m>(
    t: &Tensor<'m>,
    cols: usize,
    all: &Index<'m>,
) -> Result<Option<Tensor<'m>>> {
    let scale = base_of(t.name(), "weight").and_then(|base| all.at(base, "pre_quant_scale"));
    match scale {
        Some(scale) if scale.elements() != cols => Err(wrong(
            &scale,
            format!("it has not one factor for each of the {cols} columns of `{}`", t.name()),
        )),
        None => check_layers_of_one_input(t, all).map(|()| None),
        scale => Ok(scale),
    }
}

/// Layers that have one input. ModelOpt gives them the same factors
/// (`export/unified_export_hf.py`, `requantize_resmooth_fused_llm_layers`).
const LAYERS_OF_ONE_INPUT: &[&[&str]] =
    &[&["q_proj", "k_proj", "v_proj"], &["gate_proj", "up_proj"], &["w1", "w3"]];

/// Checks that no other layer of the same input has factors, if `t` has none.
///
/// # Errors
/// Another layer of codes of the same type has some.
fn check_layers_of_one_input(t: &Tensor<'_>, all: &Index<'_>) -> Result<()> {
    let Some((parent, layer)) = module_of(t.name()).rsplit_once('.') else {
        return Ok(());
    };
    let layers = LAYERS_OF_ONE_INPUT
        .iter()
        .find(|layers| layers.contains(&layer));
    for other in layers.into_iter().flat_map(|layers| layers.iter()) {
        let base = format!("{parent}.{other}.");
        let is_alike = |weight: Tensor<'_>| weight.dtype() == t.dtype();
        let factors = all.at(&base, "pre_quant_scale");
        let factors = factors.filter(|_| all.at(&base, "weight").is_some_and(is_alike));
        if let Some(factors) = factors {
            let what = format!(
                "its `{parent}.{layer}.pre_quant_scale` is missing: a layer of the same input has `{}`",
                factors.name()
            );
            return Err(wrong(t, what));
        }
    }
    Ok(())
}
