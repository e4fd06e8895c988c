//! IQ2: eight magnitudes at a time, each 1, 3 or 5, are one of the points of a grid; signs are
//! apart.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_row_iq2_xxs_impl`, `_iq2_xs_impl`, `_iq2_s_impl`,
//! `make_qp_quants`.

use super::grid_fit::{
    GridSearch, RefitPoints, group_importance, importance_weights, largest, odd_scale_codes,
    put_nibbles, split_group_signs, sum_of_squares, without_sign,
};
use super::neighbours::{self, IqGrid};
use super::search::nearest_int;
use super::{BlockImportance, EncodeBlock, put_f16};
use crate::simd::{Flat, LookUp, copy, from_fn, zip};

pub(super) struct IQ2_XXS;
pub(super) struct IQ2_XS;
pub(super) struct IQ2_S;

/// Indices of points, signs and scale of 16 values; `None` if no magnitude is at least `least`.
/// `EVEN` as in [`split_group_signs`].
#[inline(always)]
fn fit_sixteen<const EVEN: bool>(
    grid: &IqGrid<8, 2>,
    values: &[f32; 16],
    weights: &[f32; 16],
    least: f32,
    look_up: impl LookUp,
) -> Option<([usize; 2], [u8; 2], f32)> {
    let (values, mut signs) = split_group_signs::<EVEN, 16, 2>(values, weights);
    let max = largest(&values);
    if max < least {
        return None;
    }
    let search = GridSearch::<8, 2, 2, 24> {
        grid,
        top: 2,
        tries: 19,
        step: 0.1,
        refit_points: RefitPoints::OffGrid,
    };
    let (mut eights, mut eight_weights) = ([[0.0; 8]; 2], [[0.0; 8]; 2]);
    copy(&values, eights.flat_mut());
    copy(weights, eight_weights.flat_mut());
    let fit = search.fit(&eights, &eight_weights, max, max / 5.0, look_up);
    let scale = without_sign(fit.scale, &mut signs);
    Some(([grid.index(fit.points[0]), grid.index(fit.points[1])], signs, scale))
}

impl EncodeBlock<74, 256> for IQ2_XS {
    const ROW_SQUARE: bool = false;
    const REQUIRES_IMPORTANCE: bool = true;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        look_up: impl LookUp,
        out: &mut [u8; 74],
    ) {
        let grid = neighbours::iq2_xs();
        let importance = importance.map(|importance| importance.weights);
        let mean = sum_of_squares(values) / 256.0;
        let (mut words, mut factors) = ([[0u16; 2]; 16], [0.0; 16]);
        for (g, values) in values.as_chunks().0.iter().enumerate() {
            let weights = importance_weights(values, group_importance(importance, g), mean);
            let Some((indices, signs, scale)) =
                fit_sixteen::<true>(grid, values, &weights, 1e-15, look_up)
            else {
                continue;
            };
            for (k, word) in words[g].iter_mut().enumerate() {
                // Index in bits 0 to 8, the seven stored signs in bits 9 to 15: the eighth is cut
                // off by the shift.
                *word = indices[k] as u16 | u16::from(signs[k]) << 9;
            }
            factors[g] = scale;
        }
        out.fill(0);
        let Some((d, codes)) = odd_scale_codes(&factors) else {
            return;
        };
        put_f16(out, 0, d);
        for (out, word) in zip(out[2..66].as_chunks_mut().0, words.flat()) {
            *out = word.to_le_bytes();
        }
        put_nibbles(&codes, &mut out[66..]);
    }
}

impl EncodeBlock<82, 256> for IQ2_S {
    const ROW_SQUARE: bool = false;
    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        look_up: impl LookUp,
        out: &mut [u8; 82],
    ) {
        let grid = neighbours::iq2_s();
        let mean = 2.0 * sum_of_squares(values) / 256.0;
        out.fill(0);
        let mut factors = [0.0; 16];
        for (g, values) in values.as_chunks::<16>().0.iter().enumerate() {
            let weights = match importance {
                Some(importance) => {
                    importance_weights(values, group_importance(Some(importance.weights), g), mean)
                }
                None => from_fn(|i| 0.25 * mean + values[i] * values[i]),
            };
            let Some((indices, signs, scale)) =
                fit_sixteen::<false>(grid, values, &weights, 1e-8, look_up)
            else {
                continue;
            };
            for (k, (index, signs)) in zip(indices, signs).enumerate() {
                let i = 2 * g + k;
                out[2 + i] = index as u8;
                out[34 + i] = signs;
                // The two high bits of an index lie four to a byte.
                out[66 + i / 4] |= ((index >> 8) << (i % 4 * 2)) as u8;
            }
            factors[g] = scale;
        }
        let Some((d, codes)) = odd_scale_codes(&factors) else {
            return;
        };
        // 0.9875 is a factor of ggml's, by which the unit is lowered in the end.
        put_f16(out, 0, d * 0.9875);
        put_nibbles(&codes, &mut out[74..]);
    }
}

