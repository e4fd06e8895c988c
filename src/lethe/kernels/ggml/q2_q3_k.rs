//! Q2_K and Q3_K: 16 groups of 16 values, with codes in pairs of bits.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q2_K_ref` and `quantize_row_q3_K_ref`,
//! and with importance `quantize_row_q2_K_impl` and `quantize_row_q3_K_impl`.

use super::affine::{AffineSearch, fit_affine};
use super::descent::{Descended, TILE};
use super::k_quants::{
    AffineIntegers, affine_codes, importance_weights, largest, put_pairs, signed_max_abs,
    sums_of_squares, symmetric_codes,
};
use super::search::{Lanes, fit_symmetric, fit_symmetric_group, nearest_int, transpose};
use super::side_by_side::{SideBySide, encode_beside};
use super::{f16_at, put_f16};
use crate::simd::{Flat, Transpose, copy, from_fn, zip};

pub(super) struct Q2_K;
pub(super) struct Q3_K;

impl SideBySide<84> for Q2_K {
    #[inline(always)]
    fn encode_beside<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]; K],
        importance: Option<&[[f32; 256]; K]>,
        by: impl Transpose,
        out: &mut [[u8; 84]; K],
    ) {
        let x: [Lanes<G>; 16] = transpose(values.flat(), by);
        let (search, fit, mut integers);
        if let Some(importance) = importance {
            let squares = sums_of_squares(values);
            let (w, sums) = importance_weights(&x, importance, squares, 1.0, by);
            search = AffineSearch {
                top: 3.0,
                first: -0.9,
                delta: 0.05,
                steps: 36,
                squared: true,
                clamped: true,
            };
            fit = fit_affine(&x, &w, &search);
            integers = AffineIntegers::weighted::<K, G, L>(&fit, &sums, 15);
        } else {
            let mut w = x;
            for w in w.flat_mut() {
                *w = w.abs();
            }
            // The parameters are those of `quantize_row_q2_K_ref`: magnitudes as weights, and
            // errors not squared.
            search = AffineSearch {
                top: 3.0,
                first: -0.5,
                delta: 0.1,
                steps: 15,
                squared: false,
                clamped: false,
            };
            fit = fit_affine(&x, &w, &search);
            integers = [AffineIntegers::ZERO; K];
            let groups = zip(fit.scale.as_chunks().0.iter(), fit.min.as_chunks().0);
            for (integers, (scales, mins)) in zip(&mut integers[..], groups) {
                let (max_scale, max_min) = (largest(scales), largest(mins));
                *integers = AffineIntegers {
                    d: max_scale / 15.0,
                    min: max_min / 15.0,
                    scales: fifteenths(scales, max_scale),
                    mins: fifteenths(mins, max_min),
                };
            }
        }
        let blocks = zip(zip(integers.iter(), values), out).enumerate();
        for (b, ((integers, values), out)) in blocks {
            put_f16(out, 80, integers.d);
            put_f16(out, 82, integers.min);
            for ((out, scale), min) in zip(zip(&mut out[..], integers.scales), integers.mins) {
                *out = scale | min << 4;
            }
            let (d, min) = (f16_at(out, 80), f16_at(out, 82));
            let (mut scales, mut mins) = ([0.0; 16], [0.0; 16]);
            for ((scale, least), packed) in zip(zip(&mut scales[..], &mut mins), &*out) {
                *scale = d * f32::from(packed & 15);
                *least = min * f32::from(packed >> 4);
            }
            let searched = |g: usize, i: usize| fit.code(&search, 16 * b + g, values[16 * g + i]);
            let codes = affine_codes(values, (&scales, &mins), search.top, searched);
            put_pairs(&codes, &mut out[16..80]);
        }
    }
}

/// Scales as integers: fifteenths of `max`, which is the largest, or 0 if none is positive. A
/// negative one wraps in the byte, as in ggml.
#[inline(always)]
fn fifteenths(values: &Lanes<16>, max: f32) -> [u8; 16] {
    let inverse = 15.0 / max;
    let mut out = [0; 16];
    for (out, &x) in zip(&mut out[..], values) {
        *out = if max > 0.0 {
            nearest_int(inverse * x) as u8
        } else {
            0
        };
    }
    out
}

