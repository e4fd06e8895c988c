//! Rounding F32 to floats of eight bits, six or four, to nearest even, without branches.
//!
//! Formats: OCP 8-bit floating point and microscaling formats. A magnitude beyond the largest
//! finite value becomes that value, as the clamps that libraries put before the cast have it.
//! torch's cast itself saturates for E4M3 (2.15; older versions give NaN), while its cast to E5M2
//! gives infinity.

use crate::remember::kernels::fp8::{E4M3, E5M2};

/// A float of eight bits, six or four, as a target of rounding.
pub(crate) trait NarrowFloat: Send + Sync + 'static {
    const MANTISSA_BITS: u32;
    /// Biased F32 exponent of the smallest normal value.
    const SMALLEST_EXPONENT: u32;
    /// The largest finite value.
    const MAX: f32;
    /// The value that the bits of the NaN code would have as a finite code; [`MAX`](Self::MAX) if
    /// there is no NaN.
    const NAN_VALUE: f32;
    /// Bit of the sign in a code.
    const SIGN_BIT: u32;
    /// What the added number has in its mantissa, so that the sum's lowest bits and the exponent's
    /// make a code: the exponent of a code counts from the smallest binade on. It is even, and so
    /// leaves ties as they are.
    const CODE_OFFSET: u32 = {
        let offset = (Self::SMALLEST_EXPONENT << Self::MANTISSA_BITS).wrapping_neg();
        assert!(offset & 1 == 0);
        offset & (Self::SIGN_BIT - 1)
    };
}

impl NarrowFloat for E4M3 {
    const MANTISSA_BITS: u32 = 3;
    const SMALLEST_EXPONENT: u32 = 121;
    const MAX: f32 = 448.0;
    const NAN_VALUE: f32 = 480.0;
    const SIGN_BIT: u32 = 0x80;
}

impl NarrowFloat for E5M2 {
    const MANTISSA_BITS: u32 = 2;
    const SMALLEST_EXPONENT: u32 = 113;
    const MAX: f32 = 57344.0;
    const NAN_VALUE: f32 = 114_688.0;
    const SIGN_BIT: u32 = 0x80;
}

/// FP4: a sign, two bits of exponent and one of mantissa, all codes finite.
pub(crate) struct Fp4E2M1;

impl NarrowFloat for Fp4E2M1 {
    const MANTISSA_BITS: u32 = 1;
    const SMALLEST_EXPONENT: u32 = 127;
    const MAX: f32 = 6.0;
    const NAN_VALUE: f32 = 6.0;
    const SIGN_BIT: u32 = 8;
}

/// FP6: a sign, two bits of exponent and three of mantissa, all codes finite.
pub(crate) struct Fp6E2M3;

impl NarrowFloat for Fp6E2M3 {
    const MANTISSA_BITS: u32 = 3;
    const SMALLEST_EXPONENT: u32 = 127;
    const MAX: f32 = 7.5;
    const NAN_VALUE: f32 = 7.5;
    const SIGN_BIT: u32 = 0x20;
}

/// The code of `x` and the value that it decodes to. NaN gives the code of NaN with
/// [`NAN_VALUE`](NarrowFloat::NAN_VALUE).
#[inline(always)]
pub(crate) fn narrow<N: NarrowFloat>(x: f32) -> (u32, f32) {
    let sign = x.to_bits() & 0x8000_0000;
    let (code, value) = narrow_magnitude::<N>(f32::from_bits(x.to_bits() ^ sign));
    (code | sign >> (31 - N::SIGN_BIT.trailing_zeros()), f32::from_bits(value.to_bits() | sign))
}

/// [`narrow`] of a value whose sign bit is clear.
#[inline(always)]
pub(crate) fn narrow_magnitude<N: NarrowFloat>(x: f32) -> (u32, f32) {
    let x = if x > N::MAX { N::MAX } else { x };
    // NaN fails both comparisons and becomes the value whose code is NaN's; nothing else is above
    // `MAX` here.
    let x = if x < N::NAN_VALUE { x } else { N::NAN_VALUE };
    // `x` lies in the binade of 2^e. F32 numbers from 2^(e + 23 - m) on are as far apart as codes
    // with m bits of mantissa are at 2^e. So that addition rounds `x` to a code, ties to even, and
    // the mantissa of the sum counts the steps of the code. Below the smallest normal value the
    // steps stay those of its binade, which is how subnormals are spaced.
    let exponent = (x.to_bits() & 0x7f80_0000).max(N::SMALLEST_EXPONENT << 23);
    let aligned = exponent + ((23 - N::MANTISSA_BITS) << 23);
    let sum = x + f32::from_bits(aligned);
    // The steps of a normal value include its implicit bit, which counts as exponent 1 of the code.
    // The binades above the smallest come on top. A value that was rounded up to the next binade
    // carries into the exponent by itself.
    let above = (exponent - (N::SMALLEST_EXPONENT << 23)) >> (23 - N::MANTISSA_BITS);
    // The difference is exact: both lie in one binade.
    (sum.to_bits() - aligned + above, sum - f32::from_bits(aligned))
}

