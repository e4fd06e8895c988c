//! Codes that a graph converts, subtracts zero points from and multiplies by scales, whose dimensions of
//! one index stand for all (OpenVINO), or are numbers of blocks (Core ML). NF4 and other codes pick their values from a codebook before.
//!
//! The graph computes in F16: codes, zero points and codebooks are exact there, and so are the products
//! in F32.

use super::linear::{codes, format_of, scale_floats};
use super::stored::{FlatCodes, LookedUp, OneNumber, RepeatedRows, StoredInts};
use super::{BLOCKS, GraphDecoder, GraphWeight, PALETTE};
use crate::model::Tensor;
use crate::remember::kernels::bnb::NF4_CODEBOOK;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::seam::grouped::{CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped};
use crate::remember::seam::scale_layout::{by_dimension, granularity, rows_and_cols};
use crate::remember::seam::scale_matrix::{Integers, Matrix, ScaleMatrix};
use crate::remember::seam::{CodeType, Floats, Granularity, wrong};
use crate::{Dtype, Result};
use half::f16;

/// Most entries of a codebook: those of a byte.
const MAX_CODEBOOK: usize = 256;

/// The decoder of a weight that is multiplied by its scale.
pub(super) fn decoder<'m>(weight: &GraphWeight<'m>) -> Result<GraphDecoder<'m>> {
    let t = weight.t;
    let (rows, cols) = rows_and_cols(t.shape());
    let (code_type, format, codes) = code_values(weight, cols)?;
    let BroadcastScales { grid, scales, formula } = scaling(weight, t.shape())?;
    let bits = if matches!(format, CodeFormat::F16) {
        16
    } else {
        t.dtype().bits()
    };
    let decoder =
        Grouped { formula, ..Grouped::scaled(codes, bits, format, [rows, cols], grid, scales) };
    let shape = weight.codes.shape.clone();
    // What is given another shape lies in groups along its last dimension but for one scale.
    let scales = match granularity(&grid, cols) {
        Granularity::Channel if shape.is_some() => Granularity::Group(cols),
        other => other,
    };
    Ok(GraphDecoder {
        shape: shape.unwrap_or_else(|| t.shape().to_vec()),
        scheme: weight.scheme(code_type, scales),
        decoder: Box::new(decoder),
    })
}

/// What values of codes are multiplied by.
pub(super) struct BroadcastScales<'m> {
    pub grid: ScaleGrid,
    pub scales: Box<dyn ScaleMatrix + 'm>,
    pub formula: GroupFormula<'m>,
}

/// What the values of codes are multiplied by, which have dimensions `shape`.
pub(super) fn scaling<'m>(
    weight: &GraphWeight<'m>,
    shape: &[usize],
) -> Result<BroadcastScales<'m>> {
    let (t, scale) = (weight.t, weight.need_scale()?);
    let (grid, scale_rows) = grid(weight, shape, &scale)?;
    let repeated =
        |inner: Box<dyn ScaleMatrix + 'm>| Box::new(RepeatedRows { inner, rows: scale_rows });
    let offsets = weight
        .zero_point
        .map(|zero| zero_points(&t, shape, &zero, &scale, &grid));
    let offsets = offsets.transpose()?.map(|offsets| repeated(offsets) as _);
    let scales = Box::new(Matrix { floats: scale_floats(&scale)?, cols: grid.cols });
    let formula = match (weight.codes.integer("adds_offset", 0), offsets) {
        // The library computes in F64.
        (1, Some(offsets)) => GroupFormula::FusedScaleShift(GroupOffsets::new(offsets)),
        (_, offsets) => GraphWeight::formula(offsets),
    };
    Ok(BroadcastScales { grid, scales: repeated(scales), formula })
}

/// Which values share a scale, and the rows of scales, which begin anew behind the last: leading dimensions
/// may have one index for all.
fn grid(
    weight: &GraphWeight<'_>,
    shape: &[usize],
    scale: &Tensor<'_>,
) -> Result<(ScaleGrid, usize)> {
    let t = &weight.t;
    let may_be_blocks =
        matches!(weight.codes.op.as_str(), BLOCKS | PALETTE) && scale.shape().len() == shape.len();
    let dims = spread(scale.shape(), shape);
    let Some(dims) = dims.or_else(|| may_be_blocks.then(|| scale.shape().to_vec())) else {
        let what = format!("its scale `{}` {:?} does not fit", scale.name(), scale.shape());
        return Err(wrong(t, what));
    };
    // A number by itself is a row of one.
    let one = [1];
    let (w, s) = if dims.is_empty() {
        (&one[..], &one[..])
    } else {
        (shape, &*dims)
    };
    let leading = s.iter().position(|&dim| dim != 1).unwrap_or(0);
    let grid = by_dimension(w, s).or_else(|| by_dimension(&w[leading..], &s[leading..]));
    let grid = grid
        .ok_or_else(|| weight.refused("its scales lie along dimensions that are not adjacent"))?;
    Ok((grid, scale.elements() / grid.cols.max(1)))
}

