//! Quark's integers: codes, zero points and scales are stored transposed where groups share scales,
//! but for codes of three bits.

use super::misfit;
use super::spec::{QuarkSpec, ScaleSharing};
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::lines::{
    CodeLines, CodeRows, LinePacking, LineZeroPoints, TransposedCodes,
};
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::remember::seam::scale_layout::{fit, granularity, rows_and_cols};
use crate::remember::seam::scale_matrix::{
    Integers, Matrix, NestedOp, NestedScales, Repeated, ScaleMatrix, Transposed,
};
use crate::remember::seam::{Floats, Group, Index, TensorRole, wrong};
use crate::{Dtype, Result};

/// The numbers beside integers.
#[derive(Clone, Copy)]
pub(super) struct QuarkParts<'m> {
    pub scale: Tensor<'m>,
    pub zero: Option<Tensor<'m>>,
    /// The one scale of the FP8 weight whose codes these are.
    pub outer: Option<Tensor<'m>>,
    /// The one scale of the scales.
    pub of_scales: Option<Tensor<'m>>,
}

impl<'m> QuarkParts<'m> {
    /// Those of integers of an FP8 weight, which has the scale `outer`.
    ///
    /// # Errors
    /// `outer` is not one number, or the scale of the integers is missing.
    pub fn of_fp8(t: &Tensor<'m>, outer: Tensor<'m>, all: &Index<'m>) -> Result<Self> {
        if outer.elements() != 1 {
            return Err(misfit(t, &outer, "the config says that there is one"));
        }
        Ok(Self {
            scale: all.need(t, t.name(), "_scale_2")?,
            zero: all.at(t.name(), "_zero_point_2"),
            outer: Some(outer),
            of_scales: None,
        })
    }

    /// Those of integers with `scale` in FP8.
    ///
    /// # Errors
    /// The scale of the scales is missing, or not one number, or `scale` is not in FP8.
    pub fn with_fp8_scales(t: &Tensor<'m>, scale: Tensor<'m>, all: &Index<'m>) -> Result<Self> {
        let of_scales = all.need(t, t.name(), "_scale_2")?;
        if of_scales.elements() != 1 {
            return Err(misfit(t, &of_scales, "the config says that there is one"));
        }
        if scale.dtype() != Dtype::F8E4M3 {
            return Err(misfit(t, &scale, "the config says that it is fp8_e4m3"));
        }
        Ok(Self {
            scale,
            zero: all.at(t.name(), "_zero_point"),
            outer: None,
            of_scales: Some(of_scales),
        })
    }

    /// The matrix that the scales are stored as, `cols` in a row.
    ///
    /// # Errors
    /// They are no floats.
    fn scales(&self, cols: usize) -> Result<Box<dyn ScaleMatrix + 'm>> {
        let Some(of_scales) = &self.of_scales else {
            let floats = Floats::ieee(&self.scale)?;
            return Ok(Box::new(Matrix { floats, cols }));
        };
        let floats = Floats::fp8(&self.scale)?;
        Ok(Box::new(NestedScales {
            inner: Box::new(Matrix { floats, cols }),
            outer: Floats::ieee(of_scales)?,
            count: 1,
            rows_each: usize::MAX,
            op: NestedOp::Multiply,
            unit: 1.0,
        }))
    }
}

/// Claims integer codes. With scales of groups the codes are stored transposed, as `[in, out]`,
/// unless they have three bits.
pub(super) fn integer<'m>(
    t: &Tensor<'m>,
    parts: QuarkParts<'m>,
    spec: &QuarkSpec,
    int: Int,
    all: &Index<'m>,
) -> Result<Group<'m>> {
    let QuarkParts { scale, zero, outer, .. } = parts;
    if zero.is_none() && !spec.is_symmetric {
        return Err(wrong(
            t,
            format!(
                "the config says that it is asymmetric, and `{}_zero_point` is missing",
                t.name()
            ),
        ));
    }
    let (shape, grid, codes) = layout(t, &scale, spec, all)?;
    let (rows, cols) = rows_and_cols(&shape);
    let scales: Box<dyn ScaleMatrix + 'm> = match spec.scales {
        // Scales of groups are stored transposed.
        ScaleSharing::Group(_) => {
            Box::new(Transposed { inner: parts.scales(rows)?, rows, cols: grid.cols })
        }
        _ => parts.scales(grid.cols)?,
    };
    let code_format = CodeFormat::Int(int);
    let mut decoder = Grouped::scaled(codes, spec.bits, code_format, [rows, cols], grid, scales);
    if let Some(outer) = outer {
        decoder.columns = Some(Box::new(Repeated(Floats::ieee(&outer)?)));
    }
    if let Some(zero) = zero {
        let zero_points = match spec.has_plain_zeros {
            true => plain_zero_points(t, [&scale, &zero], spec, [rows, grid.cols])?,
            false => zero_points(t, [&scale, &zero], spec, int, [rows, grid.cols])?,
        };
        decoder.formula = GroupFormula::ShiftScale(GroupOffsets::new(zero_points));
    }
    let scales = [Some(scale), outer, parts.of_scales].into_iter().flatten();
    let all_parts = [(TensorRole::Quantized, *t)]
        .into_iter()
        .chain(scales.map(|scale| (TensorRole::Scale, scale)))
        .chain(zero.map(|zero| (TensorRole::ZeroPoint, zero)))
        .collect();
    let (name, scheme) = (t.name(), spec.scheme(granularity(&grid, cols)));
    Ok(Group::new(name, shape, scheme, all_parts, Box::new(decoder)))
}

