//! LLM.int8() rows: a row's scale is its largest magnitude, a code the value times `127 / scale`,
//! rounded to even.
//!
//! Algorithm: bitsandbytes 0.50.2 `backends/default/ops.py`, `int8_vectorwise_quant` (the path of
//! CPUs), of weights in F16, to which `nn.Int8Params` converts them first.

use super::codebook::absmax;
use crate::element::ROUND_TO_INTEGER;
use crate::simd::{Level, Routine, perform, zip};

/// Encodes rows of `cols` values, rounded to F16 first, into `codes` and the scale of each row. The
/// scale of a row with values beyond F16 is infinite.
pub(crate) fn encode(
    values: &[f32],
    cols: usize,
    level: Level,
    codes: &mut [u8],
    scales: &mut [f32],
) {
    perform(level, &mut EncodeInt8Rows { values, cols, codes, scales, has_scales: false });
}

/// The codes of rows of `cols` values under the given scales. Values are not rounded to F16.
pub(crate) fn encode_with(
    values: &[f32],
    cols: usize,
    scales: &mut [f32],
    level: Level,
) -> Vec<u8> {
    let mut codes = vec![0; values.len()];
    perform(
        level,
        &mut EncodeInt8Rows { values, cols, codes: &mut codes, scales, has_scales: true },
    );
    codes
}

struct EncodeInt8Rows<'a> {
    values: &'a [f32],
    cols: usize,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    /// Whether `scales` holds the scales already, rather than takes those of the rows.
    has_scales: bool,
}

/// Values that are rounded to F16 together, into a buffer on the stack. A row is rounded twice, for
/// its scale and for its codes, so that its length is not bounded.
const CHUNK: usize = 256;

impl Routine for EncodeInt8Rows<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        let width = self.cols.max(1);
        let rows = zip(
            zip(self.values.chunks_exact(width), self.codes.chunks_exact_mut(width)),
            &mut *self.scales,
        );
        for ((values, codes), scale) in rows {
            let mut halves = [0.0; CHUNK];
            if !self.has_scales {
                *scale = 0.0;
                for values in values.chunks(CHUNK) {
                    let halves = &mut halves[..values.len()];
                    round_to_f16(values, halves);
                    *scale = absmax(halves).max(*scale);
                }
            }
            // 127 over 0 is infinite, and zeros times that are NaN.
            if *scale == 0.0 {
                codes.fill(0);
                continue;
            }
            // torch computes `127.0 / row_stats` as the reciprocal times 127.
            let factor = 1.0 / *scale * 127.0;
            if self.has_scales {
                encode_scaled(values, factor, codes);
                continue;
            }
            for (values, codes) in zip(values.chunks(CHUNK), codes.chunks_mut(CHUNK)) {
                let halves = &mut halves[..values.len()];
                round_to_f16(values, halves);
                encode_scaled(halves, factor, codes);
            }
        }
    }
}

/// Rounds `values` to F16, as [`Element`](crate::element::Element) does, but keeps them in F32
/// throughout.
#[inline(always)]
fn round_to_f16(values: &[f32], halves: &mut [f32]) {
    for (half, &x) in zip(&mut halves[..], values) {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        // F16 has 13 bits of mantissa less; half of its last place, to even, may carry into the
        // exponent.
        let normal = (magnitude + 0xfff + (magnitude >> 13 & 1)) & !0x1fff;
        // Below 2^-14 one addition rounds: the last place of 0.5 is the smallest F16.
        let small = ((f32::from_bits(magnitude) + 0.5) - 0.5).to_bits();
        let rounded = if magnitude < 113 << 23 { small } else { normal };
        // From 2^16 on F16 has infinity.
        let rounded = if normal >= 143 << 23 {
            0xff << 23
        } else {
            rounded
        };
        *half = f32::from_bits(rounded | x.to_bits() & 0x8000_0000);
    }
}

/// The codes of `values` times `factor`.
#[inline(always)]
fn encode_scaled(values: &[f32], factor: f32, codes: &mut [u8]) {
    for (code, &x) in zip(&mut codes[..], values) {
        // The clamp keeps the sum in the binade of the constant, where the last place is 1.
        *code = ((x * factor).clamp(-128.0, 127.0) + ROUND_TO_INTEGER).to_bits() as u8;
    }
}
