//! Ordinary floats, widened to F32 and rounded to the output's type.

use crate::Dtype;
use crate::element::{Element, Out, f32_from_bf16, f32_from_f16};
use crate::simd::{Kernel, Level, dispatch, zip};

/// Little-endian F32, F16 or BF16, or F64, which is rounded to F32 first.
pub(crate) struct Widen<'a> {
    pub dtype: Dtype,
    pub bytes: &'a [u8],
}

impl Widen<'_> {
    /// The values in F32, in which each of the three types is exact.
    pub(crate) fn to_f32(&self, level: Level) -> Vec<f32> {
        let mut values = vec![0.0; self.bytes.len() / self.dtype.byte_size()];
        dispatch(level, self, Out::F32(&mut values));
        values
    }
}

impl Kernel for Widen<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let halves = self
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|&b| u16::from_le_bytes(b));
        match self.dtype {
            Dtype::F16 => {
                for (o, h) in zip(&mut out[..], halves) {
                    *o = E::from_f32(f32_from_f16(h));
                }
            }
            Dtype::BF16 => {
                for (o, h) in zip(&mut out[..], halves) {
                    *o = E::from_f32(f32_from_bf16(h));
                }
            }
            Dtype::F64 => {
                let doubles = self
                    .bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f64::from_le_bytes(b));
                zip(&mut out[..], doubles).for_each(|(o, x)| *o = E::from_f32(x as f32));
            }
            _ => {
                let words = self
                    .bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f32::from_le_bytes(b));
                zip(&mut out[..], words).for_each(|(o, w)| *o = E::from_f32(w));
            }
        }
    }
}
