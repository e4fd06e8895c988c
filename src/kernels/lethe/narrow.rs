//! Rounding to floats of eight bits or four, to nearest even, without branches.
//!
//! Formats: OCP 8-bit floating point and microscaling formats. What is too large becomes the largest finite value, as
//! by the clamps that libraries put before the cast. torch's cast itself does so for E4M3 (2.15; older ones give NaN),
//! while that to E5M2 gives infinity.

use crate::kernels::remember::fp8::{E4M3, E5M2};

/// A float of few bits.
pub(crate) trait Narrow: Send + Sync + 'static {
    /// Bits of the mantissa.
    const MANTISSA: u32;
    /// Exponent of the smallest normal value, as f32 has it.
    const SMALLEST: u32;
    /// The largest finite value.
    const MAX: f32;
    /// The value whose code is that of NaN: what the bits would stand for if they were not NaN.
    const NAN: f32;
    /// The sign in a code.
    const SIGN: u32;
}

impl Narrow for E4M3 {
    const MANTISSA: u32 = 3;
    const SMALLEST: u32 = 121;
    const MAX: f32 = 448.0;
    const NAN: f32 = 480.0;
    const SIGN: u32 = 0x80;
}

impl Narrow for E5M2 {
    const MANTISSA: u32 = 2;
    const SMALLEST: u32 = 113;
    const MAX: f32 = 57344.0;
    const NAN: f32 = 114_688.0;
    const SIGN: u32 = 0x80;
}

/// FP4.
pub(crate) struct E2M1;

impl Narrow for E2M1 {
    const MANTISSA: u32 = 1;
    const SMALLEST: u32 = 127;
    const MAX: f32 = 6.0;
    const NAN: f32 = 6.0;
    const SIGN: u32 = 8;
}

/// The code of `x`, and what it stands for; [`Narrow::NAN`] for NaN.
#[inline(always)]
pub(crate) fn narrow<N: Narrow>(x: f32) -> (u32, f32) {
    let sign = x.to_bits() & 0x8000_0000;
    let (code, value) = magnitude::<N>(f32::from_bits(x.to_bits() ^ sign));
    (
        code | sign >> (31 - N::SIGN.trailing_zeros()),
        f32::from_bits(value.to_bits() | sign),
    )
}

/// [`narrow`] of what is not negative.
#[inline(always)]
pub(crate) fn magnitude<N: Narrow>(x: f32) -> (u32, f32) {
    let x = if x > N::MAX { N::MAX } else { x };
    let x = if x < N::NAN { x } else { N::NAN };
    // Next to this power of two, the last place of f32 is the last place of the code: the sum is rounded as the code
    // should be, and its mantissa counts places of the code.
    let exponent = (x.to_bits() & 0x7f80_0000).max(N::SMALLEST << 23);
    let aligned = exponent + ((23 - N::MANTISSA) << 23);
    let sum = x + f32::from_bits(aligned);
    let above = (exponent - (N::SMALLEST << 23)) >> (23 - N::MANTISSA);
    (
        sum.to_bits() - aligned + above,
        sum - f32::from_bits(aligned),
    )
}

/// The largest magnitude; all values are finite.
#[inline(always)]
pub(crate) fn largest(values: &[f32], before: f32) -> f32 {
    // Of magnitudes, bits are in the same order as values, and signed comparison is there at every level.
    let max = values.iter().fold(before.to_bits() as i32, |max, x| {
        max.max((x.to_bits() & 0x7fff_ffff) as i32)
    });
    f32::from_bits(max as u32)
}

/// `ceil(log2(x))` where the logarithm is rounded to f32, as by torch: just above a power of two, it is the power's.
/// `x` is positive.
#[inline(always)]
pub(crate) fn ceil_log2(x: f32) -> i32 {
    let bits = f64::from(x).to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let fraction = bits & ((1 << 52) - 1);
    exponent + i32::from(fraction > PLACES[last_place(exponent)] << 29)
}

