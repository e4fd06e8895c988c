//! A weight and a product of low rank in one pass, without sums in memory: the bits of
//! [`Corrected`](super::Corrected), or of [`AddedSums`](super::AddedSums).
//!
//! Columns are taken in panels, whose sums stay in registers while their terms are added, in F64.
//! Sums in F32 with a bound of their error are no faster: where the bound does not decide the 16
//! bits of a value, its row is summed in F64 after all.

#[cfg(doc)]
use super::ColumnStep;
use crate::element::Element;
pub(crate) use crate::remember::kernels::matrix_product::PANEL;
#[cfg(target_arch = "x86_64")]
use crate::remember::kernels::matrix_product::WIDE_COLS;
use crate::remember::kernels::matrix_product::{
    COLS, MulAdd, ROWS, Rounded, pack_rows, panel_tile,
};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Kernel, zip};

/// Rows whose sums are computed at once.
pub(crate) const TILE_ROWS: usize = ROWS;

/// Most terms of a sum: those of a panel in F64 stay in the second-level cache.
pub(crate) const MAX_RANK: usize = 1024;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Rows of values, each with a sum.
pub(crate) struct LowRankRows<'a, A: Addition> {
    /// Values without their sums, row by row.
    pub values: &'a [f32],
    pub width: usize,
    /// The left factor: `rank` numbers for each row.
    pub left: &'a [A::Left],
    /// At least 1, and at most [`MAX_RANK`].
    pub rank: usize,
    /// The right factor in the order of [`pack_panels`], from the panel of the first column on; it
    /// may have more columns.
    pub right: &'a [f32],
    /// A number for each column; or none.
    pub columns: &'a [f32],
    pub addition: A,
}

/// How a value and its sum become one.
pub(crate) trait Addition: Copy {
    /// Numbers of the left factor.
    type Left: Copy + Into<f64>;

    /// Whether F64 holds the products of the left factor's numbers and those of F32: then it makes
    /// no difference whether a product is rounded before it is added.
    fn is_exact(self) -> bool;

    fn add(self, value: f32, sum: f64, column: f32) -> f32;
}

/// [`ColumnStep::ScaleSum`]. The sum is rounded to F32 before it is added.
#[derive(Clone, Copy)]
pub(crate) struct ScaleSum;

/// [`ColumnStep::DivideValue`]. The sum is rounded to F32 before it is added.
#[derive(Clone, Copy)]
pub(crate) struct DivideValue;

/// The sum is added in F64, of numbers that F32 may not hold, such as those of a scaled factor.
/// Columns have no numbers.
#[derive(Clone, Copy)]
pub(crate) struct InDouble {
    /// As [`have_exact_products`] says of the left factor.
    pub is_exact: bool,
}

impl Addition for ScaleSum {
    type Left = f32;

    #[inline(always)]
    fn is_exact(self) -> bool {
        true
    }

    #[inline(always)]
    fn add(self, value: f32, sum: f64, column: f32) -> f32 {
        (value + sum as f32) * column
    }
}

impl Addition for DivideValue {
    type Left = f32;

    #[inline(always)]
    fn is_exact(self) -> bool {
        true
    }

    #[inline(always)]
    fn add(self, value: f32, sum: f64, column: f32) -> f32 {
        value / column + sum as f32
    }
}

impl Addition for InDouble {
    type Left = f64;

    #[inline(always)]
    fn is_exact(self) -> bool {
        self.is_exact
    }

    #[inline(always)]
    fn add(self, value: f32, sum: f64, _column: f32) -> f32 {
        (sum + f64::from(value)) as f32
    }
}

/// Whether F64 holds the product of `x` and any number of F32, of 24 bits: `x` has 29, and no
/// product is subnormal or infinite.
fn has_exact_products(x: f64) -> bool {
    x == 0.0 || x.to_bits().trailing_zeros() >= 24 && (1e-250..1e250).contains(&x.abs())
}

/// Whether F64 holds the products of all of `numbers` with any number of F32.
pub(crate) fn have_exact_products(numbers: &[f64]) -> bool {
    numbers.iter().all(|&x| has_exact_products(x))
}

/// Appends columns of a right factor, `rank` rows of `width` numbers: the rows of each [`PANEL`]
/// columns, with zeros behind the last.
pub(crate) fn pack_panels(rows: &[f32], width: usize, out: &mut Vec<f32>) {
    for first in (0..width).step_by(PANEL) {
        for row in rows.chunks_exact(width) {
            out.extend(load::<PANEL, false>(&row[first..]));
        }
    }
}