/// The shape of the weight whose codes are `t`, which of its values share a scale, and where the
/// codes lie.
///
/// # Errors
/// The shapes do not fit each other.
fn layout<'m>(
    t: &Tensor<'m>,
    scale: &Tensor<'m>,
    spec: &QuarkSpec,
    all: &Index<'m>,
) -> Result<(Vec<usize>, ScaleGrid, Codes<'m>)> {
    // A line is a row of the stored tensor: a row of the weight, or a column if it is transposed.
    let &[lines, stored_width] = t.shape() else {
        return Err(wrong(t, "its weights have two dimensions"));
    };
    let width = stored_width
        .checked_mul(t.dtype().bits() / 8)
        .and_then(|bytes| spec.packing.codes_in(bytes));
    let width = width.ok_or_else(|| wrong(t, "its rows are not whole codes"))?;
    let stored = CodeLines::new(t, spec.packing, width);
    let ScaleSharing::Group(size) = spec.scales else {
        let shape = vec![lines, width];
        let grid = fit(t, &shape, scale, all)?;
        return Ok((shape, grid, line_codes(t, stored, spec.packing)));
    };
    let (rows, cols, codes) = match is_transposed(spec) {
        true => {
            let codes = Codes::Unpacked(Box::new(TransposedCodes(stored)));
            (width, lines, codes)
        }
        false => (lines, width, line_codes(t, stored, spec.packing)),
    };
    let groups = cols.div_ceil(size);
    if scale.shape() != [groups, rows] || !cols.is_multiple_of(size) && groups != 1 {
        let what = format!("groups of {size} want [{groups}, {rows}]");
        return Err(misfit(t, scale, &what));
    }
    Ok((vec![rows, cols], row_groups(cols, size), codes))
}

/// Whether codes and zero points of groups are transposed, as their scales are: those of three bits
/// are not.
fn is_transposed(spec: &QuarkSpec) -> bool {
    spec.packing != LinePacking::Octets
}

/// Codes of a weight whose rows are the lines of `stored`.
fn line_codes<'m>(t: &Tensor<'m>, stored: CodeLines<'m>, packing: LinePacking) -> Codes<'m> {
    match packing {
        // Ordinary bit streams, least significant bit first.
        LinePacking::Bytes(_)
        | LinePacking::Octets
        | LinePacking::Nibbles { is_reordered: false } => {
            Codes::Rows { part: t.part(), row_bytes: stored.line_bytes() }
        }
        _ => Codes::Unpacked(Box::new(CodeRows(stored))),
    }
}

/// Zero points in I32 that are not packed, one for each scale and in its place, of a weight of
/// `rows` rows of `groups` groups.
///
/// # Errors
/// They have another shape than the scales, or another dtype.
fn plain_zero_points<'m>(
    t: &Tensor<'m>,
    [scale, zero]: [&Tensor<'m>; 2],
    spec: &QuarkSpec,
    [rows, groups]: [usize; 2],
) -> Result<Box<dyn ScaleMatrix + 'm>> {
    if zero.shape() != scale.shape() || zero.dtype() != Dtype::I32 {
        let what = "the config says that they are not packed, and that is one I32 for each scale";
        return Err(misfit(t, zero, what));
    }
    Ok(match spec.scales {
        ScaleSharing::Group(_) => Box::new(Transposed {
            inner: Box::new(Integers::new(zero, rows, 0.0)?),
            rows,
            cols: groups,
        }),
        _ => Box::new(Integers::new(zero, 1, 0.0)?),
    })
}

/// Zero points, one for each scale of a weight of `rows` rows of `groups` groups, packed as the
/// codes are; of the whole tensor it is not packed.
///
/// # Errors
/// The zero points have another shape, or another dtype than the codes.
fn zero_points<'m>(
    t: &Tensor<'m>,
    [scale, zero]: [&Tensor<'m>; 2],
    spec: &QuarkSpec,
    int: Int,
    [rows, groups]: [usize; 2],
) -> Result<Box<dyn ScaleMatrix + 'm>> {
    let is_transposed = is_transposed(spec);
    let [lines, width] = match spec.scales {
        // A single zero point is a plain number and is not packed.
        ScaleSharing::Tensor => {
            return match (scale.elements(), zero.elements()) {
                (1, 1) => Ok(Box::new(Integers::new(zero, 1, 0.0)?)),
                _ => Err(misfit(t, zero, "the config says that there is one")),
            };
        }
        ScaleSharing::Group(_) if !is_transposed => [rows, groups],
        ScaleSharing::Group(_) => [groups, rows],
        ScaleSharing::Channel => [1, rows],
    };
    let element = (t.dtype().bits() / 8).max(1);
    let stored_width = spec.packing.bytes_of(width).map(|bytes| bytes / element);
    let shape = [lines, stored_width.unwrap_or(width)];
    // Of a channel the zero points are a vector; of groups they are a matrix like the scales.
    let shape = if spec.scales == ScaleSharing::Channel {
        &shape[1..]
    } else {
        &shape
    };
    let fits = stored_width.is_some() && zero.shape() == shape;
    if !fits || scale.elements() != lines.saturating_mul(width) || zero.dtype() != t.dtype() {
        let what = format!("its scales want {} {shape:?}", t.dtype());
        return Err(misfit(t, zero, &what));
    }
    let stored = CodeLines::new(zero, spec.packing, width);
    let zeros = LineZeroPoints { stored, int };
    Ok(match spec.scales {
        ScaleSharing::Group(_) if !is_transposed => {
            Box::new(Transposed { inner: Box::new(zeros), rows, cols: groups })
        }
        _ => Box::new(zeros),
    })
}
