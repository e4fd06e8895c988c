//! Output elements: exact rounding from F32 and widening to it, without branches, so that LLVM
//! vectorises both.

use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::TargetDtype;

/// 1.5 · 2^23. The last place of a sum with it is 1, so that adding it to a number below 2^22 in
/// magnitude rounds that to an integer, to nearest even, without a call. The lowest bits of the sum
/// are the integer in two's complement.
pub(crate) const ROUND_TO_INTEGER: f32 = 12_582_912.0;

/// A type that weights are decoded to.
pub(crate) trait Element:
    FromBytes + IntoBytes + Immutable + KnownLayout + Copy + Send + Sync + 'static
{
    /// The largest finite value.
    const LARGEST: f32;

    /// Bits of the mantissa.
    const MANTISSA: u32;

    /// `x` rounded once, to nearest even. NaN stays NaN.
    fn from_f32(x: f32) -> Self;

    /// The exact value in F32.
    fn to_f32(self) -> f32;

    /// The value of `x` rounded to this type: `from_f32(x).to_f32()`, bit for bit.
    fn rounded(x: f32) -> f32;

    /// Rounds `values` into `out`.
    #[inline(always)]
    fn store(values: &[f32], out: &mut [Self]) {
        // Not `zip`, which would stay a call in kernels; theirs is above this room.
        let len = out.len().min(values.len());
        let (out, values) = (&mut out[..len], &values[..len]);
        for (i, o) in out.iter_mut().enumerate() {
            *o = Self::from_f32(values[i]);
        }
    }
}

impl Element for f32 {
    const LARGEST: f32 = f32::MAX;
    const MANTISSA: u32 = 23;

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        x
    }
}

impl Element for bf16 {
    const LARGEST: f32 = f32::from_bits(0x7f7f_0000);
    const MANTISSA: u32 = 7;

    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        let bits = x.to_bits();
        // Half of the last place that stays, less one bit if that place is even: ties go to even. A
        // carry into the exponent is the next binade, or infinity, as it should be.
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        // Adding could carry a NaN's payload into the sign, so NaN is truncated and made quiet. The
        // select is before the shift, so that LLVM does it on vectors of 32 bits: on those of 16 it
        // would pack both operands and the mask.
        let out = if x.is_nan() {
            bits | 0x40_0000
        } else {
            rounded
        };
        bf16::from_bits((out >> 16) as u16)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32_from_bf16(self.to_bits())
    }

    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        let bits = x.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let out = if x.is_nan() {
            bits | 0x40_0000
        } else {
            rounded
        };
        f32::from_bits(out & 0xffff_0000)
    }
}

impl Element for f16 {
    const LARGEST: f32 = 65504.0;
    const MANTISSA: u32 = 10;

    /// After F. Giesen, `float_to_half_fast3_rtne`
    /// (<https://gist.github.com/rygorous/2156668>), with selects for the branches.
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        const SUBNORMAL_MAGIC: u32 = 126 << 23; // 0.5: its last place is the smallest f16
        let bits = x.to_bits();
        let sign = bits & 0x8000_0000;
        let abs = bits ^ sign;
        // Below 2^-14 one float addition aligns and rounds the mantissa.
        let small = (f32::from_bits(abs) + f32::from_bits(SUBNORMAL_MAGIC))
            .to_bits()
            .wrapping_sub(SUBNORMAL_MAGIC);
        // Rebias 127 to 15 and round to nearest even; may carry into infinity, as it should.
        let normal = abs
            .wrapping_sub(112 << 23)
            .wrapping_add(0xfff + ((abs >> 13) & 1))
            >> 13;
        let special = if abs > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        let out = if abs < 113 << 23 { small } else { normal };
        let out = if abs >= 143 << 23 { special } else { out };
        f16::from_bits((out | (sign >> 16)) as u16)
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32_from_f16(self.to_bits())
    }

    /// Stays in F32, which takes half of the operations that rebiasing the exponent to and fro
    /// would.
    #[inline(always)]
    fn rounded(x: f32) -> f32 {
        let bits = x.to_bits();
        let sign = bits & 0x8000_0000;
        let abs = bits ^ sign;
        // Below 2^-14: the last place of 0.5 is the smallest f16, and the difference is exact.
        let small = ((f32::from_bits(abs) + 0.5) - 0.5).to_bits();
        // To nearest even at the last place of an f16. From 65520 on this carries to 65536, which
        // is infinity.
        let normal = abs.wrapping_add(0xfff + ((abs >> 13) & 1)) & !0x1fff;
        let special = if abs > 0x7f80_0000 {
            0x7fc0_0000
        } else {
            0x7f80_0000
        };
        let out = if abs < 113 << 23 { small } else { normal };
        let out = if normal >= 143 << 23 { special } else { out };
        f32::from_bits(out | sign)
    }
}

