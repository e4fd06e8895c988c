//! NF4 as qlora-rs quantizes it: a block's scale is its largest magnitude, a code the nearest level, the lower one
//! of two that are equally near. NaN counts as nothing in the scale, and gets code 0.
//!
//! Source: qlora-rs 1.0.5 `quantization.rs`, `quantize_nf4`
//! (<https://github.com/tzervas/qlora-rs/blob/a203ca9c735856a9b091fe02328d74cd93d32c29/src/quantization.rs>).

use crate::remember::qnat::level;

/// Encodes whole blocks: codes, each block padded to whole bytes, and a scale for each block.
pub(crate) fn encode(values: &[f32], block: usize, codes: &mut Vec<u8>, scales: &mut Vec<f32>) {
    for values in values.chunks(block) {
        let absmax = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let scale = if absmax > 0.0 { absmax } else { 1.0 };
        scales.push(scale);
        for pair in values.chunks(2) {
            let high = pair.get(1).map_or(0, |&x| nearest(x / scale));
            codes.push(nearest(pair[0] / scale) | high << 4);
        }
    }
}

/// The code of the level nearest to `x`.
fn nearest(x: f32) -> u8 {
    let (mut best, mut distance) = (0, f32::INFINITY);
    for code in 0..16 {
        let d = (x - level(code)).abs();
        if d < distance {
            (best, distance) = (code as u8, d);
        }
    }
    best
}
