//! Blocks of 32 values with their scales in f16: Q4, Q5 and Q8.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q*_ref`, and `quantize_row_q*_impl` with importance.

use super::affine::{Trial, affine};
use super::search::{Lanes, each, greater, opaque, symmetric_one, transpose};
use super::{Importance, Pack, put_half};

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Q8_1;

/// The inverse of a scale. Where C has infinity, all the conversions of the block are out of range there, and their
/// low bytes are 0 on x86; `None` stands for that.
#[inline(always)]
pub(super) fn inverse(d: f32) -> Option<f32> {
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    (inverse.abs() < f32::INFINITY).then_some(inverse)
}

/// `x`, from 0 to 2^22, without its fraction, in the low byte.
#[inline(always)]
fn truncate(x: f32) -> u8 {
    const MAGIC: f32 = 8_388_608.0; // beyond which there are no fractions
    let rounded = x + MAGIC;
    (rounded.to_bits() as i32 - i32::from(rounded - MAGIC > x)) as u8
}

/// `x` rounded, half away from zero: C's `roundf`.
#[inline(always)]
pub(super) fn round(x: f32) -> i8 {
    const BELOW_HALF: f32 = 0.499_999_97; // a half would carry what is just below it
    let magnitude = truncate(x.abs() + BELOW_HALF) as i8;
    if x < 0.0 { -magnitude } else { magnitude }
}

/// The largest magnitude.
#[inline(always)]
pub(super) fn absmax<const N: usize>(values: &[f32; N]) -> f32 {
    let mut max = [0.0; 8];
    for x in values.as_chunks::<8>().0 {
        max = each(|l| greater(max[l], x[l].abs()));
    }
    fold(opaque(&max), greater)
}

/// Eight lanes to one.
#[inline(always)]
fn fold(eight: &Lanes<8>, of: impl Fn(f32, f32) -> f32) -> f32 {
    let four: Lanes<4> = each(|l| of(eight[l], eight[l + 4]));
    let two: Lanes<2> = each(|l| of(four[l], four[l + 2]));
    of(two[0], two[1])
}

/// The value of the largest magnitude, the first of them.
#[inline(always)]
fn furthest(values: &[f32; 32]) -> f32 {
    let (min, max) = extent(values);
    if max != -min {
        // Not by a branch: signs are random.
        f32::from_bits(if max > -min {
            max.to_bits()
        } else {
            min.to_bits()
        })
    } else if max == 0.0 {
        0.0
    } else {
        // It is there with both signs.
        values
            .iter()
            .copied()
            .find(|x| x.abs() == max)
            .unwrap_or(max)
    }
}

/// The least and the largest value.
#[inline(always)]
fn extent(values: &[f32; 32]) -> (f32, f32) {
    let (mut min, mut max) = ([f32::MAX; 8], [-f32::MAX; 8]);
    for x in values.as_chunks::<8>().0 {
        min = each(|l| if x[l] < min[l] { x[l] } else { min[l] });
        max = each(|l| if x[l] > max[l] { x[l] } else { max[l] });
    }
    (
        fold(opaque(&min), |a, b| if b < a { b } else { a }),
        fold(opaque(&max), greater),
    )
}

/// Nibbles: the low ones are the first 16 codes, the high ones the last.
#[inline(always)]
fn put_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    let (low, high) = codes.split_at(16);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low & 15 | high << 4;
    }
}

/// The fifth bits of the codes.
#[inline(always)]
fn put_fifths(codes: &[u8; 32], out: &mut [u8]) {
    for (out, codes) in out.iter_mut().zip(codes.as_chunks::<8>().0) {
        let bits = u64::from_le_bytes(*codes) >> 4 & 0x0101_0101_0101_0101;
        // Byte `j`'s bit comes to place 56 + `j`, and no others there.
        *out = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    }
}

/// The scale and the codes of a block of signed codes, from `-half` on.
#[inline(always)]
fn signed(
    values: &[f32; 32],
    importance: Option<Importance<'_, 32>>,
    half: f32,
) -> (f32, [u8; 32]) {
    let mut codes = [0; 32];
    if let Some(importance) = importance {
        let fit = symmetric_one(values, &weigh(values, importance), half);
        codes
            .iter_mut()
            .zip(values)
            .for_each(|(code, &x)| *code = fit.code(0, x));
        return (fit.scale[0], codes);
    }
    let d = furthest(values) / -half;
    let (inverse, middle) = inverse(d).map_or((0.0, 0.0), |inverse| (inverse, half + 0.5));
    let top = (half * 2.0 - 1.0) as u8;
    for (code, x) in codes.iter_mut().zip(values) {
        *code = truncate(x * inverse + middle).min(top);
    }
    (d, codes)
}

