//! Weights whose columns were rotated before they were quantized (ConvRot of comfy-kitchen), back
//! in the basis of the model: in each row, every group of g columns is multiplied by a Hadamard
//! matrix.
//!
//! H of g = 4^n columns is the Kronecker power of `H4 =
//! [[1,1,1,-1],[1,1,-1,1],[1,-1,1,1],[-1,1,1,1]]`, over √g. It is symmetric and its own inverse. A
//! product takes n passes over the group, each with sums of four values.
//!
//! A row has one scale, so the codes can be rotated first: their sums are integers and exact, so is
//! the division by √g, a power of two, and the product with the scale is the only rounding. The
//! library multiplies by the scale first and sums in F32, in an order that depends on its matrix
//! product. Where a correction is added before the rotation, the sums are in F64 and rounded once.
//!
//! Formulas: comfy-kitchen `dequantize_int8_convrot_weight`, `dequantize_convrot_w4a4_weight`,
//! `dequantize_w4a8_int8_weight` (eager backend).

mod codes;

use std::ops::{Add, Sub};

pub(crate) use self::codes::{ByteCodes, LevelCodes, NibbleCodes};
use crate::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Kernel, zip};

/// Smallest group.
pub(crate) const LEAST_GROUP: usize = 4;

/// Largest group. Sums of so many codes are below 2^24, so that they are exact in F32 as well.
pub(crate) const MAX_GROUP: usize = 1 << 16;

/// Columns that are rotated at once, unless a group is wider. Sums of so many codes of eight bits
/// fit 16 bits: a row of H has 136 signs of one kind and 120 of the other, so that they are within
/// -32648 and 32632.
pub(crate) const CHUNK: usize = 256;

/// Whether `group` is a number of columns that this kernel rotates.
pub(crate) fn is_group(group: usize) -> bool {
    // A power of four has its only bit at an even place.
    (LEAST_GROUP..=MAX_GROUP).contains(&group)
        && group.is_power_of_two()
        && group.trailing_zeros().is_multiple_of(2)
}

/// Codes of a rotated weight, as integers from -128 to 127.
pub(crate) trait RotatedCodes {
    /// Writes the integers of row `row`, counted from the first that is decoded, from column `at`
    /// of the loaded ones on.
    fn fill(&self, row: usize, at: usize, out: &mut [i16]);

    /// [`fill`](Self::fill) at [`Level::Avx2`](crate::simd::Level::Avx2).
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn fill_avx2(&self, row: usize, at: usize, out: &mut [i16], _: Avx2) {
        self.fill(row, at, out);
    }
}

/// What is added to the values of each group of columns before they are rotated.
pub(crate) struct Corrections<'a> {
    /// One for each group of the loaded columns, row by row.
    pub values: &'a [f32],
    /// Columns of a group.
    pub width: usize,
}

/// Rows of a rotated weight.
pub(crate) struct RotatedRows<'a, C> {
    pub codes: C,
    /// Columns of a row: whole groups.
    pub width: usize,
    /// Columns that are rotated together.
    pub group: usize,
    /// A scale for each row, or one for all.
    pub scales: &'a [f32],
    pub corrections: Option<Corrections<'a>>,
}

/// The codes at one CPU level.
trait Fill {
    fn fill(&self, row: usize, at: usize, out: &mut [i16]);
}

struct AnyLevel<'a, C>(&'a C);

impl<C: RotatedCodes> Fill for AnyLevel<'_, C> {
    #[inline(always)]
    fn fill(&self, row: usize, at: usize, out: &mut [i16]) {
        self.0.fill(row, at, out);
    }
}

#[cfg(target_arch = "x86_64")]
struct AtAvx2<'a, C>(&'a C, Avx2);

#[cfg(target_arch = "x86_64")]
impl<C: RotatedCodes> Fill for AtAvx2<'_, C> {
    #[inline(always)]
    fn fill(&self, row: usize, at: usize, out: &mut [i16]) {
        self.0.fill_avx2(row, at, out, self.1);
    }
}

impl<C: RotatedCodes> Kernel for RotatedRows<'_, C> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.rows(&AnyLevel(&self.codes), out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.rows(&AtAvx2(&self.codes, avx2), out);
    }
}

impl<C: RotatedCodes> RotatedRows<'_, C> {
    #[inline(always)]
    fn rows<E: Element>(&self, codes: &impl Fill, out: &mut [E]) {
        // The square root of 4^n is 2^n, and its reciprocal is exact.
        let unit = 1.0 / (1u32 << (self.group.trailing_zeros() / 2)) as f32;
        let mut sums = Vec::new();
        for (r, out) in out.chunks_exact_mut(self.width.max(1)).enumerate() {
            let scale = *self.scales.get(r).unwrap_or(&self.scales[0]);
            if let Some(corrections) = &self.corrections {
                self.corrected_row(codes, corrections, r, scale, f64::from(unit), out);
            } else if self.group <= CHUNK {
                short_groups(codes, r, self.group, (scale, unit), out);
            } else {
                long_groups(codes, r, self.group, (scale, unit), &mut sums, out);
            }
        }
    }

    /// A row whose values get a correction before they are rotated.
    #[inline(always)]
    fn corrected_row<E: Element>(
        &self,
        codes: &impl Fill,
        corrections: &Corrections<'_>,
        row: usize,
        scale: f32,
        unit: f64,
        out: &mut [E],
    ) {
        let mut values = Vec::new();
        let of_row = &corrections.values[row * (self.width / corrections.width)..];
        let step = self.group.max(CHUNK);
        for (at, out) in zip((0..).step_by(step), out.chunks_mut(step)) {
            values.clear();
            let mut integers = [0; CHUNK];
            for start in (0..out.len()).step_by(CHUNK) {
                let integers = &mut integers[..CHUNK.min(out.len() - start)];
                codes.fill(row, at + start, integers);
                values.extend(zip(at + start.., &*integers).map(|(col, &n)| {
                    f64::from(n) * f64::from(scale) + f64::from(of_row[col / corrections.width])
                }));
            }
            rotate(&mut values, self.group);
            for (out, &sum) in zip(&mut out[..], &values) {
                *out = E::from_f32((sum * unit) as f32);
            }
        }
    }
}

