//! IQ4: each value is one of sixteen levels, times a scale.
//!
//! Algorithm: ggml `ggml-quants.c`, `quantize_row_iq4_nl_impl`, `best_index_int8`.

use super::grid_fit::{importance_weights, sum_of_squares};
use super::search::nearest_int;
use super::{BlockImportance, EncodeBlock, put_f16};
use crate::remember::kernels::ggml::grids::IQ4;
use crate::simd::{LookUp, copy, from_fn, zip};

pub(super) struct IQ4_NL;
pub(super) struct IQ4_XS;

/// The middles between neighbouring levels; a value at a middle belongs to the upper level. ggml's
/// `best_index_int8` compares the distances of a value from both levels. Near the middle these are
/// exact, so that comparing with it is the same.
const MIDDLES: [f32; 15] = [
    -115.5, -93.5, -74.0, -57.0, -42.0, -28.5, -16.0, -4.5, 7.0, 19.0, 31.5, 45.5, 61.0, 79.0,
    101.0,
];

/// Scales that are tried after the first: ggml's `2 * ntry + 1`.
const TRIES: usize = 15;

/// The index of the nearest level.
#[inline(always)]
fn nearest(x: f32) -> u8 {
    let mut index = 0;
    for &middle in &MIDDLES {
        // Not `x >= middle`, for NaN has the last index in ggml.
        index += if x < middle { 0 } else { 1 };
    }
    index as u8
}

/// The nearest level.
#[inline(always)]
fn level(x: f32) -> f32 {
    let mut level = IQ4[0];
    for i in 0..MIDDLES.len() {
        level = if x < MIDDLES[i] { level } else { IQ4[i + 1] };
    }
    level
}

/// Index and level of `x`, for tests.
#[cfg(test)]
pub(super) fn both(x: f32) -> (u8, f32) {
    (nearest(x), level(x))
}

/// The scale of 32 values with the least weighted error, of those that map the largest magnitude
/// near to the lowest level. The tries are the lanes.
#[inline(always)]
fn fit(values: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let (mut largest, mut max) = (0.0, 0.0);
    for &x in values {
        if x.abs() > largest {
            (largest, max) = (x.abs(), x);
        }
    }
    if largest < 1e-15 {
        return 0.0;
    }
    // The first maps the value of the largest magnitude to the lowest level, -127; the others map
    // it up to 7 more or less.
    let mut inverse = [1.0 / (-max / IQ4[0]); TRIES + 1];
    for (t, inverse) in inverse.iter_mut().enumerate().skip(1) {
        *inverse = ((t as i32 - 8) as f32 + IQ4[0]) / max;
    }
    let (mut products, mut squares) = ([0.0; TRIES + 1], [0.0; TRIES + 1]);
    for (&x, &w) in zip(values.iter(), weights) {
        for ((product, square), inverse) in zip(zip(&mut products[..], &mut squares), inverse) {
            let q = level(inverse * x);
            *product += w * q * x;
            *square += w * q * q;
        }
    }
    let mut scale = if squares[0] > 0.0 {
        products[0] / squares[0]
    } else {
        0.0
    };
    let mut score = scale * products[0];
    // Only a larger score wins, so the first of equal ones stays, as in ggml.
    for (&product, &square) in zip(products.iter(), &squares).skip(1) {
        if square > 0.0 && product * product > score * square {
            scale = product / square;
            score = scale * product;
        }
    }
    scale
}

/// The weights of a group's values; `mean` is twice the mean square of the block.
#[inline(always)]
fn weights(values: &[f32; 32], importance: Option<&[f32; 32]>, mean: f32) -> [f32; 32] {
    if let Some(importance) = importance {
        return importance_weights(values, importance, mean);
    }
    from_fn(|i| values[i] * values[i])
}

/// The inverse of a scale; 0 for a scale of 0.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Writes the codes of 32 values: the first 16 into low nibbles, the last 16 into high ones.
#[inline(always)]
fn store(values: &[f32; 32], inverse: f32, out: &mut [u8]) {
    let (low, high) = values.split_at(16);
    for ((out, low), high) in zip(zip(&mut out[..], low), high) {
        *out = nearest(inverse * low) | nearest(inverse * high) << 4;
    }
}

impl EncodeBlock<18, 32> for IQ4_NL {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 32],
        importance: Option<BlockImportance<'_, 32>>,
        _: impl LookUp,
        out: &mut [u8; 18],
    ) {
        let mean = sum_of_squares(values) * (2.0 / 32.0);
        let weights = weights(values, importance.map(|importance| importance.weights), mean);
        let scale = fit(values, &weights);
        put_f16(out, 0, scale);
        store(values, inverse(scale), &mut out[2..]);
    }
}

impl EncodeBlock<136, 256> for IQ4_XS {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        _: impl LookUp,
        out: &mut [u8; 136],
    ) {
        let mean = sum_of_squares(values) * (2.0 / 256.0);
        let values = values.as_chunks().0;
        let mut scales = [0.0f32; 8];
        let (mut largest, mut max) = (0.0, 0.0);
        for (g, (scale, values)) in zip(&mut scales[..], values).enumerate() {
            let importance = importance.map(|importance| &importance.weights.as_chunks().0[g]);
            *scale = fit(values, &weights(values, importance, mean));
            if scale.abs() > largest {
                (largest, max) = (scale.abs(), *scale);
            }
        }
        out.fill(0);
        // The largest scale becomes -32: there is a step more below zero than above.
        let d = -max / 32.0;
        put_f16(out, 0, d);
        let mut high = 0;
        for (g, (scale, values)) in zip(scales.iter(), values).enumerate() {
            // Codes are made with the unit before it is rounded to f16, as ggml does.
            let code = nearest_int(inverse(d) * scale).clamp(-32, 31);
            store(values, inverse(d * code as f32), &mut out[8 + 16 * g..24 + 16 * g]);
            let code = (code + 32) as u16;
            out[4 + g / 2] |= ((code & 15) << (g % 2 * 4)) as u8;
            high |= (code >> 4) << (2 * g);
        }
        copy(&high.to_le_bytes(), &mut out[2..4]);
    }
}
