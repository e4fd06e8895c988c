//! Q4_K and Q5_K: eight groups of 32 values, with scales and minimums of six bits.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q4_K_ref` and `quantize_row_q5_K_ref`,
//! and with importance `quantize_row_q4_K_impl` and `quantize_row_q5_K_impl`.

use super::affine::{AffineSearch, fit_affine};
use super::k_quants::{AffineIntegers, affine_codes, importance_weights, largest, sums_of_squares};
use super::search::{Lanes, nearest_int, transpose};
use super::side_by_side::SideBySide;
use super::{f16_at, put_f16};
use crate::remember::kernels::ggml::scale_min;
use crate::simd::{Flat, Transpose, copy, from_fn, zip};

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
    for (out, &x) in zip(&mut out[..], values) {
        *out = (nearest_int(inverse * x) as u8).min(63);
    }
    out
}

/// What Q4_K and Q5_K have in common: `d | dmin | scales[12]`, and the codes from 0 to the top of
/// `search`.
type Groups = ([u8; 16], [u8; 256]);

/// Searches `K` blocks side by side, whose groups are the `G` lanes; `L` is twice `K`. With
/// importance both types search in the same steps.
#[inline(always)]
fn groups_of_32<const K: usize, const G: usize, const L: usize>(
    values: &[[f32; 256]; K],
    importance: Option<&[[f32; 256]; K]>,
    (search, by): (AffineSearch, impl Transpose),
) -> [Groups; K] {
    let x: [Lanes<G>; 32] = transpose(values.flat(), by);
    let search = match importance {
        None => search,
        Some(_) => AffineSearch { first: -0.9, delta: 0.05, steps: 36, clamped: true, ..search },
    };
    let (fit, mut integers);
    if let Some(importance) = importance {
        let squares = sums_of_squares(values);
        let (w, sums) = importance_weights(&x, importance, squares, 2.0, by);
        fit = fit_affine(&x, &w, &search);
        integers = AffineIntegers::weighted::<K, G, L>(&fit, &sums, 63);
    } else {
        // Without importance, weights are the root of the group's mean square plus the magnitude
        // (`av_x`).
        let mut squares = [0.0; G];
        for x in &x {
            squares = from_fn(|g| squares[g] + x[g] * x[g]);
        }
        let mean: Lanes<G> = from_fn(|g| (squares[g] / 32.0).sqrt());
        let mut w = x;
        for w in &mut w {
            *w = from_fn(|g| mean[g] + w[g].abs());
        }
        fit = fit_affine(&x, &w, &search);
        integers = [AffineIntegers::ZERO; K];
        let groups = zip(fit.scale.as_chunks().0.iter(), fit.min.as_chunks().0);
        for (integers, (scales, mins)) in zip(&mut integers[..], groups) {
            let (max_scale, max_min) = (largest(scales), largest(mins));
            *integers = AffineIntegers {
                d: max_scale / 63.0,
                min: max_min / 63.0,
                scales: sixty_thirds(scales, max_scale),
                mins: sixty_thirds(mins, max_min),
            };
        }
    }
    let mut blocks = [([0; 16], [0; 256]); K];
    for (b, (((head, codes), values), integers)) in
        zip(zip(&mut blocks[..], values), &mut integers).enumerate()
    {
        if search.top > 15.0 {
            // `fit_nonnegative` leaves the codes of negative scales wrapped, as large bytes. ggml
            // limits them in Q5_K, but not in Q4_K, where their high bits spoil the packed scales
            // of other groups.
            let codes = integers.scales.iter_mut().chain(&mut integers.mins);
            for code in codes {
                *code = (*code).min(63);
            }
        }
        put_f16(head, 0, integers.d);
        put_f16(head, 2, integers.min);
        put_scale_mins(&mut head[4..], &integers.scales, &integers.mins);
        // Read again: d and dmin are rounded to f16, and scales of groups to six bits.
        let (d, min) = (f16_at(head, 0), f16_at(head, 2));
        let (mut scales, mut mins) = ([0.0; 8], [0.0; 8]);
        for g in 0..8 {
            let (scale, least) = scale_min(&head[4..], g);
            (scales[g], mins[g]) = (d * scale, min * least);
        }
        let searched = |g: usize, i: usize| fit.code(&search, 8 * b + g, values[32 * g + i]);
        *codes = affine_codes(values, (&scales, &mins), search.top, searched);
    }
    blocks
}

impl Q4_K {
    const SEARCH: AffineSearch = AffineSearch {
        top: 15.0,
        first: -1.0,
        delta: 0.1,
        steps: 20,
        squared: true,
        clamped: false,
    };

    #[inline(always)]
    fn store((head, codes): &Groups, out: &mut [u8; 144]) {
        copy(head, &mut out[..16]);
        for (out, codes) in zip(out[16..].as_chunks_mut::<32>().0, codes.as_chunks::<64>().0) {
            for (l, out) in out.iter_mut().enumerate() {
                *out = codes[l] | codes[l + 32] << 4;
            }
        }
    }
}

impl SideBySide<144> for Q4_K {
    #[inline(always)]
    fn encode_beside<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]; K],
        importance: Option<&[[f32; 256]; K]>,
        by: impl Transpose,
        out: &mut [[u8; 144]; K],
    ) {
        let blocks = groups_of_32::<K, G, L>(values, importance, (Self::SEARCH, by));
        for (groups, out) in zip(blocks.iter(), out) {
            Self::store(groups, out);
        }
    }
}

impl Q5_K {
    const SEARCH: AffineSearch = AffineSearch {
        top: 31.0,
        first: -0.5,
        delta: 0.1,
        steps: 15,
        squared: true,
        clamped: false,
    };

    #[inline(always)]
    fn store((head, codes): &Groups, out: &mut [u8; 176]) {
        copy(head, &mut out[..16]);
        let (high, low) = out[16..].split_at_mut(32);
        for (l, high) in high.iter_mut().enumerate() {
            *high = (0..8).fold(0, |bits, n| bits | codes[32 * n + l] >> 4 << n);
        }
        for (out, codes) in zip(low.as_chunks_mut::<32>().0, codes.as_chunks::<64>().0) {
            for (l, out) in out.iter_mut().enumerate() {
                *out = codes[l] & 15 | codes[l + 32] << 4;
            }
        }
    }
}

impl SideBySide<176> for Q5_K {
    #[inline(always)]
    fn encode_beside<const K: usize, const G: usize, const L: usize>(
        values: &[[f32; 256]; K],
        importance: Option<&[[f32; 256]; K]>,
        by: impl Transpose,
        out: &mut [[u8; 176]; K],
    ) {
        let blocks = groups_of_32::<K, G, L>(values, importance, (Self::SEARCH, by));
        for (groups, out) in zip(blocks.iter(), out) {
            Self::store(groups, out);
        }
    }
}
