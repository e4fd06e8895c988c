//! Quark: `X.weight` with `X.weight_scale`, and for integers `X.weight_zero_point`, symmetric or
//! not.
//!
//! | | scales of groups | one scale a row |
//! |---|---|---|
//! | fp4, fp6 | U8 `[out, in * bits / 8]`; `[out, in / group]` | U8 `[out, in * bits / 8]`; `[out]` |
//! | int4, uint4 | I32 `[in, out / 8]`; `[in / group, out]` | I32 `[out, in / 8]`; `[out]` |
//! | zero points of int4, uint4 | I32 `[in / group, out / 8]` | I32 `[out / 8]` |
//! | int8, uint8 | `[in, out]`; `[in / group, out]`, zero points too | `[out, in]`; `[out]`, zero points too |
//! | uint2 | U8 `[in, out / 4]`; `[in / group, out]` | U8 `[out, in / 4]`; `[out]` |
//! | int2, a word each | I32 `[in, out]`; `[in / group, out]` | I32 `[out, in]`; `[out]` |
//! | int3 | U8 `[out, in * 3 / 8]`; `[in / group, out]` | U8 `[out, in * 3 / 8]`; `[out]` |
//!
//! A scale of the whole tensor is a scalar, as is its zero point; the codes are laid out as with
//! one scale a row. Float codes are a bit stream, least significant bit first.
//!
//! Integers of a weight in FP8 have `X.weight_scale_2` and `X.weight_zero_point_2`;
//! `X.weight_scale` is the one of the FP8 weight: `((q - z) * s2) * s`. Integers whose scales are
//! FP8 have `X.weight_scale_2`, one number: `(q - z) * (s * s2)`.
//!
//! Scales of groups are floats or, as U8, exponents, or numbers in E5M3 (`scale_format`). Signed
//! integers and their zero points are in two's complement. The eight codes of a word are in order,
//! or with `export.pack_method: reorder` nibbles 0 to 7 hold codes 0, 2, 4, 6, 1, 3, 5, 7. The
//! scheme for FP8 decodes Quark's FP8 weights.
//!
//! Layout and formula: amd-quark `QParamsLinear`, `quark/torch/export/utils.py` (`Pack_4_bits`,
//! `Pack_8_bits`).

mod integers;
mod spec;

use self::integers::{QuarkParts, integer};
use self::spec::{QuarkCodeKind, QuarkSpec, ScaleSharing};

use crate::config::{FP8_SCALES, NVFP4, OF_FP8, QuantMethod};
use crate::model::Tensor;
use crate::remember::layout::e5m3::E5M3Scales;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::scale_layout::{fit, granularity, rows_and_cols};
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{
    Dialect, Floats, Group, Identity, Index, Scheme, StatedCodes, TensorRole, module_of, refused,
    wrong,
};
use crate::{Dtype, Result};

/// Name in listings.
const FAMILY: &str = "Quark";

pub(super) struct Quark;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &["INT8", "NVFP4"],
    methods: &[QuantMethod::Quark],
    codes: &[],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends(".weight_scale_2"), TensorRole::Scale),
        (Ends(".weight_zero_point"), TensorRole::ZeroPoint),
        (Ends(".weight_zero_point_2"), TensorRole::ZeroPoint),
        (Ends(".weight_quantizer.scale"), TensorRole::Scale),
        (Ends(".weight_quantizer.zero_point"), TensorRole::ZeroPoint),
        (Ends(".bias_quantizer.scale"), TensorRole::Scale),
        (Ends(".bias_quantizer.zero_point"), TensorRole::ZeroPoint),
    ],
    optional: &[],
    activations: &[
        "input_scale_2",
        "input_quantizer.scale",
        "input_quantizer.zero_point",
        "output_quantizer.scale",
        "output_quantizer.zero_point",
    ],
    markers: &[],
    sidecars: &[],
    container: None,
};

static DIALECT: Dialect = Dialect {
    words: &[
        ("fp8_e4m3", StatedCodes::E4M3),
        ("fp8_e5m2", StatedCodes::E5M2),
        ("fp4", StatedCodes::FLOAT4),
        ("fp6_e2m3", StatedCodes::Float(6, None)),
        ("fp6_e3m2", StatedCodes::Float(6, None)),
        ("int8", StatedCodes::Int(8)),
        ("uint8", StatedCodes::Int(8)),
        ("int4", StatedCodes::Int(4)),
        ("uint4", StatedCodes::Int(4)),
    ],
    algorithms: &[],
};

