//! Quark: `X.weight` with `X.weight_scale`, and for integers `X.weight_zero_point`, symmetric or not.
//!
//! | | scales of groups | one scale a row |
//! |---|---|---|
//! | fp4, fp6 | U8 `[out, in * bits / 8]`; `[out, in / group]` | the same; `[out]` |
//! | int4, uint4 | I32 `[in, out / 8]`; `[in / group, out]` | I32 `[out, in / 8]`; `[out]` |
//! | their zero points | I32 `[in / group, out / 8]` | I32 `[out / 8]` |
//! | int8, uint8 | `[in, out]`; `[in / group, out]`, zero points too | `[out, in]`; `[out]`, zero points too |
//!
//! A scale of the whole tensor is a scalar, and its zero point too; codes lie as with one a row. Floats are a bit stream
//! from the lowest bit on.
//!
//! ScaleSharing of groups are floats or, as U8, exponents. Signed integers are in two's complement, and their zero points
//! too. Eight codes of a word lie in order, or as `export.pack_method: reorder` says: nibble i has the code of place
//! 0, 2, 4, 6, 1, 3, 5, 7. FP8 is as everywhere. Dtypes and groups are in the config alone.
//!
//! Layout and formula: amd-quark `QParamsLinear`, `quark/torch/export/utils.py` (`Pack_4_bits`, `Pack_8_bits`).

mod transposed;

use self::transposed::{CodeRows, QuarkCodes, QuarkZeroPoints, TransposedCodes};
use crate::config::{Module, QuantMethod};
use crate::containers::model::Tensor;
use crate::kernels::remember::grouped::{E2M1, Int};
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::fit::{fit, granularity, rows_and_cols};
use crate::scheme::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::scheme::seam::numbers::{Integers, Matrix, ScaleMatrix, Transposed};
use crate::scheme::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole,
    module_of, refused, wrong,
};
use crate::{Dtype, Result};

/// What listings call it.
const FAMILY: &str = "Quark";

pub(super) struct Quark;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    methods: &[QuantMethod::Quark],
    codes: &[],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends(".weight_zero_point"), TensorRole::ZeroPoint),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Quark {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if !matches!(t.dtype(), Dtype::U8 | Dtype::I8 | Dtype::I32)
            || all.config.quant_method() != Some(&QuantMethod::Quark)
        {
            return Ok(None);
        }
        let Some(scale) = all.at(t.name(), "_scale") else {
            return Ok(None);
        };
        if let Some(second) = all.at(t.name(), "_scale_2") {
            return Err(refused(
                t,
                FAMILY,
                format!("it has scales of scales, `{}`", second.name()),
            ));
        }
        if all.config.has("layer_type_quant_config") {
            let what = "`layer_type_quant_config` is for classes of modules, and no file tells the class of its own";
            return Err(refused(t, FAMILY, what));
        }
        let spec = QuarkSpec::of(t, &all.config.at(module_of(t.name())))?;
        match spec.number {
            QuarkNumber::Float(code_format) => float(t, &scale, &spec, code_format, all).map(Some),
            QuarkNumber::Int(int) => integer(t, &scale, &spec, int, all).map(Some),
        }
    }
}

/// What the config says of a weight.
struct QuarkSpec {
    number: QuarkNumber,
    /// What listings call the codes.
    codes: CodeType,
    bits: usize,
    scales: ScaleSharing,
    /// Whether zero points may be left out.
    is_symmetric: bool,
    /// Whether eight codes of a word lie out of order.
    is_reordered: bool,
}

/// What shares a scale.
#[derive(Clone, Copy, PartialEq)]
enum ScaleSharing {
    Tensor,
    Channel,
    Group(usize),
}

enum QuarkNumber {
    Float(CodeFormat),
    Int(Int),
}