/// The scale, the minimum and the codes of a block of codes up to `top`.
#[inline(always)]
fn unsigned(
    values: &[f32; 32],
    importance: Option<Importance<'_, 32>>,
    top: u8,
) -> (f32, f32, [u8; 32]) {
    let mut codes = [0; 32];
    if let Some(importance) = importance {
        let w = weigh(values, importance);
        let trial = Trial {
            top: f32::from(top),
            first: -0.9,
            delta: 0.05,
            steps: 36,
            squared: true,
            clamped: true,
        };
        let fit = affine::<32, 1>(&transpose(values), &transpose(&w), &trial);
        codes
            .iter_mut()
            .zip(values)
            .for_each(|(code, &x)| *code = fit.code(&trial, 0, x));
        return (fit.scale[0], -fit.min[0], codes);
    }
    let (mut min, mut max) = extent(values);
    if min == 0.0 || max == 0.0 {
        // The sign is that of the first zero.
        let zero = values.iter().copied().find(|&x| x == 0.0).unwrap_or(0.0);
        min = if min == 0.0 { zero } else { min };
        max = if max == 0.0 { zero } else { max };
    }
    let d = (max - min) / f32::from(top);
    let inverse = inverse(d).unwrap_or(0.0);
    for (code, x) in codes.iter_mut().zip(values) {
        *code = truncate((x - min) * inverse + 0.5).min(top);
    }
    (d, min, codes)
}

#[inline(always)]
fn weigh(values: &[f32; 32], importance: Importance<'_, 32>) -> [f32; 32] {
    let mut w = *importance.weights;
    for (w, x) in w.iter_mut().zip(values) {
        *w *= (importance.row_square + x * x).sqrt();
    }
    w
}

impl Pack<18, 32> for Q4_0 {
    #[inline(always)]
    fn encode(values: &[f32; 32], importance: Option<Importance<'_, 32>>, out: &mut [u8; 18]) {
        let (d, codes) = signed(values, importance, 8.0);
        put_half(out, 0, d);
        put_nibbles(&codes, &mut out[2..]);
    }
}

impl Pack<20, 32> for Q4_1 {
    #[inline(always)]
    fn encode(values: &[f32; 32], importance: Option<Importance<'_, 32>>, out: &mut [u8; 20]) {
        let (d, min, codes) = unsigned(values, importance, 15);
        put_half(out, 0, d);
        put_half(out, 2, min);
        put_nibbles(&codes, &mut out[4..]);
    }
}

impl Pack<22, 32> for Q5_0 {
    #[inline(always)]
    fn encode(values: &[f32; 32], importance: Option<Importance<'_, 32>>, out: &mut [u8; 22]) {
        let (d, codes) = signed(values, importance, 16.0);
        put_half(out, 0, d);
        put_fifths(&codes, &mut out[2..6]);
        put_nibbles(&codes, &mut out[6..]);
    }
}

impl Pack<24, 32> for Q5_1 {
    #[inline(always)]
    fn encode(values: &[f32; 32], importance: Option<Importance<'_, 32>>, out: &mut [u8; 24]) {
        let (d, min, codes) = unsigned(values, importance, 31);
        put_half(out, 0, d);
        put_half(out, 2, min);
        put_fifths(&codes, &mut out[4..8]);
        put_nibbles(&codes, &mut out[8..]);
    }
}

/// The scale of signed bytes, in f32.
#[inline(always)]
fn signed_bytes(values: &[f32; 32], out: &mut [u8]) -> f32 {
    let d = absmax(values) / 127.0;
    let inverse = inverse(d).unwrap_or(0.0);
    for (out, x) in out.iter_mut().zip(values) {
        *out = round(x * inverse) as u8;
    }
    d
}

impl Pack<34, 32> for Q8_0 {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 32], _importance: Option<Importance<'_, 32>>, out: &mut [u8; 34]) {
        let d = signed_bytes(values, &mut out[2..]);
        put_half(out, 0, d);
    }
}

impl Pack<36, 32> for Q8_1 {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 32], _importance: Option<Importance<'_, 32>>, out: &mut [u8; 36]) {
        let d = signed_bytes(values, &mut out[4..]);
        let sum = out[4..]
            .iter()
            .fold(0, |sum, &code| sum + i32::from(code as i8));
        put_half(out, 0, d);
        put_half(out, 2, sum as f32 * d);
    }
}
