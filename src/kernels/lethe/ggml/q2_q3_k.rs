//! Q2_K and Q3_K: 16 groups of 16 values, with codes in pairs of bits.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q2_K_ref` and `quantize_row_q3_K_ref`,
//! and with importance `quantize_row_q2_K_impl` and `quantize_row_q3_K_impl`.

use super::affine::{AffineSearch, fit_affine, fit_nonnegative};
use super::k_quants::{
    importance_weights, largest, put_pairs, signed_max_abs, stored_or_searched, sum_of_squares,
    symmetric_codes,
};
use super::search::{
    Lanes, fit_by_coordinates, fit_symmetric, fit_symmetric_group, nearest_int, per_lane, transpose,
};
use super::{BlockImportance, EncodeBlock, f16_at, put_f16};
use crate::simd::LookUp;

pub(super) struct Q2_K;
pub(super) struct Q3_K;

impl EncodeBlock<84, 256> for Q2_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 84],
    ) {
        let x: [Lanes<16>; 16] = transpose(values);
        let (search, fit, scales, (d, min));
        if let Some(importance) = importance {
            let (w, sums) =
                importance_weights(&x, importance.weights, sum_of_squares(values) / 256.0);
            search = AffineSearch {
                top: 3.0,
                first: -0.9,
                delta: 0.05,
                steps: 36,
                squared: true,
                clamped: true,
            };
            fit = fit_affine(&x, &w, &search);
            // ggml searches the scales of groups in turn, weighed by the sums of the weights.
            let (mut of_scales, mut of_mins) = ([0; 16], [0; 16]);
            (d, min) = (
                fit_nonnegative(&fit.scale, &sums, 15, &mut of_scales),
                fit_nonnegative(&fit.min, &sums, 15, &mut of_mins),
            );
            scales = (of_scales, of_mins);
        } else {
            let mut w = x;
            w.iter_mut().flatten().for_each(|w| *w = w.abs());
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
            let (max_scale, max_min) = (largest(&fit.scale), largest(&fit.min));
            scales = (
                fifteenths(&fit.scale, max_scale),
                fifteenths(&fit.min, max_min),
            );
            (d, min) = (max_scale / 15.0, max_min / 15.0);
        }
        put_f16(out, 80, d);
        put_f16(out, 82, min);
        for ((out, scale), min) in out.iter_mut().zip(scales.0).zip(scales.1) {
            *out = scale | min << 4;
        }
        let (d, min) = (f16_at(out, 80), f16_at(out, 82));
        let mut codes = [0; 256];
        for (g, (codes, values)) in codes
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(values.as_chunks::<16>().0)
            .enumerate()
        {
            let scale = d * f32::from(out[g] & 15);
            stored_or_searched(
                values,
                scale,
                min * f32::from(out[g] >> 4),
                (&fit, &search, g),
                codes,
            );
        }
        put_pairs(&codes, &mut out[16..80]);
    }
}

/// Scales as integers: fifteenths of `max`, which is the largest, or 0 if none is positive. A
/// negative one wraps in the byte, as in ggml.
#[inline(always)]
fn fifteenths(values: &Lanes<16>, max: f32) -> [u8; 16] {
    let inverse = 15.0 / max;
    let mut out = [0; 16];
    for (out, &x) in out.iter_mut().zip(values) {
        *out = if max > 0.0 {
            nearest_int(inverse * x) as u8
        } else {
            0
        };
    }
    out
}

/// Packs the six bits of scale `g` of Q3_K: the low four into a nibble of the first eight bytes,
/// the high two into a pair of bits of the last four. `packed` is zeros where no scale was put.
#[inline(always)]
fn put_scale(packed: &mut [u8], g: usize, code: u8) {
    packed[g % 8] |= (code & 15) << (g / 8 * 4);
    packed[8 + g % 4] |= code >> 4 << (g / 4 * 2);
}

impl EncodeBlock<110, 256> for Q3_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 110],
    ) {
        let x: [Lanes<16>; 16] = transpose(values);
        let mut searched = [[0.0; 16]; 16];
        let mut scales = [0u8; 16];
        let d;
        if let Some(importance) = importance {
            let (w, sums) =
                importance_weights(&x, importance.weights, 2.0 * sum_of_squares(values) / 256.0);
            let fit = fit_symmetric(&x, &w, 4.0);
            for (codes, x) in searched.iter_mut().zip(&x) {
                *codes = per_lane(|g| f32::from(fit.code(g, x[g])));
            }
            // Scales of Q3_K are signed and stored as 0 to 63, so the same search serves for them.
            let peak = signed_max_abs(&fit.scale);
            let of_scales = fit_symmetric_group::<false, 16>(&fit.scale, &sums, peak, 32.0);
            for (code, &scale) in scales.iter_mut().zip(&fit.scale) {
                *code = of_scales.code(0, scale);
            }
            d = of_scales.scale[0];
        } else {
            let fit = fit_by_coordinates(&x, 4.0, &mut searched);
            let max = signed_max_abs(&fit);
            let inverse = -32.0 / max;
            for (code, &scale) in scales.iter_mut().zip(&fit) {
                // ggml keeps the integer in an `int8_t` before it limits it.
                *code = if max == 0.0 {
                    0
                } else {
                    (i32::from(nearest_int(inverse * scale) as i8).clamp(-32, 31) + 32) as u8
                };
            }
            d = if max == 0.0 { 0.0 } else { 1.0 / inverse };
        }
        out[96..108].fill(0);
        for (g, &code) in scales.iter().enumerate() {
            put_scale(&mut out[96..108], g, code);
        }
        put_f16(out, 108, d);
        let d = f16_at(out, 108);
        let mut codes = [0u8; 256];
        for (g, (codes, values)) in codes
            .as_chunks_mut::<16>()
            .0
            .iter_mut()
            .zip(values.as_chunks::<16>().0)
            .enumerate()
        {
            let scale = d * (f32::from(scales[g]) - 32.0);
            if scale != 0.0 {
                symmetric_codes(values, scale, 4.0, codes);
            } else {
                codes
                    .iter_mut()
                    .zip(&searched)
                    .for_each(|(code, searched)| *code = searched[g] as u8);
            }
        }
        let (high, rest) = out.split_at_mut(32);
        // Bit n of byte l is the third bit of value l of the n-th 32.
        for (l, high) in high.iter_mut().enumerate() {
            *high = (0..8).fold(0, |bits, n| bits | codes[32 * n + l] >> 2 << n);
        }
        codes.iter_mut().for_each(|code| *code &= 3);
        put_pairs(&codes, &mut rest[..64]);
    }
}
