//! A decoder of unquantized floats, for encoders and casts, which take values rather than bytes.

use std::ops::Range;

use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::kernels::widen::Widen;
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result, TargetDtype};

/// Decoder of an unquantized tensor of F32, F16 or BF16, or for casts of F64.
pub(crate) struct PlainFloats<'m> {
    part: Part<'m>,
    dtype: Dtype,
    rows: usize,
    cols: usize,
}

/// Whether values of `dtype` are floats that need no scale, wide enough for weights to be stored in
/// it.
pub(crate) fn is_plain_float(dtype: Dtype) -> bool {
    dtype == Dtype::F64 || TargetDtype::of(dtype).is_some()
}

impl<'m> PlainFloats<'m> {
    /// The decoder of `t`; `None` if `t` has another dtype.
    pub(crate) fn of(t: &Tensor<'m>) -> Option<Self> {
        TargetDtype::of(t.dtype())?;
        Self::for_cast(t)
    }

    /// The decoder of `t`, which may be F64 as well: what it loads are the stored bytes, row by
    /// row. `None` if `t` has another dtype.
    pub(crate) fn for_cast(t: &Tensor<'m>) -> Option<Self> {
        if !is_plain_float(t.dtype()) {
            return None;
        }
        // A scalar is a matrix of one value: its shape is empty, and an empty product is 1.
        let (&cols, outer) = t.shape().split_last().unwrap_or((&1, &[]));
        Some(Self { part: t.part(), dtype: t.dtype(), rows: outer.iter().product(), cols })
    }

    /// The decoder of the first `n` values of the vector `t`; `None` if `t` has another dtype, or
    /// fewer values.
    pub(crate) fn first_of(t: &Tensor<'m>, n: usize) -> Option<Self> {
        let whole = Self::of(t)?;
        (whole.rows == 1 && n <= whole.cols).then_some(Self { cols: n, ..whole })
    }

    /// The decoder of `t` of bytes, which are a tensor of `dtype` and of `shape`; `None` if `dtype`
    /// is no float. Its caller checks that there are as many bytes.
    pub(crate) fn in_bytes(t: &Tensor<'m>, dtype: Dtype, shape: &[usize]) -> Option<Self> {
        TargetDtype::of(dtype)?;
        let (rows, cols) = rows_and_cols(shape);
        Some(Self { part: t.part(), dtype, rows, cols })
    }

    /// Bytes of a value.
    fn size(&self) -> usize {
        self.dtype.bits() / 8
    }
}

impl Decode for PlainFloats<'_> {
    fn grid(&self) -> Grid {
        let load_bits = self.dtype.bits() as f64;
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: 1,
            col_align: 1,
            load_bits,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let cols = tile.cols.start * self.size()..tile.cols.end * self.size();
        let stride = self.cols * self.size();
        buffers
            .bytes
            .load(&self.part, stride, tile.rows.clone(), cols)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let width = tile.cols.len() * self.size();
        let first = (rows.start - tile.rows.start) * width;
        let bytes = &buffers.bytes[first..first + rows.len() * width];
        dispatch(level, &Widen { dtype: self.dtype, bytes }, out);
    }

    fn stored_dtype(&self) -> Option<TargetDtype> {
        TargetDtype::of(self.dtype)
    }

    fn stored_bytes<'b>(&self, tile: &Tile, buffers: &'b Buffers) -> Option<&'b [u8]> {
        buffers.bytes.get(..tile.values() * self.size())
    }
}
