//! Weights whose columns were rotated before they were quantized, back in the basis of the model: each group of columns of a
//! row is multiplied by a Hadamard matrix. Sums in F64 are exact but for values of very different sizes, and rounded once.
//!
//! SDNQ's matrix is the Kronecker power of [`four`](super::rotated)'s matrix for powers of four, else of `[[1,1],[1,-1]]`, over the
//! square root of its size. Either is symmetric and its own inverse. The library rounds values and matrix to the type of the
//! weight, and multiplies. FP-Quant stores its matrix with each weight ([`StoredHadamard`]).
//!
//! Formulas: sdnq `build_hadamard`, `rotate_hadamard`; fp_quant `FPQuantLinear` (`get_hadamard_matrix`, `get_gsr_matrix`).

use super::rotated::{is_group, rotate};
use crate::element::Element;
use crate::simd::Kernel;

/// Least columns of a group that are rotated.
pub(crate) const LEAST_GROUP: usize = 4;

/// A matrix M that is stored with a weight. The values of a group are multiplied by its transpose.
pub(crate) struct StoredHadamard {
    pub columns: HadamardColumns,
    /// Absolute value of its entries; 1 for the identity.
    pub entry: f64,
    /// Divides the products.
    pub divisor: f64,
}

/// The columns of a [`StoredHadamard`]: those of S, the Kronecker power of `[[1,1],[1,-1]]`, or of the identity.
#[derive(Debug, PartialEq)]
pub(crate) enum HadamardColumns {
    Identity,
    /// S itself.
    InOrder,
    /// For each column, its place in S.
    Permuted(Vec<u8>),
}

/// Values of rows in whole groups.
pub(crate) struct HadamardGroups<'a> {
    pub values: &'a [f32],
    /// A power of two.
    pub group: usize,
    /// `None`: the matrix is SDNQ's.
    pub stored: Option<&'a StoredHadamard>,
}

impl Kernel for HadamardGroups<'_> {
    fn is_rounded_last(&self) -> bool {
        self.stored.is_some()
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        match self.stored {
            None => self.run_rounded(out),
            Some(stored) => self.run_stored(stored, out),
        }
    }
}

impl HadamardGroups<'_> {
    /// Multiplies by SDNQ's matrix.
    #[inline(always)]
    fn run_rounded<E: Element>(&self, out: &mut [E]) {
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

    /// Multiplies by a stored matrix.
    #[inline(always)]
    fn run_stored<E: Element>(&self, stored: &StoredHadamard, out: &mut [E]) {
        let mut sums = vec![0.0; self.group];
        let groups = self.values.chunks_exact(self.group.max(1));
        for (values, out) in groups.zip(out.chunks_exact_mut(self.group.max(1))) {
            match &stored.columns {
                HadamardColumns::Permuted(places) => {
                    for (&place, &value) in places.iter().zip(values) {
                        sums[usize::from(place)] = f64::from(value);
                    }
                    butterflies(&mut sums, 1);
                }
                columns => {
                    for (sum, &value) in sums.iter_mut().zip(values) {
                        *sum = f64::from(value);
                    }
                    if *columns == HadamardColumns::InOrder {
                        butterflies(&mut sums, 1);
                    }
                }
            }
            for (out, &sum) in out.iter_mut().zip(&sums) {
                // The product is exact, so that a quotient that F32 has is not missed. A sum of zeros is +0.
                *out = E::from_f32((sum * stored.entry / stored.divisor) as f32 + 0.0);
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
