//! Widening values to F32 or F64, and reading integers of 64 bits.

use crate::dtype::Dtype;
use crate::element::{f32_from_bf16, f32_from_f16};
use crate::report::diff::report::ElementValue;
use crate::simd::zip;

/// Values that are widened at once; both sides stay in the L1 cache.
pub(super) const BLOCK: usize = 1024;

/// How an element type is widened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// F32 holds every value.
    Single,
    /// F64 does, and F32 does not.
    Double,
    /// Neither holds integers of 64 bits; [`number`] reads one.
    Int64,
}

/// How values of `dtype` are widened; `None` if they have no numbers.
pub(super) fn width(dtype: Dtype) -> Option<Width> {
    Some(match dtype {
        Dtype::Bool | Dtype::U8 | Dtype::I8 | Dtype::U16 | Dtype::I16 => Width::Single,
        Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::C64 => Width::Single,
        Dtype::U32 | Dtype::I32 | Dtype::F64 => Width::Double,
        Dtype::U64 | Dtype::I64 => Width::Int64,
        _ => return None,
    })
}

/// Bytes of a number: of a complex value, of one of its two.
#[inline(always)]
pub(super) fn number_size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::C64 => 4,
        _ => dtype.byte_size(),
    }
}

/// F32 or F64: a type that values are widened to.
pub(super) trait Widened: Copy + Default + Into<f64> {
    fn from_f32(x: f32) -> Self;
    /// The value if this type holds it. Never called with a value that it does not hold.
    fn from_f64(x: f64) -> Self;
}

impl Widened for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x as f32
    }
}

impl Widened for f64 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x.into()
    }
    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x
    }
}

/// Widens consecutive values of `dtype` to the first elements of `out`.
#[inline(always)]
pub(super) fn widen<T: Widened>(dtype: Dtype, bytes: &[u8], out: &mut [T; BLOCK]) {
    macro_rules! each {
        ($type:ty, $widen:expr) => {{
            let (values, _) = bytes.as_chunks::<{ size_of::<$type>() }>();
            for (out, bytes) in zip(&mut out[..], values) {
                let value = <$type>::from_le_bytes(*bytes);
                *out = $widen(value);
            }
        }};
    }
    match dtype {
        Dtype::BF16 => each!(u16, |bits| T::from_f32(f32_from_bf16(bits))),
        Dtype::F16 => each!(u16, |bits| T::from_f32(f32_from_f16(bits))),
        Dtype::F32 | Dtype::C64 => each!(f32, T::from_f32),
        Dtype::F64 => each!(f64, T::from_f64),
        Dtype::Bool | Dtype::U8 => each!(u8, |x| T::from_f32(f32::from(x))),
        Dtype::I8 => each!(i8, |x| T::from_f32(f32::from(x))),
        Dtype::U16 => each!(u16, |x| T::from_f32(f32::from(x))),
        Dtype::I16 => each!(i16, |x| T::from_f32(f32::from(x))),
        Dtype::U32 => each!(u32, |x| T::from_f64(f64::from(x))),
        Dtype::I32 => each!(i32, |x| T::from_f64(f64::from(x))),
        // `Comparable` has no other type, and integers of 64 bits are not widened.
        _ => {}
    }
}

/// The number in `bytes`; an integer stays one.
pub(super) fn number(dtype: Dtype, bytes: &[u8]) -> ElementValue {
    let eight: Option<&[u8; 8]> = bytes.try_into().ok();
    match (dtype, eight) {
        (Dtype::I64, Some(bytes)) => ElementValue::Int(i64::from_le_bytes(*bytes).into()),
        (Dtype::U64, Some(bytes)) => ElementValue::Int(u64::from_le_bytes(*bytes).into()),
        _ => {
            let mut out = [0f64; BLOCK];
            widen(dtype, bytes, &mut out);
            match dtype.is_integer() {
                // Other integers have at most 32 bits.
                true => ElementValue::Int(out[0] as i128),
                false => ElementValue::Float(out[0]),
            }
        }
    }
}
