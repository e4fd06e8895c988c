//! HQQ: `X.W_q` with `X.scale` and `X.zero`. `X.shape`, `X.group_size`, `X.axis`, `X.packing`,
//! `X.compute_dtype` and others describe them: as tensors in safetensors, as Python values in a
//! pickle. In old pickles everything but the codes has the prefix `X.meta.`. In pickles scales and
//! zero points may be quantized in turn, as `scale_q` with `meta_scale` and `zero_q` with
//! `meta_zero`.
//!
//! The flattened weight is reshaped to `[groups, group_size]` (axis 1: a group is a row) or
//! `[group_size, groups]` (axis 0: a group is a column). The rows of that matrix are packed at a
//! stride, the first ones in the highest bits; see `layout/strided.rs`. With `view_as_float`, the
//! packed bytes are stored under a float dtype.
//!
//! Formula: hqq `core/quantize.py` (`Quantizer.dequantize`), in `compute_dtype` T: `T(T(q - zero) *
//! scale)`. Layout: hqq `core/bitpack.py`.

mod meta;
pub(in crate::remember) mod nested;

use self::meta::{COMPANIONS, FAMILY, HqqMeta};
use crate::config::QuantMethod;
use crate::model::Tensor;
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::layout::strided::StridedRows;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::remember::seam::grouped::{ComputeDtype, GroupFormula, GroupOffsets, RoundedMatrices};
use crate::remember::seam::scale_layout::granularity;
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{
    CodeType, Floats, Group, Identity, Index, QuantScheme, Scheme, base_of, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct Hqq;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Hqq],
    codes: &["W_q"],
    companions: COMPANIONS,
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Hqq {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    /// SINQ and other libraries name their codes `W_q`, too.
    fn has_common_names(&self, _group: &Group<'_>) -> bool {
        true
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "W_q") else {
            return Ok(None);
        };
        // In safetensors the description lies beside the codes; in pickles it is in the values that
        // the parser kept.
        let mut meta = HqqMeta::of_weight(t, base, all);
        let weight = HqqWeight::new(t, &mut meta)?;
        let grid = weight.grid();
        let codes = CodeType::Int(weight.packed_codes.bits as u8);
        let compute_dtype = meta.read_compute_dtype()?;
        // The library dequantizes double-quantized scales and zero points in `compute_dtype`. The
        // decoder needs them exact for F32 outputs and rounded for outputs of that dtype.
        let is_double_quantized = meta.read_flag("quant_scale")? || meta.read_flag("quant_zero")?;
        let scales = weight.numbers(&mut meta, "scale", None)?;
        let mut zero_points = GroupOffsets::new(weight.numbers(&mut meta, "zero", None)?);
        zero_points.compute = match compute_dtype {
            Some(dtype) if is_double_quantized => Some(ComputeDtype {
                dtype,
                rounded: Some(Box::new(RoundedMatrices {
                    scales: weight.numbers(&mut meta, "scale", compute_dtype)?,
                    offsets: weight.numbers(&mut meta, "zero", compute_dtype)?,
                })),
            }),
            dtype => dtype.map(ComputeDtype::new),
        };
        let HqqWeight { shape, packed_codes, rows, .. } = weight;
        let (cols, bits) = (packed_codes.cols, packed_codes.bits);
        let stored = Codes::Unpacked(Box::new(packed_codes));
        let mut decoder = Grouped::scaled(
            stored,
            bits,
            CodeFormat::Int(Int::UNSIGNED),
            [rows, cols],
            grid,
            scales,
        );
        decoder.formula = GroupFormula::ShiftScale(zero_points);
        let scheme =
            QuantScheme::Grouped { family: FAMILY, codes, scales: granularity(&grid, cols) };
        let parts = meta.into_parts(*t);
        let name = format!("{base}weight");
        Ok(Some(Group::new(name, shape, scheme, parts, Box::new(decoder))))
    }
}

/// Bytes of a word, bits of a code, and the lowest bit of a word's first code, by the packing's
/// name in hqq's `Quantizer.bit_to_packing`. `3bit_32` has ten codes in 30 bits of an I32.
pub(super) fn packing(name: &str) -> Option<(usize, usize, usize)> {
    match name {
        "8bit_u8" => Some((1, 8, 0)),
        "4bit_u8" => Some((1, 4, 4)),
        "2bit_u8" => Some((1, 2, 6)),
        "1bit_u8" => Some((1, 1, 7)),
        "3bit_32" => Some((4, 3, 27)),
        _ => None,
    }
}

/// The packed codes of a weight, and how its groups lie over them.
struct HqqWeight<'m> {
    t: Tensor<'m>,
    shape: Vec<usize>,
    packed_codes: StridedRows<'m>,
    /// Rows of the matrix without those that pad it to a multiple of the codes in a word.
    rows: usize,
    /// Values of a group.
    group: usize,
    /// Whether a group is a column of the matrix (axis 0), rather than a row (axis 1).
    is_by_column: bool,
}

