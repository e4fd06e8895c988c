//! Weights without their zeros: `P.compressed` has the values that are not zero, `P.bitmask` U8
//! `[rows, cols / 8]` a bit for each column, lowest first, and `P.shape` the dimensions.
//! sparse-bitmask: the values of all rows in one vector, with `P.row_offsets` I64.
//! sparse-24-bitmask: values `[rows, cols / 2]`. FP8 and INT8 values have `P.weight_scale`.
//!
//! Layouts: compressed-tensors `compressors/sparse_compressors/sparse_bitmask.py`,
//! `sparse_24_bitmask.py`.

use std::ops::Range;

use super::compressed_tensors::read_shape;
use crate::config::QuantMethod;
use crate::element::Out;
use crate::error::InTensor;
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::Int;
use crate::remember::kernels::widen::Widen;
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, Unpack};
use crate::remember::seam::scale_layout::{fit, granularity};
use crate::remember::seam::scale_matrix::Matrix;
use crate::remember::seam::{
    Buffers, Decode, Floats, Granularity, Grid, Group, Identity, Index, QuantScheme, Scheme,
    TensorRole, Tile, read, refused, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

pub(super) struct Sparse;

/// Largest number of columns. A row is decoded as a whole, because its values lie where the bits
/// before them say.
const MAX_COLS: usize = 1 << 20;

static IDENTITY: Identity = Identity {
    name: "sparse",
    over: &[],
    methods: &[QuantMethod::CompressedTensors],
    codes: &[".compressed"],
    companions: &[
        (Ends("weight_scale"), TensorRole::Scale),
        (Ends(".bitmask"), TensorRole::QuantState),
        (Ends(".row_offsets"), TensorRole::QuantState),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Sparse {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Sparse
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = t.name().strip_suffix(".compressed") else {
            return Ok(None);
        };
        let others = [".bitmask", ".row_offsets", ".shape"];
        // Without companions a parameter can have the name in any other model.
        let is_its = all.config.quant_method() == Some(&QuantMethod::CompressedTensors);
        if !is_its && others.iter().all(|end| all.at(base, end).is_none()) {
            return Ok(None);
        }
        let bitmask = all.need(t, base, ".bitmask")?;
        // The mask is padded to whole bytes, so only this tensor proves the number of columns.
        let shape = all.need(t, base, ".shape")?;
        let dims = read_shape(&shape)?;
        let size = rows_and_cols(t, &bitmask, &shape, &dims)?;
        let offsets = all.at(base, ".row_offsets");
        let scattered = BitmaskValues::new(t, &bitmask, offsets.as_ref(), size)?;
        let name = if base.ends_with(".weight") {
            base.to_owned()
        } else {
            format!("{base}.weight")
        };
        let scale = all.at(&name, "_scale");
        let mut parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::QuantState, bitmask),
            (TensorRole::QuantState, shape),
        ];
        parts.extend(offsets.map(|offsets| (TensorRole::QuantState, offsets)));
        parts.extend(scale.map(|scale| (TensorRole::Scale, scale)));
        let code_format = match t.dtype() {
            Dtype::F8E4M3 => Some(CodeFormat::E4M3),
            Dtype::F8E5M2 => Some(CodeFormat::E5M2),
            Dtype::I8 => Some(CodeFormat::Int(Int::signed(8))),
            _ => None,
        };
        // Floats need no scale and take none: one beside them would mean that the values are not
        // the weights.
        let (keeps, decoder) = match (TargetDtype::of(t.dtype()), code_format, scale) {
            (Some(dtype), None, None) => {
                let floats = SparseFloats { dtype: t.dtype(), rows: size[0], scattered };
                (Some(dtype), Box::new(floats) as Box<dyn Decode + 'm>)
            }
            (None, Some(code_format), Some(scale)) => {
                let codes = scaled(t, scattered, code_format, size, &scale, all)?;
                (None, Box::new(codes) as Box<dyn Decode + 'm>)
            }
            _ => {
                let what = "values are floats, or FP8 or INT8 with a scale";
                return Err(refused(t, "sparse", what));
            }
        };
        Ok(Some(Group { keeps, ..Group::new(name, dims, QuantScheme::Sparse, parts, decoder) }))
    }
}

/// The rows and columns of the weight `t`, whose stored shape is `dims`.
///
/// # Errors
/// The mask is of another size, or rows are too long.
fn rows_and_cols(
    t: &Tensor<'_>,
    bitmask: &Tensor<'_>,
    shape: &Tensor<'_>,
    dims: &[usize],
) -> Result<[usize; 2]> {
    let &[rows, cols] = dims else {
        return Err(wrong(shape, "a sparse weight is a matrix"));
    };
    if bitmask.dtype() != Dtype::U8 || bitmask.shape() != [rows, cols.div_ceil(8)] {
        let what = format!("`{}` is [{rows}, {cols}]", t.name());
        return Err(wrong(bitmask, what));
    }
    if cols > MAX_COLS {
        let what = format!("rows of {cols} values; at most {MAX_COLS} are decoded");
        return Err(refused(t, "sparse", what));
    }
    Ok([rows, cols])
}

/// The decoder of codes with a scale. compressed-tensors compresses what it quantized by tensor or
/// by row.
///
/// # Errors
/// The scales are of other groups, or of a dtype that scales do not have.
fn scaled<'m>(
    t: &Tensor<'m>,
    scattered: BitmaskValues<'m>,
    code_format: CodeFormat,
    [rows, cols]: [usize; 2],
    scale: &Tensor<'m>,
    all: &Index<'m>,
) -> Result<Grouped<'m>> {
    let grid = fit(t, &[rows, cols], scale, all)?;
    if matches!(granularity(&grid, cols), Granularity::Group(_) | Granularity::Block { .. }) {
        let what = format!("it is [{rows}, {cols}], with one scale or one a row");
        return Err(wrong(scale, what));
    }
    let scales = Box::new(Matrix { floats: Floats::ieee(scale)?, cols: grid.cols });
    let codes = Codes::Unpacked(Box::new(scattered));
    let size = [rows, cols];
    Ok(Grouped::scaled(codes, 8, code_format, size, grid, scales))
}