impl Scheme for Quark {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn dialect(&self) -> &'static Dialect {
        &DIALECT
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        // I8 and U8 with these names are INT8's and ModelOpt's as well, so only the method makes
        // them Quark's.
        if !matches!(t.dtype(), Dtype::U8 | Dtype::I8 | Dtype::I32) || !all.config.is_quark() {
            return Ok(None);
        }
        let Some(scale) = all.at(t.name(), "_scale") else {
            return Ok(None);
        };
        let module = all.config.at(module_of(t.name()));
        // Scales of scales are decoded where they are NVFP4's, by its scheme.
        let dtype = module.text(&["dtype"]);
        if dtype.is_some_and(|(dtype, _)| dtype == NVFP4) && t.dtype() == Dtype::U8 {
            return Ok(None);
        }
        let is_of_fp8 = module.flag(OF_FP8) == Some(true);
        let has_fp8_scales = module.flag(FP8_SCALES) == Some(true);
        let second = all.at(t.name(), "_scale_2");
        if let Some(second) = second.filter(|_| !is_of_fp8 && !has_fp8_scales) {
            return Err(refused(
                t,
                FAMILY,
                format!("it has scales of scales, `{}`", second.name()),
            ));
        }
        // A rule that cannot be applied may be the one that holds, so it is not skipped over.
        if all.config.has("layer_type_quant_config") {
            let what = "`layer_type_quant_config` is for classes of modules, and no file tells the class of its own";
            return Err(refused(t, FAMILY, what));
        }
        let spec = QuarkSpec::of(t, &module, scale.dtype() == Dtype::U8)?;
        match spec.kind {
            QuarkCodeKind::Float(code_format) => {
                float(t, &scale, &spec, code_format, all).map(Some)
            }
            QuarkCodeKind::Int(int) => {
                let parts = match (is_of_fp8, has_fp8_scales) {
                    (true, _) => QuarkParts::of_fp8(t, scale, all)?,
                    (false, true) => QuarkParts::with_fp8_scales(t, scale, all)?,
                    _ => QuarkParts {
                        scale,
                        zero: all.at(t.name(), "_zero_point"),
                        outer: None,
                        of_scales: None,
                    },
                };
                integer(t, parts, &spec, int, all).map(Some)
            }
        }
    }
}

fn misfit(t: &Tensor<'_>, companion: &Tensor<'_>, what: &str) -> crate::AnamnesisError {
    wrong(t, format!("its `{}` {:?} does not fit: {what}", companion.name(), companion.shape()))
}

/// Claims fp4 or fp6 codes, whose rows are bit streams.
fn float<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    spec: &QuarkSpec,
    code_format: CodeFormat,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let Some((&row_bytes, leading)) = t
        .shape()
        .split_last()
        .filter(|(_, leading)| !leading.is_empty())
    else {
        return Err(wrong(t, "packed weights have two dimensions or three"));
    };
    let cols = row_bytes
        .checked_mul(8)
        .filter(|n| n.is_multiple_of(spec.bits))
        .map(|n| n / spec.bits);
    let cols = cols
        .ok_or_else(|| wrong(t, format!("its rows are not whole codes of {} bits", spec.bits)))?;
    let shape: Vec<usize> = leading.iter().copied().chain([cols]).collect();
    let (rows, _) = rows_and_cols(&shape);
    let grid = match spec.scales {
        ScaleSharing::Group(size) => {
            let wanted: Vec<usize> = leading
                .iter()
                .copied()
                .chain([cols.div_ceil(size)])
                .collect();
            if scale.shape() != wanted || !cols.is_multiple_of(size) && cols > size {
                return Err(misfit(t, scale, &format!("groups of {size} want {wanted:?}")));
            }
            row_groups(cols, size)
        }
        // One scale for the tensor or for a row has several shapes, which `fit` knows.
        _ => fit(t, &shape, scale, all)?,
    };
    let codes = Codes::Rows { part: t.part(), row_bytes };
    let scales: Box<dyn ScaleMatrix + 'm> = match spec.has_e5m3_scales {
        true => Box::new(E5M3Scales::new(scale, grid.cols)?),
        false => Box::new(Matrix { floats: Floats::new(scale)?, cols: grid.cols }),
    };
    let decoder =
        Box::new(Grouped::scaled(codes, spec.bits, code_format, [rows, cols], grid, scales));
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    let scheme = spec.scheme(granularity(&grid, cols));
    Ok(Group::new(t.name(), shape, scheme, parts, decoder))
}
