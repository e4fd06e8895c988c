//! Whether a product in F32 is near enough to the one in F64 that is wanted: most are rounded to
//! the same number of 16 bits.

use half::f16;

use crate::element::Element;

/// How many places of F32 a product in F32 may be off.
pub(crate) const MARGIN: u32 = 8;

/// Whether all numbers of F32 with the sign of `x` that are up to [`MARGIN`] places from it are
/// rounded to the same of 16 bits, of which `mantissa` are explicit bits of the mantissa. Of halves only zero and the normal values are rounded at a place
/// that is known.
#[inline(always)]
pub(crate) fn is_decided(x: f32, mantissa: u32) -> bool {
    let places = f32::MANTISSA - mantissa;
    let half = (1 << places) >> 1;
    let bits = x.to_bits();
    let behind = bits.wrapping_add(half + MARGIN) & ((1 << places) - 1);
    let is_far = behind > 2 * MARGIN;
    let least = if mantissa == f16::MANTISSA {
        LEAST_HALF
    } else {
        0.0
    };
    // A product that is infinite may be finite in F64. NaN is not known either.
    let is_known = (x.abs() >= least) | (x == 0.0);
    is_far & is_known & (x.abs() <= f32::MAX)
}

/// The smallest normal half, and a little more.
const LEAST_HALF: f32 = 6.2e-5;
