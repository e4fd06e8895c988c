//! A quantized weight and a product of low rank in one pass: the bits of [`Corrected`](super::Corrected), without sums in memory.
//!
//! Columns are taken in panels, whose sums stay in registers while their terms are added, in F64. Sums in F32 with a bound of their
//! error are no faster: where the bound does not decide the 16 bits of a value, its row is summed in F64 after all.

use super::ColumnStep;
use crate::element::Element;
use crate::kernels::remember::matrix_product::{MulAdd, ROWS, Rounded, pack_rows};
use crate::simd::Kernel;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// Columns of a panel: two vectors of sums of AVX-512.
pub(crate) const PANEL: usize = 16;

/// Columns of two vectors of sums of AVX2.
const HALF: usize = PANEL / 2;

/// Most terms of a sum: those of a panel in F64 stay in the second-level cache.
pub(crate) const MAX_RANK: usize = 1024;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Rows of values, each with a sum.
pub(crate) struct LowRankRows<'a> {
    /// Values of the quantized part, row by row.
    pub values: &'a [f32],
    pub width: usize,
    /// The left factor: `rank` numbers for each row.
    pub left: &'a [f32],
    /// At least 1, and at most [`MAX_RANK`].
    pub rank: usize,
    /// The right factor in the order of [`pack_panels`], from the panel of the first column on; it may have more columns.
    pub right: &'a [f32],
    /// A number for each column; or none.
    pub columns: &'a [f32],
    pub step: ColumnStep,
}

/// Appends columns of a right factor, `rank` rows of `width` numbers: the rows of each [`PANEL`] columns, with zeros behind the last.
pub(crate) fn pack_panels(rows: &[f32], width: usize, out: &mut Vec<f32>) {
    for first in (0..width).step_by(PANEL) {
        for row in rows.chunks_exact(width) {
            out.extend(load::<false>(&row[first..]));
        }
    }
}

impl Kernel for LowRankRows<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.rows::<E, HALF>(Rounded, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.rows::<E, HALF>(avx2, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512<E: Element>(&self, out: &mut [E], avx512: Avx512) {
        self.rows::<E, PANEL>(avx512, out);
    }
}

impl LowRankRows<'_> {
    /// All rows, of which the sums of `COLS` columns are computed at once.
    #[inline(always)]
    fn rows<E: Element, const COLS: usize>(&self, unit: impl MulAdd, out: &mut [E]) {
        let (rank, width) = (self.rank, self.width);
        let mut left = Vec::new();
        pack_rows(self.left, 1.0, rank, &mut left);
        let mut numbers = Vec::new();
        let numbers = lines(&mut numbers, rank * PANEL);
        let panels = self.right.chunks_exact(rank * PANEL);
        for (first, panel) in (0..width).step_by(PANEL).zip(panels) {
            // One loop, and not one for each row: LLVM would widen the columns of several rows by gathering them.
            for (number, &a) in numbers.iter_mut().zip(panel) {
                *number = f64::from(a);
            }
            let panel = (numbers.as_chunks().0, first);
            match width - first {
                PANEL.. => self.panel::<E, COLS, true>(unit, &left, panel, out),
                _ => self.panel::<E, COLS, false>(unit, &left, panel, out),
            }
        }
    }

    /// The columns of a panel, from `first` on, in all rows.
    #[inline(always)]
    fn panel<E: Element, const COLS: usize, const IS_WHOLE: bool>(
        &self,
        unit: impl MulAdd,
        left: &[[f64; ROWS]],
        (panel, first): (&[[f64; PANEL]], usize),
        out: &mut [E],
    ) {
        let (columns, n) = (self.columns(first), PANEL.min(self.width - first));
        let quads = left.chunks_exact(self.rank);
        for (row, left) in (0..).step_by(ROWS).zip(quads) {
            let mut sums = [[0.0; PANEL]; ROWS];
            for from in (0..PANEL).step_by(COLS) {
                let exact = tile::<COLS>(unit, left, panel, from);
                for (sums, exact) in sums.iter_mut().zip(&exact) {
                    for (sum, &exact) in sums[from..].iter_mut().zip(exact) {
                        *sum = exact as f32;
                    }
                }
            }
            let places = (row * self.width + first..).step_by(self.width);
            for (sums, at) in sums.iter().zip(places) {
                let Some(values) = self.values.get(at..at + n) else {
                    break;
                };
                let row = self.finished(sums, &load::<IS_WHOLE>(values), &columns);
                store::<E, IS_WHOLE>(&row, &mut out[at..][..n]);
            }
        }
    }

    /// A row of a tile, of its sums, values of the quantized part and numbers of columns.
    #[inline(always)]
    fn finished<E: Element>(
        &self,
        sums: &[f32; PANEL],
        values: &[f32; PANEL],
        columns: &[f32; PANEL],
    ) -> [E; PANEL] {
        let mut row = [E::from_f32(0.0); PANEL];
        match self.step {
            ColumnStep::DivideValue => {
                for (i, out) in row.iter_mut().enumerate() {
                    *out = E::from_f32(values[i] / columns[i] + sums[i]);
                }
            }
            ColumnStep::ScaleSum => {
                for (i, out) in row.iter_mut().enumerate() {
                    *out = E::from_f32((values[i] + sums[i]) * columns[i]);
                }
            }
        }
        row
    }

    /// The numbers of the columns of a panel; 1, which changes nothing, where there are none.
    #[inline(always)]
    fn columns(&self, first: usize) -> [f32; PANEL] {
        let mut columns = [1.0; PANEL];
        let stored = self.columns.get(first..).unwrap_or_default();
        for (column, &number) in columns.iter_mut().zip(stored) {
            *column = number;
        }
        columns
    }
}

