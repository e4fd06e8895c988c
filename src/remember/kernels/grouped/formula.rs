//! The formulas by which the value of a code, a scale and an offset make a weight.

use crate::element::{Element, ROUND_TO_INTEGER};

/// The formula by which a code's value `v`, a scale and an offset make a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Formula {
    /// `v * s`.
    Scale,
    /// `v / s`.
    Divide,
    /// `(v - z) * s`.
    ShiftScale,
    /// `v * s + b`.
    ScaleShift,
    /// `v * s + b`, rounded once.
    FusedScaleShift,
    /// `int8(v * s) * b`, where `int8` is the nearest integer, ties to even, within -128 to 127.
    ScaleToInt8,
}

/// The operations of a [`Formula`] on one value. `E` is the type that an intermediate result is
/// rounded to.
pub(super) trait Arithmetic {
    /// Whether an intermediate result is rounded.
    const ROUNDS: bool = false;

    fn apply<E: Element>(value: f32, scale: f32, offset: f32) -> f32;
}

/// [`Formula::Scale`].
pub(super) struct ScaleOp;

impl Arithmetic for ScaleOp {
    #[inline(always)]
    fn apply<E: Element>(value: f32, scale: f32, _offset: f32) -> f32 {
        value * scale
    }
}

/// [`Formula::Divide`].
pub(super) struct DivideOp;

impl Arithmetic for DivideOp {
    #[inline(always)]
    fn apply<E: Element>(value: f32, scale: f32, _offset: f32) -> f32 {
        value / scale
    }
}

/// [`Formula::ShiftScale`].
pub(super) struct ShiftScaleOp<const ROUNDS: bool>;

impl<const ROUNDS: bool> Arithmetic for ShiftScaleOp<ROUNDS> {
    const ROUNDS: bool = ROUNDS;

    #[inline(always)]
    fn apply<E: Element>(value: f32, scale: f32, offset: f32) -> f32 {
        rounded::<E, ROUNDS>(value - offset) * scale
    }
}

/// [`Formula::ScaleShift`].
pub(super) struct ScaleShiftOp<const ROUNDS: bool>;

impl<const ROUNDS: bool> Arithmetic for ScaleShiftOp<ROUNDS> {
    const ROUNDS: bool = ROUNDS;

    #[inline(always)]
    fn apply<E: Element>(value: f32, scale: f32, offset: f32) -> f32 {
        rounded::<E, ROUNDS>(value * scale) + offset
    }
}

/// [`Formula::FusedScaleShift`].
pub(super) struct FusedOp;

impl Arithmetic for FusedOp {
    #[inline(always)]
    fn apply<E: Element>(value: f32, scale: f32, offset: f32) -> f32 {
        fused(value, scale, offset)
    }
}

/// [`Formula::FusedScaleShift`] on a CPU with an instruction for it.
#[cfg(target_arch = "x86_64")]
pub(super) struct FmaOp;

#[cfg(target_arch = "x86_64")]
impl Arithmetic for FmaOp {
    #[inline(always)]
    fn apply<E: Element>(value: f32, scale: f32, offset: f32) -> f32 {
        value.mul_add(scale, offset)
    }
}

/// [`Formula::ScaleToInt8`].
pub(super) struct ScaleToInt8Op;

impl Arithmetic for ScaleToInt8Op {
    #[inline(always)]
    fn apply<E: Element>(value: f32, scale: f32, offset: f32) -> f32 {
        let product = value * scale;
        // NaN passes both. The bounds are integers, so that the order of rounding and clamping does
        // not matter.
        let product = if product > 127.0 { 127.0 } else { product };
        let product = if product < -128.0 { -128.0 } else { product };
        // The library's zeros keep their sign.
        ((product + ROUND_TO_INTEGER) - ROUND_TO_INTEGER).copysign(product) * offset
    }
}

/// `value * scale + offset`, rounded once. The baseline has no instruction for it, and the function
/// of the C library is a call.
///
/// The product is exact in F64. If the sum is not, it is rounded to odd: it then lies on no tie
/// between two F32, and on the side of each on which the exact sum lies, so that the second
/// rounding gives what one alone would.
#[inline(always)]
pub(crate) fn fused(value: f32, scale: f32, offset: f32) -> f32 {
    let (product, offset) = (f64::from(value) * f64::from(scale), f64::from(offset));
    let sum = product + offset;
    // What the rounding of the sum has left out, exactly.
    let taken = sum - product;
    let error = (product - (sum - taken)) + (offset - taken);
    let bits = sum.to_bits();
    // Next to an even last place, one place towards the exact sum; NaN is no error.
    let is_even = bits & 1 == 0;
    let grows = (error > 0.0) == (sum > 0.0);
    let odd = if grows {
        bits | 1
    } else {
        bits.wrapping_sub(1)
    };
    let is_inexact = (error > 0.0) | (error < 0.0);
    let bits = if is_inexact & is_even { odd } else { bits };
    f64::from_bits(bits) as f32
}

/// `x`, rounded to the output's type if `ROUNDS`.
#[inline(always)]
fn rounded<E: Element, const ROUNDS: bool>(x: f32) -> f32 {
    if ROUNDS { E::rounded(x) } else { x }
}
