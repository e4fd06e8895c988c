//! Elements of tensors as text, as JSON and as NumPy stores them.

use serde_json::Value;

use crate::hooks::for_each_value;
use crate::{Dtype, Result};

/// The elements of `bytes` as numbers.
fn numbers(name: &str, dtype: Dtype, bytes: &[u8]) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for_each_value(name, dtype, bytes, |x| all.push(x))?;
    Ok(all)
}

/// Passes the exact text of each element to `take`: digits of integers, and the shortest text of a
/// float that reads back as the same value. Integers of 64 bits need more digits than F64 has.
pub(super) fn for_each_text(
    name: &str,
    dtype: Dtype,
    bytes: &[u8],
    mut take: impl FnMut(String) -> Result<()>,
) -> Result<()> {
    let words = bytes.as_chunks::<8>().0.iter();
    match dtype {
        Dtype::I64 => words
            .map(|word| i64::from_le_bytes(*word).to_string())
            .try_for_each(take),
        Dtype::U64 => words
            .map(|word| u64::from_le_bytes(*word).to_string())
            .try_for_each(take),
        _ => numbers(name, dtype, bytes)?
            .into_iter()
            .try_for_each(|x| take(exact(dtype, x))),
    }
}

/// The shortest text that reads back as `x` in the element type.
fn exact(dtype: Dtype, x: f64) -> String {
    let is_plain = x == 0.0 || !x.is_finite() || (1e-5..1e16).contains(&x.abs());
    // What is not F64 is a value of F32.
    match (dtype == Dtype::F64 || dtype.is_integer(), is_plain) {
        (true, true) => format!("{x}"),
        (true, false) => format!("{x:e}"),
        (false, true) => format!("{}", x as f32),
        (false, false) => format!("{:e}", x as f32),
    }
}

/// A number with five significant digits, for a table.
pub(super) fn short(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        size if x.fract() == 0.0 && size < 1e6 => format!("{x}"),
        size @ 1e-3..1e6 => {
            let decimals = 4 - size.log10().floor() as i32;
            format!("{x:.*}", decimals.clamp(0, 7) as usize)
        }
        size if size.is_finite() => format!("{x:.4e}"),
        _ => format!("{x}"),
    }
}

/// An exact text as JSON: a number, or null if it is no finite one.
pub(super) fn json(dtype: Dtype, text: &str) -> Value {
    let number = match dtype.is_integer() {
        true => text.parse().ok(),
        false => text.parse().ok().and_then(serde_json::Number::from_f64),
    };
    number.map_or(Value::Null, Value::Number)
}

/// The type that NumPy gets elements of `dtype` in: floats that it lacks are widened, which is
/// exact.
pub(super) fn in_numpy(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::BF16 => Dtype::F32,
        small if small.is_floating_point() && small.bits() <= 8 => Dtype::F32,
        other => other,
    }
}

/// Elements as NumPy stores those of [`in_numpy`].
pub(super) fn numpy_bytes(name: &str, dtype: Dtype, bytes: &[u8]) -> Result<Vec<u8>> {
    if in_numpy(dtype) == dtype {
        return Ok(bytes.to_vec());
    }
    let numbers = numbers(name, dtype, bytes)?.into_iter();
    Ok(numbers.flat_map(|x| (x as f32).to_le_bytes()).collect())
}