/// `len` zeros that begin with a line of the cache: a vector that lies in two lines is loaded in twice the time.
#[inline(always)]
fn lines(buffer: &mut Vec<f64>, len: usize) -> &mut [f64] {
    buffer.resize(len + LINE / size_of::<f64>(), 0.0);
    // An interpreter may not tell where a buffer begins.
    let first = buffer.as_ptr().align_offset(LINE).min(buffer.len() - len);
    &mut buffer[first..][..len]
}

/// The sums of a tile, of `COLS` columns of a panel from `first` on.
#[inline(always)]
fn tile<const COLS: usize>(
    unit: impl MulAdd,
    left: &[[f64; ROWS]],
    panel: &[[f64; PANEL]],
    first: usize,
) -> [[f64; COLS]; ROWS] {
    let mut sums = [[0.0; COLS]; ROWS];
    for (left, panel) in left.iter().zip(panel) {
        for (sums, &b) in sums.iter_mut().zip(left) {
            for (sum, &a) in sums.iter_mut().zip(&panel[first..][..COLS]) {
                *sum = unit.mul_add(b, a, *sum);
            }
        }
    }
    sums
}

/// Writes the first values of a tile's row. That all are wanted is a constant, or a call would copy them.
#[inline(always)]
fn store<E: Copy, const IS_WHOLE: bool>(row: &[E; PANEL], out: &mut [E]) {
    if !IS_WHOLE {
        for (out, &value) in out.iter_mut().zip(row) {
            *out = value;
        }
    } else if let Some(out) = out.first_chunk_mut() {
        *out = *row;
    }
}

/// The first numbers of a tile's row; zeros behind them.
#[inline(always)]
fn load<const IS_WHOLE: bool>(numbers: &[f32]) -> [f32; PANEL] {
    let mut row = [0.0; PANEL];
    if !IS_WHOLE {
        for (number, &stored) in row.iter_mut().zip(numbers) {
            *number = stored;
        }
    } else if let Some(numbers) = numbers.first_chunk() {
        row = *numbers;
    }
    row
}