/// Exact widening of an IEEE half. Branch-free, unlike the library's software path.
#[inline(always)]
pub(crate) fn f32_from_f16(bits: u16) -> f32 {
    const SUBNORMAL_MAGIC: u32 = 113 << 23; // 2^-14, the smallest normal half
    let h = u32::from(bits);
    let shifted = (h & 0x7fff) << 13;
    let exponent = shifted & (0x7c00 << 13);
    // The exponent's bias goes from 15 to 127; infinity and NaN keep the largest exponent.
    let normal = shifted + (112 << 23);
    let special = shifted + (224 << 23);
    // With the exponent of 2^-14 a subnormal has an implicit bit too much. The difference takes it
    // away, exactly.
    let subnormal =
        (f32::from_bits(normal + (1 << 23)) - f32::from_bits(SUBNORMAL_MAGIC)).to_bits();
    let out = if exponent == 0x7c00 << 13 {
        special
    } else {
        normal
    };
    let out = if exponent == 0 { subnormal } else { out };
    f32::from_bits(out | (h & 0x8000) << 16)
}

/// Exact widening of a bfloat16.
#[inline(always)]
pub(crate) fn f32_from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Views `words` as elements.
fn elements<E: Element>(words: &mut [u32]) -> &mut [E] {
    match <[E]>::mut_from_bytes(words.as_mut_bytes()) {
        Ok(elements) => elements,
        Err(_) => unreachable!("an element is no larger than a word, and its size divides that"),
    }
}

/// A typed destination: the one place where the output type is a run-time value.
#[derive(Debug)]
pub(crate) enum Out<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Half precision.
    F16(&'a mut [f16]),
    /// bfloat16.
    Bf16(&'a mut [bf16]),
}

impl<'a> Out<'a> {
    /// Views `words` as elements of `target`; each u32 holds one or two of them.
    pub(crate) fn new(target: TargetDtype, words: &'a mut [u32]) -> Self {
        match target {
            TargetDtype::F32 => Self::F32(elements(words)),
            TargetDtype::F16 => Self::F16(elements(words)),
            TargetDtype::BF16 => Self::Bf16(elements(words)),
        }
    }

    /// The type of the elements.
    pub(crate) fn dtype(&self) -> TargetDtype {
        match self {
            Self::F32(_) => TargetDtype::F32,
            Self::F16(_) => TargetDtype::F16,
            Self::Bf16(_) => TargetDtype::BF16,
        }
    }

    /// Splits into the first `n` elements and the rest.
    pub(crate) fn split_at(self, n: usize) -> (Self, Self) {
        macro_rules! split {
            ($out:ident, $variant:ident) => {{
                let (first, rest) = $out.split_at_mut(n);
                (Self::$variant(first), Self::$variant(rest))
            }};
        }
        match self {
            Self::F32(out) => split!(out, F32),
            Self::F16(out) => split!(out, F16),
            Self::Bf16(out) => split!(out, Bf16),
        }
    }

    /// The first `n` elements.
    pub(crate) fn first(self, n: usize) -> Self {
        match self {
            Self::F32(out) => Self::F32(&mut out[..n]),
            Self::F16(out) => Self::F16(&mut out[..n]),
            Self::Bf16(out) => Self::Bf16(&mut out[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_utils::miri_or;

    /// Every f32 whose low half is one of the values that decide a rounding, against `half`.
    #[test]
    fn rounding_equals_half_everywhere() {
        for high in (0..=u16::MAX).step_by(miri_or(251, 1)) {
            for low in [
                0u32, 1, 0x0fff, 0x1000, 0x1001, 0x1fff, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001,
                0xffff,
            ] {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let (b, h) = (<bf16 as Element>::from_f32(x), <f16 as Element>::from_f32(x));
                assert_eq!(<bf16 as Element>::rounded(x).to_bits(), Element::to_f32(b).to_bits());
                assert_eq!(
                    <f16 as Element>::rounded(x).to_bits(),
                    Element::to_f32(h).to_bits(),
                    "{:08x}",
                    x.to_bits()
                );
                if x.is_nan() {
                    assert!(b.is_nan() && h.is_nan(), "{:08x}", x.to_bits());
                    continue;
                }
                assert_eq!(b.to_bits(), bf16::from_f32(x).to_bits(), "{:08x}", x.to_bits());
                assert_eq!(h.to_bits(), f16::from_f32_const(x).to_bits(), "{:08x}", x.to_bits());
            }
        }
    }

    #[test]
    fn widening_equals_half_everywhere() {
        for bits in (0..=u16::MAX).step_by(miri_or(61, 1)) {
            let (ours, theirs) = (f32_from_f16(bits), f16::from_bits(bits).to_f32_const());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:04x}"
            );
        }
    }
}
