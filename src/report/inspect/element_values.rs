//! The values of elements, as numbers and as text.

use crate::element::{f32_from_bf16, f32_from_f16};
use crate::error::InTensor;
use crate::remember::kernels::fp8::{E4M3, E4M3Fnuz, E5M2, E5M2Fnuz, Float8, f32_from_e8m0};
use crate::{AnamnesisError, Dtype, Result};

/// Passes each element of `bytes`, little-endian, to `take`. 64-bit integers are rounded to F64.
///
/// # Errors
/// `Unsupported` that names the tensor, if its elements are complex, blocks, or of less than a
/// byte.
pub(crate) fn for_each_value(
    name: &str,
    dtype: Dtype,
    bytes: &[u8],
    mut take: impl FnMut(f64),
) -> Result<()> {
    macro_rules! all {
        ($size:literal, $value:expr) => {
            bytes
                .as_chunks::<$size>()
                .0
                .iter()
                .for_each(|&element| take($value(element)))
        };
    }
    match dtype {
        Dtype::F32 => all!(4, |b| f64::from(f32::from_le_bytes(b))),
        Dtype::BF16 => all!(2, |b| f64::from(f32_from_bf16(u16::from_le_bytes(b)))),
        Dtype::F16 => all!(2, |b| f64::from(f32_from_f16(u16::from_le_bytes(b)))),
        Dtype::F64 => all!(8, f64::from_le_bytes),
        Dtype::Bool => all!(1, |[b]: [u8; 1]| f64::from(u8::from(b != 0))),
        Dtype::U8 => all!(1, |[b]: [u8; 1]| f64::from(b)),
        Dtype::I8 => all!(1, |b| f64::from(i8::from_le_bytes(b))),
        Dtype::U16 => all!(2, |b| f64::from(u16::from_le_bytes(b))),
        Dtype::I16 => all!(2, |b| f64::from(i16::from_le_bytes(b))),
        Dtype::U32 => all!(4, |b| f64::from(u32::from_le_bytes(b))),
        Dtype::I32 => all!(4, |b| f64::from(i32::from_le_bytes(b))),
        Dtype::U64 => all!(8, |b| u64::from_le_bytes(b) as f64),
        Dtype::I64 => all!(8, |b| i64::from_le_bytes(b) as f64),
        Dtype::F8E4M3 => all!(1, |[b]: [u8; 1]| f64::from(E4M3::widen(b))),
        Dtype::F8E5M2 => all!(1, |[b]: [u8; 1]| f64::from(E5M2::widen(b))),
        Dtype::F8E4M3Fnuz => all!(1, |[b]: [u8; 1]| f64::from(E4M3Fnuz::widen(b))),
        Dtype::F8E5M2Fnuz => all!(1, |[b]: [u8; 1]| f64::from(E5M2Fnuz::widen(b))),
        Dtype::F8E8M0 => all!(1, |[b]: [u8; 1]| f64::from(f32_from_e8m0(b))),
        other => {
            let what = format!("{}: its elements are no single numbers", InTensor(&name));
            return Err(AnamnesisError::unsupported(format!("values of {other}"), what));
        }
    }
    Ok(())
}
