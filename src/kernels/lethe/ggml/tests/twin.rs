//! Blocks encoded one value after the other.

use half::f16;

use super::search::{
    IMPORTANT, affine, coordinate, furthest, nearest, positive, square, symmetric,
};
use crate::Dtype;

/// A block in which any bits can be set.
struct Bits(Vec<u8>);

impl Bits {
    /// Sets the `n` bits from bit `from` of byte `at` on, lowest first.
    fn set(&mut self, at: usize, from: usize, n: usize, value: i32) {
        for j in from..from + n {
            self.0[at + j / 8] |= ((value >> (j - from) & 1) as u8) << (j % 8);
        }
    }

    /// Puts an f16, and is what it became.
    fn half(&mut self, at: usize, x: f32) -> f32 {
        let x = f16::from_f32(x);
        self.set(at, 0, 16, i32::from(x.to_bits()));
        x.to_f32_const()
    }
}

/// Values times their importance.
fn weigh(x: &[f32], importance: &[f32], mean: f32) -> Vec<f32> {
    x.iter()
        .zip(importance)
        .map(|(x, w)| w * (mean + x * x).sqrt())
        .collect()
}

/// A block's bytes. `importance` has the weights and the mean square of the row.
pub(super) fn twin(
    dtype: Dtype,
    bytes: usize,
    x: &[f32],
    importance: Option<(&[f32], f32)>,
) -> Vec<u8> {
    let mut out = Bits(vec![0; bytes]);
    let twins = [legacy, small, two, three, four, six];
    assert!(
        twins
            .iter()
            .any(|twin| twin(dtype, x, importance, &mut out).is_some())
    );
    out.0
}

type Importance<'a> = Option<(&'a [f32], f32)>;

fn legacy(dtype: Dtype, x: &[f32], importance: Importance<'_>, out: &mut Bits) -> Option<()> {
    let w = importance.map(|(w, mean)| weigh(x, w, mean));
    let (top, with_min) = match dtype {
        Dtype::Q4_0 => (15, false),
        Dtype::Q4_1 => (15, true),
        Dtype::Q5_0 => (31, false),
        Dtype::Q5_1 => (31, true),
        _ => return None,
    };
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
        out.half(0, d);
        out.half(2, -min);
        codes
    } else {
        let d = furthest(x) / -half as f32;
        let code =
            |x: &f32| (x * if d == 0.0 { 0.0 } else { 1.0 / d } + (half as f32 + 0.5)) as i32;
        let plain = || (d, x.iter().map(|x| code(x).min(top)).collect());
        let (d, codes) = w.map_or_else(plain, |w| symmetric(x, &w, half));
        out.half(0, d);
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
    Some(())
}

