//! `DequantizeLinear`, and operators that multiply integers: `(code - zero point) * scale`, with one
//! scale, one for each index of an axis, or one for each block along it.

use super::stored::{FlatCodes, LongCodes, RepeatedRows, int_format};
use super::{GraphDecoder, GraphWeight, StoredInts};
use crate::model::{GraphCodes, Tensor};
use crate::remember::kernels::grouped::{E2M1, Int};
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::strided::RowPairs;
use crate::remember::seam::grouped::{CodeFormat, Codes, GroupFormula, Grouped, row_groups};
use crate::remember::seam::scale_layout::{per_tensor, rows_and_cols};
use crate::remember::seam::scale_matrix::{
    Integers, Matrix, NestedOp, NestedScales, Repeated, ScaleMatrix,
};
use crate::remember::seam::{CodeType, Floats, Granularity, wrong};
use crate::{Container, Dtype, Result};

/// The operator whose weight is a matrix for each direction, with a scale for each or for each column of each.
const LSTM: &str = "DynamicQuantizeLSTM";

/// The axis along which the operator of `codes` has its scales; `None` if it is no operator of this
/// kind.
pub(super) fn axis(codes: &GraphCodes) -> Option<i64> {
    Some(match codes.op.as_str() {
        "DequantizeLinear" => codes.integer("axis", 1),
        "QLinearConv" | "QLinearConv (bias)" | "ConvInteger" | "QGemm (bias)" | LSTM => 0,
        "QGemm" if codes.integer("transB", 0) != 0 => 0,
        "QGemm"
        | "QAttention"
        | "QLinearMatMul"
        | "MatMulInteger"
        | "MatMulIntegerToFloat"
        | "DynamicQuantizeMatMul" => -1,
        _ => return None,
    })
}

/// The axis of scales in a tensor of codes of `rank` dimensions, if it has that.
fn stored_axis(codes: &GraphCodes, rank: usize) -> Option<usize> {
    let axis = axis(codes)?;
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    let axis = usize::try_from(axis).ok().filter(|&axis| axis < rank)?;
    Some(if codes.is_transposed {
        rank - 1 - axis
    } else {
        axis
    })
}

/// The decoder of a weight of such an operator.
pub(super) fn decoder<'m>(weight: &GraphWeight<'m>) -> Result<GraphDecoder<'m>> {
    let t = weight.t;
    let stored = CodeMatrix::new(weight)?;
    let format = match (weight.codes.integer(GraphCodes::OFFSET, 0), stored.bits) {
        (0, bits) if bits == t.dtype().bits() => format_of(t.dtype()),
        (0, bits) => Some((CodeType::Int(bits as u8), CodeFormat::Int(Int::signed(bits)))),
        _ => Some((CodeType::Int(4), CodeFormat::Int(Int::offset_binary(4)))),
    };
    let (code_type, format) =
        format.ok_or_else(|| weight.refused(format!("its codes are {}", t.dtype())))?;
    let scale = weight.need_scale()?;
    let (rows, cols) = rows_and_cols(&stored.shape);
    let layout = ScaleLayout::new(weight, &stored.shape, &scale)?;
    let inner = layout.matrix(scale_floats(&scale)?);
    let scales: Box<dyn ScaleMatrix + 'm> = match &weight.factor {
        None => inner,
        Some(factor) if factor.elements() == 1 => Box::new(NestedScales {
            inner,
            outer: Floats::ieee(factor)?,
            count: 1,
            rows_each: usize::MAX,
            op: NestedOp::Multiply,
            unit: 1.0,
        }),
        Some(_) => return Err(weight.refused("the scale of its activations is no number")),
    };
    // onnxruntime takes no zero points of floats and of 32 bits: they are zero.
    let has_zero = t.dtype().is_integer() && t.dtype() != Dtype::I32;
    let zero_point = weight.zero_point.filter(|_| has_zero);
    // Those of LiteRT and ExecuTorch are I64, and those of four bits of Keras have bytes of their own.
    // LiteRT's reader has seen that they are small.
    let is_of_reader = [Container::Tflite, Container::ExecuTorch, Container::Hdf5]
        .contains(&weight.t.model.container);
    let fits = |zero: &Tensor<'_>| {
        (zero.dtype() == t.dtype() || is_of_reader) && zero.elements() == scale.elements()
    };
    let zero_points = match &zero_point {
        None => None,
        // Keras has those of the way back of an embedding as floats.
        Some(zero) if fits(zero) && zero.dtype() == Dtype::F32 => {
            Some(layout.matrix(scale_floats(zero)?))
        }
        Some(zero) if fits(zero) => Some(layout.integers(zero)?),
        Some(zero) => {
            let what = format!("its zero point `{}` has another type or shape", zero.name());
            return Err(wrong(&t, what));
        }
    };
    let formula = match weight.codes.integer(GraphCodes::DIVIDES, 0) {
        0 => GraphWeight::formula(zero_points),
        _ => GroupFormula::Divide,
    };
    let decoder = Grouped {
        formula,
        ..Grouped::scaled(
            stored.codes(&t, cols),
            stored.bits,
            format,
            [rows, cols],
            layout.grid,
            scales,
        )
    };
    Ok(GraphDecoder {
        shape: weight.codes.shape.clone().unwrap_or(stored.shape),
        scheme: weight.scheme(code_type, layout.granularity),
        decoder: Box::new(decoder),
    })
}

