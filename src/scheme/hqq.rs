//! HQQ: `X.W_q` with `X.scale` and `X.zero`, and what describes them: `X.shape`, `X.group_size`, `X.axis`,
//! `X.packing`, `X.compute_dtype` and others, tensors in safetensors and Python values in a pickle; in old pickles all
//! but the codes are below `X.meta`. In pickles zeros and scales may be quantized themselves, as `zero_q` with
//! `meta_zero` and `scale_q` with `meta_scale`.
//!
//! The weight is cut into groups in its order, which are the rows of a matrix (axis 1) or its columns (axis 0). That
//! matrix is packed in runs of rows, the first in the highest bits. The bytes may go by a float dtype.
//!
//! Formula: hqq `core/quantize.py` (`Quantizer.dequantize`), in `compute_dtype` T: `T(T(q - zero) * scale)`. Layout: hqq
//! `core/bitpack.py`.

mod meta;

use self::meta::{DoubleQuantized, FAMILY, HqqMeta};
use crate::config::QuantMethod;
use crate::containers::model::Tensor;
use crate::kernels::remember::fp8::ScaleGrid;
use crate::kernels::remember::grouped::Int;
use crate::scheme::layout::strided::StridedRows;
use crate::scheme::seam::fit::granularity;
use crate::scheme::seam::grouped::{CodeFormat, Codes, Grouped, row_groups};
use crate::scheme::seam::grouped::{ComputeDtype, GroupFormula, GroupOffsets, RoundedMatrices};
use crate::scheme::seam::numbers::{Matrix, ScaleMatrix};
use crate::scheme::seam::{
    CodeType, Floats, Group, Identity, Index, QuantScheme, Scheme, base_of, refused, wrong,
};
use crate::{Dtype, Result, TargetDtype};

pub(super) struct Hqq;

static IDENTITY: Identity = Identity {
    name: FAMILY,
    methods: &[QuantMethod::Hqq],
    codes: &[],
    companions: &[],
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

    /// SINQ and others call their codes `W_q`, too.
    fn has_common_names(&self, _group: &Group<'_>) -> bool {
        true
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "W_q") else {
            return Ok(None);
        };
        if all.at(base, "scale2").is_some() {
            return Err(refused(
                t,
                "SINQ",
                "recognised, not decoded by this version",
            ));
        }
        let mut meta = HqqMeta::of_weight(t, base, all);
        let weight = HqqWeight::new(t, &mut meta)?;
        let grid = weight.grid();
        let codes = CodeType::Int(weight.runs.bits as u8);
        let compute_dtype = meta.compute_dtype()?;
        let quantized = meta.flag("quant_scale")? || meta.flag("quant_zero")?;
        let scales = weight.numbers(&mut meta, "scale", None)?;
        let mut zero_points = GroupOffsets::new(weight.numbers(&mut meta, "zero", None)?);
        zero_points.compute = match compute_dtype {
            Some(dtype) if quantized => Some(ComputeDtype {
                dtype,
                rounded: Some(RoundedMatrices {
                    scales: weight.numbers(&mut meta, "scale", compute_dtype)?,
                    offsets: weight.numbers(&mut meta, "zero", compute_dtype)?,
                }),
            }),
            dtype => dtype.map(ComputeDtype::new),
        };
        let HqqWeight {
            shape, runs, rows, ..
        } = weight;
        let (cols, bits) = (runs.cols, runs.bits);
        let stored = Codes::Unpacked(Box::new(runs));
        let mut decoder = Grouped::scaled(
            stored,
            bits,
            CodeFormat::Int(Int::UNSIGNED),
            [rows, cols],
            grid,
            scales,
        );
        decoder.formula = GroupFormula::ShiftScale(zero_points);
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes,
            scales: granularity(&grid, cols),
        };
        let parts = meta.into_parts(*t);
        let name = format!("{base}weight");
        Ok(Some(Group::new(
            name,
            shape,
            scheme,
            parts,
            Box::new(decoder),
        )))
    }
}

/// How codes lie in words, by the name of it: bytes of a word, bits of a code, and where the first one begins.
fn packing(name: &str) -> Option<(usize, usize, usize)> {
    match name {
        "8bit_u8" => Some((1, 8, 0)),
        "4bit_u8" => Some((1, 4, 4)),
        "2bit_u8" => Some((1, 2, 6)),
        "1bit_u8" => Some((1, 1, 7)),
        "3bit_32" => Some((4, 3, 27)),
        _ => None,
    }
}