/// The value of the code of a number that is not negative.
#[inline(always)]
pub(crate) fn nearest_magnitude<N: NarrowFloat>(x: f32) -> f32 {
    let x = if x < N::MAX { x } else { N::MAX };
    // As in `narrow_magnitude`.
    let exponent = (x.to_bits() & 0x7f80_0000).max(N::SMALLEST_EXPONENT << 23);
    let aligned = f32::from_bits(exponent + ((23 - N::MANTISSA_BITS) << 23));
    (x + aligned) - aligned
}

/// `number`, which is turned around if `sign` is negative.
#[inline(always)]
pub(crate) fn with_sign_of(sign: f32, number: f32) -> f32 {
    f32::from_bits(number.to_bits() ^ (sign.to_bits() & 0x8000_0000))
}

/// [`narrow`] of a number, which may be infinite but is not NaN.
#[inline(always)]
pub(crate) fn narrow_number<N: NarrowFloat>(x: f32) -> (u32, f32) {
    let x = if x < N::MAX { x } else { N::MAX };
    let x = if x > -N::MAX { x } else { -N::MAX };
    narrow_in_range::<N>(x)
}

/// Whether a number is rounded as well without a bound: it is less than a quarter of a step beyond
/// the largest value.
#[inline(always)]
pub(crate) fn is_in_range<N: NarrowFloat>(x: f32) -> bool {
    x.abs() <= N::MAX * (1.0 + 1.0 / 64.0)
}

/// [`narrow_number`] of a number that [is in range](is_in_range), in two thirds of the operations
/// of [`narrow`].
#[inline(always)]
pub(crate) fn narrow_in_range<N: NarrowFloat>(x: f32) -> (u32, f32) {
    // As in `narrow_magnitude`, but the number that is added has the sign of `x`, so that the
    // mantissa of the sum counts steps away from zero.
    let exponent = (x.to_bits() & 0x7f80_0000).max(N::SMALLEST_EXPONENT << 23);
    let aligned = exponent.wrapping_add(((23 - N::MANTISSA_BITS) << 23) + N::CODE_OFFSET);
    let sign = x.to_bits() & 0x8000_0000;
    let aligned = f32::from_bits(aligned | sign);
    let sum = x + aligned;
    let magnitude = sum
        .to_bits()
        .wrapping_add(exponent >> (23 - N::MANTISSA_BITS));
    let sign_bit = sum.to_bits() >> (31 - N::SIGN_BIT.trailing_zeros());
    let code = magnitude & (N::SIGN_BIT - 1) | sign_bit & N::SIGN_BIT;
    // A difference of zero has no sign yet.
    (code, f32::from_bits((sum - aligned).to_bits() | sign))
}

/// The largest magnitude of `values` and `so_far`. All are finite; `so_far` is not negative.
#[inline(always)]
pub(crate) fn max_abs(values: &[f32], so_far: f32) -> f32 {
    // Magnitudes are ordered as their bits are. The sign bit is clear, so that they can be compared
    // as signed integers, for which SSE2 has an instruction; it has none for unsigned ones.
    let max = values
        .iter()
        .fold(so_far.to_bits() as i32, |max, x| max.max((x.to_bits() & 0x7fff_ffff) as i32));
    f32::from_bits(max as u32)
}

/// `ceil(log2(x))` where the logarithm is first rounded to F32, as `torch.ceil(torch.log2(x))` has
/// it: a value just above a power of two has the logarithm of the power itself. `x` is positive.
#[inline(always)]
pub(crate) fn ceil_log2(x: f32) -> i32 {
    // In F64 subnormals of F32 are normal, too. One place of F32 is 2^29 places of F64.
    let bits = f64::from(x).to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let fraction = bits & ((1 << 52) - 1);
    exponent + i32::from(fraction > LOG2_PLACES[log2_binade(exponent)] << 29)
}

