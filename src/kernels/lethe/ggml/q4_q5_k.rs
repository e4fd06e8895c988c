//! Q4_K and Q5_K: eight groups of 32 values, with scales and minimums of six bits.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q4_K_ref` and `quantize_row_q5_K_ref`,
//! and with importance `quantize_row_q4_K_impl` and `quantize_row_q5_K_impl`.

use super::affine::{AffineSearch, fit_affine, fit_nonnegative};
use super::k_quants::{importance_weights, largest, stored_or_searched, sum_of_squares};
use super::search::{Lanes, nearest_int, per_lane, transpose};
use super::{BlockImportance, EncodeBlock, f16_at, put_f16};
use crate::kernels::remember::ggml::scale_min;
use crate::simd::LookUp;

pub(super) struct Q4_K;
pub(super) struct Q5_K;

/// Packs the scales and minimums of eight groups, 6 bits each, as [`scale_min`] reads them.
#[inline(always)]
fn put_scale_mins(packed: &mut [u8], scales: &[u8; 8], mins: &[u8; 8]) {
    for g in 0..4 {
        packed[g] = scales[g] | scales[g + 4] >> 4 << 6;
        packed[g + 4] = mins[g] | mins[g + 4] >> 4 << 6;
        packed[g + 8] = scales[g + 4] & 15 | mins[g + 4] << 4;
    }
}

/// Scales as integers: sixty-thirds of `max`, which is the largest, or 0 if none is positive. A
/// negative one wraps in the byte and is then limited.
#[inline(always)]
fn sixty_thirds(values: &Lanes<8>, max: f32) -> [u8; 8] {
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    let mut out = [0; 8];
    for (out, &x) in out.iter_mut().zip(values) {
        *out = (nearest_int(inverse * x) as u8).min(63);
    }
    out
}

/// Writes what Q4_K and Q5_K have in common, `d | dmin | scales[12]`, and leaves the codes from 0
/// to `search.top` in `codes`. With importance both types search in the same steps.
#[inline(always)]
fn groups_of_32(
    values: &[f32; 256],
    importance: Option<BlockImportance<'_, 256>>,
    search: AffineSearch,
    out: &mut [u8],
    codes: &mut [u8; 256],
) {
    let x: [Lanes<8>; 32] = transpose(values);
    let (fit, d, min, mut scales, mut mins);
    let search = match importance {
        None => search,
        Some(_) => AffineSearch {
            first: -0.9,
            delta: 0.05,
            steps: 36,
            clamped: true,
            ..search
        },
    };
    if let Some(importance) = importance {
        let (w, sums) =
            importance_weights(&x, importance.weights, 2.0 * sum_of_squares(values) / 256.0);
        fit = fit_affine(&x, &w, &search);
        (scales, mins) = ([0; 8], [0; 8]);
        d = fit_nonnegative(&fit.scale, &sums, 63, &mut scales);
        min = fit_nonnegative(&fit.min, &sums, 63, &mut mins);
    } else {
        // Without importance, weights are the root of the group's mean square plus the magnitude
        // (`av_x`).
        let mut squares = [0.0; 8];
        for x in &x {
            squares = per_lane(|g| squares[g] + x[g] * x[g]);
        }
        let mean: Lanes<8> = per_lane(|g| (squares[g] / 32.0).sqrt());
        let mut w = x;
        w.iter_mut()
            .for_each(|w| *w = per_lane(|g| mean[g] + w[g].abs()));
        fit = fit_affine(&x, &w, &search);
        let (max_scale, max_min) = (largest(&fit.scale), largest(&fit.min));
        (scales, mins) = (
            sixty_thirds(&fit.scale, max_scale),
            sixty_thirds(&fit.min, max_min),
        );
        (d, min) = (max_scale / 63.0, max_min / 63.0);
    }
    if search.top > 15.0 {
        // `fit_nonnegative` leaves the codes of negative scales wrapped, as large bytes. ggml
        // limits them in Q5_K, but not in Q4_K, where their high bits spoil the packed scales of
        // other groups.
        scales
            .iter_mut()
            .chain(&mut mins)
            .for_each(|code| *code = (*code).min(63));
    }
    put_f16(out, 0, d);
    put_f16(out, 2, min);
    put_scale_mins(&mut out[4..16], &scales, &mins);
    // Read again: d and dmin are rounded to f16, and scales of groups to six bits.
    let (d, min) = (f16_at(out, 0), f16_at(out, 2));
    for (g, (codes, values)) in codes
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(values.as_chunks::<32>().0)
        .enumerate()
    {
        let (scale, m) = scale_min(&out[4..16], g);
        stored_or_searched(values, d * scale, min * m, (&fit, &search, g), codes);
    }
}

impl EncodeBlock<144, 256> for Q4_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 144],
    ) {
        let search = AffineSearch {
            top: 15.0,
            first: -1.0,
            delta: 0.1,
            steps: 20,
            squared: true,
            clamped: false,
        };
        let mut codes = [0; 256];
        groups_of_32(values, importance, search, &mut out[..16], &mut codes);
        for (out, codes) in out[16..]
            .as_chunks_mut::<32>()
            .0
            .iter_mut()
            .zip(codes.as_chunks::<64>().0)
        {
            for (l, out) in out.iter_mut().enumerate() {
                *out = codes[l] | codes[l + 32] << 4;
            }
        }
    }
}

impl EncodeBlock<176, 256> for Q5_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 176],
    ) {
        let search = AffineSearch {
            top: 31.0,
            first: -0.5,
            delta: 0.1,
            steps: 15,
            squared: true,
            clamped: false,
        };
        let mut codes = [0u8; 256];
        groups_of_32(values, importance, search, &mut out[..16], &mut codes);
        let (high, low) = out[16..].split_at_mut(32);
        for (l, high) in high.iter_mut().enumerate() {
            *high = (0..8).fold(0, |bits, n| bits | codes[32 * n + l] >> 4 << n);
        }
        for (out, codes) in low
            .as_chunks_mut::<32>()
            .0
            .iter_mut()
            .zip(codes.as_chunks::<64>().0)
        {
            for (l, out) in out.iter_mut().enumerate() {
                *out = codes[l] & 15 | codes[l + 32] << 4;
            }
        }
    }
}
