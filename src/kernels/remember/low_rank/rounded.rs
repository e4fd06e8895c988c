//! A quantized weight and a product of low rank in one pass, for types of 16 bits. The bits are those of sums in F64 that are
//! rounded to F32, as [`Corrected`](super::Corrected) has them.
//!
//! Sums in F32 take half of the time. They are off, by a bounded error: a sum of n products in which each term is rounded at most
//! m times is within `m u / (1 - m u)` times `Σ |b a|` of the exact one, with u = 2^-24, whether or not products are rounded
//! before they are added (N. Higham, Accuracy and Stability of Numerical Algorithms, 3.1). `Σ |b a|` is at most the length of the
//! row of `b` times that of the column of `a` (Cauchy and Schwarz). The sum in F64, rounded to F32, is as near but for one more
//! rounding. So that number lies between two others of F32, one at each end of the interval.
//!
//! All that follows never turns an order around, or always does: adding a value, multiplying by a column's number, each with its
//! rounding, and rounding to 16 bits. If both ends become the same value of 16 bits, then so does the number between. Otherwise
//! the row of the tile is summed again in F64, and so is a row whose ends are NaN, or zeros of different signs.

use half::f16;

use super::ColumnStep;
use crate::element::Element;
use crate::kernels::remember::matrix_product::{MulAdd, Rounded, add_tile};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::Kernel;

/// Rows of sums that are computed at once: with two vectors of columns they fill half of the registers of AVX2.
const ROWS: usize = 4;

/// Columns of a panel.
pub(crate) const PANEL: usize = 16;

/// Terms that are summed up before they are added to the sum of those before: it keeps the bound small.
const TERMS: usize = 16;

/// Most terms of a sum.
pub(crate) const MAX_RANK: usize = 1024;

/// A bound of all that is lost below the normal numbers of F32: each rounding loses at most 2^-150.
const UNDERFLOW: f32 = f32::MIN_POSITIVE;

/// What a length that is not zero is taken to be longer: 2^-100. So its products with the unit of errors are normal numbers.
const LEAST_LENGTH: f32 = f32::from_bits((127 - 100) << 23);

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

/// Appends columns of a right factor, `rank` rows of `width` numbers: for each [`PANEL`] columns, or fewer at the end, the rows, and
/// below them the lengths of the columns, rounded up.
pub(crate) fn pack_panels(rows: &[f32], width: usize, out: &mut Vec<f32>) {
    for first in (0..width).step_by(PANEL) {
        let mut squares = [0.0; PANEL];
        for row in rows.chunks_exact(width) {
            let mut panel = [0.0; PANEL];
            for (panel, &number) in panel.iter_mut().zip(&row[first..]) {
                *panel = number;
            }
            for (sum, number) in squares.iter_mut().zip(panel) {
                *sum += f64::from(number) * f64::from(number);
            }
            out.extend(panel);
        }
        out.extend(squares.map(length));
    }
}

/// An upper bound of the square root of a sum of squares in F64, which neither overflows nor underflows; 0 of 0.
#[inline(always)]
fn length(squares: f64) -> f32 {
    let length = squares.sqrt() * (1.0 + 1e-6);
    length as f32 + if length > 0.0 { LEAST_LENGTH } else { 0.0 }
}

impl Kernel for LowRankRows<'_> {
    /// Both ends of an interval are rounded.
    fn is_rounded_last(&self) -> bool {
        false
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.each_step(Rounded, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.each_step(avx2, out);
    }
}

/// What is known of a row of sums.
#[derive(Clone, Copy, Default)]
struct Bound {
    /// Times the length of a column it is the largest error; NaN if sums may overflow.
    factor: f32,
    /// What underflow adds.
    least: f32,
}

