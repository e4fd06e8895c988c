//! K-quants: super-blocks of 256 values whose scales are themselves quantized. The groups of a super-block are searched
//! abreast; the codes are then chosen anew for the scales as they are stored.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q*_K_ref`, and `quantize_row_q*_K_impl` with importance.

use super::affine::{Affine, Trial, affine, positive};
use super::search::{
    Lanes, Scale, TINY, coordinate, each, nearest_in, nearest_int, symmetric, symmetric_one,
    transpose,
};
use super::{Importance, Pack, half, put_half};

pub(super) struct Q2_K;
pub(super) struct Q3_K;
pub(super) struct Q4_K;
pub(super) struct Q5_K;
pub(super) struct Q6_K;
pub(super) struct Q8_K;

/// Σx² of a super-block.
#[inline(always)]
fn square(values: &[f32; 256]) -> f32 {
    values.iter().fold(0.0, |sum, x| sum + x * x)
}

/// Weights by importance, and their sum in each group.
#[inline(always)]
fn weigh<const N: usize, const G: usize>(
    x: &[Lanes<G>; N],
    importance: &[f32; 256],
    mean_square: f32,
) -> ([Lanes<G>; N], Lanes<G>) {
    let (mut w, mut sum) = (transpose::<N, G>(importance), [0.0; G]);
    for (w, x) in w.iter_mut().zip(x) {
        for g in 0..G {
            w[g] *= (mean_square + x[g] * x[g]).sqrt();
            sum[g] += w[g];
        }
    }
    (w, sum)
}

/// The largest of the positive.
#[inline(always)]
fn largest<const G: usize>(values: &Lanes<G>) -> f32 {
    values
        .iter()
        .fold(0.0, |max, &x| if x > max { x } else { max })
}

/// The first value of the greatest magnitude.
#[inline(always)]
fn furthest<const G: usize>(values: &Lanes<G>) -> f32 {
    values
        .iter()
        .fold(0.0f32, |max, &x| if x.abs() > max.abs() { x } else { max })
}

/// The codes of a group of values with a scale and a minimum.
#[inline(always)]
fn affine_codes(values: &[f32], scale: f32, min: f32, top: f32, codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(values) {
        *code = nearest_in((x + min) / scale, 0.0, top) as u8;
    }
}

/// The codes of a group of values with a scale, from 0 on.
#[inline(always)]
fn symmetric_codes(values: &[f32], scale: f32, half: f32, codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(values) {
        *code = (nearest_in(x / scale, -half, half - 1.0) + half) as u8;
    }
}

/// Bits 2 `n` and up of each 32 bytes are the `n`-th 32 of 128 codes.
#[inline(always)]
fn put_pairs(codes: &[u8; 256], out: &mut [u8]) {
    for (out, codes) in out
        .as_chunks_mut::<32>()
        .0
        .iter_mut()
        .zip(codes.as_chunks::<128>().0)
    {
        for (l, out) in out.iter_mut().enumerate() {
            *out = codes[l] | codes[l + 32] << 2 | codes[l + 64] << 4 | codes[l + 96] << 6;
        }
    }
}

impl Pack<84, 256> for Q2_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 84]) {
        let x: [Lanes<16>; 16] = transpose(values);
        let (trial, fit, scales, (d, min));
        if let Some(importance) = importance {
            let (w, sums) = weigh(&x, importance.weights, square(values) / 256.0);
            trial = Trial {
                top: 3.0,
                first: -0.9,
                delta: 0.05,
                steps: 36,
                squared: true,
                clamped: true,
            };
            fit = affine(&x, &w, &trial);
            let (mut of_scales, mut of_mins) = ([0; 16], [0; 16]);
            (d, min) = (
                positive(&fit.scale, &sums, 15, &mut of_scales),
                positive(&fit.min, &sums, 15, &mut of_mins),
            );
            scales = (of_scales, of_mins);
        } else {
            let mut w = x;
            w.iter_mut().flatten().for_each(|w| *w = w.abs());
            trial = Trial {
                top: 3.0,
                first: -0.5,
                delta: 0.1,
                steps: 15,
                squared: false,
                clamped: false,
            };
            fit = affine(&x, &w, &trial);
            let (max_scale, max_min) = (largest(&fit.scale), largest(&fit.min));
            scales = (
                fifteenths(&fit.scale, max_scale),
                fifteenths(&fit.min, max_min),
            );
            (d, min) = (max_scale / 15.0, max_min / 15.0);
        }
        put_half(out, 80, d);
        put_half(out, 82, min);
        for ((out, scale), min) in out.iter_mut().zip(scales.0).zip(scales.1) {
            *out = scale | min << 4;
        }
        let (d, min) = (half(out, 80), half(out, 82));
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
                (&fit, &trial, g),
                codes,
            );
        }
        put_pairs(&codes, &mut out[16..80]);
    }
}