/// Scales that are floats of at most 32 bits, or codes of eight bits with a factor.
pub(super) fn scale_floats<'m>(scale: &Tensor<'m>) -> Result<Floats<'m>> {
    match scale.dtype() {
        Dtype::F8E8M0 => Floats::new(scale),
        Dtype::F8E4M3 => Floats::fp8(scale),
        _ => Floats::ieee(scale),
    }
}

/// How the codes of a weight are stored.
struct CodeMatrix {
    /// The shape along whose axes scales lie: that of the tensor, or a matrix of the graph's.
    shape: Vec<usize>,
    /// Bits of a code.
    bits: usize,
    /// Bytes of a row, if the graph tells the matrix.
    row_bytes: Option<usize>,
    /// How far the two rows are apart that share bytes; 0 if none do.
    apart: usize,
}

impl CodeMatrix {
    /// # Errors
    /// The tensor has another size than the matrix.
    fn new(weight: &GraphWeight<'_>) -> Result<Self> {
        let (t, codes) = (weight.t, weight.codes);
        let number = |key| {
            usize::try_from(codes.integer(key, 0))
                .ok()
                .filter(|&n| n > 0)
        };
        let (Some(rows), Some(cols)) = (number(GraphCodes::ROWS), number(GraphCodes::COLS)) else {
            let (shape, bits) = (t.shape().to_vec(), t.dtype().bits());
            return Ok(Self { shape, bits, row_bytes: None, apart: 0 });
        };
        let bits = number(GraphCodes::BITS).unwrap_or_else(|| t.dtype().bits());
        let apart = number(GraphCodes::PAIRED).unwrap_or(0);
        let (row_bytes, stored_rows) = match apart {
            0 => (cols.saturating_mul(bits).div_ceil(8), rows),
            _ => (cols, (rows / apart).div_ceil(2).saturating_mul(apart)),
        };
        let shape: usize = codes.shape.iter().flatten().product();
        if row_bytes.checked_mul(stored_rows) != Some(t.elements()) || shape != rows * cols {
            let what = format!("{} codes are no matrix of {rows} rows", t.elements());
            return Err(wrong(&t, what));
        }
        Ok(Self { shape: vec![rows, cols], bits, row_bytes: Some(row_bytes), apart })
    }