impl LowRankRows<'_> {
    #[inline(always)]
    fn each_step<E: Element>(&self, unit: impl MulAdd, out: &mut [E]) {
        let is_single = E::MANTISSA == f32::MANTISSA;
        match (is_single, self.step) {
            (true, ColumnStep::DivideValue) => self.exact_rows::<E, true>(unit, out),
            (true, ColumnStep::ScaleSum) => self.exact_rows::<E, false>(unit, out),
            (false, ColumnStep::DivideValue) => self.rows::<E, true>(unit, out),
            (false, ColumnStep::ScaleSum) => self.rows::<E, false>(unit, out),
        }
    }

    /// Panels with their first columns.
    #[inline(always)]
    fn panels(&self) -> impl Iterator<Item = (usize, &[[f32; PANEL]])> {
        let panels = self.right.as_chunks::<PANEL>().0;
        (0..self.width)
            .step_by(PANEL)
            .zip(panels.chunks_exact(self.rank + 1))
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

    /// The bounds of all rows.
    #[inline(always)]
    fn bounds(&self) -> Vec<Bound> {
        let mut lengths = [0f32; PANEL];
        for (_, panel) in self.panels() {
            for (most, &length) in lengths.iter_mut().zip(&panel[self.rank]) {
                // The sums of a column whose length is NaN are not trusted for that alone.
                *most = if length > *most { length } else { *most };
            }
        }
        let largest = lengths.into_iter().fold(0.0, f32::max);
        // Roundings of a term in its sum and in the sum of sums; of the sum in F64, of an end, and two more.
        let roundings = self.rank.min(TERMS) + self.rank.div_ceil(TERMS) + 4;
        let unit = roundings as f32 * (f32::EPSILON / 2.0) * (1.0 + 1e-3);
        let rows = self.left.chunks_exact(self.rank);
        let bounds = rows.map(|row| {
            let squares = row.iter().map(|&b| f64::from(b) * f64::from(b));
            let own = length(squares.sum());
            let is_bounded = own * largest < f32::MAX / 4.0;
            Bound {
                factor: if is_bounded { own * unit } else { f32::NAN },
                // Sums of zeros are exact.
                least: if own > 0.0 { UNDERFLOW } else { 0.0 },
            }
        });
        bounds.collect()
    }

    #[inline(always)]
    fn rows<E: Element, const DIVIDES: bool>(&self, unit: impl MulAdd, out: &mut [E]) {
        let (rank, width) = (self.rank, self.width);
        let (left, bounds) = (quads::<f32>(self.left, rank), self.bounds());
        for (first, panel) in self.panels() {
            let (panel, lengths) = (&panel[..rank], &panel[rank]);
            let (columns, n) = (self.columns(first), PANEL.min(width - first));
            let quads = left.chunks_exact(rank).zip(bounds.chunks(ROWS));
            for (q, (left, bounds)) in quads.enumerate() {
                let sums = tile(unit, left, panel);
                let places = (q * ROWS * width + first..).step_by(width);
                let mut unsure = 0u32;
                let rows = sums.iter().zip(bounds).zip(places.clone());
                for (r, ((sums, bound), at)) in rows.enumerate() {
                    let row = Row {
                        sums,
                        values: &load(&self.values[at..][..n]),
                        columns: &columns,
                    };
                    let (row, is_unsure) = row.ends::<E, DIVIDES>(&bound.errors(lengths));
                    store(&row, &mut out[at..][..n]);
                    unsure |= u32::from(is_unsure) << r;
                }
                while unsure != 0 {
                    let r = unsure.trailing_zeros() as usize;
                    let at = (q * ROWS + r) * width + first;
                    let row = Row {
                        sums: &exact_sums(unit, left, r, panel),
                        values: &load(&self.values[at..][..n]),
                        columns: &columns,
                    };
                    store(&row.rounded::<E, DIVIDES>(), &mut out[at..][..n]);
                    unsure &= unsure - 1;
                }
            }
        }
    }

    /// Rows whose type has all bits of the sums.
    #[inline(always)]
    fn exact_rows<E: Element, const DIVIDES: bool>(&self, unit: impl MulAdd, out: &mut [E]) {
        let (rank, width) = (self.rank, self.width);
        let left = quads::<f64>(self.left, rank);
        let mut halves = vec![[0.0; PANEL / 2]; 2 * rank];
        for (first, panel) in self.panels() {
            let (columns, n) = (self.columns(first), PANEL.min(width - first));
            let (low, high) = halves.split_at_mut(rank);
            for ((low, high), panel) in low.iter_mut().zip(&mut *high).zip(panel) {
                for i in 0..PANEL / 2 {
                    low[i] = f64::from(panel[i]);
                    high[i] = f64::from(panel[PANEL / 2 + i]);
                }
            }
            for (q, left) in left.chunks_exact(rank).enumerate() {
                let mut tile = [[0.0; PANEL]; ROWS];
                for (h, half) in halves.chunks_exact(rank).enumerate() {
                    let sums = add_tile(unit, left, half, Default::default());
                    for (tile, sums) in tile.iter_mut().zip(&sums) {
                        for (out, &sum) in tile[h * PANEL / 2..].iter_mut().zip(sums) {
                            *out = sum as f32;
                        }
                    }
                }
                let places = (q * ROWS * width + first..).step_by(width);
                for (sums, at) in tile.iter().zip(places) {
                    let Some(values) = self.values.get(at..at + n) else {
                        break;
                    };
                    let row = Row {
                        sums,
                        values: &load(values),
                        columns: &columns,
                    };
                    store(&row.rounded::<E, DIVIDES>(), &mut out[at..][..n]);
                }
            }
        }
    }
}

impl Bound {
    /// The largest errors of sums of columns of these lengths.
    #[inline(always)]
    fn errors(self, lengths: &[f32; PANEL]) -> [f32; PANEL] {
        let mut errors = [0.0; PANEL];
        for (error, length) in errors.iter_mut().zip(lengths) {
            *error = self.factor * length + self.least;
        }
        errors
    }
}

/// Rows of `depth` numbers, so that those of [`ROWS`] rows lie together.
#[inline(always)]
fn quads<T: Copy + Default + From<f32>>(rows: &[f32], depth: usize) -> Vec<[T; ROWS]> {
    let mut out = vec![[T::default(); ROWS]; rows.len().div_ceil(ROWS * depth) * depth];
    for (out, rows) in out.chunks_exact_mut(depth).zip(rows.chunks(ROWS * depth)) {
        for (r, row) in rows.chunks_exact(depth).enumerate() {
            for (out, &x) in out.iter_mut().zip(row) {
                out[r] = x.into();
            }
        }
    }
    out
}