impl QuarkSpec {
    fn of(t: &Tensor<'_>, module: &Module<'_>) -> Result<Self> {
        let plain = E2M1 {
            factor: 1.0,
            plain_zero: false,
        };
        let dtype = module
            .text(&["dtype"])
            .map(|(dtype, _)| dtype)
            .unwrap_or_default();
        let (number, codes, bits, stored) = match dtype {
            "fp4" => (
                QuarkNumber::Float(CodeFormat::E2M1(plain)),
                CodeType::Fp4,
                4,
                Dtype::U8,
            ),
            "fp6_e2m3" => (
                QuarkNumber::Float(CodeFormat::E2M3),
                CodeType::Fp6E2M3,
                6,
                Dtype::U8,
            ),
            "fp6_e3m2" => (
                QuarkNumber::Float(CodeFormat::E3M2),
                CodeType::Fp6E3M2,
                6,
                Dtype::U8,
            ),
            "int4" => (
                QuarkNumber::Int(Int::signed(4)),
                CodeType::Int(4),
                4,
                Dtype::I32,
            ),
            "uint4" => (
                QuarkNumber::Int(Int::UNSIGNED),
                CodeType::Uint(4),
                4,
                Dtype::I32,
            ),
            "int8" => (
                QuarkNumber::Int(Int::signed(8)),
                CodeType::Int(8),
                8,
                Dtype::I8,
            ),
            "uint8" => (
                QuarkNumber::Int(Int::UNSIGNED),
                CodeType::Uint(8),
                8,
                Dtype::U8,
            ),
            "" => return Err(wrong(t, "the config of Quark names no dtype for its layer")),
            _ => {
                return Err(refused(
                    t,
                    FAMILY,
                    format!("the config says `{dtype}`, which is not decoded"),
                ));
            }
        };
        if t.dtype() != stored {
            return Err(wrong(
                t,
                format!("the config says `{dtype}`, and that is stored as {stored}"),
            ));
        }
        let scales = ScaleSharing::of(t, module)?;
        let method = module
            .text(&["pack_method"])
            .map_or("reorder", |(method, _)| method);
        if !matches!(method, "reorder" | "order") {
            return Err(refused(
                t,
                FAMILY,
                format!("the config says `pack_method: {method}`, which is not decoded"),
            ));
        }
        let is_symmetric = module.flag("symmetric") != Some(false);
        Ok(Self {
            number,
            codes,
            bits,
            scales,
            is_symmetric,
            is_reordered: method == "reorder",
        })
    }

    fn scheme(&self, scales: Granularity) -> QuantScheme {
        QuantScheme::Grouped {
            family: FAMILY,
            codes: self.codes,
            scales,
        }
    }
}

impl ScaleSharing {
    fn of(t: &Tensor<'_>, module: &Module<'_>) -> Result<Self> {
        let scheme = module
            .text(&["qscheme"])
            .map(|(scheme, _)| scheme)
            .unwrap_or_default();
        let axis = module.int(&["ch_axis"]).map(|(axis, _)| axis);
        match scheme {
            "per_tensor" => Ok(Self::Tensor),
            "per_channel" if matches!(axis, None | Some(0)) => Ok(Self::Channel),
            "per_group" if matches!(axis, None | Some(-1 | 1)) => {
                let size = module
                    .int(&["group_size"])
                    .and_then(|(size, _)| usize::try_from(size).ok());
                let size = size.filter(|&n| n > 0).map(Self::Group);
                size.ok_or_else(|| wrong(t, "the config of Quark has no size of its groups"))
            }
            _ => Err(refused(
                t,
                FAMILY,
                format!("scales `{scheme}` along its axis are not decoded"),
            )),
        }
    }
}

fn misfit(t: &Tensor<'_>, companion: &Tensor<'_>, what: &str) -> crate::AnamnesisError {
    wrong(
        t,
        format!(
            "its `{}` {:?} does not fit: {what}",
            companion.name(),
            companion.shape()
        ),
    )
}

/// Narrow floats in rows.
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
    let cols = cols.ok_or_else(|| {
        wrong(
            t,
            format!("its rows are not whole codes of {} bits", spec.bits),
        )
    })?;
    let shape: Vec<usize> = leading.iter().copied().chain([cols]).collect();
    let (rows, _) = rows_and_cols(&shape);
    let grid = match spec.scales {
        ScaleSharing::Group(size) => {
            let wanted: Vec<usize> = leading
                .iter()
                .copied()
                .chain([cols.div_ceil(size)])
                .collect();
            if scale.shape() != wanted {
                return Err(misfit(
                    t,
                    scale,
                    &format!("groups of {size} want {wanted:?}"),
                ));
            }
            row_groups(cols, size)
        }
        _ => fit(t, &shape, scale, all)?,
    };
    let codes = Codes::Rows {
        part: t.part(),
        row_bytes,
    };
    let scales = Box::new(Matrix {
        floats: Floats::new(scale)?,
        cols: grid.cols,
    });
    let decoder = Box::new(Grouped::scaled(
        codes,
        spec.bits,
        code_format,
        [rows, cols],
        grid,
        scales,
    ));
    let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    let scheme = spec.scheme(granularity(&grid, cols));
    Ok(Group::new(
        t.name().to_owned(),
        shape,
        scheme,
        parts,
        decoder,
    ))
}