    fn codes<'m>(&self, t: &Tensor<'m>, cols: usize) -> Codes<'m> {
        match self.row_bytes {
            _ if self.apart > 0 => {
                let (part, apart) = (t.part(), self.apart);
                Codes::Unpacked(Box::new(RowPairs { part, cols, apart }))
            }
            Some(row_bytes) => Codes::Rows { part: t.part(), row_bytes },
            None => codes(t, cols),
        }
    }
}

/// The codes of `t`, which lie in rows unless a row ends within a byte.
pub(super) fn codes<'m>(t: &Tensor<'m>, cols: usize) -> Codes<'m> {
    let bits = cols.saturating_mul(t.dtype().bits());
    if let Dtype::I32 | Dtype::I64 = t.dtype() {
        let size = t.dtype().byte_size();
        return Codes::Unpacked(Box::new(LongCodes { part: t.part(), size, cols }));
    }
    match bits.is_multiple_of(8) || t.elements() == cols {
        true => Codes::Rows { part: t.part(), row_bytes: bits.div_ceil(8) },
        false => {
            let bits = t.dtype().bits();
            Codes::Unpacked(Box::new(FlatCodes { part: t.part(), bits, cols }))
        }
    }
}

/// Type and format of codes that are stored as `dtype`.
pub(super) fn format_of(dtype: Dtype) -> Option<(CodeType, CodeFormat)> {
    Some(match dtype {
        Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::F8E4M3Fnuz => {
            (CodeType::Fp8, CodeFormat::of_bytes(dtype)?)
        }
        Dtype::F8E5M2Fnuz => (CodeType::Fp8, CodeFormat::E5M2Fnuz),
        Dtype::I32 => (CodeType::Int(32), CodeFormat::LongInt),
        Dtype::I64 => (CodeType::Int(64), CodeFormat::LongInt),
        Dtype::F4 => (CodeType::Fp4, CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: false })),
        _ => int_format(dtype)?,
    })
}

/// Where the scale of each value is.
struct ScaleLayout {
    grid: ScaleGrid,
    /// What listings show.
    granularity: Granularity,
    /// Scales in a row of them.
    cols: usize,
    /// Rows of scales, which begin anew behind the last.
    rows: usize,
}

impl ScaleLayout {
    /// # Errors
    /// The shapes of weight and scale do not go together; `Unsupported` if blocks run along an axis
    /// with several behind it.
    fn new(weight: &GraphWeight<'_>, shape: &[usize], scale: &Tensor<'_>) -> Result<Self> {
        let t = weight.t;
        if scale.elements() == 1 {
            let grid = per_tensor(shape);
            return Ok(Self { grid, granularity: Granularity::Tensor, cols: 1, rows: 1 });
        }
        let misfit = || {
            let what = format!("its scale `{}` {:?} does not fit", scale.name(), scale.shape());
            wrong(&t, what)
        };
        if let (LSTM, &[matrices, rows, cols]) = (&*weight.codes.op, shape)
            && scale.shape() == [matrices, cols]
        {
            let grid = ScaleGrid {
                matrix_rows: rows.max(1),
                block_rows: rows.max(1),
                block_cols: 1,
                rows_per_matrix: 1,
                cols,
            };
            return Ok(Self { grid, granularity: Granularity::Channel, cols, rows: matrices });
        }
        let axis = stored_axis(weight.codes, shape.len()).ok_or_else(misfit)?;
        let block = usize::try_from(weight.codes.integer("block_size", 0)).map_err(|_| misfit())?;
        let is_last = axis + 1 == shape.len();
        let (n, (rows, cols)) = (shape[axis], rows_and_cols(shape));
        let within: usize = shape[axis + 1..].iter().product();
        let is_matrix = weight.codes.integer(GraphCodes::ROWS, 0) > 0;
        if block == 0 {
            // Those of a matrix may have the dimensions of the weight.
            let fits = scale.shape() == [n] || is_matrix && scale.elements() == n;
            return match fits && n > 0 {
                true => {
                    Ok(Self::by_index(n, [rows, cols], (!is_last).then_some(within / cols.max(1))))
                }
                false => Err(misfit()),
            };
        }
        let blocks = n.div_ceil(block);
        // Those of a matrix may have the rank of a layer's output.
        let longer = scale.shape().len().saturating_sub(shape.len());
        let ahead = if is_matrix { longer } else { 0 };
        let (ones, scales) = scale.shape().split_at(ahead);
        let fits = scales.len() == shape.len()
            && ones.iter().all(|&n| n == 1)
            && scales
                .iter()
                .zip(shape)
                .enumerate()
                .all(|(d, (&scales, &dim))| scales == if d == axis { blocks } else { dim });
        match fits {
            false => Err(misfit()),
            true if is_last => Ok(Self::along_rows(rows, cols, block)),
            true if axis + 2 == shape.len() => Ok(Self::down_columns(rows, cols, [n, block])),
            true => Err(weight.refused("its blocks run along an axis before the last two")),
        }
    }