impl<A: Addition> Kernel for LowRankRows<'_, A> {
    const HAS_AVX512: bool = true;

    /// Of rounded products LLVM may make loops that collect the numbers of AVX-512's registers one
    /// by one, so the body for AVX-512 has exact ones alone.
    fn gains_from_avx512(&self) -> bool {
        self.addition.is_exact()
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.rows::<E, COLS>(Rounded, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        match self.addition.is_exact() {
            true => self.rows::<E, COLS>(avx2, out),
            false => self.rows::<E, COLS>(Rounded, out),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512<E: Element>(&self, out: &mut [E], avx512: Avx512) {
        self.rows::<E, WIDE_COLS>(avx512, out);
    }
}

impl<'a, A: Addition> LowRankRows<'a, A> {
    /// The same rows with another addition.
    pub(crate) fn with<B: Addition<Left = A::Left>>(&self, addition: B) -> LowRankRows<'a, B> {
        LowRankRows {
            values: self.values,
            width: self.width,
            left: self.left,
            rank: self.rank,
            right: self.right,
            columns: self.columns,
            addition,
        }
    }
}

impl<A: Addition> LowRankRows<'_, A> {
    /// All rows, of which the sums of `COLS` columns are computed at once.
    #[inline(always)]
    fn rows<E: Element, const COLS: usize>(&self, unit: impl MulAdd, out: &mut [E]) {
        let (rank, width) = (self.rank, self.width);
        let mut left = Vec::new();
        pack_rows(self.left, 1.0, rank, &mut left);
        let mut numbers = Vec::new();
        let numbers = lines(&mut numbers, rank * PANEL);
        let panels = self.right.chunks_exact(rank * PANEL);
        for (first, panel) in zip((0..width).step_by(PANEL), panels) {
            // One loop, and not one for each row: LLVM would widen the columns of several rows by
            // gathering them.
            for (number, &a) in zip(&mut numbers[..], panel) {
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
        for (quad, left) in left.chunks_exact(self.rank).enumerate() {
            for from in (0..n).step_by(COLS) {
                let sums = panel_tile::<COLS>(unit, left, panel, from);
                let columns = &columns[from..][..COLS];
                let n = COLS.min(n - from);
                for (r, sums) in sums.iter().enumerate() {
                    let at = (quad * ROWS + r) * self.width + first + from;
                    let Some(values) = self.values.get(at..at + n) else {
                        break;
                    };
                    let values = load::<COLS, IS_WHOLE>(values);
                    let mut row = [E::from_f32(0.0); COLS];
                    for (i, out) in row.iter_mut().enumerate() {
                        *out = E::from_f32(self.addition.add(values[i], sums[i], columns[i]));
                    }
                    store::<E, COLS, IS_WHOLE>(&row, &mut out[at..][..n]);
                }
            }
        }
    }

    /// The numbers of the columns of a panel; 1, which changes nothing, where there are none.
    #[inline(always)]
    fn columns(&self, first: usize) -> [f32; PANEL] {
        let mut columns = [1.0; PANEL];
        let stored = self.columns.get(first..).unwrap_or_default();
        for (column, &number) in zip(&mut columns[..], stored) {
            *column = number;
        }
        columns
    }
}

/// `len` zeros that begin with a line of the cache: a vector that lies in two lines is loaded in
/// twice the time.
#[inline(always)]
fn lines(buffer: &mut Vec<f64>, len: usize) -> &mut [f64] {
    buffer.resize(len + LINE / size_of::<f64>(), 0.0);
    // An interpreter may not tell where a buffer begins.
    let first = buffer.as_ptr().align_offset(LINE).min(buffer.len() - len);
    &mut buffer[first..][..len]
}

/// Writes the first values of a tile's row. That all are wanted is a constant, or a call would copy
/// them.
#[inline(always)]
fn store<E: Copy, const COLS: usize, const IS_WHOLE: bool>(row: &[E; COLS], out: &mut [E]) {
    if !IS_WHOLE {
        for (out, &value) in zip(&mut out[..], row) {
            *out = value;
        }
    } else if let Some(out) = out.first_chunk_mut() {
        *out = *row;
    }
}

/// The first numbers of a tile's row; zeros behind them.
#[inline(always)]
fn load<const COLS: usize, const IS_WHOLE: bool>(numbers: &[f32]) -> [f32; COLS] {
    let mut row = [0.0; COLS];
    if !IS_WHOLE {
        for (number, &stored) in zip(&mut row[..], numbers) {
            *number = stored;
        }
    } else if let Some(numbers) = numbers.first_chunk() {
        row = *numbers;
    }
    row
}