/// Packs the scales of Q3_K, six bits each: the low four into nibbles of the first eight bytes, the
/// high two into pairs of bits of the last four.
#[inline(always)]
fn packed_scales(codes: &[u8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..8 {
        packed[i] = codes[i] & 15 | codes[i + 8] << 4;
    }
    for i in 0..4 {
        let high = |g: usize| codes[4 * g + i] >> 4;
        packed[8 + i] = high(0) | high(1) << 2 | high(2) << 4 | high(3) << 6;
    }
    packed
}

/// Scales of the groups of a block of Q3_K, which are integers under one scale.
struct Q3Scales {
    d: f32,
    /// As they are stored, 32 more than their values.
    codes: [u8; 16],
}

impl Q3Scales {
    /// The largest magnitude of `scales` becomes the integer of the largest.
    #[inline(always)]
    fn new(scales: &Lanes<16>) -> Self {
        let max = signed_max_abs(scales);
        let (inverse, mut codes) = (-32.0 / max, [0; 16]);
        for (code, &scale) in zip(&mut codes[..], scales) {
            // ggml keeps the integer in an `int8_t` before it limits it.
            *code = if max == 0.0 {
                0
            } else {
                (i32::from(nearest_int(inverse * scale) as i8).clamp(-32, 31) + 32) as u8
            };
        }
        let d = if max == 0.0 { 0.0 } else { 1.0 / inverse };
        Self { d, codes }
    }

    /// The same search serves for scales as for values, since they are signed as well.
    #[inline(always)]
    fn weighted(scales: &Lanes<16>, sums: &Lanes<16>) -> Self {
        let peak = signed_max_abs(scales);
        let fit = fit_symmetric_group::<false, 16>(scales, sums, peak, 32.0);
        let mut codes = [0; 16];
        for (code, &scale) in zip(&mut codes[..], scales) {
            *code = fit.code(0, scale);
        }
        let d = fit.scale[0];
        Self { d, codes }
    }

    /// Makes a block. `searched` is what [`symmetric_codes`] takes.
    #[inline(always)]
    fn store(
        &self,
        values: &[f32; 256],
        searched: impl Fn(usize, usize) -> u8,
        out: &mut [u8; 110],
    ) {
        copy(&packed_scales(&self.codes), &mut out[96..108]);
        put_f16(out, 108, self.d);
        let d = f16_at(out, 108);
        let scales = from_fn(|g| d * (f32::from(self.codes[g]) - 32.0));
        let mut codes = symmetric_codes::<16>(values, &scales, 4.0, searched);
        let (high, rest) = out.split_at_mut(32);
        // Bit n of byte l is the third bit of value l of the n-th 32.
        for (l, high) in high.iter_mut().enumerate() {
            *high = (0..8).fold(0, |bits, n| bits | codes[32 * n + l] >> 2 << n);
        }
        codes.iter_mut().for_each(|code| *code &= 3);
        put_pairs(&codes, &mut rest[..64]);
    }
}

impl Q3_K {
    /// Encodes blocks without importance.
    #[inline(always)]
    fn encode_tiles(values: &[[f32; 256]], by: impl Transpose, out: &mut [[u8; 110]]) {
        let mut fits = Descended::take(4.0);
        for (values, out) in zip(values.chunks(TILE), out.chunks_mut(TILE)) {
            fits.fit(values, by);
            for (b, ((scales, values), out)) in
                zip(zip(fits.scales.iter(), values), out).enumerate()
            {
                let searched = |g: usize, i: usize| fits.code((b, g, i), values[16 * g + i]);
                Q3Scales::new(scales).store(values, searched, out);
            }
        }
        fits.keep();
    }
}

impl SideBySide<110> for Q3_K {
    #[inline(always)]
    fn encode_blocks<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]],
        importance: Option<&[[f32; 256]]>,
        by: impl Transpose,
        out: &mut [[u8; 110]],
    ) {
        match importance {
            None => Self::encode_tiles(values, by, out),
            Some(_) => encode_beside::<Self, 110, K, G, L>(values, importance, by, out),
        }
    }

    #[inline(always)]
    fn encode_beside<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]; K],
        importance: Option<&[[f32; 256]; K]>,
        by: impl Transpose,
        out: &mut [[u8; 110]; K],
    ) {
        let Some(importance) = importance else {
            return Self::encode_tiles(values, by, out);
        };
        let x: [Lanes<G>; 16] = transpose(values.flat(), by);
        let squares = sums_of_squares(values);
        let (w, sums) = importance_weights(&x, importance, squares, 2.0, by);
        let fit = fit_symmetric(&x, &w, 4.0);
        let groups = zip(fit.scale.as_chunks().0.iter(), sums.as_chunks().0);
        for (b, (((scales, sums), values), out)) in zip(zip(groups, values), out).enumerate() {
            let searched = |g: usize, i: usize| fit.code(16 * b + g, values[16 * g + i]);
            Q3Scales::weighted(scales, sums).store(values, searched, out);
        }
    }
}
