//! Codes of LLM.int8() rows under given scales: the value times `127 / scale`, rounded to even.
//!
//! Algorithm: bitsandbytes 0.50.2 `backends/default/ops.py`, `int8_vectorwise_quant` (the path of
//! CPUs).

use crate::element::ROUND_TO_INTEGER;
use crate::simd::{Level, Routine, perform, zip};

/// The codes of rows of `cols` values under these scales. Values are not rounded to F16.
pub(crate) fn encode_with(values: &[f32], cols: usize, scales: &[f32], level: Level) -> Vec<u8> {
    let mut codes = vec![0; values.len()];
    perform(level, &mut EncodeInt8Rows { values, cols, codes: &mut codes, scales });
    codes
}

struct EncodeInt8Rows<'a> {
    values: &'a [f32],
    cols: usize,
    codes: &'a mut [u8],
    scales: &'a [f32],
}

impl Routine for EncodeInt8Rows<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        let width = self.cols.max(1);
        let rows = zip(self.values.chunks_exact(width), self.codes.chunks_exact_mut(width));
        for ((values, codes), &scale) in zip(rows, self.scales) {
            // 127 over 0 is infinite, and zeros times that are NaN.
            if scale == 0.0 {
                codes.fill(0);
                continue;
            }
            // torch computes `127.0 / row_stats` as the reciprocal times 127.
            let factor = 1.0 / scale * 127.0;
            for (code, &x) in zip(&mut codes[..], values) {
                // The clamp keeps the sum in the binade of the constant, where the last place is 1.
                *code = ((x * factor).clamp(-128.0, 127.0) + ROUND_TO_INTEGER).to_bits() as u8;
            }
        }
    }
}
