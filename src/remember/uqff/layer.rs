//! The kinds of layers of UQFF: which tensors each has, and its decoder.

use super::FAMILY;
use super::blocks::{F8q8Codes, F8q8Scales, QK};
use crate::model::Tensor;
use crate::remember::compressed_tensors::read_shape;
use crate::remember::kernels::grouped::{E2M1, Int};
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::strided::StridedRows;
use crate::remember::mxfp4::BLOCK;
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, row_groups,
};
use crate::remember::seam::scale_layout::{per_tensor, rows_and_cols};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    CodeType, Decode, Floats, Fp8Format, Granularity, Group, Index, PlainFloats, QuantScheme,
    TensorRole, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

/// A layer that is being claimed.
pub(super) struct UqffLayer<'a, 'm> {
    t: Tensor<'m>,
    all: &'a Index<'m>,
    format: Tensor<'m>,
    /// The tensors of the layer that were looked at, its codes first.
    parts: Vec<(TensorRole, Tensor<'m>)>,
}

/// Logical shape, scheme and decoder of a layer.
type Decoded<'m> = (Vec<usize>, QuantScheme, Box<dyn Decode + 'm>);

impl<'a, 'm> UqffLayer<'a, 'm> {
    pub(super) fn new(t: &Tensor<'m>, format: &Tensor<'m>, all: &'a Index<'m>) -> Self {
        Self {
            t: *t,
            all,
            format: *format,
            parts: vec![(TensorRole::Quantized, *t), (TensorRole::QuantState, *format)],
        }
    }

