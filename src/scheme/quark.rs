//! Quark: `X.weight` with `X.weight_scale`, and for integers `X.weight_zero_point`, symmetric or not.
//!
//! | | scales of groups | one scale a row |
//! |---|---|---|
//! | fp4, fp6 | U8 `[out, in * bits / 8]`; `[out, in / group]` | U8 `[out, in * bits / 8]`; `[out]` |
//! | int4, uint4 | I32 `[in, out / 8]`; `[in / group, out]` | I32 `[out, in / 8]`; `[out]` |
//! | zero points of int4, uint4 | I32 `[in / group, out / 8]` | I32 `[out / 8]` |
//! | int8, uint8 | `[in, out]`; `[in / group, out]`, zero points too | `[out, in]`; `[out]`, zero points too |
//!
//! A scale of the whole tensor is a scalar, as is its zero point; the codes are laid out as with one scale a row. Float
//! codes are a bit stream, least significant bit first.
//!
//! Integers of a weight in FP8 have `X.weight_scale_2` and `X.weight_zero_point_2`; `X.weight_scale` is the one of the FP8 weight:
//! `((q - z) * s2) * s`.
//!
//! Scales of groups are floats or, as U8, exponents, or numbers in E5M3 (`scale_format`). Signed integers and their zero points are in two's complement. The
//! eight codes of a word are in order, or with `export.pack_method: reorder` nibbles 0 to 7 hold codes
//! 0, 2, 4, 6, 1, 3, 5, 7. The scheme for FP8 decodes Quark's FP8 weights.
//!
//! Layout and formula: amd-quark `QParamsLinear`, `quark/torch/export/utils.py` (`Pack_4_bits`, `Pack_8_bits`).

mod e5m3;
mod spec;

use self::e5m3::E5M3Scales;
use self::spec::{QuarkCodeKind, QuarkSpec, ScaleSharing};

use crate::config::{NVFP4, OF_FP8, QuantMethod};
use crate::containers::model::Tensor;
use crate::kernels::remember::grouped::Int;
use crate::scheme::layout::lines::{CodeLines, CodeRows, LineZeroPoints, TransposedCodes};
use crate::scheme::seam::NamePattern::Ends;
use crate::scheme::seam::fit::{fit, granularity, rows_and_cols};
use crate::scheme::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::scheme::seam::numbers::{Integers, Matrix, Repeated, ScaleMatrix, Transposed};
use crate::scheme::seam::{
    Floats, Group, Identity, Index, Scheme, TensorRole, module_of, refused, wrong,
};
use crate::{Dtype, Result};

/// Name in listings.
const FAMILY: &str = "Quark";

pub(super) struct Quark;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    methods: &[QuantMethod::Quark],
    codes: &[],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends(".weight_scale_2"), TensorRole::Scale),
        (Ends(".weight_zero_point"), TensorRole::ZeroPoint),
        (Ends(".weight_zero_point_2"), TensorRole::ZeroPoint),
    ],
    optional: &[],
    activations: &["input_scale_2"],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Quark {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
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
        if let Some(second) = all.at(t.name(), "_scale_2").filter(|_| !is_of_fp8) {
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
                let parts = match is_of_fp8 {
                    true => QuarkParts::of_fp8(t, scale, all)?,
                    false => QuarkParts {
                        scale,
                        zero: all.at(t.name(), "_zero_point"),
                        outer: None,
                    },
                };
                integer(t, parts, &spec, int, all).map(Some)
            }
        }
    }
}

/// The numbers beside integers.
struct QuarkParts<'m> {
    scale: Tensor<'m>,
    zero: Option<Tensor<'m>>,
    /// The one scale of the FP8 weight whose codes these are.
    outer: Option<Tensor<'m>>,
}

