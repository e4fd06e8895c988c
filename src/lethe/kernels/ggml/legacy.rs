//! ggml's first block types: 32 values under one f16 scale, and in the `_1` types an f16 minimum.
//! With importance 4- and 5-bit scales are searched for; else the largest magnitude, or the range,
//! sets them.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_q*_ref`, and `quantize_row_q*_impl` with
//! importance.

use super::affine::fit_unsigned;
use super::search::{Lanes, fit_symmetric_group, larger, opaque};
use super::{BlockImportance, EncodeBlock, RowImportance, put_f16};
use crate::simd::{Flat, LookUp, Transpose, from_fn, zip};

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q5_0;
pub(super) struct Q5_1;
pub(super) struct Q8_0;
pub(super) struct Q8_1;

/// The inverse of a scale, 0 for a scale of 0. `None` if it is infinite: then values times it are
/// infinite or NaN, which C converts to integers. On x86 these have 0 in their low byte.
#[inline(always)]
pub(super) fn inverse(d: f32) -> Option<f32> {
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    (inverse.abs() < f32::INFINITY).then_some(inverse)
}

/// The low byte of the integer part of `x`, which is from 0 to 2²². A cast to an integer would
/// check for what is out of range.
#[inline(always)]
fn truncate(x: f32) -> u8 {
    // 2²³: the last place of the sum is 1, so that it is `x` rounded to nearest, and its low bits
    // are the integer. If that is above `x` it was rounded up.
    const MAGIC: f32 = 8_388_608.0;
    let rounded = x + MAGIC;
    (rounded.to_bits() as i32 - i32::from(rounded - MAGIC > x)) as u8
}

/// `x` rounded, half away from zero: C's `roundf`.
#[inline(always)]
pub(super) fn round(x: f32) -> i8 {
    // The largest f32 below a half. With a half itself the sum of 0.49999997 would be rounded to 1.
    const BELOW_HALF: f32 = 0.499_999_97;
    let magnitude = truncate(x.abs() + BELOW_HALF) as i8;
    if x < 0.0 { -magnitude } else { magnitude }
}

/// The largest magnitude, in eight lanes: the order does not matter for a maximum.
#[inline(always)]
pub(super) fn absmax<const N: usize>(values: &[f32; N]) -> f32 {
    let mut max = [0.0; 8];
    for x in values.as_chunks::<8>().0 {
        max = from_fn(|l| larger(max[l], x[l].abs()));
    }
    fold(opaque(&max), larger)
}

/// Reduces eight lanes to one by `of`, in halves.
#[inline(always)]
fn fold(eight: &Lanes<8>, of: impl Fn(f32, f32) -> f32) -> f32 {
    let four: Lanes<4> = from_fn(|l| of(eight[l], eight[l + 4]));
    let two: Lanes<2> = from_fn(|l| of(four[l], four[l + 2]));
    of(two[0], two[1])
}

/// The value with the largest magnitude, with its sign; the first of several.
#[inline(always)]
pub(super) fn signed_max_abs<const N: usize>(values: &[f32; N]) -> f32 {
    let (min, max) = extent(values);
    // Unless both extremes have one magnitude, the larger one decides, and where it stands does not
    // matter.
    if max != -min {
        // A select of bits rather than a branch, which would often be mispredicted: signs are
        // random.
        f32::from_bits(if max > -min {
            max.to_bits()
        } else {
            min.to_bits()
        })
    } else if max == 0.0 {
        0.0
    } else {
        // Values of both signs have this magnitude, and ggml takes the first.
        values
            .iter()
            .copied()
            .find(|x| x.abs() == max)
            .unwrap_or(max)
    }
}

/// The least and the largest value. Of zeros of both signs it may be either.
#[inline(always)]
fn extent<const N: usize>(values: &[f32; N]) -> (f32, f32) {
    let (mut min, mut max) = ([f32::MAX; 8], [-f32::MAX; 8]);
    for x in values.as_chunks::<8>().0 {
        min = from_fn(|l| if x[l] < min[l] { x[l] } else { min[l] });
        max = from_fn(|l| if x[l] > max[l] { x[l] } else { max[l] });
    }
    (fold(opaque(&min), |a, b| if b < a { b } else { a }), fold(opaque(&max), larger))
}

/// Packs the low four bits of codes: the first 16 into low nibbles, the last 16 into high ones.
#[inline(always)]
fn put_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    let (low, high) = codes.split_at(16);
    for ((out, low), high) in zip(zip(&mut out[..], low), high) {
        *out = low & 15 | high << 4;
    }
}

