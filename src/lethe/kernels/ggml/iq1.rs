//! IQ1: eight values at a time, each -1, 0 or 1 and shifted by an eighth, are one of the points of
//! a grid.
//!
//! A group is split into -1, 0 and 1 ([`iq1_split`](super::iq1_split)), the codes of each eight
//! values are replaced by a point of the grid, and the scale is fitted to the points.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_row_iq1_s_impl`, `quantize_row_iq1_m_impl`.

use super::grid_fit::{group_importance, importance_weights, sum_of_squares};
use super::iq1_split::{DOWN, ThreeWaySplit, UP, order, split16, split32};
use super::neighbours::{self, GridLevels, IqGrid, code};
use super::search::nearest_int;
use super::{BlockImportance, EncodeBlock, put_f16};
use crate::simd::{LookUp, from_fn, zip};

pub(super) struct IQ1_S;
pub(super) struct IQ1_M;

/// Each value's code: 0 below the first boundary, 1 below the second, else 2; mirrored if the scale
/// is negative, which the caller then makes positive.
#[inline(always)]
fn assign<const N: usize>(order: &[usize; N], split: &ThreeWaySplit) -> [u16; N] {
    let mut codes = [0; N];
    for (rank, &i) in order.iter().enumerate() {
        let code = u16::from(rank >= split.first) + u16::from(rank >= split.second);
        codes[i] = if split.scale < 0.0 { 2 - code } else { code };
    }
    codes
}

/// The point for each eight codes, and the scale. `levels` are what the codes of each eight values
/// stand for. The scale is fitted to the points if any of them differs from its codes.
#[inline(always)]
fn place<const N: usize, const K: usize>(
    grid: &IqGrid<8, 2>,
    values: &[f32; N],
    weights: &[f32; N],
    codes: &[u16; N],
    levels: &[&[f32; 3]; K],
    scale: f32,
    look_up: impl LookUp,
) -> ([u16; K], f32) {
    let (mut points, mut all) = ([0; K], true);
    let (values, weights) = (values.as_chunks::<8>().0, weights.as_chunks::<8>().0);
    for (k, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
        let mut packed = 0;
        codes
            .iter()
            .enumerate()
            .for_each(|(i, code)| packed |= code << (2 * i));
        // Levels are 1 apart, and sums of integers and eighths are exact, so that adding a step is
        // ggml's table look-up.
        let levels = GridLevels { low: levels[k][0], step: 1.0 };
        points[k] = grid.nearest(packed, &values[k], &weights[k], scale, levels, look_up);
        all &= grid.has(packed);
    }
    if all {
        return (points, scale);
    }
    let (mut product, mut square) = (0.0, 0.0);
    for k in 0..K {
        accumulate(points[k], &values[k], &weights[k], levels[k], 1.0, &mut product, &mut square);
    }
    let fitted = product > 0.0 && square > 0.0;
    (points, if fitted { product / square } else { scale })
}

/// Adds Σwqx and Σwq² of a point to `product` and `square`, q being its levels times `factor`.
#[inline(always)]
fn accumulate(
    point: u16,
    values: &[f32; 8],
    weights: &[f32; 8],
    levels: &[f32; 3],
    factor: f32,
    product: &mut f32,
    square: &mut f32,
) {
    for (i, (&x, &w)) in zip(values.iter(), weights).enumerate() {
        let q = (code::<2>(point, i) as f32 + levels[0]) * factor;
        *product += w * q * x;
        *square += w * q * q;
    }
}

/// Whether any magnitude is at least `least`. ggml encodes a group as zeros otherwise.
#[inline(always)]
fn reaches(values: &[f32], least: f32) -> bool {
    values
        .iter()
        .fold(values[0].abs(), |max, x| if max > x.abs() { max } else { x.abs() })
        >= least
}

/// The code `l` from 0 to 7 of a group's scale in units, which `2l + 1` stands for.
#[inline(always)]
fn scale_code(magnitude: f32) -> u16 {
    nearest_int(0.5 * (magnitude - 1.0)).clamp(0, 7) as u16
}

