//! What the K-quants share, and Q6_K and Q8_K. K-quants are super-blocks of 256 values in groups,
//! whose scales are themselves integers under one f16.
//!
//! A super-block takes three steps: its groups are searched side by side for their scales; the
//! scales become integers; and the codes are chosen anew for the scales as they are read again, f16
//! and all.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q6_K_ref`, `quantize_row_q6_K_impl` with
//! importance, and `quantize_row_q8_K_ref`.

use super::affine::{AffineFit, fit_nonnegative};
use super::search::{
    Lanes, SymmetricFit, TINY, fit_symmetric, nearest_in, nearest_int, opaque, transpose,
};
use super::side_by_side::SideBySide;
use super::{BlockImportance, EncodeBlock, f16_at, legacy, put_f16};
use crate::simd::{Flat, LookUp, Transpose, copy, from_fn, zip};

pub(super) struct Q6_K;
pub(super) struct Q8_K;

/// Σx² of each of some super-blocks, in order. Each sum is one chain of additions, so blocks are
/// side by side.
#[inline(always)]
pub(super) fn sums_of_squares<const K: usize>(values: &[[f32; 256]; K]) -> [f32; K] {
    let mut sums = [0.0; K];
    for i in 0..256 {
        for (sum, values) in zip(&mut sums[..], values) {
            *sum += values[i] * values[i];
        }
    }
    sums
}

/// The weights of values, `importance * sqrt(mean_square + x²)`, and their sum in each group. The
/// sums weigh the scales of the groups, where these are searched for a scale in turn. The mean
/// square of a block is `factor` times the mean of its `squares`. `importance` is that of its
/// columns.
#[inline(always)]
pub(super) fn importance_weights<const K: usize, const N: usize, const G: usize>(
    x: &[Lanes<G>; N],
    importance: &[[f32; 256]; K],
    squares: [f32; K],
    factor: f32,
    by: impl Transpose,
) -> ([Lanes<G>; N], Lanes<G>) {
    let (mut w, mut sum) = (transpose::<N, G>(importance.flat(), by), [0.0; G]);
    let mean_square: Lanes<G> = from_fn(|g| factor * squares[g / (G / K)] / 256.0);
    for (w, x) in zip(&mut w[..], x) {
        for g in 0..G {
            w[g] *= (mean_square[g] + x[g] * x[g]).sqrt();
            sum[g] += w[g];
        }
    }
    (w, sum)
}

/// Scales and minimums of the `P` groups of a block, which are integers under one scale and one
/// minimum.
#[derive(Clone, Copy)]
pub(super) struct AffineIntegers<const P: usize> {
    pub(super) d: f32,
    pub(super) min: f32,
    pub(super) scales: [u8; P],
    pub(super) mins: [u8; P],
}

impl<const P: usize> AffineIntegers<P> {
    pub(super) const ZERO: Self = Self { d: 0.0, min: 0.0, scales: [0; P], mins: [0; P] };

    /// From the `G` groups of `K` blocks and the sums of the weights in each. ggml searches the
    /// scales of groups in turn, up to `top`: the lanes, of which there are `L`, are the scales and
    /// the minimums of each block.
    #[inline(always)]
    pub(super) fn weighted<const K: usize, const G: usize, const L: usize>(
        fit: &AffineFit<G>,
        sums: &Lanes<G>,
        top: i32,
    ) -> [Self; K] {
        let (mut x, mut w) = ([[0.0; L]; P], [[0.0; L]; P]);
        for (i, (x, w)) in zip(&mut x[..], &mut w).enumerate() {
            for b in 0..K {
                let g = b * P + i;
                (x[2 * b], x[2 * b + 1]) = (fit.scale[g], fit.min[g]);
                (w[2 * b], w[2 * b + 1]) = (sums[g], sums[g]);
            }
        }
        let (of_blocks, codes) = fit_nonnegative(&x, &w, top);
        let mut blocks = [Self::ZERO; K];
        for (b, block) in blocks.iter_mut().enumerate() {
            (block.d, block.min) = (of_blocks[2 * b], of_blocks[2 * b + 1]);
            for (i, codes) in codes.iter().enumerate() {
                block.scales[i] = codes[2 * b] as u8;
                block.mins[i] = codes[2 * b + 1] as u8;
            }
        }
        blocks
    }
}