impl<'m> HqqWeight<'m> {
    fn new(t: &Tensor<'m>, meta: &mut HqqMeta<'_, 'm>) -> Result<Self> {
        let named = meta.read_text("packing")?.unwrap_or_default();
        // Without a description the codes of all widths look alike: bytes.
        if named.is_empty() {
            return Err(refused(t, FAMILY, "nothing beside it says how it is packed"));
        }
        let Some((word_bytes, bits, first_shift)) = packing(&named) else {
            return Err(refused(t, FAMILY, format!("the packing {named} is not known")));
        };
        meta.check_bits(bits)?;
        let shape = meta.read_shape()?;
        let (&[packed, _], Some(&inputs)) = (t.shape(), shape.last()) else {
            return Err(wrong(t, "packed codes have two dimensions"));
        };
        // A shape whose product overflows cannot be the stored one; 0 is refused below.
        let all = shape
            .iter()
            .try_fold(1usize, |n, &dim| n.checked_mul(dim))
            .unwrap_or(0);
        let is_by_column = meta.read_is_axis_0()?;
        // Without a group size a whole row (axis 1) or column (axis 0) of the weight is one group.
        let whole = if is_by_column {
            all / inputs.max(1)
        } else {
            inputs
        };
        let group = meta.read_size("group_size")?.unwrap_or(whole);
        if group == 0 || all == 0 || !all.is_multiple_of(group) {
            return Err(wrong(t, format!("groups of {group} do not make {shape:?}")));
        }
        let (rows, cols) = if is_by_column {
            (group, all / group)
        } else {
            (all / group, group)
        };
        let packed_codes = StridedRows {
            part: t.part(),
            stride: packed,
            cols,
            word_bytes,
            bits,
            first_shift,
            is_low_first: false,
        };
        let per_word = packed_codes.codes_per_word();
        // Rows are padded to fill the last words, hence rounded up; columns are not padded.
        if rows.div_ceil(per_word) != packed
            || row_bytes(t, word_bytes, meta)? != cols.checked_mul(word_bytes)
        {
            return Err(wrong(
                t,
                format!("it does not hold {rows} rows of {cols} codes, packed as {named}"),
            ));
        }
        let mut weight = Self { t: *t, shape, packed_codes, rows, group, is_by_column };
        // Groups that are parts of a row of the weight: its own rows make better tiles than rows of
        // one group.
        if !is_by_column && inputs.is_multiple_of(group) && weight.packed_codes.reshape(inputs) {
            weight.rows = all / inputs;
        }
        Ok(weight)
    }

    fn grid(&self) -> ScaleGrid {
        let (rows, cols) = (self.rows, self.packed_codes.cols);
        if self.is_by_column {
            return ScaleGrid {
                // A group is a whole column of the matrix, so one row of scales covers all its
                // rows.
                matrix_rows: rows,
                block_rows: rows,
                block_cols: 1,
                rows_per_matrix: 1,
                cols,
            };
        }
        row_groups(cols, self.group)
    }

    /// The scales (`what` is `scale`) or the zero points (`zero`), one for each group.
    /// Double-quantized ones are rounded to `compute_dtype`, if there is one, after each step, as
    /// the library computes them.
    fn numbers(
        &self,
        meta: &mut HqqMeta<'_, 'm>,
        what: &str,
        compute_dtype: Option<TargetDtype>,
    ) -> Result<Box<dyn ScaleMatrix + 'm>> {
        let grid = self.grid();
        // By column there is one scale for each column; by row one for each group of each row.
        let groups = if self.is_by_column {
            grid.cols
        } else {
            self.rows * grid.cols
        };
        if meta.read_flag(&format!("quant_{what}"))? {
            let numbers = meta.read_nested(what, groups, grid.cols, compute_dtype)?;
            return Ok(Box::new(numbers));
        }
        let t = meta.need_tensor(what)?;
        // The reduction over a group keeps its dimension: the side of the ones tells the axis.
        let is_along = match (t.shape(), self.is_by_column) {
            (shape @ [_, _], true) => shape == [1, groups],
            (shape @ [_, _], false) => shape == [groups, 1],
            _ => t.elements() == groups,
        };
        if !is_along {
            let what = format!(
                "its `{}` {:?} is not one for each of {groups} groups along its axis",
                t.name(),
                t.shape()
            );
            return Err(wrong(&self.t, what));
        }
        Ok(Box::new(Matrix { floats: Floats::ieee(&t)?, cols: grid.cols }))
    }
}

/// Bytes of a row of the codes `t`, or `None` if that overflows.
///
/// # Errors
/// `t` has neither the dtype of words of `word_bytes` bytes, nor a float dtype with
/// `view_as_float`.
fn row_bytes(
    t: &Tensor<'_>,
    word_bytes: usize,
    meta: &mut HqqMeta<'_, '_>,
) -> Result<Option<usize>> {
    let size = match t.dtype() {
        Dtype::U8 if word_bytes == 1 => 1,
        Dtype::I32 if word_bytes == 4 => 4,
        // `view_as_float` reinterprets the bytes. They must not have been converted on the way,
        // such as by a change of byte order.
        dtype
            if meta.read_flag("view_as_float")?
                && dtype.is_floating_point()
                && t.part().is_verbatim() =>
        {
            dtype.bits() / 8
        }
        _ => return Err(wrong(t, "its dtype is not that of packed codes")),
    };
    Ok(t.shape().last().and_then(|&n| n.checked_mul(size)))
}