impl EncodeBlock<66, 256> for IQ2_XXS {
    const ROW_SQUARE: bool = false;
    const REQUIRES_IMPORTANCE: bool = true;

    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        look_up: impl LookUp,
        out: &mut [u8; 66],
    ) {
        let grid = neighbours::iq2_xxs();
        let search = GridSearch::<8, 4, 2, 16> {
            grid,
            top: 2,
            tries: 13,
            step: 0.1,
            refit_points: RefitPoints::All,
        };
        let importance = importance.map(|importance| importance.weights);
        let mean = sum_of_squares(values) / 256.0;
        let (mut words, mut factors) = ([[0u32; 2]; 8], [0.0; 8]);
        for (g, values) in values.as_chunks().0.iter().enumerate() {
            let weights = importance_weights(values, group_importance(importance, g), mean);
            let (values, mut signs) = split_group_signs::<true, 32, 4>(values, &weights);
            if largest(&values) < 1e-15 {
                continue;
            }
            let scale = first_scale(&values, &weights);
            let max = scale * 3.0;
            if max <= 0.0 {
                continue;
            }
            let (mut eights, mut eight_weights) = ([[0.0; 8]; 4], [[0.0; 8]; 4]);
            copy(&values, eights.flat_mut());
            copy(&weights, eight_weights.flat_mut());
            let fit = search.fit(&eights, &eight_weights, max, scale, look_up);
            factors[g] = without_sign(fit.scale, &mut signs);
            for (k, (&point, signs)) in zip(fit.points.iter(), signs).enumerate() {
                words[g][0] |= (grid.index(point) as u32) << (8 * k);
                words[g][1] |= u32::from(signs & 127) << (7 * k);
            }
        }
        out.fill(0);
        let Some((d, codes)) = odd_scale_codes(&factors) else {
            return;
        };
        put_f16(out, 0, d);
        for (words, code) in zip(&mut words[..], codes) {
            words[1] |= u32::from(code) << 28;
        }
        for (out, word) in zip(out[2..].as_chunks_mut().0, words.flat()) {
            *out = word.to_le_bytes();
        }
    }
}

/// The largest code of [`first_scale`]: one more than there are magnitudes, as in ggml.
const TOP: i32 = 4;

/// The scale for codes from 0 to `TOP` with a small weighted error, from which the search of
/// IQ2_XXS starts: ggml's `make_qp_quants`.
#[inline(always)]
fn first_scale(values: &[f32; 32], weights: &[f32; 32]) -> f32 {
    let max = values
        .iter()
        .fold(0.0, |max, &x| if max > x { max } else { x });
    if max < 1e-15 {
        return 0.0;
    }
    let mut inverse = TOP as f32 / max;
    // ggml keeps the codes of this first try in bytes: those below zero wrap, and none is limited
    // to the top.
    let mut least = error::<false>(values, weights, inverse);
    for off in [-4, -3, -2, -1, 1, 2, 3, 4] {
        let other = (0.1 * off as f32 + TOP as f32) / max;
        let error = error::<true>(values, weights, other);
        if error < least {
            (least, inverse) = (error, other);
        }
    }
    refine(values, weights, inverse)
}

/// The weighted squared error of rounding by an inverse scale. Codes are limited to the top, or
/// wrap in a byte.
#[inline(always)]
fn error<const CUT: bool>(values: &[f32; 32], weights: &[f32; 32], inverse: f32) -> f32 {
    let scale = 1.0 / inverse;
    let mut sum = 0.0;
    for (&x, &w) in zip(values.iter(), weights) {
        let code = nearest_int(inverse * x);
        let code = if CUT {
            code.min(TOP)
        } else {
            i32::from(code as u8)
        };
        let difference = x - scale * code as f32;
        sum += w * difference * difference;
    }
    sum
}

/// The scale by coordinate descent: one code after the other is replaced by the best for the scale
/// that fits the others, as long as (Σwxl)² / Σwl² grows, for at most five rounds.
#[inline(always)]
fn refine(values: &[f32; 32], weights: &[f32; 32], inverse: f32) -> f32 {
    let mut codes = [0u8; 32];
    let (mut product, mut square) = (0.0, 0.0);
    for ((code, &x), &w) in zip(zip(&mut codes[..], values), weights) {
        let l = nearest_int(inverse * x).min(TOP);
        *code = l as u8;
        product += w * x * l as f32;
        square += w * l as f32 * l as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for ((code, &x), &w) in zip(zip(&mut codes[..], values), weights) {
            let l = f32::from(*code);
            let (mut others, mut other_square) = (product - w * x * l, square - w * l * l);
            if !(others > 0.0 && other_square > 0.0) {
                continue;
            }
            let new = nearest_int(x * other_square / others).min(TOP);
            if new == i32::from(*code) {
                continue;
            }
            others += w * x * new as f32;
            other_square += w * new as f32 * new as f32;
            if others * others * square > product * product * other_square {
                (*code, product, square) = (new as u8, others, other_square);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    if square > 0.0 { product / square } else { 0.0 }
}