/// The largest value; 0 if none is positive.
#[inline(always)]
pub(super) fn largest<const G: usize>(values: &Lanes<G>) -> f32 {
    values
        .iter()
        .fold(0.0, |max, &x| if x > max { x } else { max })
}

/// The value with the largest magnitude, with its sign; the first of several.
#[inline(always)]
pub(super) fn signed_max_abs<const G: usize>(values: &Lanes<G>) -> f32 {
    // NaN counts as 0.
    let mut left: Lanes<G> = from_fn(|g| {
        if values[g].abs() > 0.0 {
            values[g]
        } else {
            0.0
        }
    });
    // Neighbours are compared until one is left: the first of several stays the first, and no
    // comparison waits for all before it.
    let mut n = G;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            let [a, b] = [left[2 * i], left[2 * i + 1]];
            left[i] = if b.abs() > a.abs() { b } else { a };
        }
    }
    left[0]
}

/// `x`, which is an integer from 0 to 255, as a byte. The conversion by `as` is defined for all
/// floats, and LLVM makes one value at a time of it.
#[inline(always)]
fn byte(x: f32) -> u8 {
    // The last place of numbers from 2²³ to 2²⁴ is 1.
    (x + 8_388_608.0).to_bits() as u8
}

/// For each value the number of its group. A loop over all values of a block is vectorised, where
/// one over those of a group is unrolled before it could be. Each number is opaque, for of several
/// together LLVM makes scatters.
#[inline(always)]
fn of_values<const G: usize>(of_groups: &[f32; G]) -> [f32; 256] {
    let mut out = [0.0; 256];
    for (out, x) in zip(out.chunks_exact_mut(256 / G), of_groups) {
        let x = *opaque(x);
        for out in out {
            *out = x;
        }
    }
    out
}

/// The codes of values that are `scale * (code - half)`, for the scale of each group. If that has
/// become zero they are those of the search, as in ggml, which leaves them in its array then:
/// `searched` has them by group and value in it.
#[inline(always)]
pub(super) fn symmetric_codes<const G: usize>(
    values: &[f32; 256],
    scales: &[f32; G],
    half: f32,
    searched: impl Fn(usize, usize) -> u8,
) -> [u8; 256] {
    let (scale, mut codes) = (of_values(scales), [0; 256]);
    for (i, code) in codes.iter_mut().enumerate() {
        *code = byte(nearest_in(values[i] / scale[i], -half, half - 1.0) + half);
    }
    put_searched(scales, searched, &mut codes);
    codes
}

/// The codes from 0 to `top` of values that are `scale * code - min`, for the scale and the minimum
/// of each group, or those of the search as [`symmetric_codes`] has them.
#[inline(always)]
pub(super) fn affine_codes<const P: usize>(
    values: &[f32; 256],
    (scales, mins): (&[f32; P], &[f32; P]),
    top: f32,
    searched: impl Fn(usize, usize) -> u8,
) -> [u8; 256] {
    let (scale, min) = (of_values(scales), of_values(mins));
    let mut codes = [0; 256];
    for (i, code) in codes.iter_mut().enumerate() {
        *code = byte(nearest_in((values[i] + min[i]) / scale[i], 0.0, top));
    }
    put_searched(scales, searched, &mut codes);
    codes
}

/// Replaces the codes of groups whose scale is zero.
#[inline(always)]
fn put_searched<const G: usize>(
    scales: &[f32; G],
    searched: impl Fn(usize, usize) -> u8,
    codes: &mut [u8; 256],
) {
    let groups = zip(codes.chunks_exact_mut(256 / G), scales).enumerate();
    for (g, (codes, &scale)) in groups {
        if scale == 0.0 {
            for (i, code) in codes.iter_mut().enumerate() {
                *code = searched(g, i);
            }
        }
    }
}

