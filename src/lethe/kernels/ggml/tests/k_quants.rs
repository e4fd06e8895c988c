//! Naive encoders of the K-quants.

use super::super::*;
use super::search::{
    IMPORTANT, Steps, affine, coordinate, furthest, nearest, positive, square, symmetric, weigh,
};
use super::{BlockWriter, EncodeTwin, TwinImportance};

/// The codes for a scale and a minimum as stored, or `searched` without a scale.
fn stored(x: &[f32], d: f32, min: f32, (low, high): (i32, i32), searched: Vec<i32>) -> Vec<i32> {
    if d == 0.0 {
        return searched;
    }
    x.iter()
        .map(|x| nearest((x + min) / d).clamp(low, high) - low)
        .collect()
}

impl EncodeTwin for Q2_K {
    const NORMAL_ERROR: f64 = 0.28;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
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
        let (d, min) = (out.put_f16(80, d), out.put_f16(82, min));
        for (g, (x, codes)) in x.chunks(16).zip(codes).enumerate() {
            // A negative scale wraps and spoils the minimum.
            let packed = scales[g] | mins[g] << 4;
            out.set(g, 0, 8, i32::from(packed));
            let codes =
                stored(x, d * f32::from(packed & 15), min * f32::from(packed >> 4), (0, 3), codes);
            for (j, &code) in codes.iter().enumerate() {
                let i = 16 * g + j;
                out.set(16 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2, code);
            }
        }
    }
}

impl EncodeTwin for Q3_K {
    const NORMAL_ERROR: f64 = 0.15;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
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
        let d = out.put_f16(108, d);
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
    }
}

/// Q4_K and Q5_K: codes up to `top`, and the steps of a search without importance.
fn groups_of_32(
    x: &[f32],
    importance: TwinImportance<'_>,
    (top, steps): (i32, Steps),
    out: &mut BlockWriter,
) {
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
    let (d, min) = (out.put_f16(0, d), out.put_f16(2, min));
    for g in 0..8 {
        // A negative scale wraps; in Q4_K it spoils others.
        let limit = if top == 31 { 63 } else { 255 };
        let (scale, m) = (i32::from(scales[g].min(limit)), i32::from(mins[g].min(limit)));
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
}

impl EncodeTwin for Q4_K {
    const NORMAL_ERROR: f64 = 0.075;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        groups_of_32(x, importance, (15, (-1.0, 0.1, 20)), out);
    }
}

impl EncodeTwin for Q5_K {
    const NORMAL_ERROR: f64 = 0.037;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        groups_of_32(x, importance, (31, (-0.5, 0.1, 15)), out);
    }
}

impl EncodeTwin for Q6_K {
    const NORMAL_ERROR: f64 = 0.018;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let squares: Vec<f32> = x.iter().map(|x| x * x).collect();
        let w = importance.map_or(&squares[..], |(w, _)| w);
        let found: Vec<_> = x
            .chunks(16)
            .zip(w.chunks(16))
            .map(|(x, w)| symmetric(x, w, 32))
            .collect();
        let max = furthest(&found.iter().map(|&(scale, _)| scale).collect::<Vec<_>>());
        if max.abs() < 1e-15 {
            return;
        }
        let inverse = -128.0 / max;
        let d = out.put_f16(208, 1.0 / inverse);
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
    }
}

impl EncodeTwin for Q8_K {
    const HEEDS_IMPORTANCE: bool = false;
    const NORMAL_ERROR: f64 = 0.007;

    fn encode_naively(x: &[f32], _importance: TwinImportance<'_>, out: &mut BlockWriter) {
        if furthest(x) == 0.0 {
            return;
        }
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
}
