//! E2M1 codes: MXFP4 with a power of two for 32 values, NVFP4 with UE4M3 scales for 16. Neither
//! heeds importance, and ggml's NVFP4 has no scale of the whole tensor when it is encoded.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_mxfp4_ref`, `quantize_row_nvfp4_ref`;
//! `ggml-impl.h`, `ggml_fp32_to_ue4m3`.

use super::legacy::absmax;
use super::{BlockImportance, EncodeBlock};
use crate::simd::{LookUp, zip};

pub(super) struct MXFP4;
pub(super) struct NVFP4;

/// Twice the magnitudes of E2M1.
const MAGNITUDES: [f32; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
/// Twice the middles between neighbouring magnitudes. A middle belongs to the lower one, which
/// ggml's search meets first.
const MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// Encodes values as twice E2M1 times `d`: the first half into low nibbles, the second into high
/// ones. Zero has no sign, for ggml's search meets code 0 before code 8.
///
/// Comparing with the middles is what ggml's `best_index_mxfp4` does by comparing differences, as
/// long as the multiples of `d` and the differences near a middle are exact.
#[inline(always)]
fn put_codes<const N: usize>(values: &[f32; N], d: f32, out: &mut [u8]) {
    let mut codes = [0; N];
    for (code, x) in zip(&mut codes[..], values) {
        let mut magnitude = 0;
        for &middle in &MIDDLES {
            magnitude += u32::from(x.abs() > middle * d);
        }
        let sign = if magnitude == 0 {
            0
        } else {
            x.to_bits() >> 31 << 3
        };
        *code = (magnitude | sign) as u8;
    }
    put_nibbles(&codes, out);
}

#[inline(always)]
fn put_nibbles(codes: &[u8], out: &mut [u8]) {
    let (low, high) = codes.split_at(codes.len() / 2);
    for ((out, low), high) in zip(zip(&mut out[..], low), high) {
        *out = low | high << 4;
    }
}

/// [`put_codes`] for values so much larger than the largest multiple of `d` that differences from
/// all of them are rounded and may be equal. The first code with the least difference wins, as in
/// `best_index_mxfp4`.
#[inline(never)]
fn put_codes_of_large<const N: usize>(values: &[f32; N], d: f32, out: &mut [u8]) {
    let mut codes = [0; N];
    for (code, x) in zip(&mut codes[..], values) {
        let (mut best, mut least) = (0, x.abs());
        for (i, magnitude) in zip(0u8.., MAGNITUDES) {
            let error = (magnitude * d - x.abs()).abs();
            if error < least {
                (best, least) = (i, error);
            }
        }
        *code = if best != 0 && *x < 0.0 {
            best | 8
        } else {
            best
        };
    }
    put_nibbles(&codes, out);
}

/// `floorf(log2f(x))`. The logarithm of a number just below a power of two is rounded to that
/// power's exponent, so the exponent of `x` alone will not do.
#[inline(always)]
fn floor_log2(x: f32) -> i32 {
    // Subnormals are scaled by 2^24 to have an exponent field.
    let normal = if x < f32::MIN_POSITIVE {
        x * 16_777_216.0
    } else {
        x
    };
    let below = (normal.to_bits() >> 23) as i32 - 127 - if x < f32::MIN_POSITIVE { 24 } else { 0 };
    let above = below + 1;
    // The significand, as a number from 1 to 2.
    let fraction = f64::from(f32::from_bits(normal.to_bits() & 0x007f_ffff | 0x3f80_0000));
    // `log2(x)` is `above - gap`, where `gap` is log2(2 / fraction), for fractions near 2 about (2
    // - fraction) / 2 / ln 2. It is rounded to `above` if `gap` is less than half of `place`, the
    // last place of floats just below `above`.
    let size = if above > 0 { above - 1 } else { -above };
    let place =
        2.0f64 / f64::from(1 << 24) * f64::from(if size == 0 { 0 } else { 1 << size.ilog2() });
    let gap = (2.0 - fraction) / 2.0 / std::f64::consts::LN_2;
    if gap < place / 2.0 { above } else { below }
}

impl EncodeBlock<17, 32> for MXFP4 {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 32],
        _importance: Option<BlockImportance<'_, 32>>,
        _: impl LookUp,
        out: &mut [u8; 17],
    ) {
        let max = absmax(values);
        // Below 2^-125 the exponent is negative. ggml's cast to `uint8_t` wraps it to a huge one,
        // and so does this.
        let e = if max > 0.0 {
            (floor_log2(max) + 125) as u8
        } else {
            0
        };
        let d = f32::from_bits(if e < 2 {
            0x0020_0000 << e
        } else {
            u32::from(e - 1) << 23
        });
        out[0] = e;
        put_codes(values, d, &mut out[1..]);
    }
}

/// The UE4M3 code nearest to `x`, which is not negative, and half of the code's value. Ties go up.
/// What is rounded to 256 or more becomes 448: ggml's `ggml_fp32_to_ue4m3`.
#[inline(always)]
fn ue4m3(x: f32) -> (u8, f32) {
    let x = if x > 448.0 { 448.0 } else { x };
    // Keeps three bits of the mantissa; the one below them is added as a carry, so that a half is
    // rounded up.
    let rounded = ((x.to_bits() >> 19) + 1) >> 1;
    let code = rounded as i32 - (120 << 3);
    let code = if code < 15 << 3 { code } else { 0x7e };
    // The bound is 2^-6, the smallest normal value. Below it codes count steps of 2^-9.
    let code = if x < 0.015_625 {
        (x * 512.0 + 0.5).min(7.0) as i32
    } else {
        code
    };
    let exponent = code >> 3;
    let value = if exponent == 0 {
        code as f32 / 1024.0
    } else {
        f32::from_bits(((exponent + 119) << 23 | (code & 7) << 20) as u32)
    };
    (code as u8, value)
}

impl EncodeBlock<36, 64> for NVFP4 {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 64],
        _importance: Option<BlockImportance<'_, 64>>,
        _: impl LookUp,
        out: &mut [u8; 36],
    ) {
        let (scales, codes) = out.split_at_mut(4);
        let groups =
            zip(zip(values.as_chunks::<16>().0.iter(), scales), codes.as_chunks_mut::<8>().0);
        for ((values, scale), codes) in groups {
            let max = absmax(values);
            let (code, d) = ue4m3(max / 6.0);
            *scale = code;
            // Every multiple of 0 is 0, and the first code wins.
            if d == 0.0 {
                codes.fill(0);
            } else if max < 134_217_728.0 {
                put_codes(values, d, codes);
            } else {
                put_codes_of_large(values, d, codes);
            }
        }
    }
}