impl EncodeBlock<50, 256> for IQ1_S {
    const ROW_SQUARE: bool = false;
    const REQUIRES_IMPORTANCE: bool = true;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        look_up: impl LookUp,
        out: &mut [u8; 50],
    ) {
        let grid = neighbours::iq1();
        let importance = importance.map(|importance| importance.weights);
        let mean = 2.0 * sum_of_squares(values) / 256.0;
        out.fill(0);
        let (mut words, mut scales) = ([0; 8], [0.0; 8]);
        for (g, values) in values.as_chunks::<32>().0.iter().enumerate() {
            if !reaches(values, 1e-12) {
                continue;
            }
            let weights = importance_weights(values, group_importance(importance, g), mean);
            let order = order(values);
            let Some(mut split) = split32(&order, values, &weights) else {
                continue;
            };
            let codes = assign(&order, &split);
            // The shift is mirrored with the levels: up becomes down.
            if split.scale < 0.0 {
                (split.scale, split.shift) = (-split.scale, 1 - split.shift);
            }
            let levels = [&UP, &DOWN][split.shift];
            let (points, scale) =
                place(grid, values, &weights, &codes, &[levels; 4], split.scale, look_up);
            // The low eight bits of an index have a byte; the high three share a word with the
            // shift and the scale.
            for (k, &point) in points.iter().enumerate() {
                let index = grid.index(point);
                out[2 + 4 * g + k] = index as u8;
                words[g] |= ((index >> 8) << (3 * k)) as u16;
            }
            words[g] |= (split.shift as u16) << 15;
            scales[g] = scale;
        }
        let max = scales
            .iter()
            .fold(0.0, |max, &scale| if max > scale { max } else { scale });
        let inverse = 1.0 / (max / 15.0);
        for (out, (word, scale)) in zip(out[34..].as_chunks_mut().0, zip(words.iter(), scales)) {
            // ggml returns before it enters scales and shifts if all scales are zero.
            let word = if max == 0.0 {
                word & 0xfff
            } else {
                word | scale_code(inverse * scale) << 12
            };
            *out = word.to_le_bytes();
        }
        if max != 0.0 {
            // 1.125 here and 1.1125 in IQ1_M are factors of ggml's, by which the unit is raised in
            // the end.
            put_f16(out, 0, max / 15.0 * 1.125);
        }
    }
}

/// The levels of the two halves of 16 values: bit 1 of the shifts is that of the first half, bit 0
/// of the second.
#[inline(always)]
fn halves(shifts: usize) -> [&'static [f32; 3]; 2] {
    [[&UP, &DOWN][shifts >> 1], [&UP, &DOWN][shifts & 1]]
}

/// The weights of the 16 values of group `g`.
#[inline(always)]
fn weights16(
    values: &[f32; 16],
    importance: Option<BlockImportance<'_, 256>>,
    g: usize,
    mean: f32,
) -> [f32; 16] {
    if let Some(importance) = importance {
        return importance_weights(values, group_importance(Some(importance.weights), g), mean);
    }
    from_fn(|i| values[i] * values[i])
}

impl EncodeBlock<56, 256> for IQ1_M {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        look_up: impl LookUp,
        out: &mut [u8; 56],
    ) {
        let grid = neighbours::iq1();
        let mean = 2.0 * sum_of_squares(values) / 256.0;
        out.fill(0);
        // Groups of zeros have point 0 in ggml, whose levels are used below in the sums of all
        // groups.
        let zero = grid.first();
        let (mut points, mut shifts, mut scales) = ([[zero; 2]; 16], [0; 16], [0.0; 16]);
        for (g, values) in values.as_chunks::<16>().0.iter().enumerate() {
            if !reaches(values, 1e-7) {
                continue;
            }
            let weights = weights16(values, importance, g, mean);
            let order = order(values);
            let Some(mut split) = split16(&order, values, &weights) else {
                continue;
            };
            let codes = assign(&order, &split);
            if split.scale < 0.0 {
                (split.scale, split.shift) = (-split.scale, 3 - split.shift);
            }
            shifts[g] = split.shift;
            (points[g], scales[g]) =
                place(grid, values, &weights, &codes, &halves(split.shift), split.scale, look_up);
            let [first, second] = [grid.index(points[g][0]), grid.index(points[g][1])];
            (out[2 * g], out[2 * g + 1]) = (first as u8, second as u8);
            out[32 + g] = (first >> 8 | second >> 8 << 4) as u8;
        }
        let max = scales
            .iter()
            .fold(0.0, |max, &scale| if max > scale { max } else { scale });
        if max == 0.0 {
            return;
        }
        let (mut d, mut words) = (max / 15.0, [0; 4]);
        let inverse = 1.0 / d;
        let (mut product, mut square) = (0.0, 0.0);
        for (g, values) in values.as_chunks::<16>().0.iter().enumerate() {
            let code = scale_code(inverse * scales[g]);
            words[g / 4] |= code << (g % 4 * 3);
            // A bit for each half: 0x80 is the second and 0x08 the first, as the nibbles of high
            // index bits lie.
            out[32 + g] |= [0, 0x80, 0x08, 0x88][shifts[g]];
            let weights = weights16(values, importance, g, mean);
            let eights = zip(values.as_chunks().0.iter(), weights.as_chunks().0);
            for ((values, weights), (&point, levels)) in
                zip(eights, zip(points[g].iter(), halves(shifts[g])))
            {
                accumulate(
                    point,
                    values,
                    weights,
                    levels,
                    f32::from(2 * code + 1),
                    &mut product,
                    &mut square,
                );
            }
        }
        // The unit is fitted once more, to all groups together with their scales as they are
        // stored.
        if square > 0.0 {
            d = product / square;
        }
        let bits = <half::f16 as crate::element::Element>::from_f32(d * 1.1125).to_bits();
        for (i, (out, word)) in zip(out[48..].as_chunks_mut().0, words).enumerate() {
            *out = (word | (bits >> (4 * i) & 15) << 12).to_le_bytes();
        }
    }
}