/// The stored values of a weight, and the columns that they belong to.
struct BitmaskValues<'m> {
    values: Part<'m>,
    /// Number of stored values.
    count: usize,
    bitmask: Part<'m>,
    /// Index of the first value of each row; `None`: each row has `cols / 2` values.
    offsets: Option<Part<'m>>,
    cols: usize,
    /// Bytes of a value. 0 of types below a byte, which are refused before anything is read.
    size: usize,
}

impl<'m> BitmaskValues<'m> {
    /// The values `t` of a weight of `rows` rows and `cols` columns.
    ///
    /// # Errors
    /// They do not fit its size.
    fn new(
        t: &Tensor<'m>,
        bitmask: &Tensor<'m>,
        offsets: Option<&Tensor<'m>>,
        [rows, cols]: [usize; 2],
    ) -> Result<Self> {
        // The offsets tell the two formats apart. With 2:4 sparsity every row has half of its
        // columns, so none are stored.
        let fits = match offsets {
            Some(offsets) => {
                let is_one_a_row = offsets.dtype() == Dtype::I64 && offsets.elements() == rows;
                is_one_a_row && t.shape().len() == 1
            }
            None => t.shape() == [rows, cols / 2] && cols.is_multiple_of(2),
        };
        if !fits {
            let what = format!("its values do not fit a shape of [{rows}, {cols}]");
            return Err(wrong(t, what));
        }
        Ok(Self {
            values: t.part(),
            count: t.elements(),
            bitmask: bitmask.part(),
            offsets: offsets.map(Tensor::part),
            cols,
            size: t.dtype().bits() / 8,
        })
    }
}

