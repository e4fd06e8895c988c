//! Weights whose columns were rotated before they were quantized, back in the basis of the model:
//! each group of columns of a row is multiplied by a Hadamard matrix. Sums in F64 are exact but for
//! values of very different sizes, and rounded once.
//!
//! SDNQ's matrix is the Kronecker power of [`four`](super::rotated)'s matrix for powers of four,
//! else of `[[1,1],[1,-1]]`, over the square root of its size. Either is symmetric and its own
//! inverse. The library rounds values and matrix to the type of the weight, and multiplies.
//! FP-Quant stores its matrix with each weight ([`StoredHadamard`]).
//!
//! Formulas: sdnq `build_hadamard`, `rotate_hadamard`; fp_quant `FPQuantLinear`
//! (`get_hadamard_matrix`, `get_gsr_matrix`).

use std::ops::{Add, Sub};

use half::{bf16, f16};

use super::rotated::{is_group, rotate};
use super::rounding_margin::is_decided;
use crate::TargetDtype;
use crate::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{self, BUTTERFLY_VALUES, Butterflies, InMemory, Kernel, copy, zip};

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

/// The columns of a [`StoredHadamard`]: those of S, the Kronecker power of `[[1,1],[1,-1]]`, or of
/// the identity.
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
    /// The type of the output. Values come out in F32, and are right when they are rounded to it.
    pub target: TargetDtype,
}

impl Kernel for HadamardGroups<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.each_strip(InMemory, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.each_strip(avx2, out);
    }
}

/// Values whose sums are computed together, unless a group has more: they stay in the first-level
/// cache.
const STRIP: usize = 1024;

impl HadamardGroups<'_> {
    #[inline(always)]
    fn each_strip<E: Element>(&self, by: impl Butterflies, out: &mut [E]) {
        let strip = self.group.max(STRIP);
        let is_rotated = (self.stored).is_none_or(|m| m.columns != HadamardColumns::Identity);
        // Values of 24 bits seldom have sums of as many.
        let may_be_exact = self.stored.is_some() || self.target != TargetDtype::F32;
        let (mut placed, mut sums) = (vec![0.0; strip], vec![0.0; strip]);
        for (values, out) in zip(self.values.chunks(strip), out.chunks_mut(strip)) {
            let placed = &mut placed[..values.len()];
            self.place(values, placed);
            let is_exact = may_be_exact && has_exact_sums(placed, self.group);
            if is_exact || !is_rotated {
                if is_rotated {
                    self.rotate(by, placed);
                }
                self.finish(placed, out);
                continue;
            }
            let sums = &mut sums[..values.len()];
            for (sum, &value) in zip(&mut sums[..], &*placed) {
                *sum = f64::from(value);
            }
            self.rotate(by, sums);
            self.finish(sums, out);
        }
    }

    /// The values as they are rotated: SDNQ rounds them, and a stored matrix may permute them.
    #[inline(always)]
    fn place(&self, values: &[f32], placed: &mut [f32]) {
        match (self.stored.map(|stored| &stored.columns), self.target) {
            (Some(HadamardColumns::Permuted(places)), _) => {
                let groups = placed.chunks_exact_mut(self.group.max(1));
                for (placed, values) in zip(groups, values.chunks_exact(self.group.max(1))) {
                    for (&place, &value) in zip(places.iter(), values) {
                        placed[usize::from(place)] = value;
                    }
                }
            }
            (Some(_), _) | (None, TargetDtype::F32) => copy(values, placed),
            (None, TargetDtype::F16) => {
                for (placed, &value) in zip(&mut placed[..], values) {
                    *placed = f16::rounded(value);
                }
            }
            (None, TargetDtype::BF16) => {
                for (placed, &value) in zip(&mut placed[..], values) {
                    *placed = bf16::rounded(value);
                }
            }
        }
    }

    /// Multiplies each group by the matrix, but for its factor.
    #[inline(always)]
    fn rotate<T: Summed>(&self, by: impl Butterflies, values: &mut [T]) {
        if self.stored.is_none() && is_group(self.group) {
            rotate(values, self.group);
        } else {
            butterflies(by, values, self.group);
        }
    }

    /// Multiplies sums by the factor of the matrix. A product is rounded once in either type. A sum
    /// of zeros is +0.
    #[inline(always)]
    fn finish<T: Summed, E: Element>(&self, sums: &[T], out: &mut [E]) {
        let Some(stored) = self.stored else {
            let unit = 1.0 / (self.group as f64).sqrt();
            let unit = match self.target {
                TargetDtype::F32 => unit as f32,
                TargetDtype::F16 => f16::rounded(unit as f32),
                TargetDtype::BF16 => bf16::rounded(unit as f32),
            };
            return multiply(sums, unit, out);
        };
        match stored.factor() {
            Some(factor) if T::IS_SINGLE => multiply(sums, factor, out),
            // Sums of F64 take longer to decide than to multiply.
            _ if !T::IS_SINGLE && stored.has_exact_reciprocal() => stored.finish_exactly(sums, out),
            _ => stored.finish(sums, self.target, out),
        }
    }
}