impl<'m> QuarkParts<'m> {
    /// Those of integers of an FP8 weight, which has the scale `outer`.
    ///
    /// # Errors
    /// `outer` is not one number, or the scale of the integers is missing.
    fn of_fp8(t: &Tensor<'m>, outer: Tensor<'m>, all: &Index<'m>) -> Result<Self> {
        if outer.elements() != 1 {
            return Err(misfit(t, &outer, "the config says that there is one"));
        }
        Ok(Self {
            scale: all.need(t, t.name(), "_scale_2")?,
            zero: all.at(t.name(), "_zero_point_2"),
            outer: Some(outer),
        })
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
            if scale.shape() != wanted || !cols.is_multiple_of(size) && cols > size {
                return Err(misfit(
                    t,
                    scale,
                    &format!("groups of {size} want {wanted:?}"),
                ));
            }
            row_groups(cols, size)
        }
        // One scale for the tensor or for a row has several shapes, which `fit` knows.
        _ => fit(t, &shape, scale, all)?,
    };
    let codes = Codes::Rows {
        part: t.part(),
        row_bytes,
    };
    let scales: Box<dyn ScaleMatrix + 'm> = match spec.has_e5m3_scales {
        true => Box::new(E5M3Scales::new(scale, grid.cols)?),
        false => Box::new(Matrix {
            floats: Floats::new(scale)?,
            cols: grid.cols,
        }),
    };
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
    Ok(Group::new(t.name(), shape, scheme, parts, decoder))
}

/// Claims integer codes. With scales of groups the codes are stored transposed, as `[in, out]`.
fn integer<'m>(
    t: &Tensor<'m>,
    QuarkParts { scale, zero, outer }: QuarkParts<'m>,
    spec: &QuarkSpec,
    int: Int,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let scale = &scale;
    // A line is a row of the stored tensor: a row of the weight, or a column if it is transposed.
    let &[lines, words] = t.shape() else {
        return Err(wrong(t, "its weights have two dimensions"));
    };
    // Eight codes in a word of 32 bits, or one in a byte.
    let width = if spec.bits == 4 {
        words.checked_mul(8)
    } else {
        Some(words)
    };
    let width = width.ok_or_else(|| wrong(t, "it is too wide"))?;
    let stored = CodeLines::new(t, spec.bits, spec.is_reordered, width);
    let floats = Floats::ieee(scale)?;
    let mut parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, *scale)];
    parts.extend(outer.map(|outer| (TensorRole::Scale, outer)));
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
            if scale.shape() != [groups, width] || !lines.is_multiple_of(size) && groups != 1 {
                return Err(misfit(
                    t,
                    scale,
                    &format!("groups of {size} want [{groups}, {width}]"),
                ));
            }
            // Scales of groups are stored as the codes are, transposed.
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
            // Nibbles in order, least significant first, are an ordinary bit stream.
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
    if let Some(outer) = outer {
        decoder.columns = Some(Box::new(Repeated(Floats::ieee(&outer)?)));
    }
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
        t.name(),
        shape,
        scheme,
        parts,
        Box::new(decoder),
    ))
}

/// Zero points, one for each scale. `wanted` is their number as `[lines, line width]`, packed as the codes are;
/// `None`: a single zero point for the tensor, which is not packed.
///
/// # Errors
/// The zero points do not have that shape, or another dtype than the codes.
fn zero_points<'m>(
    t: &Tensor<'m>,
    [scale, zero]: [&Tensor<'m>; 2],
    spec: &QuarkSpec,
    int: Int,
    wanted: Option<[usize; 2]>,
) -> Result<Box<dyn ScaleMatrix + 'm>> {
    let Some([lines, width]) = wanted else {
        // A single zero point is a plain number and is not packed.
        return match (scale.elements(), zero.elements()) {
            (1, 1) => Ok(Box::new(Integers::new(zero, 1, 0.0)?)),
            _ => Err(misfit(t, zero, "the config says that there is one")),
        };
    };
    let per_word = if spec.bits == 4 { 8 } else { 1 };
    let shape = [lines, width / per_word];
    // Of a channel the zero points are a vector; of groups they are a matrix like the scales.
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
    Ok(Box::new(LineZeroPoints {
        stored: CodeLines::new(zero, spec.bits, spec.is_reordered, width),
        int,
    }))
}
