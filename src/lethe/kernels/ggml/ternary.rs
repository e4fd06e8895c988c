//! One and two bits a value under one f16 scale: the ternary types TQ1_0 and TQ2_0, the signs Q1_0,
//! and Q2_0. None heeds importance.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_*_ref`.

use super::legacy::{absmax, inverse};
use super::{BlockImportance, EncodeBlock, put_f16};
use crate::simd::{LookUp, zip};

pub(super) struct TQ1_0;
pub(super) struct TQ2_0;
pub(super) struct Q1_0;
pub(super) struct Q2_0;

/// One more than `x` in units of the largest magnitude, rounded: 0, 1 or 2.
#[inline(always)]
fn trit(x: f32, inverse: f32) -> u8 {
    let x = x * inverse;
    // As C's `lroundf`, half away from zero.
    1 + u8::from(x >= 0.5) - u8::from(x <= -0.5)
}

/// The trits of a block and their scale; `otherwise` where the scale has no inverse.
#[inline(always)]
fn trits<const N: usize>(values: &[f32; N], otherwise: u8) -> ([u8; N], f32) {
    let d = absmax(values);
    let mut out = [otherwise; N];
    if let Some(inverse) = inverse(d) {
        for (out, &x) in zip(&mut out[..], values) {
            *out = trit(x, inverse);
        }
    }
    (out, d)
}

/// Packs trits as base-3 fractions of five digits, of which the `n`-th `out.len()` trits are digit
/// `n`, the most significant first. Digits that are missing are 0. A byte is the fraction in
/// 256ths, rounded up, so that decoding by multiplication gives each digit back.
#[inline(always)]
fn put_digits(trits: &[u8], out: &mut [u8]) {
    let width = out.len();
    for (m, out) in out.iter_mut().enumerate() {
        let digit = |n: usize| u16::from(trits.get(m + n * width).copied().unwrap_or(0));
        let number = (0..5).fold(0, |number, n| number * 3 + digit(n));
        *out = (number * 256).div_ceil(243) as u8;
    }
}

impl EncodeBlock<54, 256> for TQ1_0 {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        _importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 54],
    ) {
        let (trits, d) = trits(values, 1);
        put_digits(&trits[..160], &mut out[..32]);
        put_digits(&trits[160..240], &mut out[32..48]);
        put_digits(&trits[240..], &mut out[48..52]);
        put_f16(out, 52, d);
    }
}

impl EncodeBlock<66, 256> for TQ2_0 {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        _importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 66],
    ) {
        let (trits, d) = trits(values, 1);
        for (out, trits) in zip(out.as_chunks_mut::<32>().0, trits.as_chunks::<128>().0) {
            for (m, out) in out.iter_mut().enumerate() {
                *out = trits[m] | trits[m + 32] << 2 | trits[m + 64] << 4 | trits[m + 96] << 6;
            }
        }
        put_f16(out, 64, d);
    }
}

impl EncodeBlock<18, 128> for Q1_0 {
    const ROW_SQUARE: bool = false;

    /// The scale is the mean magnitude.
    #[inline(always)]
    fn encode(
        values: &[f32; 128],
        _importance: Option<BlockImportance<'_, 128>>,
        _: impl LookUp,
        out: &mut [u8; 18],
    ) {
        let sum = values.iter().fold(0.0, |sum, x| sum + x.abs());
        put_f16(out, 0, sum / 128.0);
        // -0 counts as positive.
        for (out, x) in zip(&mut out[2..], values.as_chunks::<8>().0) {
            *out = x
                .iter()
                .enumerate()
                .fold(0, |bits, (j, &x)| bits | u8::from(x >= 0.0) << j);
        }
    }
}

impl EncodeBlock<18, 64> for Q2_0 {
    const ROW_SQUARE: bool = false;

    /// The scale is the largest magnitude, so that code 3, twice the scale, is never used.
    #[inline(always)]
    fn encode(
        values: &[f32; 64],
        _importance: Option<BlockImportance<'_, 64>>,
        _: impl LookUp,
        out: &mut [u8; 18],
    ) {
        let (trits, d) = trits(values, 0);
        put_f16(out, 0, d);
        for (out, [a, b, c, d]) in zip(&mut out[2..], trits.as_chunks().0) {
            *out = a | b << 2 | c << 4 | d << 6;
        }
    }
}