impl BitmaskValues<'_> {
    /// Indices of the first values of `rows`, and behind them the index behind their last value.
    ///
    /// # Errors
    /// The offsets are out of bounds, decrease, or do not begin with 0.
    fn row_starts(&self, rows: &Range<usize>, staging: &mut Vec<u8>) -> Result<Vec<usize>> {
        let Some(offsets) = &self.offsets else {
            // Two of each four values are stored, so a row begins at half its first column.
            return Ok((rows.start..=rows.end)
                .map(|row| row * (self.cols / 2))
                .collect());
        };
        // The offset after that of the last row is not stored: it is the number of values.
        let stored = (rows.end + 1).min((offsets.len() / 8) as usize);
        read(offsets, 8, rows.start..stored, 0..8, staging)?;
        let mut starts = Vec::with_capacity(rows.len() + 1);
        for (&bytes, row) in staging.as_chunks().0.iter().zip(rows.start..) {
            // Offsets are data, and so are checked against the number of stored values before they
            // become a range.
            let offset = usize::try_from(i64::from_le_bytes(bytes)).ok();
            let is_next = |at: &usize| match starts.last() {
                Some(before) => (*before..=self.count).contains(at),
                // Values before those of the first row would belong to none.
                None => *at <= self.count && (row > 0 || *at == 0),
            };
            let offset = offset.filter(is_next);
            starts.push(offset.ok_or_else(|| self.contradiction(row))?);
        }
        if stored == rows.end {
            starts.push(self.count);
        }
        Ok(starts)
    }

    fn contradiction(&self, row: usize) -> AnamnesisError {
        let name = self.values.name();
        AnamnesisError::parse(format!(
            "{}: its bitmask and its values contradict each other at row {row}",
            InTensor(&name)
        ))
    }
}

impl Unpack for BitmaskValues<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let (size, mask_width) = (self.size, self.cols.div_ceil(8));
        out.clear();
        out.resize(tile.rows.len() * self.cols * size, 0);
        let starts = self.row_starts(&tile.rows, staging)?;
        let mut mask = Vec::new();
        read(&self.bitmask, mask_width, tile.rows.clone(), 0..mask_width, &mut mask)?;
        let range = starts[0]..starts[tile.rows.len()];
        // Checked before the read: wrong offsets must not make it arbitrarily large.
        if range.len() > tile.rows.len() * self.cols {
            return Err(self.contradiction(tile.rows.start));
        }
        read(&self.values, self.count * size, 0..1, range.start * size..range.end * size, staging)?;
        let mut values = staging.chunks_exact(size);
        let row_bytes = (self.cols * size).max(1);
        let rows = mask
            .chunks_exact(mask_width.max(1))
            .zip(out.chunks_exact_mut(row_bytes));
        for ((bits, out), (row, starts)) in rows.zip(tile.rows.clone().zip(starts.windows(2))) {
            // Bits behind the last column count, too: no column would have their values. Compared
            // row by row, for values that one row has too many would be taken for those of the
            // next.
            let set: u32 = bits.iter().map(|byte| byte.count_ones()).sum();
            let is_padded = self.cols.is_multiple_of(8)
                || bits.last().is_none_or(|byte| byte >> (self.cols % 8) == 0);
            if !is_padded || starts[1] - starts[0] != set as usize {
                return Err(self.contradiction(row));
            }
            let is_set = |(c, _): &(usize, &mut [u8])| bits[c / 8] >> (c % 8) & 1 == 1;
            let places = out.chunks_exact_mut(size).enumerate().filter(is_set);
            for ((_, place), value) in places.zip(&mut values) {
                place.copy_from_slice(value);
            }
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        // A row cannot be cut: where a value lies depends on all bits before it.
        (1, self.cols.max(1))
    }
}

/// Decoder of sparse F32, F16 or BF16. They are not quantized, so every output keeps their dtype.
struct SparseFloats<'m> {
    dtype: Dtype,
    rows: usize,
    scattered: BitmaskValues<'m>,
}

impl Decode for SparseFloats<'_> {
    fn grid(&self) -> Grid {
        // A value and its copy in the staging buffer.
        let (cols, load_bits) = (self.scattered.cols, self.scattered.size as f64 * 16.0);
        Grid {
            rows: self.rows,
            cols,
            row_align: 1,
            col_align: cols.max(1),
            load_bits,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        self.scattered
            .unpack(tile, &mut buffers.staging, buffers.bytes.buffer())
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let width = self.scattered.cols * self.scattered.size;
        let bytes = &buffers.bytes
            [(rows.start - tile.rows.start) * width..(rows.end - tile.rows.start) * width];
        dispatch(level, &Widen { dtype: self.dtype, bytes }, out);
    }
}