/// A row in groups of [`CHUNK`] columns or fewer, whose sums fit 16 bits.
#[inline(always)]
fn short_groups<E: Element>(
    codes: &impl Fill,
    row: usize,
    group: usize,
    (scale, unit): (f32, f32),
    out: &mut [E],
) {
    let scale = finite_or_nan(scale);
    // Groups divide a chunk, so that a chunk and what is left at the end of a row are whole groups.
    for (at, out) in zip((0..).step_by(CHUNK), out.chunks_mut(CHUNK)) {
        let mut sums = [0i16; CHUNK];
        let sums = &mut sums[..out.len()];
        codes.fill(row, at, sums);
        rotate(sums, group);
        for (out, &sum) in zip(&mut out[..], &*sums) {
            *out = E::from_f32(scaled(f32::from(sum), unit, scale));
        }
    }
}

/// A row in groups of more than [`CHUNK`] columns.
#[inline(always)]
fn long_groups<E: Element>(
    codes: &impl Fill,
    row: usize,
    group: usize,
    (scale, unit): (f32, f32),
    sums: &mut Vec<i32>,
    out: &mut [E],
) {
    let scale = finite_or_nan(scale);
    for (at, out) in zip((0..).step_by(group), out.chunks_exact_mut(group)) {
        sums.clear();
        let mut integers = [0; CHUNK];
        for start in (0..group).step_by(CHUNK) {
            codes.fill(row, at + start, &mut integers);
            sums.extend(integers.iter().map(|&n| i32::from(n)));
        }
        rotate(sums, group);
        for (out, &sum) in zip(&mut out[..], &*sums) {
            *out = E::from_f32(scaled(sum as f32, unit, scale));
        }
    }
}

/// NaN for a scale that is infinite: sums of infinities of both signs are.
#[inline(always)]
fn finite_or_nan(scale: f32) -> f32 {
    if scale.is_finite() { scale } else { f32::NAN }
}

/// `sum / √g * scale`. The first product is exact: the sum has at most 24 bits.
#[inline(always)]
fn scaled(sum: f32, unit: f32, scale: f32) -> f32 {
    // A sum of zeros of both signs is +0, whatever the sign of the scale is.
    sum * unit * scale + 0.0
}

/// Rows of H, for one group of four, without the division by 2.
#[inline(always)]
fn four<T: Copy + Add<Output = T> + Sub<Output = T>>([a, b, c, d]: [T; 4]) -> [T; 4] {
    let (sum_ab, sum_cd, diff_ab, diff_cd) = (a + b, c + d, a - b, c - d);
    [sum_ab + diff_cd, sum_ab - diff_cd, diff_ab + sum_cd, sum_cd - diff_ab]
}

/// Columns that one step of a pass with wide strides takes: a vector of AVX2.
const LANES: usize = 16;

/// Multiplies each group of `group` values by H times √g. The order of the sums is that of the
/// passes: neighbours first, then those 4, 16, 64, … apart.
#[inline(always)]
pub(crate) fn rotate<T: Copy + Add<Output = T> + Sub<Output = T>>(values: &mut [T], group: usize) {
    for quad in values.as_chunks_mut::<4>().0 {
        *quad = four(*quad);
    }
    if group >= 16 {
        for block in values.as_chunks_mut::<16>().0 {
            for i in 0..4 {
                let quad = four([block[i], block[i + 4], block[i + 8], block[i + 12]]);
                [block[i], block[i + 4], block[i + 8], block[i + 12]] = quad;
            }
        }
    }
    let mut stride = LANES;
    while stride < group {
        for block in values.chunks_exact_mut(4 * stride) {
            let (low, high) = block.split_at_mut(2 * stride);
            let ((a, b), (c, d)) = (low.split_at_mut(stride), high.split_at_mut(stride));
            // Whole vectors, whose length the compiler knows.
            let (a, b) = (a.as_chunks_mut::<LANES>().0, b.as_chunks_mut::<LANES>().0);
            let (c, d) = (c.as_chunks_mut::<LANES>().0, d.as_chunks_mut::<LANES>().0);
            for (((a, b), c), d) in zip(zip(zip(&mut a[..], b), c), d) {
                for i in 0..LANES {
                    [a[i], b[i], c[i], d[i]] = four([a[i], b[i], c[i], d[i]]);
                }
            }
        }
        stride *= 4;
    }
}
