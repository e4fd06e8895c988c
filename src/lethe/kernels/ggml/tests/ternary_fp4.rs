//! Naive encoders of the ternary and FP4 types, which do not heed importance.

use super::super::*;
use super::search::furthest;
use super::{BlockWriter, EncodeTwin, TwinImportance};

/// Each value as 0, 1 or 2 with its index, and the largest magnitude.
fn trits(x: &[f32]) -> (Vec<(usize, i32)>, f32) {
    let max = furthest(x).abs();
    let inverse = if max == 0.0 { 0.0 } else { 1.0 / max };
    let trits = x.iter().map(|x| (x * inverse).round() as i32 + 1);
    (trits.enumerate().collect(), max)
}

impl EncodeTwin for TQ1_0 {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.83;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let (trits, max) = trits(x);
        out.put_f16(52, max);
        let mut numbers = [0; 52];
        for (i, trit) in trits {
            let (at, n) = match i {
                0..160 => (i % 32, i / 32),
                160..240 => (32 + i % 16, (i - 160) / 16),
                _ => (48 + i % 4, (i - 240) / 4),
            };
            numbers[at] += trit * [81, 27, 9, 3, 1][n];
        }
        numbers
            .iter()
            .enumerate()
            .for_each(|(at, n)| out.set(at, 0, 8, (n * 256 + 242) / 243));
    }
}

impl EncodeTwin for TQ2_0 {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.83;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let (trits, max) = trits(x);
        out.put_f16(64, max);
        trits
            .into_iter()
            .for_each(|(i, trit)| out.set(i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2, trit));
    }
}

impl EncodeTwin for Q2_0 {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.75;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let (trits, max) = trits(x);
        out.put_f16(0, max);
        trits
            .into_iter()
            .for_each(|(i, trit)| out.set(2, 2 * i, 2, trit));
    }
}

impl EncodeTwin for Q1_0 {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.63;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        out.put_f16(0, x.iter().fold(0.0, |sum, x| sum + x.abs()) / 128.0);
        x.iter()
            .enumerate()
            .for_each(|(i, &x)| out.set(2, i, 1, i32::from(x >= 0.0)));
    }
}

impl EncodeTwin for MXFP4 {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.12;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let max = furthest(x).abs();
        let e = if max > 0.0 {
            max.log2().floor() as i32 + 125
        } else {
            0
        } & 255;
        out.set(0, 0, 8, e);
        let d = 2f64.powi(e - 128) as f32;
        x.iter()
            .enumerate()
            .for_each(|(i, &x)| out.set(1 + i % 16, i / 16 * 4, 4, e2m1(x, d)));
    }
}

impl EncodeTwin for NVFP4 {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.1;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        for (g, x) in x.chunks(16).enumerate() {
            let (code, d) = ue4m3(furthest(x).abs() / 6.0);
            out.set(g, 0, 8, code);
            x.iter()
                .enumerate()
                .for_each(|(i, &x)| out.set(4 + 8 * g + i % 8, i / 8 * 4, 4, e2m1(x, d)));
        }
    }
}

/// The first of the codes with the least error, in halves of `d`.
fn e2m1(x: f32, d: f32) -> i32 {
    let error = |code: usize| {
        let magnitude = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][code % 8];
        (if code < 8 { magnitude } else { -magnitude } * d - x).abs()
    };
    (1..16).fold(0, |best, code| {
        if error(code) < error(best) {
            code
        } else {
            best
        }
    }) as i32
}

/// The nearest of the scales, ties to the higher; from 256 on, with what is rounded to it, there is
/// 448 alone.
fn ue4m3(x: f32) -> (i32, f32) {
    let value = |code: i32| match code >> 3 {
        0 => code as f32 / 512.0,
        e => (1.0 + (code & 7) as f32 / 8.0) * 2f32.powi(e - 7),
    };
    // Among subnormal ones 7 is not left by rounding.
    let top = if x < 0.015_625 { 7 } else { 0x78 };
    let code = (0..=top)
        .rev()
        .find(|&code| code == 0 || x >= (value(code - 1) + value(code)) / 2.0)
        .unwrap();
    let code = if code == 0x78 { 0x7e } else { code };
    (code, value(code) / 2.0)
}
