//! Naive encoders of IQ4.

use super::super::*;
use super::iq::{LARGEST, weights};
use super::iq_search;
use super::search::{furthest, nearest, square};
use super::{BlockWriter, EncodeTwin, TwinImportance};

/// The weights of 32 values from `at` on of an IQ4 type.
fn iq4_weights(x: &[f32], at: usize, importance: TwinImportance<'_>, mean_square: f32) -> Vec<f32> {
    weights(x, at, importance, mean_square, |x| x * x)
}

/// The codes of 32 values from byte `at` on.
fn put_levels(x: &[f32], scale: f32, at: usize, out: &mut BlockWriter) {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    for (i, x) in x.iter().enumerate() {
        let code = iq_search::nearest_level(inverse * x) as i32;
        out.set(at + i % 16, i / 16 * 4, 4, code);
    }
}

impl EncodeTwin for IQ4_NL {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.08;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let w = iq4_weights(x, 0, importance, square(x) * (2.0 / 32.0));
        let scale = iq_search::iq4_scale(x, &w);
        out.put_f16(0, scale);
        put_levels(x, scale, 2, out);
    }
}

impl EncodeTwin for IQ4_XS {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.08;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let mean_square = square(x) * (2.0 / 256.0);
        let groups = x.chunks(32).enumerate();
        let scale =
            |(g, x)| iq_search::iq4_scale(x, &iq4_weights(x, 32 * g, importance, mean_square));
        let scales: Vec<f32> = groups.clone().map(scale).collect();
        let d = -furthest(&scales) / 32.0;
        out.put_f16(0, d);
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        for (g, x) in groups {
            let code = nearest(inverse * scales[g]).clamp(-32, 31);
            put_levels(x, d * code as f32, 8 + 16 * g, out);
            out.set(4, 4 * g, 4, code + 32);
            out.set(2, 2 * g, 2, (code + 32) >> 4);
        }
    }
}