#[inline(always)]
fn multiply<T: Summed, E: Element>(sums: &[T], factor: f32, out: &mut [E]) {
    for (out, &sum) in zip(&mut out[..], sums) {
        *out = E::from_f32(sum.product(factor) + 0.0);
    }
}

/// Values that are decided together.
const DECIDED: usize = 16;

impl StoredHadamard {
    /// `sum * entry / divisor` in F64, rounded to F32, or what is rounded to the same of type
    /// `target`. A sum of zeros is +0.
    ///
    /// For types of 16 bits, a product of three roundings in F32 is enough: of the sum, of the
    /// factor and of the product. Each is within 2^-24 of its number, and so is the value in F32
    /// that is wanted; the quotient in F64 is within 2^-52. So the product is less than 5 * 2^-24
    /// of it off, which is less than [`MARGIN`](super::rounding_margin::MARGIN) last places, each
    /// 2^-24 of a number or more. Below the normal numbers a sum is exact, as all are multiples of
    /// the least number, and a product loses half a place. If no number halfway between two of the
    /// output's is as near as that, both products are rounded to the same.
    #[inline(always)]
    fn finish<T: Summed, E: Element>(&self, sums: &[T], target: TargetDtype, out: &mut [E]) {
        let factor = (self.entry / self.divisor) as f32;
        if target == TargetDtype::F32 || !factor.is_normal() {
            return self.finish_exactly(sums, out);
        }
        let mantissa = match target {
            TargetDtype::F16 => f16::MANTISSA,
            TargetDtype::F32 | TargetDtype::BF16 => bf16::MANTISSA,
        };
        let (blocks, rest) = sums.as_chunks::<DECIDED>();
        let (outs, last) = out.as_chunks_mut::<DECIDED>();
        for (sums, out) in zip(blocks.iter(), outs) {
            let mut unsure = 0;
            for (out, &sum) in zip(&mut out[..], sums) {
                let product = sum.single() * factor + 0.0;
                unsure |= u32::from(!is_decided(product, mantissa));
                *out = E::from_f32(product);
            }
            if unsure != 0 {
                self.finish_exactly(sums, out);
            }
        }
        self.finish_exactly(rest, last);
    }

    #[inline(always)]
    fn finish_exactly<T: Summed, E: Element>(&self, sums: &[T], out: &mut [E]) {
        // The product is exact, so that a quotient that F32 has is not missed.
        if self.has_exact_reciprocal() {
            let reciprocal = 1.0 / self.divisor;
            for (out, &sum) in zip(&mut out[..], sums) {
                *out = E::from_f32((sum.double() * self.entry * reciprocal) as f32 + 0.0);
            }
        } else {
            for (out, &sum) in zip(&mut out[..], sums) {
                *out = E::from_f32((sum.double() * self.entry / self.divisor) as f32 + 0.0);
            }
        }
    }
}

impl StoredHadamard {
    /// What to multiply sums with, if F32 has it and the divisor is a power of two: such a product
    /// is the quotient.
    fn factor(&self) -> Option<f32> {
        let factor = (self.entry / self.divisor) as f32;
        let is_same = f64::from(factor) * self.divisor == self.entry;
        (self.has_exact_reciprocal() && is_same && factor.is_finite()).then_some(factor)
    }

    /// Whether the divisor is a power of two, so that products with its reciprocal are quotients.
    /// It is one of F32, beside which F64 has room for both.
    fn has_exact_reciprocal(&self) -> bool {
        self.divisor.is_normal()
            && self.divisor.to_bits().trailing_zeros() >= f64::MANTISSA_DIGITS - 1
    }
}

