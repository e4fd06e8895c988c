//! Rounding to the dtypes in which libraries compute, after each operation.
//!
//! torch computes an operation on F16 or BF16 tensors in F32 and rounds its result. So a kernel
//! that holds everything in F32 and rounds after each operation gives the library's bits.

use half::f16;

use crate::TargetDtype;
use crate::element::Element;
use crate::simd::zip;

/// Rounding as in libraries that compute in the dtype of a model. The dtype is an argument and no
/// type parameter, so that each kernel is compiled once; only the loops over values below are
/// compiled for each dtype.
impl TargetDtype {
    /// Distance from 1 to the next value, as in `torch.finfo(dtype).eps`.
    #[inline(always)]
    pub(super) fn epsilon(self) -> f32 {
        match self {
            Self::F32 => f32::EPSILON,
            Self::F16 => 1.0 / 1024.0,
            Self::BF16 => 1.0 / 128.0,
        }
    }

    /// The smallest normal value, as in `torch.finfo(dtype).tiny`.
    #[inline(always)]
    pub(super) fn smallest_normal(self) -> f32 {
        match self {
            Self::F16 => 1.0 / 16384.0,
            Self::F32 | Self::BF16 => f32::MIN_POSITIVE,
        }
    }

    /// `x` rounded to the dtype, to nearest even. Without branches, so that LLVM vectorises loops
    /// over the scales of groups.
    #[inline(always)]
    pub(super) fn round(self, x: f32) -> f32 {
        let of = |dtype, x: f32| x.to_bits() & 0u32.wrapping_sub(u32::from(self == dtype));
        let bits =
            of(Self::F32, x) | of(Self::F16, f16::rounded(x)) | of(Self::BF16, round_to_bf16(x));
        f32::from_bits(bits)
    }

    /// [`round`](Self::round) of each value.
    #[inline(always)]
    pub(super) fn round_all(self, values: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::F16 => {
                for x in values {
                    *x = f16::rounded(*x);
                }
            }
            Self::BF16 => {
                for x in values {
                    *x = round_to_bf16(*x);
                }
            }
        }
    }

    /// [`round`](Self::round) of quotients of two values of the dtype, of what a
    /// [`reciprocal`](Self::reciprocal) gives for them, or of products with a power of two. Where
    /// that is no normal number of the dtype, no more than zero or not zero may be right.
    #[inline(always)]
    pub(super) fn round_quotients(self, values: &mut [f32]) {
        match self {
            Self::BF16 => {
                for x in values {
                    *x = round_quotient_to_bf16(*x);
                }
            }
            Self::F32 | Self::F16 => self.round_all(values),
        }
    }

    /// The quotients of values of the dtype by one of them, as
    /// [`round_quotients`](Self::round_quotients) rounds them.
    #[inline(always)]
    pub(super) fn divide_all(self, values: &[f32], divisor: f32, quotients: &mut [f32]) {
        let pairs = zip(quotients, values);
        match (self, self.reciprocal(divisor)) {
            (Self::F32, _) => {
                for (quotient, &x) in pairs {
                    *quotient = x / divisor;
                }
            }
            (Self::F16, _) => {
                for (quotient, &x) in pairs {
                    *quotient = f16::rounded(x / divisor);
                }
            }
            (Self::BF16, Some(factor)) => {
                for (quotient, &x) in pairs {
                    *quotient = round_quotient_to_bf16(x * factor);
                }
            }
            (Self::BF16, None) => {
                for (quotient, &x) in pairs {
                    *quotient = round_quotient_to_bf16(x / divisor);
                }
            }
        }
    }

    /// A factor that does what division by `divisor` does: `x * factor` and `x / divisor` are
    /// rounded to the same value for all finite `x` of the dtype. `None` if there may be no such
    /// factor. `divisor` is of the dtype, too.
    ///
    /// For BF16 that is the reciprocal, unless it is subnormal or infinite in F32. It is off by
    /// 2^-24 of its value at most, and the product by 2^-24 more. A middle between two values has 9
    /// bits, the divisor and `x` have 8. The product of middle and divisor is a whole number of
    /// units of 17 bits, so `x / divisor` is off the middle by 2^-17 at least, or is the middle.
    /// That takes an `x` of 9 bits, unless the middle is subnormal and has fewer. F32 holds such
    /// middles exactly, and the product, which is off by less than half a place there, is rounded to
    /// them.
    #[inline(always)]
    pub(super) fn reciprocal(self, divisor: f32) -> Option<f32> {
        let is_normal = (f32::MIN_POSITIVE..=1.0 / f32::MIN_POSITIVE).contains(&divisor);
        (self == Self::BF16 && is_normal).then_some(1.0 / divisor)
    }
}

/// `x` rounded to bfloat16, without the select for NaN that [`Element::rounded`] has.
#[inline(always)]
fn round_to_bf16(x: f32) -> f32 {
    // The sum carries out of a NaN only if nearly all bits of its payload are set. Encoders have
    // finite values, and a NaN that an operation on these gives has no payload but the quiet bit:
    // it stays NaN.
    let bits = x.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Such a quotient is no middle between two values (see [`TargetDtype::reciprocal`]), unless it is
/// subnormal: what is less than a middle need not be told from it. So that half a place becomes
/// zero, middles become the smaller magnitude.
#[inline(always)]
fn round_quotient_to_bf16(x: f32) -> f32 {
    f32::from_bits(x.to_bits().wrapping_add(0x7fff) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::test_utils::{effort, miri_or};

    /// All values of BF16 by divisors of all mantissas, and by those at the ends of where there is
    /// a reciprocal.
    #[test]
    fn products_with_reciprocals_are_quotients() {
        let of = |bits: u16| bf16::from_bits(bits).to_f32();
        let middle = (0x3f80..0x4000u16).step_by(miri_or(64, 1));
        let ends = [0x0080, 0x0081, 0x00ff, 0x0100, 0x7e7f, 0x7e80];
        let sizes = (0x0093..0x7e80).step_by(miri_or(8011, 97));
        for divisor in middle.chain(ends).chain(sizes).map(of) {
            let factor = TargetDtype::BF16.reciprocal(divisor).unwrap();
            for x in (0..0x7f80u16)
                .step_by(miri_or(1021, effort([5, 1, 1])))
                .map(of)
            {
                for x in [x, -x] {
                    let (quotient, product) =
                        (round_to_bf16(x / divisor), round_to_bf16(x * factor));
                    assert!(
                        quotient.to_bits() == product.to_bits(),
                        "{x:e} / {divisor:e}: {quotient:e}, {product:e}"
                    );
                    for short in
                        [round_quotient_to_bf16(x / divisor), round_quotient_to_bf16(x * factor)]
                    {
                        assert!(
                            quotient.to_bits() == short.to_bits()
                                || quotient.abs() <= f32::MIN_POSITIVE
                                    && short.abs() <= f32::MIN_POSITIVE
                                    && (short == 0.0) == (quotient == 0.0),
                            "{x:e} / {divisor:e}: {quotient:e}, {short:e}"
                        );
                    }
                }
            }
        }
        for divisor in [0x0000, 0x007f, 0x7e81, 0x7f80, 0x7fc0, 0xbf80] {
            assert_eq!(TargetDtype::BF16.reciprocal(of(divisor)), None);
        }
        assert_eq!(TargetDtype::F32.reciprocal(3.0), None);
        assert_eq!(TargetDtype::F16.reciprocal(3.0), None);
    }
}
