//! LLM.int8() rows: a row's scale is its largest magnitude, a code the value times `127 / scale`, rounded to even.
//!
//! Algorithm: bitsandbytes 0.50.2 `backends/default/ops.py`, `int8_vectorwise_quant` (the path of CPUs), of weights
//! in F16, to which `nn.Int8Params` converts them first.

use super::codebook::absmax;
use crate::simd::{Level, Routine, perform};

/// Encodes rows of `cols` values: codes, and the scale of each row. The scale of a row with values beyond F16 is not
/// finite.
pub(crate) fn encode(
    values: &[f32],
    cols: usize,
    level: Level,
    codes: &mut [u8],
    scales: &mut [f32],
) {
    perform(
        level,
        &mut Rows {
            values,
            cols,
            codes,
            scales,
            given: false,
        },
    );
}

/// As [`encode`], with scales that are known, and values as they are.
pub(crate) fn encode_with(
    values: &[f32],
    cols: usize,
    scales: &mut [f32],
    level: Level,
) -> Vec<u8> {
    let mut codes = vec![0; values.len()];
    perform(
        level,
        &mut Rows {
            values,
            cols,
            codes: &mut codes,
            scales,
            given: true,
        },
    );
    codes
}

struct Rows<'a> {
    values: &'a [f32],
    cols: usize,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    /// Whether the scales are there, or have to be found.
    given: bool,
}

/// Values that are rounded to F16 together.
const CHUNK: usize = 256;

/// Adding this rounds to whole numbers, to even, and leaves them in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

impl Routine for Rows<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let width = self.cols.max(1);
        let rows = self
            .values
            .chunks_exact(width)
            .zip(self.codes.chunks_exact_mut(width))
            .zip(&mut *self.scales);
        for ((values, codes), scale) in rows {
            let mut halves = [0.0; CHUNK];
            if !self.given {
                *scale = 0.0;
                for values in values.chunks(CHUNK) {
                    let halves = &mut halves[..values.len()];
                    round(values, halves);
                    *scale = absmax(halves).max(*scale);
                }
            }
            if *scale == 0.0 {
                codes.fill(0);
                continue;
            }
            let factor = 1.0 / *scale * 127.0;
            if self.given {
                scaled(values, factor, codes);
                continue;
            }
            for (values, codes) in values.chunks(CHUNK).zip(codes.chunks_mut(CHUNK)) {
                let halves = &mut halves[..values.len()];
                round(values, halves);
                scaled(halves, factor, codes);
            }
        }
    }
}

/// The nearest values of F16: as [`Element`](crate::element::Element) has them, without the detour over their bits.
#[inline(always)]
fn round(values: &[f32], halves: &mut [f32]) {
    for (half, &x) in halves.iter_mut().zip(values) {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let normal = (magnitude + 0xfff + (magnitude >> 13 & 1)) & !0x1fff;
        // Below 2^-14 one addition rounds: the last place of 0.5 is the smallest F16.
        let small = ((f32::from_bits(magnitude) + 0.5) - 0.5).to_bits();
        let rounded = if magnitude < 113 << 23 { small } else { normal };
        let rounded = if normal >= 143 << 23 {
            0xff << 23
        } else {
            rounded
        };
        *half = f32::from_bits(rounded | x.to_bits() & 0x8000_0000);
    }
}

#[inline(always)]
fn scaled(values: &[f32], factor: f32, codes: &mut [u8]) {
    for (code, &x) in codes.iter_mut().zip(values) {
        *code = ((x * factor).clamp(-128.0, 127.0) + ROUND).to_bits() as u8;
    }
}