/// Integers: the other way round if they are in groups.
fn integer<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    spec: &QuarkSpec,
    int: Int,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let &[lines, words] = t.shape() else {
        return Err(wrong(t, "its weights have two dimensions"));
    };
    let width = if spec.bits == 4 {
        words.checked_mul(8)
    } else {
        Some(words)
    };
    let width = width.ok_or_else(|| wrong(t, "it is too wide"))?;
    let stored = QuarkCodes::new(t, spec.bits, spec.is_reordered, width);
    let floats = Floats::ieee(scale)?;
    let zero = all.at(t.name(), "_zero_point");
    let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    parts.extend(zero.map(|zero| (TensorRole::ZeroPoint, zero)));
    if zero.is_none() && !spec.is_symmetric {
        return Err(wrong(
            t,
            format!(
                "the config says that it is asymmetric, and `{}_zero_point` is missing",
                t.name()
            ),
        ));
    }
    let (shape, grid, codes, scales): (_, _, _, Box<dyn ScaleMatrix + 'm>) = match spec.scales {
        ScaleSharing::Group(size) => {
            let groups = lines.div_ceil(size);
            if scale.shape() != [groups, width] {
                return Err(misfit(
                    t,
                    scale,
                    &format!("groups of {size} want [{groups}, {width}]"),
                ));
            }
            let scales = Transposed::of_floats(floats, width, groups);
            (
                vec![width, lines],
                row_groups(lines, size),
                Codes::Unpacked(Box::new(TransposedCodes(stored))),
                Box::new(scales),
            )
        }
        _ => {
            let shape = vec![lines, width];
            let grid = fit(t, &shape, scale, all)?;
            let in_order = spec.bits == 8 || !spec.is_reordered;
            let codes = match in_order {
                true => Codes::Rows {
                    part: t.part(),
                    row_bytes: stored.line_bytes(),
                },
                false => Codes::Unpacked(Box::new(CodeRows(stored))),
            };
            (
                shape,
                grid,
                codes,
                Box::new(Matrix {
                    floats,
                    cols: grid.cols,
                }),
            )
        }
    };
    let (rows, cols) = rows_and_cols(&shape);
    let scheme = spec.scheme(granularity(&grid, cols));
    let mut decoder = Grouped::scaled(
        codes,
        spec.bits,
        CodeFormat::Int(int),
        [rows, cols],
        grid,
        scales,
    );
    if let Some(zero) = zero {
        let wanted = match spec.scales {
            ScaleSharing::Tensor => None,
            ScaleSharing::Channel => Some([1, rows]),
            ScaleSharing::Group(_) => Some([grid.cols, rows]),
        };
        let zero_points = zero_points(t, [scale, &zero], spec, int, wanted)?;
        decoder.formula = GroupFormula::ShiftScale(GroupOffsets::new(zero_points));
    }
    Ok(Group::new(
        t.name().to_owned(),
        shape,
        scheme,
        parts,
        Box::new(decoder),
    ))
}

/// One for each scale, packed as the codes are: `wanted` lines of so many. A single one is not packed.
fn zero_points<'m>(
    t: &Tensor<'m>,
    [scale, zero]: [&Tensor<'m>; 2],
    spec: &QuarkSpec,
    int: Int,
    wanted: Option<[usize; 2]>,
) -> Result<Box<dyn ScaleMatrix + 'm>> {
    let Some([lines, width]) = wanted else {
        return match (scale.elements(), zero.elements()) {
            (1, 1) => Ok(Box::new(Integers::new(zero, 1, 0.0)?)),
            _ => Err(misfit(t, zero, "the config says that there is one")),
        };
    };
    let per_word = if spec.bits == 4 { 8 } else { 1 };
    let shape = [lines, width / per_word];
    let shape = if spec.scales == ScaleSharing::Channel {
        &shape[1..]
    } else {
        &shape
    };
    let fits = width.is_multiple_of(per_word) && zero.shape() == shape;
    if !fits || scale.elements() != lines.saturating_mul(width) || zero.dtype() != t.dtype() {
        return Err(misfit(
            t,
            zero,
            &format!("its scales want {} {shape:?}", t.dtype()),
        ));
    }
    Ok(Box::new(QuarkZeroPoints {
        stored: QuarkCodes::new(zero, spec.bits, spec.is_reordered, width),
        int,
    }))
}
