//! Rows that are rotated and then rounded to integers with one scale each (ConvRot of
//! comfy-kitchen). The rotation is that of
//! [`remember::rotated`](crate::remember::kernels::rotated), its own inverse; its sums are in F64
//! and rounded to F32 once, where comfy-kitchen sums in the dtype of the weight.
//!
//! Algorithm: comfy-kitchen `quantize_int8_convrot_weight`, `quantize_convrot_w4a4_weight` (eager
//! backend).

use super::codebook::absmax;
use crate::element::ROUND_TO_INTEGER;
use crate::remember::kernels::rotated::{CHUNK, rotate};
use crate::simd::{Routine, zip};

/// The range of codes, and the smallest scale.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RotatedRange {
    /// -127 to 127, and 1e-30.
    Int8,
    /// -7 to 7; the largest magnitude is at least 1e-10.
    Int4,
}

impl RotatedRange {
    #[inline(always)]
    fn scale(self, max_abs: f32) -> f32 {
        match self {
            Self::Int8 => (max_abs / 127.0).max(1e-30),
            Self::Int4 => max_abs.max(1e-10) / 7.0,
        }
    }

    fn limit(self) -> f32 {
        match self {
            Self::Int8 => 127.0,
            Self::Int4 => 7.0,
        }
    }
}

/// Rows of `width` values. The scale of a row whose rotated values F32 does not hold is not finite.
pub(crate) struct EncodeRotatedRows<'a> {
    pub values: &'a [f32],
    pub width: usize,
    /// Columns that are rotated together, which divide the width; `None`: the rows are not rotated.
    pub group: Option<usize>,
    pub range: RotatedRange,
    /// A code for each value, in two's complement.
    pub codes: &'a mut [u8],
    pub scales: &'a mut [f32],
}

impl Routine for EncodeRotatedRows<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let (mut rotated, mut sums) = (Vec::new(), Vec::new());
        let rows = zip(
            zip(
                self.values.chunks_exact(self.width.max(1)),
                self.codes.chunks_exact_mut(self.width.max(1)),
            ),
            &mut *self.scales,
        );
        for ((values, codes), scale) in rows {
            let values = match self.group {
                Some(group) => {
                    rotate_row(values, group, &mut sums, &mut rotated);
                    &rotated
                }
                None => values,
            };
            *scale = self.range.scale(absmax(values));
            let limit = self.range.limit();
            for (code, &x) in zip(&mut codes[..], values) {
                let x = (x / *scale).clamp(-limit, limit);
                *code = (x + ROUND_TO_INTEGER).to_bits() as u8;
            }
        }
    }
}

/// Replaces `out` with the rotated `values`.
#[inline(always)]
fn rotate_row(values: &[f32], group: usize, sums: &mut Vec<f64>, out: &mut Vec<f32>) {
    let unit = 1.0 / (group as f64).sqrt();
    out.clear();
    for values in values.chunks(group.max(CHUNK)) {
        sums.clear();
        sums.extend(values.iter().map(|&x| f64::from(x)));
        rotate(sums, group);
        out.extend(sums.iter().map(|&sum| (sum * unit) as f32));
    }
}