    /// One for each of the `n` indices of an axis, each of which has `height` adjacent rows; of the
    /// last axis if that is `None`.
    fn by_index(n: usize, [rows, cols]: [usize; 2], height: Option<usize>) -> Self {
        match height {
            None => Self {
                grid: ScaleGrid {
                    matrix_rows: rows.max(1),
                    block_rows: rows.max(1),
                    block_cols: 1,
                    rows_per_matrix: 1,
                    cols: n,
                },
                granularity: Granularity::Channel,
                cols: n,
                rows: 1,
            },
            Some(height) => Self {
                grid: ScaleGrid {
                    matrix_rows: n * height.max(1),
                    block_rows: height.max(1),
                    block_cols: cols.max(1),
                    rows_per_matrix: n,
                    cols: 1,
                },
                granularity: Granularity::Channel,
                cols: 1,
                rows: n,
            },
        }
    }

    /// One for each `block` values of a row.
    fn along_rows(rows: usize, cols: usize, block: usize) -> Self {
        let grid = row_groups(cols, block);
        Self { grid, granularity: Granularity::Group(block), cols: grid.cols, rows }
    }

    /// One for each `block` values of a column of matrices of `n` rows.
    fn down_columns(rows: usize, cols: usize, [n, block]: [usize; 2]) -> Self {
        let blocks = n.div_ceil(block);
        let grid = ScaleGrid {
            matrix_rows: n.max(1),
            block_rows: block,
            block_cols: 1,
            rows_per_matrix: blocks,
            cols,
        };
        let granularity = Granularity::Block { rows: block, cols: 1 };
        Self { grid, granularity, cols, rows: rows / n.max(1) * blocks }
    }

    /// The scales `floats`.
    fn matrix<'m>(&self, floats: Floats<'m>) -> Box<dyn ScaleMatrix + 'm> {
        match self.granularity {
            Granularity::Tensor => Box::new(Repeated(floats)),
            _ => self.repeated(Box::new(Matrix { floats, cols: self.cols })),
        }
    }

    /// The zero points `zero`, as many as there are scales.
    fn integers<'m>(&self, zero: &Tensor<'m>) -> Result<Box<dyn ScaleMatrix + 'm>> {
        if zero.dtype() == Dtype::I64 {
            return Ok(self.repeated(Box::new(Integers::new(zero, self.cols, 0.0)?)));
        }
        let row_bits = self.cols * zero.dtype().bits();
        let stored = StoredInts::new(zero, zero.dtype(), row_bits)?;
        Ok(self.repeated(Box::new(stored)))
    }

    fn repeated<'m>(&self, inner: Box<dyn ScaleMatrix + 'm>) -> Box<dyn ScaleMatrix + 'm> {
        Box::new(RepeatedRows { inner, rows: self.rows })
    }
}
