//! Weights whose columns were rotated before they were quantized, as SDNQ rotates them, back in the basis of the model: each
//! group of columns of a row is multiplied by a Hadamard matrix H over the square root of its size.
//!
//! H is the Kronecker power of [`four`](super::rotated)'s matrix for powers of four, else of `[[1,1],[1,-1]]`. Either is
//! symmetric and its own inverse. The library rounds values and matrix to the type of the weight, and multiplies: sums in F64
//! are exact but for values of very different sizes, and rounded once.
//!
//! Formulas: sdnq `build_hadamard`, `rotate_hadamard`.

use super::rotated::{is_group, rotate};
use crate::element::Element;
use crate::simd::Kernel;

/// Least columns of a group that are rotated.
pub(crate) const LEAST_GROUP: usize = 4;

/// Values of rows in whole groups.
pub(crate) struct HadamardGroups<'a> {
    pub values: &'a [f32],
    /// A power of two.
    pub group: usize,
}

impl Kernel for HadamardGroups<'_> {
    fn is_rounded_last(&self) -> bool {
        false
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let unit = f64::from(E::rounded(1.0 / (self.group as f64).sqrt() as f32));
        let mut sums = vec![0.0; self.group];
        let groups = self.values.chunks_exact(self.group.max(1));
        for (values, out) in groups.zip(out.chunks_exact_mut(self.group.max(1))) {
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum = f64::from(E::rounded(value));
            }
            if is_group(self.group) {
                rotate(&mut sums, self.group);
            } else {
                butterflies(&mut sums, 1);
            }
            for (out, &sum) in out.iter_mut().zip(&sums) {
                // A sum of zeros is +0.
                *out = E::from_f32((sum * unit) as f32 + 0.0);
            }
        }
    }
}

/// Multiplies a power of two of columns, or of rows of `width` values that follow each other, by the Kronecker power of
/// `[[1,1],[1,-1]]`. Of columns, `width` is 1.
#[inline(always)]
pub(crate) fn butterflies(values: &mut [f64], width: usize) {
    let mut stride = width.max(1);
    while stride < values.len() {
        for block in values.chunks_exact_mut(2 * stride) {
            let (low, high) = block.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        stride *= 2;
    }
}
