//! Rows of pairs of values, each one of a table, in groups that share a scale. Some groups together
//! were multiplied by a Hadamard matrix, which is undone here: HIGGS.
//!
//! The values of the table are multiples of a power of two, and so few bits long that their sums
//! are integers of 32 bits. These are exact, and so are their products with scales and the sums of
//! these in F64 ([`RotatedPairs::fits`]): only the last product and the value of the output are
//! rounded, as [`HadamardGroups`](super::hadamard::HadamardGroups) rounds them.

use super::hadamard::{butterflies, butterfly_rows};
use crate::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Butterflies, InMemory, Kernel, Routine, zip};

/// Most pairs of a table: those of a code of a byte.
pub(crate) const MAX_PAIRS: usize = 256;

/// Most columns that share a scale.
pub(crate) const MAX_GROUP: usize = 256;

/// Bits of a sum without its sign.
const SUM_BITS: u32 = 31;

/// The values of pairs as multiples of a unit.
pub(crate) struct IntegerPairs {
    pairs: Box<[[i32; 2]; MAX_PAIRS]>,
    /// A power of two.
    unit: f64,
}

impl IntegerPairs {
    /// `None` if there are too many pairs, or if a sum of [`MAX_GROUP`] values may have more bits
    /// than an integer.
    pub(crate) fn new(values: &[f32]) -> Option<Self> {
        let (pairs, rest) = values.as_chunks::<2>();
        if pairs.len() > MAX_PAIRS || !rest.is_empty() {
            return None;
        }
        let largest = values.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        // A sum is below this power of two; the unit is so small that there are 2^31 below it.
        let exponent = (largest.to_bits() >> 23) as i32 - 126 + MAX_GROUP.ilog2() as i32;
        // Products with scales are normal numbers of F32 then, whose bits are those of both.
        if !values.iter().all(|x| x.is_finite()) || !(-8..=40).contains(&exponent) {
            return None;
        }
        let unit = 2f64.powi(exponent - SUM_BITS as i32);
        let mut out = Box::new([[0; 2]; MAX_PAIRS]);
        for (out, pair) in zip(&mut out[..], pairs) {
            for (out, &value) in zip(&mut out[..], pair) {
                let multiple = f64::from(value) / unit;
                if multiple.fract() != 0.0 {
                    return None;
                }
                *out = multiple as i32;
            }
        }
        Some(Self { pairs: out, unit })
    }
}

/// Rows of rotated pairs.
pub(crate) struct RotatedPairs<'a> {
    pub table: &'a IntegerPairs,
    /// The numbers of the pairs, row-major. Rows have whole rotations.
    pub codes: &'a [u8],
    /// Columns that are rotated together: groups, as many as a power of two.
    pub rotation: usize,
    /// Columns that share a scale: a power of two from 16 to [`MAX_GROUP`].
    pub group: usize,
    /// Scales of the groups, row-major; see [`fits`](Self::fits).
    pub scales: &'a [f32],
    /// What the sums are multiplied with, in F64.
    pub entry: f64,
}

