//! Naive encoders of IQ1.

use super::super::*;
use super::iq::{LARGEST, largest, weights};
use super::iq_search::{self, NaiveGrid, SHIFTS};
use super::search::{nearest, square};
use super::{BlockWriter, EncodeTwin, TwinImportance};

/// Weighted products of the levels of points with the values, and with themselves, times `factor`.
fn iq1_sums(
    points: &[[i32; 8]],
    x: &[f32],
    w: &[f32],
    shift: impl Fn(usize) -> usize,
    factor: f32,
) -> (f32, f32) {
    let codes = points.as_flattened().iter().enumerate();
    let levels = codes.map(|(i, &code)| SHIFTS[shift(i / 8)][code as usize] * factor);
    levels
        .zip(x.iter().zip(w))
        .fold((0.0, 0.0), |(product, square), (q, (&x, &w))| {
            (product + w * q * x, square + w * q * q)
        })
}

/// The points and the scale of a group from its best split; `shift` gives the shift of each eight
/// values.
fn iq1_points(
    grid: &NaiveGrid<8>,
    x: &[f32],
    w: &[f32],
    (order, first, second): (&[usize], usize, usize),
    scale: f32,
    shift: impl Fn(usize) -> usize,
) -> (Vec<[i32; 8]>, f32) {
    let mut codes = vec![0; x.len()];
    for (rank, &i) in order.iter().enumerate() {
        let code = i32::from(rank >= first) + i32::from(rank >= second);
        codes[i] = if scale < 0.0 { 2 - code } else { code };
    }
    let scale = scale.abs();
    let codes = codes.as_chunks::<8>().0;
    let points: Vec<[i32; 8]> = codes
        .iter()
        .enumerate()
        .map(|(k, &codes)| {
            let level = |code: i32| SHIFTS[shift(k)][code as usize];
            grid.nearest(codes, &x[8 * k..], &w[8 * k..], scale, level)
        })
        .collect();
    let (product, square) = iq1_sums(&points, x, w, shift, 1.0);
    let is_fitted = points != codes && product > 0.0 && square > 0.0;
    (points, if is_fitted { product / square } else { scale })
}

/// Scales in odd multiples of a fifteenth of the largest.
fn iq1_codes(scales: &[f32]) -> (f32, Vec<i32>) {
    let d = largest(scales) / 15.0;
    let code = |scale: &f32| nearest(0.5 * (1.0 / d * scale - 1.0)).clamp(0, 7);
    (d, scales.iter().map(code).collect())
}

fn reaches(x: &[f32], least: f32) -> bool {
    largest(&x.iter().map(|x| x.abs()).collect::<Vec<_>>()) >= least
}

impl EncodeTwin for IQ1_S {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.5;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let mean_square = 2.0 * square(x) / 256.0;
        let importance = importance.or(Some((&[1.0; 256], 0.0)));
        let (mut scales, mut shifts) = ([0.0; 8], [0; 8]);
        for (g, x) in x.chunks(32).enumerate() {
            let w = weights(x, 32 * g, importance, mean_square, |_| 0.0);
            let order = iq_search::sorted(x);
            if !reaches(x, 1e-12) {
                continue;
            }
            let Some((first, second, shift, scale)) = iq_search::split32(&order, x, &w) else {
                continue;
            };
            shifts[g] = if scale < 0.0 { 1 - shift } else { shift };
            iq_search::IQ1.with(|grid| {
                let split = (&order[..], first, second);
                let (points, scale) = iq1_points(grid, x, &w, split, scale, |_| shifts[g]);
                scales[g] = scale;
                for (k, point) in points.iter().enumerate() {
                    out.set(2 + 4 * g + k, 0, 8, grid.index(point));
                    out.set(34 + 2 * g, 3 * k, 3, grid.index(point) >> 8);
                }
            });
        }
        let (d, codes) = iq1_codes(&scales);
        if d == 0.0 {
            return;
        }
        out.put_f16(0, d * 1.125);
        for g in 0..8 {
            out.set(34 + 2 * g, 12, 3, codes[g]);
            out.set(34 + 2 * g, 15, 1, shifts[g] as i32);
        }
    }
}

impl EncodeTwin for IQ1_M {
    const LARGEST: f32 = LARGEST;
    const NORMAL_ERROR: f64 = 0.47;

    fn encode_naively(x: &[f32], importance: TwinImportance<'_>, out: &mut BlockWriter) {
        let mean_square = 2.0 * square(x) / 256.0;
        let w = |g: usize, x: &[f32]| weights(x, 16 * g, importance, mean_square, |x| x * x);
        let (mut scales, mut shifts) = ([0.0; 16], [[0; 2]; 16]);
        // What was not split is decoded with the point of index 0.
        let zero = iq_search::IQ1.with(|grid| grid.first());
        let mut points = vec![vec![zero; 2]; 16];
        for (g, x) in x.chunks(16).enumerate() {
            let (w, order) = (w(g, x), iq_search::sorted(x));
            if !reaches(x, 1e-7) {
                continue;
            }
            let Some((first, second, both, scale)) = iq_search::split16(&order, x, &w) else {
                continue;
            };
            let both = if scale < 0.0 { 3 - both } else { both };
            shifts[g] = [both >> 1, both & 1];
            iq_search::IQ1.with(|grid| {
                let split = (&order[..], first, second);
                (points[g], scales[g]) =
                    iq1_points(grid, x, &w, split, scale, |half| shifts[g][half]);
                for (k, point) in points[g].iter().enumerate() {
                    out.set(2 * g + k, 0, 8, grid.index(point));
                    out.set(32 + g, 4 * k, 3, grid.index(point) >> 8);
                }
            });
        }
        let (mut d, codes) = iq1_codes(&scales);
        if d == 0.0 {
            return;
        }
        let (mut product, mut square) = (0.0, 0.0);
        for (g, x) in x.chunks(16).enumerate() {
            out.set(48 + g / 4 * 2, g % 4 * 3, 3, codes[g]);
            (0..2).for_each(|k| out.set(32 + g, 4 * k + 3, 1, shifts[g][k] as i32));
            let (w, factor) = (w(g, x), (2 * codes[g] + 1) as f32);
            for (i, (&x, &w)) in x.iter().zip(&w).enumerate() {
                let level = SHIFTS[shifts[g][i / 8]][points[g][i / 8][i % 8] as usize];
                let q = level * factor;
                product += w * q * x;
                square += w * q * q;
            }
        }
        if square > 0.0 {
            d = product / square;
        }
        let bits = i32::from(f16::from_f32(d * 1.1125).to_bits());
        (0..4).for_each(|n| out.set(48 + 2 * n, 12, 4, bits >> (4 * n)));
    }
}
