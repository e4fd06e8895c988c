//! Scales of AMD's FP4 and of AutoRound's `nvfp4_v2`: numbers of five bits of exponent and three of
//! mantissa in U8, without a sign.
//!
//! Source: amd-quark 0.13 `torch/kernel/float8_e5m3/lookup.py`; auto-round 0.16.1
//! `data_type/nvfp.py` (`e5m3_to_float_tensor`).

use std::ops::Range;

use crate::model::Tensor;
use crate::remember::seam::scale_matrix::{Integers, ScaleMatrix};
use crate::remember::seam::wrong;
use crate::{Dtype, Result};

/// Scales in E5M3, row-major.
pub(crate) struct E5M3Scales<'m>(Integers<'m>);

impl<'m> E5M3Scales<'m> {
    /// The scales `t` in rows of `cols`.
    ///
    /// # Errors
    /// They are not U8.
    pub(crate) fn new(t: &Tensor<'m>, cols: usize) -> Result<Self> {
        match t.dtype() {
            Dtype::U8 => Ok(Self(Integers::new(t, cols, 0.0)?)),
            _ => Err(wrong(t, "the config says that its scales are E5M3, and that is U8")),
        }
    }
}

impl ScaleMatrix for E5M3Scales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let before = out.len();
        self.0.extend(rows, cols, staging, out)?;
        // Bytes are exact in F32.
        out[before..].iter_mut().for_each(|s| *s = value(*s as u8));
        Ok(())
    }
}

/// The value of a byte: bias 15, subnormals, no infinity, and NaN where all bits are ones.
fn value(byte: u8) -> f32 {
    /// 2^-17: the step of subnormals.
    const STEP: f32 = f32::from_bits((127 - 17) << 23);
    let (exponent, mantissa) = (u32::from(byte >> 3), u32::from(byte & 7));
    match (exponent, mantissa) {
        (31, 7) => f32::NAN,
        (0, _) => f32::from(byte) * STEP,
        _ => f32::from_bits((exponent + 127 - 15) << 23 | mantissa << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn bytes_have_the_values_of_their_fields() {
        for byte in 0..255u8 {
            let (exponent, mantissa) = (i32::from(byte >> 3), f64::from(byte & 7));
            let want = match exponent {
                0 => mantissa / 8.0 * 2f64.powi(-14),
                _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 15),
            };
            assert_eq!(f64::from(value(byte)), want, "{byte}");
        }
        assert!(value(255).is_nan());
    }
}