/// `shape` with as many dimensions as `all`, if each is that of `all` or 1.
fn spread(shape: &[usize], all: &[usize]) -> Option<Vec<usize>> {
    let more = all.len().checked_sub(shape.len())?;
    let dims: Vec<usize> = std::iter::repeat_n(1, more)
        .chain(shape.iter().copied())
        .collect();
    let fits = dims
        .iter()
        .zip(all)
        .all(|(&dim, &of)| dim == 1 || dim == of);
    fits.then_some(dims)
}

/// The codes of `weight`, and what they stand for.
fn code_values<'m>(
    weight: &GraphWeight<'m>,
    cols: usize,
) -> Result<(CodeType, CodeFormat, Codes<'m>)> {
    let t = weight.t;
    let table = match (&weight.codebook, weight.codes.op.as_str()) {
        (Some(codebook), _) => read_codebook(&t, codebook)?,
        (None, "NF4") => NF4_CODEBOOK.map(f16::from_f32).to_vec(),
        (None, _) => {
            let format = format_of(t.dtype());
            let format = format.filter(|_| t.dtype().bits() <= 8);
            let (code_type, format) =
                format.ok_or_else(|| weight.refused(format!("its codes are {}", t.dtype())))?;
            return Ok((code_type, format, codes(&t, cols)));
        }
    };
    let (bits, is_unsigned) = (t.dtype().bits(), matches!(t.dtype(), Dtype::U4 | Dtype::U8));
    if !is_unsigned || weight.zero_point.is_some() {
        return Err(weight.refused(format!("its codes are {} with a codebook", t.dtype())));
    }
    let code_type = match weight.codebook {
        Some(_) => CodeType::Codebook(bits as u8),
        None => CodeType::Nf4,
    };
    let codes = LookedUp { codes: FlatCodes { part: t.part(), bits, cols }, table };
    Ok((code_type, CodeFormat::F16, Codes::Unpacked(Box::new(codes))))
}

/// Reads the values that codes pick, which are exact in F16.
fn read_codebook(t: &Tensor<'_>, codebook: &Tensor<'_>) -> Result<Vec<f16>> {
    let n = codebook.elements();
    if codebook.shape().len() != 1 || n > MAX_CODEBOOK {
        return Err(wrong(t, format!("its codebook `{}` does not fit", codebook.name())));
    }
    let (mut staging, mut values) = (Vec::new(), Vec::new());
    scale_floats(codebook)?.extend(n, 0..1, 0..n, &mut staging, &mut values)?;
    let rounded: Vec<f16> = values.iter().copied().map(f16::from_f32).collect();
    match rounded
        .iter()
        .zip(&values)
        .all(|(half, &value)| half.to_f32() == value)
    {
        true => Ok(rounded),
        false => Err(wrong(t, format!("F16 does not hold its codebook `{}`", codebook.name()))),
    }
}

/// The zero points `zero`, which are one number or as many as there are scales.
fn zero_points<'m>(
    t: &Tensor<'m>,
    shape: &[usize],
    zero: &Tensor<'m>,
    scale: &Tensor<'m>,
    grid: &ScaleGrid,
) -> Result<Box<dyn ScaleMatrix + 'm>> {
    let fits = zero.elements() == 1
        || zero.shape() == scale.shape()
        || spread(zero.shape(), shape) == spread(scale.shape(), shape);
    if !fits {
        return Err(wrong(t, format!("its zero point `{}` does not fit", zero.name())));
    }
    let cols = if zero.elements() == 1 { 1 } else { grid.cols };
    let inner: Box<dyn ScaleMatrix + 'm> = match zero.dtype() {
        Dtype::I32 | Dtype::I64 => Box::new(Integers::new(zero, cols, 0.0)?),
        dtype if dtype.is_integer() => Box::new(StoredInts::new(zero, dtype, cols * dtype.bits())?),
        _ => Box::new(Matrix { floats: Floats::ieee(zero)?, cols }),
    };
    Ok(match zero.elements() {
        1 => Box::new(OneNumber(inner)),
        _ => inner,
    })
}
