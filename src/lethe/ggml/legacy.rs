//! Blocks of 32 values with their scales in f16: Q4, Q5 and Q8.

use half::f16;

use super::{Importance, Pack};
use crate::element::Element;

pub(super) struct Q8_0;

impl Pack<34, 32> for Q8_0 {
    #[inline(always)]
    fn encode(values: &[f32; 32], _importance: Option<Importance<'_, 32>>, out: &mut [u8; 34]) {
        let max = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let d = max / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        out[..2].copy_from_slice(&<f16 as Element>::from_f32(d).to_bits().to_le_bytes());
        for (code, x) in out[2..].iter_mut().zip(values) {
            // Away from zero at the half, as C's `roundf`.
            let y = x * inverse;
            *code = (y + 0.5f32.copysign(y)) as i32 as u8;
        }
    }
}
