//! Naive encoders of the block types of 32 values with scales in f16.

use super::super::*;
use super::search::{IMPORTANT, affine, furthest, symmetric, weigh};
use super::{BlockWriter, EncodeTwin, TwinImportance};

/// Four or five bits a value: codes up to `top`, which is 15 or 31, and a minimum or none.
fn nibbles(
    x: &[f32],
    importance: TwinImportance<'_>,
    (top, with_min): (i32, bool),
    out: &mut BlockWriter,
) {
    let w = importance.map(|(w, mean)| weigh(x, w, mean));
    let half = (top + 1) / 2;
    let codes = if with_min {
        let least = x
            .iter()
            .copied()
            .fold(f32::MAX, |a, b| if b < a { b } else { a });
        let most = x
            .iter()
            .copied()
            .fold(f32::MIN, |a, b| if b > a { b } else { a });
        let d = (most - least) / top as f32;
        let code = |x: &f32| ((x - least) * if d == 0.0 { 0.0 } else { 1.0 / d } + 0.5) as i32;
        let plain = || (d, -least, x.iter().map(|x| code(x).min(top)).collect());
        let (d, min, codes) = w.map_or_else(plain, |w| affine(x, &w, top, IMPORTANT, true));
        out.put_f16(0, d);
        out.put_f16(2, -min);
        codes
    } else {
        let d = furthest(x) / -half as f32;
        let code =
            |x: &f32| (x * if d == 0.0 { 0.0 } else { 1.0 / d } + (half as f32 + 0.5)) as i32;
        let plain = || (d, x.iter().map(|x| code(x).min(top)).collect());
        let (d, codes) = w.map_or_else(plain, |w| symmetric(x, &w, half));
        out.put_f16(0, d);
        codes
    };
    let scales = if with_min { 4 } else { 2 };
    let fifths = if top == 31 { 4 } else { 0 };
    for (i, &code) in codes.iter().enumerate() {
        out.set(scales + fifths + i % 16, i / 16 * 4, 4, code);
        if fifths != 0 {
            out.set(scales, i, 1, code >> 4);
        }
    }
}

impl EncodeTwin for Q4_0 {
    const NORMAL_ERROR: f64 = 0.085;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        nibbles(x, importance, (15, false), out);
    }
}

impl EncodeTwin for Q4_1 {
    const NORMAL_ERROR: f64 = 0.075;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        nibbles(x, importance, (15, true), out);
    }
}

impl EncodeTwin for Q5_0 {
    const NORMAL_ERROR: f64 = 0.042;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        nibbles(x, importance, (31, false), out);
    }
}

impl EncodeTwin for Q5_1 {
    const NORMAL_ERROR: f64 = 0.036;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        nibbles(x, importance, (31, true), out);
    }
}

/// Signed bytes from `start` on. Returns their sum and their scale before it is rounded.
fn signed_bytes(x: &[f32], start: usize, out: &mut BlockWriter) -> (i32, f32) {
    let d = furthest(x).abs() / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let codes: Vec<i32> = x.iter().map(|x| (x * inverse).round() as i32).collect();
    codes
        .iter()
        .enumerate()
        .for_each(|(i, &code)| out.set(start + i, 0, 8, code));
    out.put_f16(0, d);
    (codes.iter().sum(), d)
}

impl EncodeTwin for Q8_0 {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.0055;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        signed_bytes(x, 2, out);
    }
}

impl EncodeTwin for Q8_1 {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.0055;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let (sum, d) = signed_bytes(x, 4, out);
        out.put_f16(2, sum as f32 * d);
    }
}