/// Packs the fifth bits of codes, eight to a byte.
#[inline(always)]
fn put_fifths(codes: &[u8; 32], out: &mut [u8]) {
    for (out, codes) in zip(&mut out[..], codes.as_chunks::<8>().0) {
        let bits = u64::from_le_bytes(*codes) >> 4 & 0x0101_0101_0101_0101;
        // The product is a sum of shifted copies. One of them moves the bit of byte `j` to place 56
        // + `j`; no two of the bits meet in any place, so that nothing carries into the highest
        // byte.
        *out = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    }
}

/// The scale and the codes of Q4_0 and Q5_0, whose values are `scale * (code - half)`.
#[inline(always)]
fn signed(
    values: &[f32; 32],
    importance: Option<BlockImportance<'_, 32>>,
    half: f32,
) -> (f32, [u8; 32]) {
    let mut codes = [0; 32];
    if let Some(importance) = importance {
        let (weights, peak) = (importance_weights(values, importance), signed_max_abs(values));
        let fit = fit_symmetric_group::<true, 32>(values, &weights, peak, half);
        zip(&mut codes[..], values).for_each(|(code, &x)| *code = fit.code(0, x));
        return (fit.scale[0], codes);
    }
    // The largest magnitude is mapped to the lowest code, which lies a step farther from the middle
    // than the highest.
    let d = signed_max_abs(values) / -half;
    let (inverse, middle) = inverse(d).map_or((0.0, 0.0), |inverse| (inverse, half + 0.5));
    let top = (half * 2.0 - 1.0) as u8;
    for (code, x) in zip(&mut codes[..], values) {
        // `half + 0.5` makes truncation round to nearest; the largest positive value may pass the
        // top by it.
        *code = truncate(x * inverse + middle).min(top);
    }
    (d, codes)
}

/// The scale, the minimum and the codes from 0 to `top` of Q4_1 and Q5_1, whose values are
/// `scale * code + min`.
#[inline(always)]
fn unsigned(
    values: &[f32; 32],
    importance: Option<BlockImportance<'_, 32>>,
    top: u8,
    by: impl Transpose,
) -> (f32, f32, [u8; 32]) {
    if let Some(BlockImportance { weights, row_square }) = importance {
        let weights = std::slice::from_ref(weights);
        let importance = RowImportance { weights, row_square };
        let [block] = fit_unsigned(values, importance, top, by);
        return block;
    }
    let mut codes = [0; 32];
    let (mut min, mut max) = extent(values);
    if min == 0.0 || max == 0.0 {
        // ggml compares in order, so of zeros the first is taken, and its sign is stored.
        let zero = values.iter().copied().find(|&x| x == 0.0).unwrap_or(0.0);
        min = if min == 0.0 { zero } else { min };
        max = if max == 0.0 { zero } else { max };
    }
    let d = (max - min) / f32::from(top);
    let inverse = inverse(d).unwrap_or(0.0);
    for (code, x) in zip(&mut codes[..], values) {
        *code = truncate((x - min) * inverse + 0.5).min(top);
    }
    (d, min, codes)
}

/// Encodes the blocks of a row, with importance several of them side by side; `store` makes the bytes
/// of one from its scale, minimum and codes.
#[inline(always)]
fn encode_unsigned<const BYTES: usize>(
    values: &[[f32; 32]],
    importance: Option<RowImportance<'_, 32>>,
    (top, by): (u8, impl Transpose),
    out: &mut [[u8; BYTES]],
    store: impl Fn((f32, f32, [u8; 32]), &mut [u8; BYTES]),
) {
    /// Two registers of AVX2.
    const BESIDE: usize = 16;
    let mut done = 0;
    if let Some(RowImportance { weights, row_square }) = importance {
        let groups = zip(values.as_chunks::<BESIDE>().0, weights.as_chunks::<BESIDE>().0);
        for ((values, weights), out) in zip(groups, out.as_chunks_mut::<BESIDE>().0) {
            let importance = RowImportance { weights, row_square };
            let blocks: [_; BESIDE] = fit_unsigned(values.flat(), importance, top, by);
            for (block, out) in zip(blocks, out) {
                store(block, out);
            }
            done += BESIDE;
        }
    }
    // One search in the code, with importance and without.
    for (i, (values, out)) in zip(&values[done..], &mut out[done..]).enumerate() {
        let importance = importance.map(|row| row.of_block(done + i));
        store(unsigned(values, importance, top, by), out);
    }
}