/// Packs codes of two bits: of each 128, code `l` of the `n`-th 32 goes to bits `2n` and `2n + 1`
/// of byte `l`.
#[inline(always)]
pub(super) fn put_pairs(codes: &[u8; 256], out: &mut [u8]) {
    for (out, codes) in zip(out.as_chunks_mut::<32>().0, codes.as_chunks::<128>().0) {
        for (l, out) in out.iter_mut().enumerate() {
            *out = codes[l] | codes[l + 32] << 2 | codes[l + 64] << 4 | codes[l + 96] << 6;
        }
    }
}

impl SideBySide<210> for Q6_K {
    #[inline(always)]
    fn encode_beside<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]; K],
        importance: Option<&[[f32; 256]; K]>,
        by: impl Transpose,
        out: &mut [[u8; 210]; K],
    ) {
        let x: [Lanes<G>; 16] = transpose(values.flat(), by);
        let w = match importance {
            Some(importance) => transpose(importance.flat(), by),
            None => {
                let mut w = x;
                for w in w.flat_mut() {
                    *w *= *w;
                }
                w
            }
        };
        let fit: SymmetricFit<G> = fit_symmetric(&x, &w, 32.0);
        let groups = fit.scale.as_chunks::<16>().0;
        for (b, ((scales, values), out)) in zip(zip(groups.iter(), values), out).enumerate() {
            let searched = |g: usize, i: usize| fit.code(16 * b + g, values[16 * g + i]);
            store_q6_k(scales, values, searched, out);
        }
    }
}

/// Makes a block of Q6_K of the scales of its groups. `searched` is what [`symmetric_codes`] takes.
#[inline(always)]
fn store_q6_k(
    scales: &[f32; 16],
    values: &[f32; 256],
    searched: impl Fn(usize, usize) -> u8,
    out: &mut [u8; 210],
) {
    let max = signed_max_abs(scales);
    if max.abs() < TINY {
        out.fill(0);
        return;
    }
    // The largest scale becomes -128: there is a step more below zero than above.
    let inverse = -128.0 / max;
    put_f16(out, 208, 1.0 / inverse);
    let d = f16_at(out, 208);
    let mut stored_scales = [0.0; 16];
    for (g, scale) in stored_scales.iter_mut().enumerate() {
        // Limited above alone: below, -128 is what the extreme scale becomes.
        let stored = nearest_int(inverse * scales[g]).min(127) as i8;
        out[192 + g] = stored as u8;
        *scale = d * f32::from(stored);
    }
    let codes = symmetric_codes(values, &stored_scales, 32.0, searched);
    let (low, high) = out.split_at_mut(128);
    let low = zip(low.as_chunks_mut::<64>().0, high.as_chunks_mut::<32>().0);
    for ((low, high), codes) in zip(low, codes.as_chunks::<128>().0) {
        for l in 0..32 {
            let [a, b, c, d] = [codes[l], codes[l + 32], codes[l + 64], codes[l + 96]];
            low[l] = a & 15 | c << 4;
            low[l + 32] = b & 15 | d << 4;
            high[l] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
        }
    }
}

impl EncodeBlock<292, 256> for Q8_K {
    const ROW_SQUARE: bool = false;

    /// Importance is not heeded. In a block of zeros the sums of each 16 codes are zeroed, too.
    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        _importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 292],
    ) {
        let max = legacy::signed_max_abs(values);
        if max == 0.0 {
            out.fill(0);
            return;
        }
        let inverse = -127.0 / max;
        let (d, rest) = out.split_at_mut(4);
        let (codes, sums) = rest.split_at_mut(256);
        copy(&(1.0 / inverse).to_le_bytes(), d);
        for (code, &x) in zip(&mut codes[..], values) {
            *code = nearest_int(inverse * x).min(127) as u8;
        }
        for (sum, codes) in zip(sums.as_chunks_mut::<2>().0, codes.as_chunks::<16>().0) {
            *sum = codes
                .iter()
                // 16 codes of at most 128 in magnitude fit 16 bits.
                .fold(0i16, |sum, &code| sum + i16::from(code as i8))
                .to_le_bytes();
        }
    }
}
