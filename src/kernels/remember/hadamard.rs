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

/// Values whose sums are computed together, unless a group has more: they stay in the first-level cache.
const STRIP: usize = 1024;

impl HadamardGroups<'_> {
    /// Multiplies by SDNQ's matrix.
    #[inline(always)]
    fn run_rounded<E: Element>(&self, out: &mut [E]) {
        let unit = f64::from(E::rounded(1.0 / (self.group as f64).sqrt() as f32));
        let strip = self.group.max(STRIP);
        let mut sums = vec![0.0; strip];
        for (values, out) in self.values.chunks(strip).zip(out.chunks_mut(strip)) {
            let sums = &mut sums[..values.len()];
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum = f64::from(E::rounded(value));
            }
            if is_group(self.group) {
                rotate(sums, self.group);
            } else {
                butterflies(sums, self.group);
            }
            for (out, &sum) in out.iter_mut().zip(&*sums) {
                // A sum of zeros is +0.
                *out = E::from_f32((sum * unit) as f32 + 0.0);
            }
        }
    }

    /// Multiplies by a stored matrix.
    #[inline(always)]
    fn run_stored<E: Element>(&self, stored: &StoredHadamard, out: &mut [E]) {
        let strip = self.group.max(STRIP);
        let mut sums = vec![0.0; strip];
        for (values, out) in self.values.chunks(strip).zip(out.chunks_mut(strip)) {
            let sums = &mut sums[..values.len()];
            if let HadamardColumns::Permuted(places) = &stored.columns {
                let groups = sums.chunks_exact_mut(self.group.max(1));
                for (sums, values) in groups.zip(values.chunks_exact(self.group.max(1))) {
                    for (&place, &value) in places.iter().zip(values) {
                        sums[usize::from(place)] = f64::from(value);
                    }
                }
            } else {
                for (sum, &value) in sums.iter_mut().zip(values) {
                    *sum = f64::from(value);
                }
            }
            if stored.columns != HadamardColumns::Identity {
                butterflies(sums, self.group);
            }
            for (out, &sum) in out.iter_mut().zip(&*sums) {
                // The product is exact, so that a quotient that F32 has is not missed. A sum of zeros is +0.
                *out = E::from_f32((sum * stored.entry / stored.divisor) as f32 + 0.0);
            }
        }
    }
}

/// Values whose sums of the first four steps are computed in registers.
const BLOCK: usize = 16;

/// Multiplies each `size` values, a power of two, by the Kronecker power of `[[1,1],[1,-1]]`.
#[inline(always)]
pub(crate) fn butterflies(values: &mut [f64], size: usize) {
    if size >= BLOCK {
        let blocks = values.as_chunks_mut::<BLOCK>().0;
        for block in blocks.iter_mut() {
            *block = first_steps(*block);
        }
        butterfly_rows(blocks, size / BLOCK);
    } else {
        butterfly_rows(values.as_chunks_mut::<1>().0, size);
    }
}

/// The sums and differences of neighbours, and of those 2, 4 and 8 apart.
#[inline(always)]
fn first_steps(block: [f64; BLOCK]) -> [f64; BLOCK] {
    let mut sums = [[0.0; 4]; 4];
    for (sums, &[a, b, c, d]) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
        let (e, f, g, h) = (a + b, a - b, c + d, c - d);
        *sums = [e + g, f + h, e - g, f - h];
    }
    let mut out = [0.0; BLOCK];
    for i in 0..4 {
        let [a, b, c, d] = [sums[0][i], sums[1][i], sums[2][i], sums[3][i]];
        let (e, f, g, h) = (a + b, a - b, c + d, c - d);
        [out[i], out[4 + i], out[8 + i], out[12 + i]] = [e + g, f + h, e - g, f - h];
    }
    out
}

/// Multiplies each `size` rows, a power of two, by the Kronecker power of `[[1,1],[1,-1]]`. Two steps are one pass over the rows.
#[inline(always)]
pub(crate) fn butterfly_rows<const N: usize>(rows: &mut [[f64; N]], size: usize) {
    let mut stride = 1;
    while 2 * stride < size {
        for block in rows.chunks_exact_mut(4 * stride) {
            let (low, high) = block.split_at_mut(2 * stride);
            let ((a, b), (c, d)) = (low.split_at_mut(stride), high.split_at_mut(stride));
            for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
                for i in 0..N {
                    let (e, f, g, h) = (a[i] + b[i], a[i] - b[i], c[i] + d[i], c[i] - d[i]);
                    (a[i], b[i], c[i], d[i]) = (e + g, f + h, e - g, f - h);
                }
            }
        }
        stride *= 4;
    }
    if stride < size {
        for block in rows.chunks_exact_mut(2 * stride) {
            let (low, high) = block.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                for i in 0..N {
                    (a[i], b[i]) = (a[i] + b[i], a[i] - b[i]);
                }
            }
        }
    }
}
