//! A weight that is a quantized part and a product of two narrow matrices: `T((v + f32(Σ b·a)) *
//! c)` or `T(v / c + f32(Σ b·a))`, where `v` is the decoded value, the sum runs over the rank in
//! F64, and `c` is a number for each column.
//!
//! Formulas: modelopt `SVDQuantLinear` (`_update_svdquant`); comfy-kitchen
//! `quantize_svdquant_w4a4`. A library's matrix product has no order of its own; F64 holds each
//! product exactly, and the sum is rounded once.

pub(crate) mod panels;

use super::matrix_product::{MatrixProduct, pack_rows};
use crate::element::Element;
use crate::simd::{Kernel, Level, Routine, copy, zip};

/// Adds `scale` times `b` × `a` to `sums`. With a scale of 1 each product is exact in F64. `b` has
/// `rank` numbers for each row of the sums, `a` has `rank` rows of `width`.
pub(crate) fn add_product(
    (b, a): (&[f32], &[f32]),
    scale: f64,
    (rank, width): (usize, usize),
    level: Level,
    sums: &mut [f64],
) {
    let mut left = Vec::new();
    pack_rows(b, scale, rank, &mut left);
    let mut product =
        MatrixProduct { left: &left, right: a, depth: rank, width, is_exact: scale == 1.0, sums };
    product.add_at(level);
}

/// Values to which sums are added in F64: `f32(value + sum)`.
pub(crate) struct AddedSums<'a> {
    /// Become the rounded results.
    pub values: &'a mut [f32],
    /// Become the results before they are rounded.
    pub sums: &'a mut [f64],
    /// Set to whether each sum, without its value, is finite in F32.
    pub are_finite: bool,
}

impl Routine for AddedSums<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        const INFINITE: u32 = f32::INFINITY.to_bits();
        // The largest exponent, and not a loop that ends at the first: that would not be
        // vectorised.
        let mut largest = 0;
        for (value, sum) in zip(&mut self.values[..], &mut *self.sums) {
            largest = largest.max((*sum as f32).to_bits() & INFINITE);
            *sum += f64::from(*value);
            *value = *sum as f32;
        }
        self.are_finite = largest < INFINITE;
    }
}

/// Values with their sums, row by row.
pub(crate) struct Corrected<'a> {
    pub values: &'a [f32],
    pub sums: &'a [f64],
    pub width: usize,
    /// A number for each column; or none.
    pub columns: &'a [f32],
    pub step: ColumnStep,
}

/// What is done with the number of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnStep {
    /// The sum of both parts is multiplied by it.
    ScaleSum,
    /// The quantized part is divided by it, before the product of low rank is added.
    DivideValue,
}

/// Values that are computed before any is rounded.
const TILE: usize = 512;

impl Kernel for Corrected<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let width = self.width.max(1);
        let rows =
            zip(zip(self.values.chunks(width), self.sums.chunks(width)), out.chunks_mut(width));
        for ((values, sums), out) in rows {
            let mut tile = [0.0; TILE];
            for (i, out) in out.chunks_mut(TILE).enumerate() {
                let tile = &mut tile[..out.len()];
                copy(&values[i * TILE..][..out.len()], tile);
                let columns = self.columns.get(i * TILE..).unwrap_or_default();
                if self.step == ColumnStep::DivideValue {
                    zip(&mut tile[..], columns).for_each(|(t, &c)| *t /= c);
                }
                zip(&mut tile[..], &sums[i * TILE..]).for_each(|(t, &sum)| *t += sum as f32);
                if self.step == ColumnStep::ScaleSum {
                    zip(&mut tile[..], columns).for_each(|(t, &c)| *t *= c);
                }
                E::store(tile, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::perform;
    use crate::test_utils::miri_or;

    /// Against sums of one value at a time, in pieces of the rank, at every level.
    #[test]
    fn products() {
        let number = |i: usize| (i * 37 % 101) as f32 / 7.0 - 6.0;
        for (rows, width, rank, scale) in [
            (5, 11, 7, 1.0),
            (4, 8, 7, 0.3),
            (9, 24, 7, 1.0),
            (1, 3, 7, -1.7),
            (3, miri_or(9, 603), 7, 1.0),
            (2, 19, miri_or(5, 700), 1.0),
        ] {
            let b: Vec<f32> = (0..rows * rank).map(number).collect();
            let a: Vec<f32> = (5..5 + rank * width).map(number).collect();
            let want: Vec<u64> = (0..rows * width)
                .map(|i| {
                    let (r, c) = (i / width, i % width);
                    let mut sum = 0.0;
                    for k in 0..rank {
                        sum += f64::from(b[r * rank + k]) * scale * f64::from(a[k * width + c]);
                    }
                    sum.to_bits()
                })
                .collect();
            for level in Level::available() {
                let mut sums = vec![0.0; rows * width];
                for ranks in [0..3, 3..rank, rank..rank] {
                    let piece: Vec<f32> = b
                        .chunks(rank)
                        .flat_map(|b| &b[ranks.clone()])
                        .copied()
                        .collect();
                    let a = &a[ranks.start * width..ranks.end * width];
                    let sizes = (ranks.len(), width);
                    add_product((&piece, a), scale, sizes, level, &mut sums);
                }
                let sums: Vec<u64> = sums.into_iter().map(f64::to_bits).collect();
                assert_eq!(sums, want, "{level:?}, {rows} × {width}");
            }
        }
        add_product((&[], &[]), 1.0, (0, 4), Level::default(), &mut [0.0; 8]);
        add_product((&[], &[]), 1.0, (3, 0), Level::default(), &mut []);
    }

    /// A sum that is not finite in F32 is found at every place, also where its value makes it
    /// finite again.
    #[test]
    fn sums_that_are_not_finite() {
        for level in Level::available() {
            for (place, wrong) in (0..37).zip([1e39, f64::INFINITY, f64::NAN, -3.5e38].repeat(10)) {
                for sum in [0.5, wrong] {
                    let (mut values, mut sums) = ([1.0f32, -1.7e38].repeat(19), vec![0.25; 38]);
                    sums[place] = sum;
                    let want: Vec<f64> = sums
                        .iter()
                        .zip(&values)
                        .map(|(s, &v)| s + f64::from(v))
                        .collect();
                    let mut added =
                        AddedSums { values: &mut values, sums: &mut sums, are_finite: false };
                    perform(level, &mut added);
                    assert_eq!(added.are_finite, sum == 0.5, "{level:?}, {sum} at {place}");
                    for ((sum, value), want) in sums.iter().zip(&values).zip(want) {
                        assert!(sum.to_bits() == want.to_bits() || want.is_nan());
                        assert!(value.to_bits() == (want as f32).to_bits() || want.is_nan());
                    }
                }
            }
        }
    }
}
