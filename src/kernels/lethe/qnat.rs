//! NF4 as qlora-rs quantizes it: a block's scale is its largest magnitude, a code the nearest level, the lower one
//! of two that are equally near. Double-quantized scales share one step.
//!
//! Source: qlora-rs 1.0.5 `quantization.rs`, `quantize_nf4` and `double_quantize_scales`
//! (<https://github.com/tzervas/qlora-rs/blob/a203ca9c735856a9b091fe02328d74cd93d32c29/src/quantization.rs>).

use std::sync::OnceLock;

use super::codebook::{Levels, Norm};
use crate::kernels::remember::qnat::level;
use crate::simd::Level;

/// Encodes whole blocks: codes, each block padded to whole bytes, and a scale for each block.
pub(crate) fn encode(
    at: Level,
    values: &[f32],
    block: usize,
    codes: &mut Vec<u8>,
    scales: &mut Vec<f32>,
) {
    static LEVELS: OnceLock<Levels> = OnceLock::new();
    let levels = LEVELS.get_or_init(|| {
        let bounds = std::array::from_fn(bound);
        Levels::new(
            bounds,
            &std::array::from_fn(|rank| rank as u8),
            false,
            0,
            Norm::Qlora,
        )
    });
    levels.encode(values, block, at, codes, scales);
}

/// The largest value that is not nearer to level `code + 1` than to `code`, distances being rounded.
fn bound(code: usize) -> f32 {
    let (below, above) = (level(code), level(code + 1));
    // Keys order floats as integers; the answer lies between the levels.
    let (mut low, mut high) = (key(below), key(above));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let x = value(middle);
        if (x - above).abs() < (x - below).abs() {
            high = middle
        } else {
            low = middle
        }
    }
    value(low)
}

/// An integer for each float, in their order.
fn key(x: f32) -> i64 {
    let magnitude = i64::from(x.to_bits() & 0x7fff_ffff);
    if x.is_sign_negative() {
        -magnitude
    } else {
        magnitude
    }
}

fn value(key: i64) -> f32 {
    let magnitude = f32::from_bits(key.unsigned_abs() as u32);
    if key < 0 { -magnitude } else { magnitude }
}

/// The step of double-quantized scales of which this is the largest.
pub(crate) fn step(max: f32) -> f32 {
    max / 127.0
}

/// The code of a scale: the whole steps that it has, from 128 on.
pub(crate) fn encode_scale(scale: f32, step: f32) -> u8 {
    (scale / step + 128.0).clamp(0.0, 255.0) as u8
}