/// The sums of a tile in F32.
#[inline(always)]
fn tile(unit: impl MulAdd, left: &[[f32; ROWS]], panel: &[[f32; PANEL]]) -> [[f32; PANEL]; ROWS] {
    let mut all = [[0.0; PANEL]; ROWS];
    for (left, panel) in left.chunks(TERMS).zip(panel.chunks(TERMS)) {
        let mut sums = [[0.0; PANEL]; ROWS];
        for (left, panel) in left.iter().zip(panel) {
            for (sums, &b) in sums.iter_mut().zip(left) {
                for (sum, &a) in sums.iter_mut().zip(panel) {
                    *sum = unit.mul_add_single(b, a, *sum);
                }
            }
        }
        for (all, sums) in all.iter_mut().zip(&sums) {
            for (all, sum) in all.iter_mut().zip(sums) {
                *all += sum;
            }
        }
    }
    all
}

/// The sums of row `r` of a tile in F64, rounded.
#[inline(always)]
fn exact_sums(
    unit: impl MulAdd,
    left: &[[f32; ROWS]],
    r: usize,
    panel: &[[f32; PANEL]],
) -> [f32; PANEL] {
    let mut sums = [0.0; PANEL];
    for (left, panel) in left.iter().zip(panel) {
        let b = f64::from(left[r]);
        for (sum, &a) in sums.iter_mut().zip(panel) {
            *sum = unit.mul_add(b, f64::from(a), *sum);
        }
    }
    let mut rounded = [0.0; PANEL];
    for (rounded, sum) in rounded.iter_mut().zip(sums) {
        *rounded = sum as f32;
    }
    rounded
}

/// A row of a tile: sums, values of the quantized part and numbers of columns.
#[derive(Clone, Copy)]
struct Row<'a> {
    sums: &'a [f32; PANEL],
    values: &'a [f32; PANEL],
    columns: &'a [f32; PANEL],
}

impl Row<'_> {
    /// Value `i` if its sum is `sum`.
    #[inline(always)]
    fn value<const DIVIDES: bool>(&self, i: usize, sum: f32) -> f32 {
        match DIVIDES {
            true => self.values[i] / self.columns[i] + sum,
            false => (self.values[i] + sum) * self.columns[i],
        }
    }

    /// The values.
    #[inline(always)]
    fn rounded<E: Element, const DIVIDES: bool>(&self) -> [E; PANEL] {
        let mut row = [E::truncated(0.0); PANEL];
        for (i, out) in row.iter_mut().enumerate() {
            *out = E::from_f32(self.value::<DIVIDES>(i, self.sums[i]));
        }
        row
    }

    /// The values, and whether they may be others for sums that are within `errors`.
    #[inline(always)]
    fn ends<E: Element, const DIVIDES: bool>(&self, errors: &[f32; PANEL]) -> ([E; PANEL], bool) {
        let places = f32::MANTISSA - E::MANTISSA;
        let half = (1 << places) >> 1;
        let (mut row, mut unsure) = ([E::truncated(0.0); PANEL], 0);
        for (i, out) in row.iter_mut().enumerate() {
            let (sum, error) = (self.sums[i], errors[i]);
            let low = self.value::<DIVIDES>(i, sum - error);
            let high = self.value::<DIVIDES>(i, sum + error);
            // A tie may become either of two values. So each end is taken up once and down once.
            let (low_up, high_up) = (
                low.to_bits().wrapping_add(half),
                high.to_bits().wrapping_add(half),
            );
            unsure |=
                (low_up ^ high_up.wrapping_sub(1) | low_up.wrapping_sub(1) ^ high_up) >> places;
            // Of a half only the normal values are rounded by their bits.
            let exponent = (low_up >> 23 & 0xff).wrapping_sub(127 - 14);
            let is_wild = E::MANTISSA == f16::MANTISSA && exponent >= 29;
            unsure |= u32::from(high.is_nan() | is_wild);
            *out = E::truncated(f32::from_bits(low_up));
        }
        (row, unsure != 0)
    }
}

/// Writes the first values of a tile's row.
#[inline(always)]
fn store<E: Copy>(row: &[E; PANEL], out: &mut [E]) {
    match out.first_chunk_mut() {
        Some(whole) => *whole = *row,
        None => {
            for (out, &value) in out.iter_mut().zip(row) {
                *out = value;
            }
        }
    }
}

/// The first numbers of a tile's row; zeros behind them.
#[inline(always)]
fn load(numbers: &[f32]) -> [f32; PANEL] {
    match numbers.first_chunk() {
        Some(whole) => *whole,
        None => {
            let mut some = [0.0; PANEL];
            for (some, &number) in some.iter_mut().zip(numbers) {
                *some = number;
            }
            some
        }
    }
}