/// `floor(log2(x))` where the logarithm is rounded to f32: just below a power of two, it is the power's.
#[inline(always)]
pub(crate) fn floor_log2(x: f32) -> i32 {
    let bits = f64::from(x).to_bits();
    let next = (bits >> 52) as i32 - 1022;
    let below = (1 << 52) - (bits & ((1 << 52) - 1));
    // The logarithm below a power is that of the inverse above the inverse, and places there are half as far apart.
    next - i32::from(below > PLACES[last_place(-next) + 1] << 29)
}

/// Places of f32 that a value can lie above a power of two with a logarithm that is rounded to the power's, by what
/// [`last_place`] says: half of that place, over log2(e).
const PLACES: [u64; 9] = [0, 0, 1, 2, 5, 11, 22, 44, 88];

/// How far the last place of f32 is moved by the size of a logarithm just above `exponent`.
#[inline(always)]
fn last_place(exponent: i32) -> usize {
    let above = if exponent < 0 {
        -exponent - 1
    } else {
        exponent
    };
    above.max(1).ilog2() as usize & 7
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::remember::fp8::Float8;

    /// Nearest of all codes, the even one of two.
    fn twin(x: f32, codes: u8, widen: impl Fn(u8) -> f32) -> u8 {
        let distance = |code: u8| (f64::from(widen(code)) - f64::from(x.abs())).abs();
        let best = (0..codes).min_by(|&a, &b| {
            distance(a)
                .total_cmp(&distance(b))
                .then((a & 1).cmp(&(b & 1)))
        });
        best.unwrap()
    }

    fn check<N: Narrow>(codes: u8, widen: impl Fn(u8) -> f32 + Copy) {
        let mut state = 1u32;
        for i in 0..60_000u32 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Every exponent that matters, and each code, each middle and what is next to them.
            let x = match i {
                0..4096 => {
                    let (a, b) = (
                        widen((i / 16) as u8 % codes),
                        widen(((i / 16) as u8 % codes + 1).min(codes - 1)),
                    );
                    let middle = a + (b - a) * [0.0, 0.5][i as usize % 2];
                    f32::from_bits(
                        middle.to_bits().wrapping_add(i / 2 % 3).saturating_sub(1) & 0x7fff_ffff,
                    )
                }
                _ => f32::from_bits((100 + state % 50) << 23 | state >> 9),
            };
            for x in [x, -x] {
                let (code, value) = narrow::<N>(x);
                let sign = if x.is_sign_negative() { N::SIGN } else { 0 };
                assert_eq!(code, u32::from(twin(x, codes, widen)) | sign, "{x:e}");
                assert_eq!(value.abs(), widen((code ^ sign) as u8), "{x:e}");
                assert_eq!(value.is_sign_negative(), x.is_sign_negative());
            }
        }
        assert_eq!(narrow::<N>(f32::INFINITY).1, N::MAX);
        assert_eq!(narrow::<N>(f32::NEG_INFINITY).1, -N::MAX);
        assert_eq!(narrow::<N>(-0.0).0, N::SIGN);
    }

    #[test]
    fn codes_are_the_nearest() {
        check::<E4M3>(0x7f, E4M3::widen);
        check::<E5M2>(0x7c, E5M2::widen);
        check::<E2M1>(8, crate::kernels::remember::fp8::finite::<1, 1>);
        assert_eq!(
            (
                narrow::<E4M3>(f32::NAN).0 & 0x7f,
                narrow::<E5M2>(f32::NAN).0 & 0x7f
            ),
            (0x7f, 0x7f)
        );
    }

    fn assert_logarithms(x: f32) {
        let logarithm = f64::from(x).log2() as f32;
        assert_eq!(
            (ceil_log2(x), floor_log2(x)),
            (logarithm.ceil() as i32, logarithm.floor() as i32),
            "{x:e}"
        );
    }

    /// Against the logarithm in f64, rounded to f32.
    #[test]
    fn logarithms_round_as_f32() {
        for exponent in 1..255u32 {
            for place in (0..64).chain([1 << 22]).chain((1 << 23) - 64..1 << 23) {
                let x = f32::from_bits(exponent << 23 | place);
                assert_logarithms(x);
            }
        }
        for place in (1..4096)
            .chain((0..23).map(|i| 1 << i))
            .chain((10..23).map(|i| (1 << i) + 1))
        {
            let x = f32::from_bits(place);
            assert_logarithms(x);
        }
    }
}
