//! Weights whose columns were rotated before they were quantized, back in the basis of the model: each group of columns of a
//! row is multiplied by a Hadamard matrix. Sums in F64 are exact but for values of very different sizes, and rounded once.
//!
//! SDNQ's matrix is the Kronecker power of [`four`](super::rotated)'s matrix for powers of four, else of `[[1,1],[1,-1]]`, over the
//! square root of its size. Either is symmetric and its own inverse. The library rounds values and matrix to the type of the
//! weight, and multiplies. FP-Quant stores its matrix with each weight ([`StoredHadamard`]).
//!
//! Formulas: sdnq `build_hadamard`, `rotate_hadamard`; fp_quant `FPQuantLinear` (`get_hadamard_matrix`, `get_gsr_matrix`).

use std::ops::{Add, Sub};

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
        let unit = E::rounded(1.0 / (self.group as f64).sqrt() as f32);
        // Values of 24 bits seldom have sums of as many.
        let is_narrow = E::MANTISSA < f32::MANTISSA;
        let strip = self.group.max(STRIP);
        let (mut rounded, mut sums) = (vec![0.0; strip], vec![0.0; strip]);
        for (values, out) in self.values.chunks(strip).zip(out.chunks_mut(strip)) {
            let rounded = &mut rounded[..values.len()];
            for (rounded, &value) in rounded.iter_mut().zip(values) {
                *rounded = E::rounded(value);
            }
            if is_narrow && has_exact_sums(rounded, self.group) {
                self.rotate(rounded);
                for (out, &sum) in out.iter_mut().zip(&*rounded) {
                    // F64 has the product, so that it is rounded once in either type. A sum of zeros is +0.
                    *out = E::from_f32(sum * unit + 0.0);
                }
                continue;
            }
            let sums = &mut sums[..values.len()];
            for (sum, &value) in sums.iter_mut().zip(&*rounded) {
                *sum = f64::from(value);
            }
            self.rotate(sums);
            for (out, &sum) in out.iter_mut().zip(&*sums) {
                *out = E::from_f32((sum * f64::from(unit)) as f32 + 0.0);
            }
        }
    }

    /// Multiplies each group by SDNQ's matrix times the square root of its size.
    #[inline(always)]
    fn rotate<T: Summed>(&self, values: &mut [T]) {
        if is_group(self.group) {
            rotate(values, self.group);
        } else {
            butterflies(values, self.group);
        }
    }

    /// Multiplies by a stored matrix.
    #[inline(always)]
    fn run_stored<E: Element>(&self, stored: &StoredHadamard, out: &mut [E]) {
        let (strip, factor) = (self.group.max(STRIP), stored.factor());
        let (mut placed, mut sums) = (vec![0.0; strip], vec![0.0; strip]);
        for (values, out) in self.values.chunks(strip).zip(out.chunks_mut(strip)) {
            let placed = &mut placed[..values.len()];
            if let HadamardColumns::Permuted(places) = &stored.columns {
                let groups = placed.chunks_exact_mut(self.group.max(1));
                for (placed, values) in groups.zip(values.chunks_exact(self.group.max(1))) {
                    for (&place, &value) in places.iter().zip(values) {
                        placed[usize::from(place)] = value;
                    }
                }
            } else {
                placed.copy_from_slice(values);
            }
            let is_rotated = stored.columns != HadamardColumns::Identity;
            let is_exact = has_exact_sums(placed, self.group);
            if is_rotated && is_exact {
                butterflies(placed, self.group);
            }
            // A product is rounded once in either type. A sum of zeros is +0.
            if let (true, Some(factor)) = (is_exact || !is_rotated, factor) {
                for (out, &sum) in out.iter_mut().zip(&*placed) {
                    *out = E::from_f32(sum * factor + 0.0);
                }
                continue;
            }
            let sums = &mut sums[..values.len()];
            for (sum, &value) in sums.iter_mut().zip(&*placed) {
                *sum = f64::from(value);
            }
            if is_rotated && !is_exact {
                butterflies(sums, self.group);
            }
            for (out, &sum) in out.iter_mut().zip(&*sums) {
                // The product is exact, so that a quotient that F32 has is not missed.
                *out = E::from_f32((sum * stored.entry / stored.divisor) as f32 + 0.0);
            }
        }
    }
}

impl StoredHadamard {
    /// What to multiply sums with, if F32 has it and the divisor is a power of two: such a product is the quotient.
    fn factor(&self) -> Option<f32> {
        let factor = (self.entry / self.divisor) as f32;
        let is_power = self.divisor.is_normal()
            && self.divisor.to_bits().trailing_zeros() >= f64::MANTISSA_DIGITS - 1;
        let is_same = f64::from(factor) * self.divisor == self.entry;
        (is_power && is_same && factor.is_finite()).then_some(factor)
    }
}

/// Whether F32 has the sums and differences of any of `group` values, a power of two from 4 on: it does if the values are multiples of a power
/// of two of which there are at most 2^24 in `group` times the largest. The sums in F64 are the same then, and take twice as long.
/// Integer codes times scales of few bits are such multiples.
#[inline(always)]
fn has_exact_sums(values: &[f32], group: usize) -> bool {
    let mut largest = 0;
    for &value in values {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    // Two to the power of this number, less the bias, is above `group` times the largest value.
    let exponent = (largest >> 23) + 1 + group.trailing_zeros();
    if !(25..=254).contains(&exponent) {
        return false;
    }
    // The last place of sums with this number is that power of two: a sum is rounded unless the value is a multiple.
    let magic = f32::from_bits((exponent - 1) << 23) * 1.5;
    let mut is_rounded = false;
    for &value in values {
        is_rounded |= (value + magic) - magic != value;
    }
    !is_rounded
}

/// A type of sums and differences.
pub(crate) trait Summed: Copy + Add<Output = Self> + Sub<Output = Self> {}

impl<T: Copy + Add<Output = T> + Sub<Output = T>> Summed for T {}

/// Values whose sums of the first four steps are computed in registers.
const BLOCK: usize = 16;

/// Multiplies each `size` values, a power of two, by the Kronecker power of `[[1,1],[1,-1]]`.
#[inline(always)]
pub(crate) fn butterflies<T: Summed>(values: &mut [T], size: usize) {
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
fn first_steps<T: Summed>(block: [T; BLOCK]) -> [T; BLOCK] {
    let mut sums = [[block[0]; 4]; 4];
    for (sums, &[a, b, c, d]) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
        let (e, f, g, h) = (a + b, a - b, c + d, c - d);
        *sums = [e + g, f + h, e - g, f - h];
    }
    let mut out = block;
    for i in 0..4 {
        let [a, b, c, d] = [sums[0][i], sums[1][i], sums[2][i], sums[3][i]];
        let (e, f, g, h) = (a + b, a - b, c + d, c - d);
        [out[i], out[4 + i], out[8 + i], out[12 + i]] = [e + g, f + h, e - g, f - h];
    }
    out
}

/// Multiplies each `size` rows, a power of two, by the Kronecker power of `[[1,1],[1,-1]]`. Two steps are one pass over the rows.
#[inline(always)]
pub(crate) fn butterfly_rows<T: Summed, const N: usize>(rows: &mut [[T; N]], size: usize) {
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
