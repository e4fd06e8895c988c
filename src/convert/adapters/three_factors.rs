//! Kernels of convolutions as products of three factors, a Tucker decomposition: the value at out,
//! in and k… is the sum of left[out, i] · core[i, j, k…] · right[j, in] over i and j.
//!
//! Source: lycoris-lora 4.1.3 `functional/general.py` (`rebuild_tucker`).

use std::ops::Range;

use crate::Result;
use crate::remember::layout::adapted::ScaledProduct;
use crate::remember::seam::scale_matrix::ScaleMatrix;

use super::spread::{Spread, SpreadMatrix};

/// Values of the right factor and of the core that are read at once.
const PIECE: usize = 64 << 10;

/// A kernel of three factors.
pub(super) struct ThreeFactors {
    /// `[out, ranks[0]]`
    pub left: Box<dyn ScaleMatrix>,
    /// `[ranks[0], ranks[1] · taps]`
    pub core: Box<dyn ScaleMatrix>,
    /// `[ranks[1], in]`
    pub right: Box<dyn ScaleMatrix>,
    pub ranks: [usize; 2],
    /// Values of a kernel for one input and one output; not 0.
    pub taps: usize,
}

impl ThreeFactors {
    /// The kernel as a product of two factors.
    pub(super) fn into_product(self) -> ScaledProduct {
        let Self { left, core, right, ranks, taps } = self;
        // Row 2i of the right factor is rounded to F32, row 2i + 1 what rounding leaves.
        let b = SpreadMatrix::boxed(left, Spread::Same, Spread::Repeated(2));
        let a = Box::new(RightTwo { core, right, ranks, taps });
        ScaledProduct { a, b, rank: 2 * ranks[0], scale: 1.0, matrix_rows: usize::MAX }
    }
}

/// The core times the right factor, `[2 · ranks[0], in · taps]`: values in F64 as sums of two in
/// F32.
struct RightTwo {
    core: Box<dyn ScaleMatrix>,
    right: Box<dyn ScaleMatrix>,
    ranks: [usize; 2],
    taps: usize,
}

impl ScaleMatrix for RightTwo {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        if cols.is_empty() || rows.is_empty() {
            return Ok(());
        }
        let (taps, own) = (self.taps, rows.start / 2..rows.end.div_ceil(2));
        let inputs = cols.start / taps..cols.end.div_ceil(taps);
        let skipped = cols.start - inputs.start * taps;
        let mut sums = vec![0.0; own.len() * cols.len()];
        let piece = (PIECE / inputs.len().saturating_add(taps)).max(1);
        let (mut right, mut core) = (vec![], vec![]);
        for first in (0..self.ranks[1]).step_by(piece) {
            let some = first..(first + piece).min(self.ranks[1]);
            right.clear();
            self.right
                .extend(some.clone(), inputs.clone(), staging, &mut right)?;
            for (i, sums) in own.clone().zip(sums.chunks_exact_mut(cols.len())) {
                core.clear();
                let of_ranks = some.start * taps..some.end * taps;
                self.core.extend(i..i + 1, of_ranks, staging, &mut core)?;
                let ranks = right
                    .chunks_exact(inputs.len())
                    .zip(core.chunks_exact(taps));
                for (inputs, taps) in ranks {
                    let products = inputs.iter().flat_map(|&input| {
                        let input = f64::from(input);
                        taps.iter().map(move |&tap| f64::from(tap) * input)
                    });
                    let pairs = sums.iter_mut().zip(products.skip(skipped));
                    pairs.for_each(|(sum, product): (&mut f64, f64)| *sum += product);
                }
            }
        }
        for row in rows {
            let at = (row / 2 - own.start) * cols.len();
            let of_row = &sums[at..at + cols.len()];
            out.extend(of_row.iter().map(|&sum| match row % 2 {
                0 => sum as f32,
                _ => (sum - f64::from(sum as f32)) as f32,
            }));
        }
        Ok(())
    }
}
