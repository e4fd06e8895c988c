//! A decoder's values in F32, for whoever computes with them or moves them before they are written.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::TargetDtype;
use crate::element::Out;
use crate::remember::kernels::widen::Widen;
use crate::remember::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::{Level, dispatch};

/// How the values of one decoder become F32.
#[derive(Clone, Copy)]
pub(crate) struct Widening {
    /// The values are rounded to this dtype first, as they would be if the decoded tensor were
    /// stored.
    pub dtype: TargetDtype,
    pub level: Level,
}

impl Widening {
    /// Decodes rows `rows` of `tile`, which is loaded into `buffers`, to `out`. `rounded` is
    /// scratch.
    pub(crate) fn decode(
        self,
        decoder: &dyn Decode,
        (tile, rows): (&Tile, Range<usize>),
        buffers: &Buffers,
        rounded: &mut Vec<u32>,
        out: &mut [f32],
    ) {
        let stored = decoder.stored_dtype();
        self.fill(stored, rounded, out, |out| {
            decoder.decode(tile, rows, buffers, self.level, out);
        });
    }

    /// Widens `bytes`, which are values of `stored`, to `out`. `rounded` is scratch.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub(crate) fn widen(
        self,
        stored: TargetDtype,
        bytes: &[u8],
        rounded: &mut Vec<u32>,
        out: &mut [f32],
    ) {
        let widen = Widen { dtype: stored.dtype(), bytes };
        self.fill(Some(stored), rounded, out, |out| {
            dispatch(self.level, &widen, out);
        });
    }

    /// Fills `out` with what `decode` gives, by way of the dtype to which values are rounded,
    /// unless they are stored in it.
    fn fill(
        self,
        stored: Option<TargetDtype>,
        rounded: &mut Vec<u32>,
        out: &mut [f32],
        decode: impl FnOnce(Out<'_>),
    ) {
        let Self { dtype, level } = self;
        if dtype == TargetDtype::F32 || stored.is_some_and(|stored| is_kept(stored, dtype)) {
            return decode(Out::F32(out));
        }
        // The other two dtypes have two bytes. Widening them to F32 again is exact.
        rounded.resize(out.len().div_ceil(2), 0);
        decode(Out::new(dtype, rounded).first(out.len()));
        let bytes = &rounded.as_bytes()[..out.len() * 2];
        let dtype = dtype.dtype();
        dispatch(level, &Widen { dtype, bytes }, Out::F32(out));
    }
}

/// Whether values that are stored in `stored` are rounded no more when they become values of
/// `dtype`.
pub(crate) fn is_kept(stored: TargetDtype, dtype: TargetDtype) -> bool {
    dtype == TargetDtype::F32 || stored == dtype
}

/// `range` extended to multiples of `align`, but not beyond `end`.
pub(crate) fn aligned(range: Range<usize>, align: usize, end: usize) -> Range<usize> {
    range.start / align * align..range.end.next_multiple_of(align).min(end)
}

/// The smallest tile of `grid` that has elements `range` of the tensor, and the index in it of the
/// first of them.
pub(crate) fn covering(grid: &Grid, range: &Range<usize>) -> (Tile, usize) {
    // A single row can be as long as the tensor, so that only a part of it is decoded.
    if grid.rows == 1 {
        let cols = aligned(range.clone(), grid.col_align, grid.cols);
        let before = range.start - cols.start;
        return (Tile { rows: 0..1, cols }, before);
    }
    let rows = range.start / grid.cols..range.end.div_ceil(grid.cols);
    let rows = aligned(rows, grid.row_align, grid.rows);
    let before = range.start - rows.start * grid.cols;
    let cols = 0..grid.cols;
    (Tile { rows, cols }, before)
}