impl RotatedPairs<'_> {
    /// Whether sums of a rotation with these scales, which have 11 bits, are exact. A sum of a
    /// group has 31 bits, its product with a scale 42, and is a multiple of the unit times the last
    /// place of the scale, which is more than 2^-11 of it. So F64 has the sums of products if the
    /// largest scale is at most 2^(53 - 31 - 11) times as large as the smallest, divided by the
    /// number of groups.
    pub(crate) fn fits(scales: &[f32]) -> bool {
        let (mut least, mut most, mut is_finite) = (f32::MAX, 0.0f32, true);
        for &scale in scales {
            is_finite &= scale.is_finite();
            most = most.max(scale.abs());
            least = least.min(if scale == 0.0 { f32::MAX } else { scale.abs() });
        }
        let is_normal = most == 0.0 || (least >= 2f32.powi(-40) && most <= 2f32.powi(40));
        is_finite && is_normal && most * scales.len() as f32 <= 2048.0 * least
    }

    #[inline(always)]
    fn rows<E: Element>(&self, by: impl Butterflies, out: &mut [E]) {
        let groups = self.rotation / self.group;
        let factor = self.entry * self.table.unit;
        let mut sums = vec![0; self.rotation];
        let mut panel = vec![[0.0; LANES]; groups];
        let rotations = self.codes.chunks_exact(self.rotation / 2);
        let scales = self.scales.chunks_exact(groups);
        let blocks = out.chunks_exact_mut(self.rotation);
        for ((codes, scales), out) in zip(zip(rotations, scales), blocks) {
            for (pair, &code) in zip(sums.as_chunks_mut::<2>().0, codes) {
                *pair = self.table.pairs[usize::from(code)];
            }
            butterflies(by, &mut sums, self.group);
            match (scales, groups) {
                (&[first, second], 2) => self.two_groups(&sums, [first, second], factor, out),
                _ => self.groups(&sums, scales, factor, &mut panel, out),
            }
        }
    }

    /// Multiplies sums of two groups by their scales, and adds and subtracts the products.
    #[inline(always)]
    fn two_groups<E: Element>(&self, sums: &[i32], scales: [f32; 2], factor: f64, out: &mut [E]) {
        let scales = scales.map(f64::from);
        let (low, high) = sums.split_at(self.group);
        let (first, second) = out.split_at_mut(self.group);
        let sums = zip(low.as_chunks().0.iter(), high.as_chunks().0);
        let outs = first.as_chunks_mut().0;
        for ((low, high), (first, second)) in zip(sums, zip(outs, second.as_chunks_mut().0)) {
            let low: &[i32; LANES] = low;
            let high: &[i32; LANES] = high;
            let mut values = [[0.0; LANES]; 2];
            for i in 0..LANES {
                let (a, b) = (f64::from(low[i]) * scales[0], f64::from(high[i]) * scales[1]);
                values[0][i] = ((a + b) * factor) as f32 + 0.0;
                values[1][i] = ((a - b) * factor) as f32 + 0.0;
            }
            let first: &mut [E; LANES] = first;
            let second: &mut [E; LANES] = second;
            E::store(&values[0], first);
            E::store(&values[1], second);
        }
    }

    /// The same for any number of groups.
    #[inline(always)]
    fn groups<E: Element>(
        &self,
        sums: &[i32],
        scales: &[f32],
        factor: f64,
        panel: &mut [[f64; LANES]],
        out: &mut [E],
    ) {
        for at in (0..self.group).step_by(LANES) {
            let rows = zip(&mut panel[..], sums.chunks_exact(self.group));
            for ((panel, sums), &scale) in zip(rows, scales) {
                let Some(sums) = sums[at..].first_chunk::<LANES>() else {
                    continue;
                };
                for (panel, &sum) in zip(&mut panel[..], sums) {
                    *panel = f64::from(sum) * f64::from(scale);
                }
            }
            butterfly_rows(panel, scales.len());
            for (panel, out) in zip(panel.iter(), out.chunks_exact_mut(self.group)) {
                let Some(out) = out[at..].first_chunk_mut::<LANES>() else {
                    continue;
                };
                for (out, &sum) in zip(&mut out[..], panel) {
                    *out = E::from_f32((sum * factor) as f32 + 0.0);
                }
            }
        }
    }
}

/// Columns of groups that are added together.
const LANES: usize = 16;

impl Kernel for RotatedPairs<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.rows(InMemory, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.rows(avx2, out);
    }
}

/// Takes the codes of lanes out of words of 32 bits, each of which has one of every lane, lowest
/// bits first.
pub(crate) struct LaneCodes<'a> {
    pub words: &'a [[u8; 4]],
    /// Bits of a code, at most 8.
    pub bits: usize,
    /// As many codes of each lane as there are words.
    pub lanes: Vec<&'a mut [u8]>,
    /// Gets the highest two bits of words as bits from a place on, if there are such.
    pub rest: Option<(&'a mut [u8], usize)>,
}

impl Routine for LaneCodes<'_> {
    const DECODES: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        let mask = ((1u32 << self.bits) - 1) as u8;
        for (i, lane) in self.lanes.iter_mut().enumerate() {
            let shift = self.bits * i;
            for (code, &word) in zip(&mut lane[..], self.words) {
                *code = (u32::from_le_bytes(word) >> shift) as u8 & mask;
            }
        }
        if let Some((lane, place)) = &mut self.rest {
            // Lower bits are there already.
            let below = ((1u32 << *place) - 1) as u8;
            for (code, &word) in zip(&mut lane[..], self.words) {
                *code = *code & below | ((u32::from_le_bytes(word) >> 30) as u8) << *place;
            }
        }
    }
}