/// A weight as it is stored.
struct HqqWeight<'m> {
    t: Tensor<'m>,
    shape: Vec<usize>,
    runs: StridedRows<'m>,
    /// Rows that are codes: those that fill up the last run are not among them.
    rows: usize,
    /// Values of a group, and whether groups are columns.
    group: usize,
    is_by_column: bool,
}

impl<'m> HqqWeight<'m> {
    fn new(t: &Tensor<'m>, meta: &mut HqqMeta<'_, 'm>) -> Result<Self> {
        let named = meta.text("packing")?.unwrap_or_default();
        if named.is_empty() {
            return Err(refused(
                t,
                FAMILY,
                "nothing beside it says how it is packed",
            ));
        }
        let Some((word, bits, first)) = packing(&named) else {
            return Err(refused(
                t,
                FAMILY,
                format!("the packing {named} is not known"),
            ));
        };
        let shape = meta.shape()?;
        let (&[packed, _], Some(&inputs)) = (t.shape(), shape.last()) else {
            return Err(wrong(t, "packed codes have two dimensions"));
        };
        let all = shape
            .iter()
            .try_fold(1usize, |n, &dim| n.checked_mul(dim))
            .unwrap_or(0);
        let is_by_column = meta.is_axis_0()?;
        // Without groups a row is one, or a column.
        let whole = if is_by_column {
            all / inputs.max(1)
        } else {
            inputs
        };
        let group = meta.size("group_size")?.unwrap_or(whole);
        if group == 0 || all == 0 || !all.is_multiple_of(group) {
            return Err(wrong(t, format!("groups of {group} do not make {shape:?}")));
        }
        let (rows, cols) = if is_by_column {
            (group, all / group)
        } else {
            (all / group, group)
        };
        let runs = StridedRows {
            part: t.part(),
            rows: packed,
            cols,
            word,
            bits,
            first,
            upward: false,
        };
        let per_word = runs.codes_per_word();
        if rows.div_ceil(per_word) != packed || row_bytes(t, word, meta)? != cols.checked_mul(word)
        {
            return Err(wrong(
                t,
                format!("it does not hold {rows} rows of {cols} codes, packed as {named}"),
            ));
        }
        let mut weight = Self {
            t: *t,
            shape,
            runs,
            rows,
            group,
            is_by_column,
        };
        if !is_by_column && inputs.is_multiple_of(group) && weight.runs.regroup(inputs) {
            weight.rows = all / inputs;
        }
        Ok(weight)
    }

    fn grid(&self) -> ScaleGrid {
        let (rows, cols) = (self.rows, self.runs.cols);
        if self.is_by_column {
            return ScaleGrid {
                matrix_rows: rows,
                block_rows: rows,
                block_cols: 1,
                rows_per_matrix: 1,
                cols,
            };
        }
        row_groups(cols, self.group)
    }

    /// Scales or zeros; those that are quantized themselves as the library has them in `compute_dtype`.
    fn numbers(
        &self,
        meta: &mut HqqMeta<'_, 'm>,
        what: &str,
        compute_dtype: Option<TargetDtype>,
    ) -> Result<Box<dyn ScaleMatrix + 'm>> {
        let grid = self.grid();
        let groups = if self.is_by_column {
            grid.cols
        } else {
            self.rows * grid.cols
        };
        if meta.flag(&format!("quant_{what}"))? {
            return Ok(Box::new(DoubleQuantized::new(
                meta,
                what,
                groups,
                grid.cols,
                compute_dtype,
            )?));
        }
        let t = meta.tensor(what)?;
        if t.elements() != groups {
            let what = format!(
                "its `{}` {:?} is not one for each of {groups} groups",
                t.name(),
                t.shape()
            );
            return Err(wrong(&self.t, what));
        }
        Ok(Box::new(Matrix {
            floats: Floats::ieee(&t)?,
            cols: grid.cols,
        }))
    }
}

/// Bytes of a row of `t`, if they are words or may be taken for such.
fn row_bytes(t: &Tensor<'_>, word: usize, meta: &mut HqqMeta<'_, '_>) -> Result<Option<usize>> {
    let size = match t.dtype() {
        Dtype::U8 if word == 1 => 1,
        Dtype::I32 if word == 4 => 4,
        dtype
            if meta.flag("view_as_float")?
                && dtype.is_floating_point()
                && t.part().is_verbatim() =>
        {
            dtype.bits() / 8
        }
        _ => return Err(wrong(t, "its dtype is not that of packed codes")),
    };
    Ok(t.shape().last().and_then(|&n| n.checked_mul(size)))
}
