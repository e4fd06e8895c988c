//! NF4 as qlora-rs quantizes it. A block's scale is its largest magnitude; a code is the nearest
//! level, the lower one of two that are equally near. Double-quantized scales share one step.
//!
//! Source: qlora-rs 1.0.5 `quantization.rs`, `quantize_nf4` and `double_quantize_scales`
//! (<https://github.com/tzervas/qlora-rs/blob/a203ca9c735856a9b091fe02328d74cd93d32c29/src/quantization.rs>).

use std::sync::OnceLock;

use super::codebook::{BlockNorm, CodebookEncoder};
use crate::remember::kernels::qnat::level;
use crate::simd::Level;

/// Encodes blocks of `block` values. Appends the codes of each block, padded to whole bytes, to
/// `codes`, and its scale to `scales`.
pub(crate) fn encode(
    cpu_level: Level,
    values: &[f32],
    block: usize,
    codes: &mut Vec<u8>,
    scales: &mut Vec<f32>,
) {
    static ENCODER: OnceLock<CodebookEncoder> = OnceLock::new();
    let encoder = ENCODER.get_or_init(|| {
        let bounds = std::array::from_fn(upper_bound);
        CodebookEncoder::new(
            &std::array::from_fn(level),
            bounds,
            &std::array::from_fn(|rank| rank as u8),
            false,
            0,
            BlockNorm::Qlora,
        )
    });
    encoder.encode(values, block, cpu_level, (codes, scales), &mut []);
}

/// The largest value that is not nearer to level `code + 1` than to `code`.
///
/// qlora-rs compares distances that are rounded to F32, so that the bound is not the middle of the
/// two levels but has to be searched. It is unique, for rounded distances are monotonic.
fn upper_bound(code: usize) -> f32 {
    let (below, above) = (level(code), level(code + 1));
    // Bisection over the floats between the two levels, which order keys number in ascending order.
    let (mut low, mut high) = (order_key(below), order_key(above));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let x = from_order_key(middle);
        if (x - above).abs() < (x - below).abs() {
            high = middle;
        } else {
            low = middle;
        }
    }
    from_order_key(low)
}

/// An integer for `x` that orders floats as integers are ordered; the inverse of
/// [`from_order_key`].
fn order_key(x: f32) -> i64 {
    let magnitude = i64::from(x.to_bits() & 0x7fff_ffff);
    if x.is_sign_negative() {
        -magnitude
    } else {
        magnitude
    }
}

fn from_order_key(key: i64) -> f32 {
    let magnitude = f32::from_bits(key.unsigned_abs() as u32);
    if key < 0 { -magnitude } else { magnitude }
}

/// The step of a tensor's double-quantized scales, of which the largest is `max_scale`:
/// `double_quantize_scales`.
pub(crate) fn step(max_scale: f32) -> f32 {
    max_scale / 127.0
}

/// The code of a scale: 128 plus its number of steps, rounded down, as the cast of qlora-rs does.
pub(crate) fn encode_scale(scale: f32, step: f32) -> u8 {
    (scale / step + 128.0).clamp(0.0, 255.0) as u8
}
