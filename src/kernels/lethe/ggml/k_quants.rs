//! What the K-quants share, and Q6_K and Q8_K. K-quants are super-blocks of 256 values in groups,
//! whose scales are themselves integers under one f16.
//!
//! A super-block takes three steps: its groups are searched side by side for their scales; the
//! scales become integers; and the codes are chosen anew for the scales as they are read again, f16
//! and all.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q6_K_ref`, `quantize_row_q6_K_impl` with
//! importance, and `quantize_row_q8_K_ref`.

use super::affine::{AffineFit, AffineSearch};
use super::search::{Lanes, SymmetricFit, TINY, fit_symmetric, nearest_in, nearest_int, transpose};
use super::{BlockImportance, EncodeBlock, f16_at, legacy, put_f16};
use crate::simd::LookUp;

pub(super) struct Q6_K;
pub(super) struct Q8_K;

/// Σx² of a super-block, in order.
#[inline(always)]
pub(super) fn sum_of_squares(values: &[f32; 256]) -> f32 {
    values.iter().fold(0.0, |sum, x| sum + x * x)
}

/// The weights of values, `importance * sqrt(mean_square + x²)`, and their sum in each group. The
/// sums weigh the scales of the groups, where these are searched for a scale in turn.
#[inline(always)]
pub(super) fn importance_weights<const N: usize, const G: usize>(
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
    values
        .iter()
        .fold(0.0f32, |max, &x| if x.abs() > max.abs() { x } else { max })
}

/// The codes from 0 to `top` of values that are `scale * code - min`.
#[inline(always)]
fn affine_codes(values: &[f32], scale: f32, min: f32, top: f32, codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(values) {
        *code = nearest_in((x + min) / scale, 0.0, top) as u8;
    }
}

/// The codes of values that are `scale * (code - half)`.
#[inline(always)]
pub(super) fn symmetric_codes(values: &[f32], scale: f32, half: f32, codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(values) {
        *code = (nearest_in(x / scale, -half, half - 1.0) + half) as u8;
    }
}

/// Packs codes of two bits: of each 128, code `l` of the `n`-th 32 goes to bits `2n` and `2n + 1`
/// of byte `l`.
#[inline(always)]
pub(super) fn put_pairs(codes: &[u8; 256], out: &mut [u8]) {
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

/// The codes of group `g` for its scale and minimum as stored. If the scale has become zero they
/// are those of the search, as in ggml, which leaves them in its array then.
#[inline(always)]
pub(super) fn stored_or_searched<const N: usize, const G: usize>(
    values: &[f32; N],
    scale: f32,
    min: f32,
    (fit, search, g): (&AffineFit<G>, &AffineSearch, usize),
    codes: &mut [u8; N],
) {
    if scale != 0.0 {
        affine_codes(values, scale, min, search.top, codes);
    } else {
        for (code, &x) in codes.iter_mut().zip(values) {
            *code = fit.code(search, g, x);
        }
    }
}

impl EncodeBlock<210, 256> for Q6_K {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 210],
    ) {
        let x: [Lanes<16>; 16] = transpose(values);
        let w = match importance {
            Some(importance) => transpose(importance.weights),
            None => {
                let mut w = x;
                w.iter_mut().flatten().for_each(|w| *w *= *w);
                w
            }
        };
        let fit: SymmetricFit<16> = fit_symmetric(&x, &w, 32.0);
        let max = signed_max_abs(&fit.scale);
        if max.abs() < TINY {
            out.fill(0);
            return;
        }
        // The largest scale becomes -128: there is a step more below zero than above.
        let inverse = -128.0 / max;
        put_f16(out, 208, 1.0 / inverse);
        let d = f16_at(out, 208);
        let mut codes = [0u8; 256];
        for (g, (codes, values)) in codes
            .as_chunks_mut::<16>()
            .0
            .iter_mut()
            .zip(values.as_chunks::<16>().0)
            .enumerate()
        {
            // Limited above alone: below, -128 is what the extreme scale becomes.
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
                // 16 codes of at most 128 in magnitude fit 16 bits.
                .fold(0i16, |sum, &code| sum + i16::from(code as i8))
                .to_le_bytes();
        }
    }
}
