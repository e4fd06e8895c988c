//! The element that stands where no chunk was written.

use half::{bf16, f16};
use serde_json::Value;

use crate::{AnamnesisError, Dtype, Result};

/// The bytes of the element that `value` states, little-endian; empty if it is zero.
///
/// # Errors
/// `Unsupported` if no element of `dtype` is known that it could be.
pub(super) fn fill_bytes(value: &Value, dtype: Dtype) -> Result<Vec<u8>> {
    let unknown = || {
        let what = format!("`{value}` where chunks are missing, in an array of {dtype}");
        AnamnesisError::unsupported("fill value of Zarr", what)
    };
    let is_zero = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(parts) => parts.iter().all(|part| part.as_f64() == Some(0.0)),
        _ => false,
    };
    if is_zero {
        return Ok(vec![]);
    }
    let float = || match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    };
    let bytes = match dtype {
        Dtype::Bool => value.as_bool().map(|_| vec![1]),
        Dtype::F64 => float().map(|x| x.to_le_bytes().to_vec()),
        Dtype::F32 => float().map(|x| (x as f32).to_le_bytes().to_vec()),
        Dtype::F16 => float().map(|x| f16::from_f64(x).to_le_bytes().to_vec()),
        Dtype::BF16 => float().map(|x| bf16::from_f64(x).to_le_bytes().to_vec()),
        dtype if dtype.is_integer() => {
            let number = value.as_i64().or_else(|| value.as_u64().map(|n| n as i64));
            number.map(|n| n.to_le_bytes()[..dtype.byte_size()].to_vec())
        }
        _ => None,
    };
    bytes.ok_or_else(unknown)
}