/// Whether F32 has the sums and differences of any of `group` values, a power of two from 4 on: it
/// does if the values are multiples of a power of two of which there are at most 2^24 in `group`
/// times the largest. The sums in F64 are the same then, and take twice as long. Integer codes
/// times scales of few bits are such multiples.
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
    // The last place of sums with this number is that power of two: a sum is rounded unless the
    // value is a multiple.
    let magic = f32::from_bits((exponent - 1) << 23) * 1.5;
    let mut is_rounded = false;
    for &value in values {
        is_rounded |= (value + magic) - magic != value;
    }
    !is_rounded
}

/// A type of sums and differences.
pub(crate) trait Summed: Copy + Add<Output = Self> + Sub<Output = Self> {
    /// Whether it is F32.
    const IS_SINGLE: bool = false;

    /// The sum times `factor`, rounded once to F32.
    #[inline(always)]
    fn product(self, factor: f32) -> f32 {
        (self.double() * f64::from(factor)) as f32
    }

    /// The sum in F32, rounded.
    fn single(self) -> f32;

    /// The sum in F64.
    fn double(self) -> f64;

    /// The steps between numbers that are up to 8 apart.
    fn first_steps(
        by: impl Butterflies,
        block: [Self; BUTTERFLY_VALUES],
    ) -> [Self; BUTTERFLY_VALUES];
}

impl Summed for f32 {
    const IS_SINGLE: bool = true;

    #[inline(always)]
    fn product(self, factor: f32) -> f32 {
        self * factor
    }

    #[inline(always)]
    fn single(self) -> f32 {
        self
    }

    #[inline(always)]
    fn double(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn first_steps(
        by: impl Butterflies,
        block: [Self; BUTTERFLY_VALUES],
    ) -> [Self; BUTTERFLY_VALUES] {
        by.singles(block)
    }
}

impl Summed for f64 {
    #[inline(always)]
    fn single(self) -> f32 {
        self as f32
    }

    #[inline(always)]
    fn double(self) -> f64 {
        self
    }

    #[inline(always)]
    fn first_steps(
        _: impl Butterflies,
        block: [Self; BUTTERFLY_VALUES],
    ) -> [Self; BUTTERFLY_VALUES] {
        simd::butterflies(block)
    }
}

impl Summed for i32 {
    #[inline(always)]
    fn single(self) -> f32 {
        self as f32
    }

    #[inline(always)]
    fn double(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn first_steps(
        by: impl Butterflies,
        block: [Self; BUTTERFLY_VALUES],
    ) -> [Self; BUTTERFLY_VALUES] {
        by.integers(block)
    }
}

/// Multiplies each `size` values, a power of two, by the Kronecker power of `[[1,1],[1,-1]]`.
#[inline(always)]
pub(crate) fn butterflies<T: Summed>(by: impl Butterflies, values: &mut [T], size: usize) {
    if size >= BUTTERFLY_VALUES {
        let blocks = values.as_chunks_mut::<BUTTERFLY_VALUES>().0;
        for block in blocks.iter_mut() {
            *block = T::first_steps(by, *block);
        }
        butterfly_rows(blocks, size / BUTTERFLY_VALUES);
    } else {
        butterfly_rows(values.as_chunks_mut::<1>().0, size);
    }
}

/// Multiplies each `size` rows, a power of two, by the Kronecker power of `[[1,1],[1,-1]]`. Two
/// steps are one pass over the rows.
#[inline(always)]
pub(crate) fn butterfly_rows<T: Summed, const N: usize>(rows: &mut [[T; N]], size: usize) {
    let mut stride = 1;
    while 2 * stride < size {
        for block in rows.chunks_exact_mut(4 * stride) {
            let (low, high) = block.split_at_mut(2 * stride);
            let ((a, b), (c, d)) = (low.split_at_mut(stride), high.split_at_mut(stride));
            for (((a, b), c), d) in zip(zip(zip(&mut a[..], b), c), d) {
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
            for (a, b) in zip(&mut low[..], high) {
                for i in 0..N {
                    (a[i], b[i]) = (a[i] + b[i], a[i] - b[i]);
                }
            }
        }
    }
}
