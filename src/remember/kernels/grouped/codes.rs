//! The values that codes stand for, before their scales.

use crate::element::{f32_from_bf16, f32_from_f16};
use crate::remember::kernels::fp8::{Float8, finite};

/// A code format: the value that a code stands for.
pub(crate) trait CodeValue: Copy + Sync {
    type Code: UnpackedCode;

    fn value(self, code: Self::Code) -> f32;
}

/// A code that is unpacked: a byte, or two or four of them in little-endian order.
pub(crate) trait UnpackedCode: Copy + Sync + 'static {
    /// The codes that lie in `bytes`.
    fn of(bytes: &[u8]) -> &[Self];
}

impl UnpackedCode for u8 {
    fn of(bytes: &[u8]) -> &[u8] {
        bytes
    }
}

impl UnpackedCode for [u8; 2] {
    fn of(bytes: &[u8]) -> &[Self] {
        bytes.as_chunks().0
    }
}

impl UnpackedCode for [u8; 4] {
    fn of(bytes: &[u8]) -> &[Self] {
        bytes.as_chunks().0
    }
}

/// An integer: `(code ^ flip) - offset`. Flipping the sign bit turns two's complement into an
/// offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Int {
    pub flip: u8,
    pub offset: f32,
}

impl Int {
    pub(crate) const UNSIGNED: Self = Self { flip: 0, offset: 0.0 };

    /// Stored with half of its range added.
    pub(crate) fn offset_binary(bits: usize) -> Self {
        Self { flip: 0, offset: (1u32 << (bits - 1)) as f32 }
    }

    /// Two's complement.
    pub(crate) fn signed(bits: usize) -> Self {
        Self { flip: 1 << (bits - 1), offset: (1u32 << (bits - 1)) as f32 }
    }
}

impl CodeValue for Int {
    type Code = u8;

    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        f32::from(code ^ self.flip) - self.offset
    }
}

/// FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, times `factor`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct E2M1 {
    pub factor: f32,
    /// Whether code 8 is 0 and not -0.
    pub plain_zero: bool,
}

impl CodeValue for E2M1 {
    type Code = u8;

    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        // The sign moves to bit 7, where an eight-bit float has it.
        let value = finite::<1, 1>(code & 7 | (code & 8) << 4) * self.factor;
        // -0 + 0 is 0; any other value stays as it is.
        if self.plain_zero { value + 0.0 } else { value }
    }
}

/// Four bits, a sign and a magnitude of three bits in quarters; code 8 is -0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SignMagnitude;

impl CodeValue for SignMagnitude {
    type Code = u8;

    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        let magnitude = f32::from(code & 7) * 0.25;
        f32::from_bits(magnitude.to_bits() | u32::from(code & 8) << 28)
    }
}

/// FP6 with three bits of mantissa.
#[derive(Debug, Clone, Copy)]
pub(crate) struct E2M3;

impl CodeValue for E2M3 {
    type Code = u8;

    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        finite::<3, 1>(code & 31 | (code & 32) << 2)
    }
}

/// An integer of nine to sixteen bits: `(code ^ flip) - offset`, as [`Int`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct WideInt {
    flip: u16,
    offset: f32,
}

impl WideInt {
    pub(crate) const UNSIGNED: Self = Self { flip: 0, offset: 0.0 };

    /// Sixteen bits in two's complement.
    pub(crate) const I16: Self = Self { flip: 1 << 15, offset: 32_768.0 };

    /// Stored with half of its range added.
    pub(crate) fn offset_binary(bits: usize) -> Self {
        Self { flip: 0, offset: (1u32 << (bits - 1)) as f32 }
    }
}

impl CodeValue for WideInt {
    type Code = [u8; 2];

    #[inline(always)]
    fn value(self, code: [u8; 2]) -> f32 {
        f32::from(u16::from_le_bytes(code) ^ self.flip) - self.offset
    }
}

/// An integer of more than sixteen bits, which loading has rounded to F32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LongInt;

impl CodeValue for LongInt {
    type Code = [u8; 4];

    #[inline(always)]
    fn value(self, code: [u8; 4]) -> f32 {
        f32::from_le_bytes(code)
    }
}

/// IEEE's float of sixteen bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HalfCode;

impl CodeValue for HalfCode {
    type Code = [u8; 2];

    #[inline(always)]
    fn value(self, code: [u8; 2]) -> f32 {
        f32_from_f16(u16::from_le_bytes(code))
    }
}

/// BF16.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bf16Code;

impl CodeValue for Bf16Code {
    type Code = [u8; 2];

    #[inline(always)]
    fn value(self, code: [u8; 2]) -> f32 {
        f32_from_bf16(u16::from_le_bytes(code))
    }
}

/// A float of up to sixteen bits whose codes are all finite: `mantissa` bits, exponents above them
/// with the bias of a field of so many bits, and a sign on top, if it has one. Zero has no sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Minifloat {
    mantissa: u32,
    /// The smallest normal value's bits in F32, with the exponent's bias taken off.
    rebias: u32,
    /// Bits of exponent and mantissa.
    magnitude: u32,
}

impl Minifloat {
    /// At most five bits of exponent, and sixteen bits in all; eight if codes are a byte each.
    pub(crate) fn new(exponent: u32, mantissa: u32) -> Self {
        let bias = (1 << (exponent - 1)) - 1;
        Self { mantissa, rebias: 127 - bias, magnitude: exponent + mantissa }
    }

    #[inline(always)]
    fn widen(self, code: u32) -> f32 {
        let magnitude = code & ((1 << self.magnitude) - 1);
        let aligned = magnitude << (23 - self.mantissa);
        // As in `finite`: the excess over the smallest normal is a subnormal, one place up.
        let smallest = (self.rebias + 1) << 23;
        let subnormal = f32::from_bits(aligned + smallest) - f32::from_bits(smallest);
        let normal = f32::from_bits(aligned + (self.rebias << 23));
        let is_subnormal = magnitude >> self.mantissa == 0;
        let value = if is_subnormal { subnormal } else { normal };
        let sign = (code >> self.magnitude) << 31;
        // -0 + 0 is 0; any other value stays as it is.
        f32::from_bits(value.to_bits() | sign) + 0.0
    }
}

impl CodeValue for Minifloat {
    type Code = u8;

    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        self.widen(u32::from(code))
    }
}

/// A [`Minifloat`] of nine to sixteen bits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WideMinifloat(pub Minifloat);

impl CodeValue for WideMinifloat {
    type Code = [u8; 2];

    #[inline(always)]
    fn value(self, code: [u8; 2]) -> f32 {
        self.0.widen(u32::from(u16::from_le_bytes(code)))
    }
}

/// FP6 with two bits of mantissa.
#[derive(Debug, Clone, Copy)]
pub(crate) struct E3M2;

impl CodeValue for E3M2 {
    type Code = u8;

    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        finite::<2, 3>(code & 31 | (code & 32) << 2)
    }
}

impl<F: Float8> CodeValue for F {
    type Code = u8;

    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        F::widen(code)
    }
}
