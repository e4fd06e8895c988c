//! A weight that is a quantized part and a product of two narrow matrices: `T((v + f32(Σ b·a)) * c)` or
//! `T(v / c + f32(Σ b·a))`, where `v` is the decoded value, the sum runs over the rank in F64, and `c` is a number for
//! each column.
//!
//! Formulas: modelopt `SVDQuantLinear` (`_update_svdquant`); comfy-kitchen `quantize_svdquant_w4a4`. A library's matrix product has no order of its own; F64
//! holds each product exactly, and the sum is rounded once.

use crate::element::Element;
use crate::simd::Kernel;

/// Adds `b` × `a` to `sums`. `b` has `rank` numbers for each row of the sums, `a` has `rank` rows of `width`.
pub(crate) fn add_product(b: &[f32], a: &[f32], rank: usize, width: usize, sums: &mut [f64]) {
    // `chunks_exact` panics at 0, and there is nothing to add.
    if rank == 0 || width == 0 {
        return;
    }
    for (b, sums) in b.chunks_exact(rank).zip(sums.chunks_exact_mut(width)) {
        for (&b, a) in b.iter().zip(a.chunks_exact(width)) {
            let b = f64::from(b);
            sums.iter_mut()
                .zip(a)
                .for_each(|(sum, &a)| *sum += b * f64::from(a));
        }
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
        let rows = self
            .values
            .chunks(width)
            .zip(self.sums.chunks(width))
            .zip(out.chunks_mut(width));
        for ((values, sums), out) in rows {
            let mut tile = [0.0; TILE];
            for (i, out) in out.chunks_mut(TILE).enumerate() {
                let tile = &mut tile[..out.len()];
                tile.copy_from_slice(&values[i * TILE..][..out.len()]);
                let columns = self.columns.get(i * TILE..).unwrap_or_default();
                if self.step == ColumnStep::DivideValue {
                    tile.iter_mut().zip(columns).for_each(|(t, &c)| *t /= c);
                }
                tile.iter_mut()
                    .zip(&sums[i * TILE..])
                    .for_each(|(t, &sum)| *t += sum as f32);
                if self.step == ColumnStep::ScaleSum {
                    tile.iter_mut().zip(columns).for_each(|(t, &c)| *t *= c);
                }
                E::store(tile, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against sums of one value at a time, in pieces of the rank.
    #[test]
    fn products() {
        let (rows, rank, width) = (5, 7, 11);
        let number = |i: usize| (i * 37 % 101) as f32 / 8.0 - 6.0;
        let (b, a): (Vec<f32>, Vec<f32>) = (
            (0..rows * rank).map(number).collect(),
            (0..rank * width).map(number).collect(),
        );
        let mut sums = vec![0.0; rows * width];
        for ranks in [0..3, 3..7, 7..7] {
            let piece: Vec<f32> = b
                .chunks(rank)
                .flat_map(|b| &b[ranks.clone()])
                .copied()
                .collect();
            add_product(
                &piece,
                &a[ranks.start * width..ranks.end * width],
                ranks.len(),
                width,
                &mut sums,
            );
        }
        for (i, &sum) in sums.iter().enumerate() {
            let (r, c) = (i / width, i % width);
            let want: f64 = (0..rank)
                .map(|k| f64::from(b[r * rank + k]) * f64::from(a[k * width + c]))
                .sum();
            assert_eq!(sum.to_bits(), want.to_bits());
        }
        add_product(&[], &[], 0, width, &mut sums);
        add_product(&[], &[], 3, 0, &mut []);
    }
}
