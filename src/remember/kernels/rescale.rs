//! Values in F32 that are multiplied or divided once more, each step rounded to F32.

use crate::simd::zip;

/// Multiplies value i of each row by number i, 1 or -1. A sum of zeros is +0 under either.
pub(crate) fn sign_columns(values: &mut [f32], signs: &[f32]) {
    for row in values.chunks_exact_mut(signs.len().max(1)) {
        for (value, sign) in zip(&mut row[..], signs) {
            *value = *value * sign + 0.0;
        }
    }
}

/// Multiplies all values by `factor`.
pub(crate) fn multiply(values: &mut [f32], factor: f32) {
    values.iter_mut().for_each(|value| *value *= factor);
}

/// Divides all values by `divisor`.
pub(crate) fn divide(values: &mut [f32], divisor: f32) {
    values.iter_mut().for_each(|value| *value /= divisor);
}