/// Signed bytes, ternary and FP4.
fn small(dtype: Dtype, x: &[f32], _: Importance<'_>, out: &mut Bits) -> Option<()> {
    let max = furthest(x).abs();
    let inverse = |d: f32| if d == 0.0 { 0.0 } else { 1.0 / d };
    let trits = x
        .iter()
        .map(|x| (x * inverse(max)).round() as i32 + 1)
        .enumerate();
    match dtype {
        Dtype::Q8_0 | Dtype::Q8_1 => {
            let d = max / 127.0;
            let codes: Vec<i32> = x.iter().map(|x| (x * inverse(d)).round() as i32).collect();
            let start = if dtype == Dtype::Q8_1 { 4 } else { 2 };
            if dtype == Dtype::Q8_1 {
                out.half(2, codes.iter().sum::<i32>() as f32 * d);
            }
            out.half(0, d);
            codes
                .iter()
                .enumerate()
                .for_each(|(i, &code)| out.set(start + i, 0, 8, code));
        }
        Dtype::Q8_K if max != 0.0 => {
            let inverse = -127.0 / furthest(x);
            out.set(0, 0, 32, (1.0 / inverse).to_bits() as i32);
            let codes: Vec<i32> = x.iter().map(|x| nearest(inverse * x).min(127)).collect();
            codes
                .iter()
                .enumerate()
                .for_each(|(i, &code)| out.set(4 + i, 0, 8, code));
            codes
                .chunks(16)
                .enumerate()
                .for_each(|(g, codes)| out.set(260 + 2 * g, 0, 16, codes.iter().sum()));
        }
        Dtype::Q8_K => {}
        Dtype::TQ1_0 => {
            out.half(52, max);
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
        Dtype::TQ2_0 => {
            out.half(64, max);
            trits.for_each(|(i, trit)| out.set(i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2, trit));
        }
        Dtype::Q2_0 => {
            out.half(0, max);
            trits.for_each(|(i, trit)| out.set(2, 2 * i, 2, trit));
        }
        Dtype::Q1_0 => {
            out.half(0, x.iter().fold(0.0, |sum, x| sum + x.abs()) / 128.0);
            x.iter()
                .enumerate()
                .for_each(|(i, &x)| out.set(2, i, 1, i32::from(x >= 0.0)));
        }
        Dtype::MXFP4 => {
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
        Dtype::NVFP4 => {
            for (g, x) in x.chunks(16).enumerate() {
                let (code, d) = ue4m3(furthest(x).abs() / 6.0);
                out.set(g, 0, 8, code);
                x.iter()
                    .enumerate()
                    .for_each(|(i, &x)| out.set(4 + 8 * g + i % 8, i / 8 * 4, 4, e2m1(x, d)));
            }
        }
        _ => return None,
    }
    Some(())
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

/// The nearest of the scales, ties to the higher; from 256 on, with what is rounded to it, there is 448 alone.
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

/// The codes for a scale and a minimum as stored, or `searched` without a scale.
fn stored(x: &[f32], d: f32, min: f32, (low, high): (i32, i32), searched: Vec<i32>) -> Vec<i32> {
    if d == 0.0 {
        return searched;
    }
    x.iter()
        .map(|x| nearest((x + min) / d).clamp(low, high) - low)
        .collect()
}

fn two(dtype: Dtype, x: &[f32], importance: Importance<'_>, out: &mut Bits) -> Option<()> {
    if dtype != Dtype::Q2_K {
        return None;
    }
    let mean = square(x) / 256.0;
    let (mut scales, mut mins, mut sums, mut codes) = (vec![], vec![], vec![], vec![]);
    for (g, x) in x.chunks(16).enumerate() {
        let (scale, min, found) = if let Some((w, _)) = importance {
            let w = weigh(x, &w[16 * g..16 * g + 16], mean);
            sums.push(w.iter().fold(0.0, |sum, w| sum + w));
            affine(x, &w, 3, IMPORTANT, true)
        } else {
            let w: Vec<f32> = x.iter().map(|x| x.abs()).collect();
            affine(x, &w, 3, (-0.5, 0.1, 15), false)
        };
        scales.push(scale);
        mins.push(min);
        codes.push(found);
    }
    let quantize = |values: &[f32]| {
        if importance.is_some() {
            return positive(values, &sums, 15);
        }
        let max = values.iter().copied().fold(0.0, f32::max);
        let code = |&x: &f32| {
            if max > 0.0 {
                nearest(15.0 / max * x) as u8
            } else {
                0
            }
        };
        (max / 15.0, values.iter().map(code).collect())
    };
    let ((d, scales), (min, mins)) = (quantize(&scales), quantize(&mins));
    let (d, min) = (out.half(80, d), out.half(82, min));
    for (g, (x, codes)) in x.chunks(16).zip(codes).enumerate() {
        // A negative scale wraps and spoils the minimum.
        let packed = scales[g] | mins[g] << 4;
        out.set(g, 0, 8, i32::from(packed));
        let codes = stored(
            x,
            d * f32::from(packed & 15),
            min * f32::from(packed >> 4),
            (0, 3),
            codes,
        );
        for (j, &code) in codes.iter().enumerate() {
            let i = 16 * g + j;
            out.set(16 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2, code);
        }
    }
    Some(())
}

fn three(dtype: Dtype, x: &[f32], importance: Importance<'_>, out: &mut Bits) -> Option<()> {
    if dtype != Dtype::Q3_K {
        return None;
    }
    let mean = 2.0 * square(x) / 256.0;
    let (mut scales, mut sums, mut codes) = (vec![], vec![], vec![]);
    for (g, x) in x.chunks(16).enumerate() {
        let (scale, found) = if let Some((w, _)) = importance {
            let w = weigh(x, &w[16 * g..16 * g + 16], mean);
            sums.push(w.iter().fold(0.0, |sum, w| sum + w));
            symmetric(x, &w, 4)
        } else {
            coordinate(x)
        };
        scales.push(scale);
        codes.push(found);
    }
    let max = furthest(&scales);
    let (d, scales) = if importance.is_some() {
        symmetric(&scales, &sums, 32)
    } else if max == 0.0 {
        (0.0, vec![0; 16])
    } else {
        let inverse = -32.0 / max;
        (
            1.0 / inverse,
            scales
                .iter()
                .map(|x| i32::from(nearest(inverse * x) as i8).clamp(-32, 31) + 32)
                .collect(),
        )
    };
    let d = out.half(108, d);
    for (g, (x, codes)) in x.chunks(16).zip(codes).enumerate() {
        out.set(96 + g % 8, g / 8 * 4, 4, scales[g]);
        out.set(104 + g % 4, g / 4 * 2, 2, scales[g] >> 4);
        for (j, &code) in stored(x, d * (scales[g] - 32) as f32, 0.0, (-4, 3), codes)
            .iter()
            .enumerate()
        {
            let i = 16 * g + j;
            out.set(i % 32, i / 32, 1, code >> 2);
            out.set(32 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2, code);
        }
    }
    Some(())
}

/// Q4_K and Q5_K.
fn four(dtype: Dtype, x: &[f32], importance: Importance<'_>, out: &mut Bits) -> Option<()> {
    let (top, steps) = match dtype {
        Dtype::Q4_K => (15, (-1.0, 0.1, 20)),
        Dtype::Q5_K => (31, (-0.5, 0.1, 15)),
        _ => return None,
    };
    let mean = 2.0 * square(x) / 256.0;
    let (mut scales, mut mins, mut sums, mut codes) = (vec![], vec![], vec![], vec![]);
    for (g, x) in x.chunks(32).enumerate() {
        let (scale, min, found) = if let Some((w, _)) = importance {
            let w = weigh(x, &w[32 * g..32 * g + 32], mean);
            sums.push(w.iter().fold(0.0, |sum, w| sum + w));
            affine(x, &w, top, IMPORTANT, true)
        } else {
            let root = (square(x) / 32.0).sqrt();
            let w: Vec<f32> = x.iter().map(|x| root + x.abs()).collect();
            affine(x, &w, top, steps, true)
        };
        scales.push(scale);
        mins.push(min);
        codes.push(found);
    }
    let quantize = |values: &[f32]| {
        if importance.is_some() {
            return positive(values, &sums, 63);
        }
        let max = values.iter().copied().fold(0.0, f32::max);
        let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
        (
            max / 63.0,
            values
                .iter()
                .map(|x| (nearest(inverse * x) as u8).min(63))
                .collect(),
        )
    };
    let ((d, scales), (min, mins)) = (quantize(&scales), quantize(&mins));
    let (d, min) = (out.half(0, d), out.half(2, min));
    for g in 0..8 {
        // A negative scale wraps; in Q4_K it spoils others.
        let limit = if top == 31 { 63 } else { 255 };
        let (scale, m) = (
            i32::from(scales[g].min(limit)),
            i32::from(mins[g].min(limit)),
        );
        if g < 4 {
            out.set(4 + g, 0, 8, scale);
            out.set(8 + g, 0, 8, m);
        } else {
            out.set(8 + g, 0, 4, scale);
            out.set(8 + g, 4, 4, m);
            out.set(g, 6, 2, scale >> 4);
            out.set(4 + g, 6, 2, m >> 4);
        }
    }
    for (g, (x, codes)) in x.chunks(32).zip(codes).enumerate() {
        let six = |at: usize| i32::from(out.0[at] & 63);
        let four = |at: usize, shift: i32| i32::from(out.0[at] >> shift & 15);
        let two = |at: usize| i32::from(out.0[at] >> 6) << 4;
        let (scale, m) = if g < 4 {
            (six(4 + g), six(8 + g))
        } else {
            (four(8 + g, 0) | two(g), four(8 + g, 4) | two(4 + g))
        };
        for (j, &code) in stored(x, d * scale as f32, min * m as f32, (0, top), codes)
            .iter()
            .enumerate()
        {
            let start = if top == 31 { 48 } else { 16 };
            out.set(start + g / 2 * 32 + j, g % 2 * 4, 4, code);
            if top == 31 {
                out.set(16 + j, g, 1, code >> 4);
            }
        }
    }
    Some(())
}

fn six(dtype: Dtype, x: &[f32], importance: Importance<'_>, out: &mut Bits) -> Option<()> {
    if dtype != Dtype::Q6_K {
        return None;
    }
    let squares: Vec<f32> = x.iter().map(|x| x * x).collect();
    let w = importance.map_or(&squares[..], |(w, _)| w);
    let found: Vec<_> = x
        .chunks(16)
        .zip(w.chunks(16))
        .map(|(x, w)| symmetric(x, w, 32))
        .collect();
    let max = furthest(&found.iter().map(|&(scale, _)| scale).collect::<Vec<_>>());
    if max.abs() < 1e-15 {
        return Some(());
    }
    let inverse = -128.0 / max;
    let d = out.half(208, 1.0 / inverse);
    for (g, (x, (scale, codes))) in x.chunks(16).zip(found).enumerate() {
        let scale = nearest(inverse * scale).min(127) as i8;
        out.set(192 + g, 0, 8, i32::from(scale));
        for (j, &code) in stored(x, d * f32::from(scale), 0.0, (-32, 31), codes)
            .iter()
            .enumerate()
        {
            let i = 16 * g + j;
            let (half, run) = (i / 128, i % 128 / 32);
            out.set(half * 64 + run % 2 * 32 + i % 32, run / 2 * 4, 4, code);
            out.set(128 + half * 32 + i % 32, run * 2, 2, code >> 4);
        }
    }
    Some(())
}