/// `floor(log2(x))` where the logarithm is first rounded to F32: a value just below a power of two
/// has the logarithm of the power itself. `x` is positive.
#[inline(always)]
pub(crate) fn floor_log2(x: f32) -> i32 {
    let bits = f64::from(x).to_bits();
    let next = (bits >> 52) as i32 - 1022;
    let below = (1 << 52) - (bits & ((1 << 52) - 1));
    // log2(2^n - d) is -log2 of its reciprocal, which lies as far above 2^-n, in relation. Places
    // below a power are half as large as those above it, and so twice as many of them count.
    next - i32::from(below > LOG2_PLACES[log2_binade(-next) + 1] << 29)
}

/// Places of F32 above 2^e within which `log2` rounds to e, by [`log2_binade`] of e. With d places
/// above, the logarithm is e + d · 2^-23 / ln 2. It rounds to e up to half a last place of the
/// result, which is 2^(k - 24) in binade k: d is at most 2^(k - 1) · ln 2, rounded down.
const LOG2_PLACES: [u64; 9] = [0, 0, 1, 2, 5, 11, 22, 44, 88];

/// The binade of F32 in which logarithms just above `exponent` lie. The mask, which changes nothing
/// for exponents of F32, makes the index provably small.
#[inline(always)]
fn log2_binade(exponent: i32) -> usize {
    // Logarithms just above a negative exponent have the smaller magnitude.
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
    use crate::remember::kernels::fp8::Float8;
    use crate::test_utils::miri_or;

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

    /// Bits tell the two zeros apart.
    fn with_bits((code, value): (u32, f32)) -> (u32, u32) {
        (code, value.to_bits())
    }

    fn check<N: NarrowFloat>(codes: u8, widen: impl Fn(u8) -> f32 + Copy) {
        let mut state = 1u32;
        for i in (0..60_000u32).step_by(miri_or(997, 1)) {
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
                let sign = if x.is_sign_negative() { N::SIGN_BIT } else { 0 };
                assert_eq!(code, u32::from(twin(x, codes, widen)) | sign, "{x:e}");
                assert_eq!(value.abs(), widen((code ^ sign) as u8), "{x:e}");
                assert_eq!(value.is_sign_negative(), x.is_sign_negative());
                assert_eq!(with_bits(narrow_number::<N>(x)), with_bits((code, value)), "{x:e}");
                if is_in_range::<N>(x) {
                    let found = with_bits(narrow_in_range::<N>(x));
                    assert_eq!(found, with_bits((code, value)), "{x:e}");
                }
            }
        }
        assert_eq!(narrow::<N>(f32::INFINITY).1, N::MAX);
        assert_eq!(narrow::<N>(f32::NEG_INFINITY).1, -N::MAX);
        assert_eq!(narrow::<N>(-0.0).0, N::SIGN_BIT);
        for x in [
            0.0,
            -0.0,
            f32::MIN_POSITIVE,
            -f32::from_bits(1),
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            1.015 * N::MAX,
        ] {
            let found = with_bits(narrow_number::<N>(x));
            assert_eq!(found, with_bits(narrow::<N>(x)), "{x:e}");
        }
        assert_eq!(narrow_in_range::<N>(-1.015 * N::MAX).1, -N::MAX);
        assert!(is_in_range::<N>(-1.015 * N::MAX) && !is_in_range::<N>(f32::NAN));
    }

    #[test]
    fn codes_are_the_nearest() {
        check::<E4M3>(0x7f, E4M3::widen);
        check::<E5M2>(0x7c, E5M2::widen);
        check::<Fp4E2M1>(8, crate::remember::kernels::fp8::finite::<1, 1>);
        check::<Fp6E2M3>(32, crate::remember::kernels::fp8::finite::<3, 1>);
        assert_eq!(
            (narrow::<E4M3>(f32::NAN).0 & 0x7f, narrow::<E5M2>(f32::NAN).0 & 0x7f),
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
            let places = (0..64).chain([1 << 22]).chain((1 << 23) - 64..1 << 23);
            for place in places.step_by(miri_or(16, 1)) {
                let x = f32::from_bits(exponent << 23 | place);
                assert_logarithms(x);
            }
        }
        for place in (1..4096)
            .step_by(miri_or(31, 1))
            .chain((0..23).map(|i| 1 << i))
            .chain((10..23).map(|i| (1 << i) + 1))
        {
            let x = f32::from_bits(place);
            assert_logarithms(x);
        }
    }
}