    /// The layer as a group.
    ///
    /// # Errors
    /// `Unsupported` for a kind that is not known; `Parse` if a tensor of the layer is missing or
    /// does not fit.
    pub(super) fn claim(mut self) -> Result<Group<'m>> {
        let format = self.format;
        let (shape, scheme, decoder) = match number(&format, Dtype::U8)? {
            0 => self.ggml()?,
            1 => return self.floats(),
            2 => self.hqq()?,
            3 => self.fp8()?,
            4 => self.afq()?,
            5 => self.f8q8()?,
            6 => self.mxfp4()?,
            other => {
                let what = format!("its format {other} is not known");
                return Err(refused(&self.t, FAMILY, what));
            }
        };
        let name = self.t.name();
        let mut group = Group::new(name, shape, scheme, self.parts, decoder);
        if group.scheme == QuantScheme::Unquantized {
            // Floats among the blocks of ggml: they keep their type, as other floats do.
            group.keeps = TargetDtype::of(ggml_float(&group.parts)?);
        }
        Ok(group)
    }

    /// The tensor `X.weight.NAME`, which becomes a part of the layer.
    fn need(&mut self, name: &str, role: TensorRole) -> Result<Tensor<'m>> {
        let t = self.all.need(&self.t, self.t.name(), &format!(".{name}"))?;
        self.parts.push((role, t));
        Ok(t)
    }

    /// The value of the tensor `X.weight.NAME`, a number of `dtype`.
    fn number(&mut self, name: &str, dtype: Dtype) -> Result<usize> {
        let t = self.need(name, TensorRole::QuantState)?;
        number(&t, dtype)
    }

    fn shape(&mut self) -> Result<Vec<usize>> {
        let t = self.need("shape", TensorRole::QuantState)?;
        read_shape(&t)
    }

    fn wrong<T>(&self, what: impl std::fmt::Display) -> Result<T> {
        Err(wrong(&self.t, what))
    }

    fn require(&self, dtype: Dtype) -> Result<()> {
        match self.t.dtype() == dtype {
            true => Ok(()),
            false => self.wrong(format_args!("codes of this format are {dtype}")),
        }
    }

    fn floats(self) -> Result<Group<'m>> {
        let Some(decoder) = PlainFloats::of(&self.t) else {
            return self.wrong("a layer that is not quantized has floats");
        };
        let (name, shape) = (self.t.name(), self.t.shape());
        let scheme = QuantScheme::Unquantized;
        let mut group = Group::new(name, shape, scheme, self.parts, Box::new(decoder));
        group.is_copied = true;
        Ok(group)
    }

    fn ggml(&mut self) -> Result<Decoded<'m>> {
        self.require(Dtype::U8)?;
        let id = self.number("dtype", Dtype::U32)?;
        let shape = self.shape()?;
        let (dtype, decoder) = super::blocks::ggml(&self.t, id as u32, &shape)?;
        let scheme = match dtype.is_quantized() {
            true => QuantScheme::Ggml { dtype },
            false => QuantScheme::Unquantized,
        };
        Ok((shape, scheme, decoder))
    }

    /// Codes of a matrix whose columns are groups: rows are packed at a stride, the first in the
    /// highest bits.
    fn hqq(&mut self) -> Result<Decoded<'m>> {
        self.require(Dtype::U8)?;
        let (scales, zeros) =
            (self.need("scales", TensorRole::Scale)?, self.need("zeros", TensorRole::ZeroPoint)?);
        let shape = self.shape()?;
        let (bits, group) = self.hqq_packing()?;
        let (per_byte, product) = (8 / bits, shape.iter().product::<usize>());
        let &[packed, cols] = self.t.shape() else {
            return self.wrong("packed codes have two dimensions");
        };
        let rows = packed.checked_mul(per_byte);
        let Some(rows) = rows
            .filter(|&rows| rows == group && rows > 0 && rows.checked_mul(cols) == Some(product))
        else {
            return self.wrong(format_args!("it does not hold {shape:?} in groups of {group}"));
        };
        if scales.elements() != cols || zeros.elements() != cols || zeros.dtype() != scales.dtype()
        {
            return self.wrong(format_args!(
                "its scales {:?} and zero points {:?} are not one for each of {cols} groups",
                scales.shape(),
                zeros.shape()
            ));
        }
        let decoder = self.hqq_decoder(bits, [packed, rows, cols], &scales, &zeros)?;
        let scheme = grouped(CodeType::Int(bits as u8), group);
        Ok((shape, scheme, Box::new(decoder)))
    }

    /// Bits of a code and values of a group.
    ///
    /// # Errors
    /// mistral.rs does not write such codes.
    fn hqq_packing(&mut self) -> Result<(usize, usize)> {
        let bits = self.number("bits", Dtype::U8)?;
        let group = self.number("group_size", Dtype::U32)?;
        let axis = self.number("axis", Dtype::U8)?;
        // How the codes were found.
        self.number("optimization_steps", Dtype::U32)?;
        self.number("round_zeros", Dtype::U8)?;
        let channel_wise = self.number("channel_wise", Dtype::U8)?;
        if axis != 0 || channel_wise == 0 || !matches!(bits, 4 | 8) {
            let what = format!(
                "HQQ of {bits} bits along axis {axis} (channel_wise {channel_wise}) is not written by mistral.rs"
            );
            return Err(refused(&self.t, FAMILY, what));
        }
        Ok((bits, group))
    }

    /// The decoder of `[rows, cols]` codes in `packed` rows, whose columns are groups.
    fn hqq_decoder(
        &self,
        bits: usize,
        [packed, rows, cols]: [usize; 3],
        scales: &Tensor<'m>,
        zeros: &Tensor<'m>,
    ) -> Result<Grouped<'m>> {
        let packed_codes = StridedRows {
            part: self.t.part(),
            stride: packed,
            cols,
            word_bytes: 1,
            bits,
            first_shift: 8 - bits,
            is_low_first: false,
        };
        let grid = ScaleGrid {
            matrix_rows: rows,
            block_rows: rows,
            block_cols: 1,
            rows_per_matrix: 1,
            cols,
        };
        let mut decoder = Grouped::scaled(
            Codes::Unpacked(Box::new(packed_codes)),
            bits,
            CodeFormat::Int(Int::UNSIGNED),
            [rows, cols],
            grid,
            matrix(scales, cols)?,
        );
        // mistral.rs computes in the type of the scales, and rounds the difference and the product.
        let zeros = GroupOffsets::new(matrix(zeros, cols)?);
        let zeros = zeros.computed_in(TargetDtype::of(scales.dtype()));
        decoder.formula = GroupFormula::ShiftScale(zeros);
        Ok(decoder)
    }

    fn fp8(&mut self) -> Result<Decoded<'m>> {
        /// Number of E4M3 among candle's types.
        const E4M3: usize = 9;
        self.require(Dtype::F8E4M3)?;
        let scale = self.need("dequant_w_scale", TensorRole::Scale)?;
        self.need("dequant_x_scale", TensorRole::QuantState)?;
        self.need("quant_scale", TensorRole::QuantState)?;
        let dtype = self.number("dtype", Dtype::U32)?;
        if dtype != E4M3 || scale.elements() != 1 {
            return self
                .wrong(format_args!("its type is {dtype}, with {} scales", scale.elements()));
        }
        let shape = self.t.shape().to_vec();
        let (rows, cols) = rows_and_cols(&shape);
        let codes = Codes::Rows { part: self.t.part(), row_bytes: cols };
        let scales = Box::new(Matrix { floats: Floats::ieee(&scale)?, cols: 1 });
        let grid = per_tensor(&shape);
        let decoder = Grouped::scaled(codes, 8, CodeFormat::E4M3, [rows, cols], grid, scales);
        let scheme = QuantScheme::PerTensorFp8 { format: Fp8Format::E4M3 };
        Ok((shape, scheme, Box::new(decoder)))
    }

    /// Rows of codes whose groups have a scale and an offset each.
    fn afq(&mut self) -> Result<Decoded<'m>> {
        self.require(Dtype::U32)?;
        let (scales, biases) =
            (self.need("scales", TensorRole::Scale)?, self.need("biases", TensorRole::Offset)?);
        let bits = self.number("bits", Dtype::U8)?;
        let group = self.number("group_size", Dtype::U8)?;
        let Some((&words, rows)) = self.t.shape().split_last() else {
            return self.wrong("codes have two dimensions at least");
        };
        let Some((&groups, scale_rows)) = scales.shape().split_last() else {
            return self.wrong("its scales have two dimensions at least");
        };
        let cols = groups.checked_mul(group).filter(|_| group > 0);
        let bits_of_row = cols.and_then(|cols| cols.checked_mul(bits));
        let fits = matches!(bits, 2 | 3 | 4 | 6 | 8)
            && rows == scale_rows
            && biases.shape() == scales.shape()
            && bits_of_row.is_some_and(|bits| words.checked_mul(32) == Some(bits));
        let Some(cols) = cols.filter(|_| fits) else {
            return self.wrong(format_args!(
                "{bits} bits in groups of {group} do not go with scales {:?} and biases {:?}",
                scales.shape(),
                biases.shape()
            ));
        };
        let mut shape = rows.to_vec();
        shape.push(cols);
        let codes = Codes::Rows { part: self.t.part(), row_bytes: words * 4 };
        let mut decoder = Grouped::scaled(
            codes,
            bits,
            CodeFormat::Int(Int::UNSIGNED),
            rows_and_cols(&shape).into(),
            row_groups(cols, group),
            matrix(&scales, groups)?,
        );
        // mistral.rs computes in F32 and rounds once, where MLX rounds twice.
        decoder.formula = GroupFormula::ScaleShift(GroupOffsets::new(matrix(&biases, groups)?));
        Ok((shape, grouped(CodeType::Int(bits as u8), group), Box::new(decoder)))
    }

    fn f8q8(&mut self) -> Result<Decoded<'m>> {
        self.require(Dtype::U8)?;
        let blocks = self.number("num_blocks", Dtype::U32)?;
        let shape = self.shape()?;
        let (rows, cols) = rows_and_cols(&shape);
        let per_row = cols / QK;
        let fits = cols.is_multiple_of(QK)
            && rows.checked_mul(per_row) == Some(blocks)
            && blocks.checked_mul(QK + 1) == Some(self.t.elements());
        if !fits {
            return self.wrong(format_args!("{blocks} blocks do not hold {shape:?}"));
        }
        let part = self.t.part();
        let codes = Codes::Unpacked(Box::new(F8q8Codes { part, per_row }));
        let scales = Box::new(F8q8Scales { part, per_row });
        let int8 = CodeFormat::Int(Int::signed(8));
        let grid = row_groups(cols, QK);
        let decoder = Grouped::scaled(codes, 8, int8, [rows, cols], grid, scales);
        Ok((shape, grouped(CodeType::Int(8), QK), Box::new(decoder)))
    }

    fn mxfp4(&mut self) -> Result<Decoded<'m>> {
        self.require(Dtype::U8)?;
        let scales = self.need("scales", TensorRole::Scale)?;
        let (bytes, rows) = match self.t.shape().split_last() {
            Some((&bytes, rows)) if !rows.is_empty() => (bytes, rows),
            _ => return self.wrong("codes have two dimensions at least"),
        };
        let cols = bytes
            .checked_mul(2)
            .filter(|cols| cols.is_multiple_of(BLOCK));
        let expected = cols.map(|cols| [rows, &[cols / BLOCK]].concat());
        let Some(cols) = cols.filter(|_| expected.as_deref() == Some(scales.shape())) else {
            return self.wrong(format_args!(
                "its scales {:?} are not one for {BLOCK} values of a row",
                scales.shape()
            ));
        };
        let mut shape = rows.to_vec();
        shape.push(cols);
        let codes = Codes::Rows { part: self.t.part(), row_bytes: bytes };
        // mistral.rs shifts the byte to F32's exponent: 0 is zero, and 255 infinity.
        let scales =
            Box::new(Matrix { floats: Floats::flushed_exponents(&scales)?, cols: cols / BLOCK });
        let fp4 = CodeFormat::E2M1(E2M1 { factor: 1.0, plain_zero: false });
        let size = rows_and_cols(&shape).into();
        let decoder = Grouped::scaled(codes, 4, fp4, size, row_groups(cols, BLOCK), scales);
        Ok((shape, grouped(CodeType::Mxfp4, BLOCK), Box::new(decoder)))
    }
}