/// Fifteenths of the largest.
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

/// The codes of a group for its scale and minimum as stored, or those of the search if the scale has become zero.
#[inline(always)]
fn stored_or_searched<const N: usize, const G: usize>(
    values: &[f32; N],
    scale: f32,
    min: f32,
    (fit, trial, g): (&Affine<G>, &Trial, usize),
    codes: &mut [u8; N],
) {
    if scale != 0.0 {
        affine_codes(values, scale, min, trial.top, codes);
    } else {
        for (code, &x) in codes.iter_mut().zip(values) {
            *code = fit.code(trial, g, x);
        }
    }
}

/// Of `g` of the 16 scales of Q3_K, in 6 bits with 32 to take away.
#[inline(always)]
fn put_scale(packed: &mut [u8], g: usize, code: u8) {
    packed[g % 8] |= (code & 15) << (g / 8 * 4);
    packed[8 + g % 4] |= code >> 4 << (g / 4 * 2);
}

impl Pack<110, 256> for Q3_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 110]) {
        let x: [Lanes<16>; 16] = transpose(values);
        let mut searched = [[0.0; 16]; 16];
        let mut scales = [0u8; 16];
        let d;
        if let Some(importance) = importance {
            let (w, sums) = weigh(&x, importance.weights, 2.0 * square(values) / 256.0);
            let fit = symmetric(&x, &w, 4.0);
            for (codes, x) in searched.iter_mut().zip(&x) {
                *codes = each(|g| f32::from(fit.code(g, x[g])));
            }
            let of_scales = symmetric_one(&fit.scale, &sums, 32.0);
            for (code, &scale) in scales.iter_mut().zip(&fit.scale) {
                *code = of_scales.code(0, scale);
            }
            d = of_scales.scale[0];
        } else {
            let fit = coordinate(&x, 4.0, &mut searched);
            let max = furthest(&fit);
            let inverse = -32.0 / max;
            for (code, &scale) in scales.iter_mut().zip(&fit) {
                // By way of a signed byte.
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
        put_half(out, 108, d);
        let d = half(out, 108);
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
        for (l, high) in high.iter_mut().enumerate() {
            *high = (0..8).fold(0, |bits, n| bits | codes[32 * n + l] >> 2 << n);
        }
        codes.iter_mut().for_each(|code| *code &= 3);
        put_pairs(&codes, &mut rest[..64]);
    }
}

/// Scales and minimums of eight groups, in 6 bits each.
#[inline(always)]
fn put_scale_mins(packed: &mut [u8], scales: &[u8; 8], mins: &[u8; 8]) {
    for g in 0..4 {
        packed[g] = scales[g] | scales[g + 4] >> 4 << 6;
        packed[g + 4] = mins[g] | mins[g + 4] >> 4 << 6;
        packed[g + 8] = scales[g + 4] & 15 | mins[g + 4] << 4;
    }
}

/// As they are read again.
#[inline(always)]
fn scale_min(packed: &[u8], g: usize) -> (f32, f32) {
    let (scale, min) = if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        (
            packed[g + 4] & 15 | packed[g - 4] >> 6 << 4,
            packed[g + 4] >> 4 | packed[g] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// Sixty-thirds of the largest.
#[inline(always)]
fn sixty_thirds(values: &Lanes<8>, max: f32) -> [u8; 8] {
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    let mut out = [0; 8];
    for (out, &x) in out.iter_mut().zip(values) {
        *out = (nearest_int(inverse * x) as u8).min(63);
    }
    out
}

/// What Q4_K and Q5_K have in common: `d | dmin | scales[12]`, and the codes up to `top`.
#[inline(always)]
fn groups_of_32(
    values: &[f32; 256],
    importance: Option<Importance<'_, 256>>,
    trial: Trial,
    out: &mut [u8],
    codes: &mut [u8; 256],
) {
    let x: [Lanes<8>; 32] = transpose(values);
    let (fit, d, min, mut scales, mut mins);
    let trial = match importance {
        None => trial,
        Some(_) => Trial {
            first: -0.9,
            delta: 0.05,
            steps: 36,
            clamped: true,
            ..trial
        },
    };
    if let Some(importance) = importance {
        let (w, sums) = weigh(&x, importance.weights, 2.0 * square(values) / 256.0);
        fit = affine(&x, &w, &trial);
        (scales, mins) = ([0; 8], [0; 8]);
        d = positive(&fit.scale, &sums, 63, &mut scales);
        min = positive(&fit.min, &sums, 63, &mut mins);
    } else {
        let mut squares = [0.0; 8];
        for x in &x {
            squares = each(|g| squares[g] + x[g] * x[g]);
        }
        let mean: Lanes<8> = each(|g| (squares[g] / 32.0).sqrt());
        let mut w = x;
        w.iter_mut()
            .for_each(|w| *w = each(|g| mean[g] + w[g].abs()));
        fit = affine(&x, &w, &trial);
        let (max_scale, max_min) = (largest(&fit.scale), largest(&fit.min));
        (scales, mins) = (
            sixty_thirds(&fit.scale, max_scale),
            sixty_thirds(&fit.min, max_min),
        );
        (d, min) = (max_scale / 63.0, max_min / 63.0);
    }
    if trial.top > 15.0 {
        // A code below 0 has become a large one. In Q4_K it is not limited.
        scales
            .iter_mut()
            .chain(&mut mins)
            .for_each(|code| *code = (*code).min(63));
    }
    put_half(out, 0, d);
    put_half(out, 2, min);
    put_scale_mins(&mut out[4..16], &scales, &mins);
    let (d, min) = (half(out, 0), half(out, 2));
    for (g, (codes, values)) in codes
        .as_chunks_mut()
        .0
        .iter_mut()
        .zip(values.as_chunks::<32>().0)
        .enumerate()
    {
        let (scale, m) = scale_min(&out[4..16], g);
        stored_or_searched(values, d * scale, min * m, (&fit, &trial, g), codes);
    }
}

impl Pack<144, 256> for Q4_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 144]) {
        let trial = Trial {
            top: 15.0,
            first: -1.0,
            delta: 0.1,
            steps: 20,
            squared: true,
            clamped: false,
        };
        let mut codes = [0; 256];
        groups_of_32(values, importance, trial, &mut out[..16], &mut codes);
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

impl Pack<176, 256> for Q5_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 176]) {
        let trial = Trial {
            top: 31.0,
            first: -0.5,
            delta: 0.1,
            steps: 15,
            squared: true,
            clamped: false,
        };
        let mut codes = [0u8; 256];
        groups_of_32(values, importance, trial, &mut out[..16], &mut codes);
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

impl Pack<210, 256> for Q6_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 210]) {
        let x: [Lanes<16>; 16] = transpose(values);
        let w = match importance {
            Some(importance) => transpose(importance.weights),
            None => {
                let mut w = x;
                w.iter_mut().flatten().for_each(|w| *w *= *w);
                w
            }
        };
        let fit: Scale<16> = symmetric(&x, &w, 32.0);
        let max = furthest(&fit.scale);
        if max.abs() < TINY {
            out.fill(0);
            return;
        }
        let inverse = -128.0 / max;
        put_half(out, 208, 1.0 / inverse);
        let d = half(out, 208);
        let mut codes = [0u8; 256];
        for (g, (codes, values)) in codes
            .as_chunks_mut::<16>()
            .0
            .iter_mut()
            .zip(values.as_chunks::<16>().0)
            .enumerate()
        {
            let scale = nearest_int(inverse * fit.scale[g]).min(127) as i8;
            out[192 + g] = scale as u8;
            let scale = d * f32::from(scale);
            if scale != 0.0 {
                symmetric_codes(values, scale, 32.0, codes);
            } else {
                codes
                    .iter_mut()
                    .zip(values)
                    .for_each(|(code, &x)| *code = fit.code(g, x));
            }
        }
        let (low, high) = out.split_at_mut(128);
        let low = low
            .as_chunks_mut::<64>()
            .0
            .iter_mut()
            .zip(high.as_chunks_mut::<32>().0);
        for ((low, high), codes) in low.zip(codes.as_chunks::<128>().0) {
            for l in 0..32 {
                let [a, b, c, d] = [codes[l], codes[l + 32], codes[l + 64], codes[l + 96]];
                low[l] = a & 15 | c << 4;
                low[l + 32] = b & 15 | d << 4;
                high[l] = a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6;
            }
        }
    }
}

impl Pack<292, 256> for Q8_K {
    const ROW_SQUARE: bool = false;

    /// Without importance, in a scale of f32. The sums of each 16 codes are zero in a block of zeros.
    #[inline(always)]
    fn encode(values: &[f32; 256], _importance: Option<Importance<'_, 256>>, out: &mut [u8; 292]) {
        let max = furthest(values);
        if max == 0.0 {
            out.fill(0);
            return;
        }
        let inverse = -127.0 / max;
        let (d, rest) = out.split_at_mut(4);
        let (codes, sums) = rest.split_at_mut(256);
        d.copy_from_slice(&(1.0 / inverse).to_le_bytes());
        for (code, &x) in codes.iter_mut().zip(values) {
            *code = nearest_int(inverse * x).min(127) as u8;
        }
        for (sum, codes) in sums
            .as_chunks_mut::<2>()
            .0
            .iter_mut()
            .zip(codes.as_chunks::<16>().0)
        {
            *sum = codes
                .iter()
                .fold(0i16, |sum, &code| sum + i16::from(code as i8))
                .to_le_bytes();
        }
    }
}
