//! A weight that is a quantized part and a product of two narrow matrices: `T((v + f32(Σ b·a)) * c)`, where `v` is
//! the decoded value, the sum runs over the rank in F64, and `c` is a factor for each column.
//!
//! Formula: modelopt `SVDQuantLinear` (`_update_svdquant`). A library's matrix product has no order of its own; F64
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
    /// A factor for each column, applied last; or none.
    pub columns: &'a [f32],
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
                let pairs = values[i * TILE..].iter().zip(&sums[i * TILE..]);
                tile.iter_mut()
                    .zip(pairs)
                    .for_each(|(t, (&v, &sum))| *t = v + sum as f32);
                if !self.columns.is_empty() {
                    tile.iter_mut()
                        .zip(&self.columns[i * TILE..])
                        .for_each(|(t, &c)| *t *= c);
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