/// Numbers of groups, `cols` in a row.
fn matrix<'m>(t: &Tensor<'m>, cols: usize) -> Result<Box<Matrix<'m>>> {
    let floats = Floats::ieee(t)?;
    Ok(Box::new(Matrix { floats, cols }))
}

fn grouped(codes: CodeType, group: usize) -> QuantScheme {
    QuantScheme::Grouped { family: FAMILY, codes, scales: Granularity::Group(group) }
}

/// The value of a tensor that is one number of `dtype`, U8 or U32.
fn number(t: &Tensor<'_>, dtype: Dtype) -> Result<usize> {
    if t.dtype() != dtype || t.elements() != 1 {
        return Err(wrong(t, format_args!("it describes a layer, and is no number of {dtype}")));
    }
    let bytes = t.part().read_small(4)?;
    let value = bytes
        .iter()
        .rev()
        .fold(0u32, |n, &byte| n << 8 | u32::from(byte));
    Ok(value as usize)
}

/// The type of floats that are stored as a kind of ggml's blocks.
fn ggml_float(parts: &[(TensorRole, Tensor<'_>)]) -> Result<Dtype> {
    let dtype = parts
        .iter()
        .find(|(_, t)| t.name().ends_with(".weight.dtype"));
    let id = dtype.map_or(Ok(0), |(_, t)| number(t, Dtype::U32))?;
    Ok(super::blocks::float_of(id as u32).unwrap_or(Dtype::F32))
}