#[inline(always)]
fn importance_weights(values: &[f32; 32], importance: BlockImportance<'_, 32>) -> [f32; 32] {
    let mut w = *importance.weights;
    for (w, x) in zip(&mut w[..], values) {
        *w *= (importance.row_square + x * x).sqrt();
    }
    w
}

impl EncodeBlock<18, 32> for Q4_0 {
    #[inline(always)]
    fn encode(
        values: &[f32; 32],
        importance: Option<BlockImportance<'_, 32>>,
        _: impl LookUp,
        out: &mut [u8; 18],
    ) {
        let (d, codes) = signed(values, importance, 8.0);
        put_f16(out, 0, d);
        put_nibbles(&codes, &mut out[2..]);
    }
}

/// Writes a block of Q4_1: scale, minimum and codes.
#[inline(always)]
fn store_q4_1((d, min, codes): (f32, f32, [u8; 32]), out: &mut [u8; 20]) {
    put_f16(out, 0, d);
    put_f16(out, 2, min);
    put_nibbles(&codes, &mut out[4..]);
}

/// Writes a block of Q5_1: scale, minimum and codes.
#[inline(always)]
fn store_q5_1((d, min, codes): (f32, f32, [u8; 32]), out: &mut [u8; 24]) {
    put_f16(out, 0, d);
    put_f16(out, 2, min);
    put_fifths(&codes, &mut out[4..8]);
    put_nibbles(&codes, &mut out[8..]);
}

impl EncodeBlock<20, 32> for Q4_1 {
    #[inline(always)]
    fn encode(
        values: &[f32; 32],
        importance: Option<BlockImportance<'_, 32>>,
        by: impl LookUp,
        out: &mut [u8; 20],
    ) {
        store_q4_1(unsigned(values, importance, 15, by), out);
    }

    #[inline(always)]
    fn encode_blocks(
        values: &[[f32; 32]],
        importance: Option<RowImportance<'_, 32>>,
        by: impl LookUp,
        out: &mut [[u8; 20]],
    ) {
        encode_unsigned(values, importance, (15, by), out, store_q4_1);
    }
}

impl EncodeBlock<22, 32> for Q5_0 {
    #[inline(always)]
    fn encode(
        values: &[f32; 32],
        importance: Option<BlockImportance<'_, 32>>,
        _: impl LookUp,
        out: &mut [u8; 22],
    ) {
        let (d, codes) = signed(values, importance, 16.0);
        put_f16(out, 0, d);
        put_fifths(&codes, &mut out[2..6]);
        put_nibbles(&codes, &mut out[6..]);
    }
}

impl EncodeBlock<24, 32> for Q5_1 {
    #[inline(always)]
    fn encode(
        values: &[f32; 32],
        importance: Option<BlockImportance<'_, 32>>,
        by: impl LookUp,
        out: &mut [u8; 24],
    ) {
        store_q5_1(unsigned(values, importance, 31, by), out);
    }

    #[inline(always)]
    fn encode_blocks(
        values: &[[f32; 32]],
        importance: Option<RowImportance<'_, 32>>,
        by: impl LookUp,
        out: &mut [[u8; 24]],
    ) {
        encode_unsigned(values, importance, (31, by), out, store_q5_1);
    }
}

/// Writes the codes of signed bytes, and returns their scale before it is rounded to f16. ggml
/// divides by the scale that is not rounded, too.
#[inline(always)]
fn signed_bytes(values: &[f32; 32], out: &mut [u8]) -> f32 {
    let d = absmax(values) / 127.0;
    let inverse = inverse(d).unwrap_or(0.0);
    for (out, x) in zip(&mut out[..], values) {
        *out = round(x * inverse) as u8;
    }
    d
}

impl EncodeBlock<34, 32> for Q8_0 {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 32],
        _importance: Option<BlockImportance<'_, 32>>,
        _: impl LookUp,
        out: &mut [u8; 34],
    ) {
        let d = signed_bytes(values, &mut out[2..]);
        put_f16(out, 0, d);
    }
}

impl EncodeBlock<36, 32> for Q8_1 {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 32],
        _importance: Option<BlockImportance<'_, 32>>,
        _: impl LookUp,
        out: &mut [u8; 36],
    ) {
        let d = signed_bytes(values, &mut out[4..]);
        let sum = out[4..]
            .iter()
            .fold(0, |sum, &code| sum + i32::from(code as i8));
        put_f16(out, 0, d);
        // The sum of the codes times the scale before it is rounded, as ggml stores it.
        put_f16(out, 2, sum as f32 * d);
    }
}
