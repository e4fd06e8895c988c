//! The values of the trellis code: what takes the place of a codebook.

/// How the values of C are made of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codebook {
    /// Two halves whose bits are those of a linear congruence, added as halves.
    ThreeInst,
    /// The same of a product without a summand.
    Mcg,
    /// The sum of the bytes of a product, scaled by one fused operation of halves.
    Mul1,
}

impl Codebook {
    /// What an integer that [`BlockSums`](super::BlockSums) sums up is worth.
    pub(crate) fn unit(self) -> f64 {
        match self {
            Self::ThreeInst | Self::Mcg => 1.0 / f64::from(1 << 13),
            Self::Mul1 => 1.0 / f64::from(1 << 17),
        }
    }

    /// As configs call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ThreeInst => "3inst",
            Self::Mcg => "mcg",
            Self::Mul1 => "mul1",
        }
    }

    /// The multiplier that is stored as the mark of the codebook; `None` for the one without a
    /// mark.
    pub(crate) fn mark(self) -> Option<u32> {
        match self {
            Self::ThreeInst => None,
            Self::Mcg => Some(MCG),
            Self::Mul1 => Some(MUL1),
        }
    }
}

#[cfg(test)]
impl Codebook {
    pub(crate) fn integer(self, state: u32) -> i32 {
        match self {
            Self::ThreeInst => Congruence::THREE_INST.integer(state),
            Self::Mcg => Congruence::MCG.integer(state),
            Self::Mul1 => Mul1.integer(state),
        }
    }
}

const MCG: u32 = 0xcbac_1fed;
const MUL1: u32 = 0x83dc_d12d;

/// Values of C as multiples of [`Codebook::unit`].
pub(super) trait States: Copy {
    fn integer(self, state: u32) -> i32;
}

/// Two halves whose bits are those of `state * factor + summand`.
#[derive(Clone, Copy)]
pub(super) struct Congruence {
    factor: u32,
    summand: u32,
}

impl Congruence {
    pub(super) const THREE_INST: Self = Self { factor: 89_226_354, summand: 64_248_484 };
    pub(super) const MCG: Self = Self { factor: MCG, summand: 0 };
}

impl States for Congruence {
    #[inline(always)]
    fn integer(self, state: u32) -> i32 {
        sum_of_halves(state.wrapping_mul(self.factor).wrapping_add(self.summand))
    }
}

#[derive(Clone, Copy)]
pub(super) struct Mul1;

impl States for Mul1 {
    /// `fma(1024 + t, 0x1eee, 0xc931)` in halves, where t is the sum of the bytes. The factors are
    /// 887 · 2^-17 and -1360896 · 2^-17, so that the sum before its rounding is a multiple of
    /// 2^-17.
    #[inline(always)]
    fn integer(self, state: u32) -> i32 {
        let x = state.wrapping_mul(MUL1);
        let pairs = (x & 0x00ff_00ff) + (x >> 8 & 0x00ff_00ff);
        let t = (pairs & 0xffff) + (pairs >> 16);
        let exact = (t * 887) as i32 - 452_608;
        to_integer::<0>(rounded_to_half(exact as f32))
    }
}

/// The sum of the halves whose bits are in `x`, rounded to a half, as a multiple of 2^-13.
#[inline(always)]
fn sum_of_halves(x: u32) -> i32 {
    // Magnitudes from 2^-3 up to 2: the mask leaves two bits of the exponent.
    let halves = (x & 0x8fff_8fff) ^ 0x3b60_3b60;
    // A half's bits, three places lower behind the sign, are those of an F32 that is 2^-112 times
    // as large. The sum of two is a multiple of 2^-125, so that it is exact and normal.
    let low = f32::from_bits(((halves << 16) as i32 >> 3) as u32 & 0x8fff_e000);
    let high = f32::from_bits((halves as i32 >> 3) as u32 & 0x8fff_e000);
    to_integer::<125>(rounded_to_half(low + high))
}

/// `x` rounded to the 11 significant bits of a half by Veltkamp's splitting. Where `x` is halfway
/// between two of them, that need not be the even one, but it is for every state: `exl3_states`
/// tries them all.
#[inline(always)]
fn rounded_to_half(x: f32) -> f32 {
    let widened = x * 8193.0;
    widened - (widened - x)
}

/// `x` times 2^`PLACES`, which is an integer of less than 22 bits. A cast would saturate, which
/// takes four operations more.
#[inline(always)]
fn to_integer<const PLACES: u32>(x: f32) -> i32 {
    // 1.5 * 2^(23 - PLACES): its last place is 2^-PLACES.
    let magic = const { f32::from_bits((150 - PLACES) << 23 | 1 << 22) };
    (x + magic).to_bits() as i32 - magic.to_bits() as i32
}
