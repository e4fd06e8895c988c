//! IQ3: four magnitudes at a time, each one of eight, are one of the points of a grid; signs are
//! apart.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_row_iq3_xxs_impl`, `quantize_row_iq3_s_impl`.

use super::grid_fit::{
    GridSearch, RefitPoints, group_importance, importance_weights, largest, odd_scale_codes,
    put_nibbles, split_group_signs, sum_of_squares, without_sign,
};
use super::neighbours::{self, IqGrid};
use super::{BlockImportance, EncodeBlock, put_f16};
use crate::simd::{Flat, LookUp, copy, from_fn, zip};

pub(super) struct IQ3_XXS;
pub(super) struct IQ3_S;

/// What differs between the searches of IQ3_XXS and IQ3_S.
struct Iq3Search {
    grid: &'static IqGrid<4, 3>,
    tries: usize,
    refit_points: RefitPoints,
    /// A group whose magnitudes are all below this is encoded as zeros.
    least: f32,
}

/// Indices of points, signs and scale of the 32 values of group `g`; `None` if all are too small.
/// `EVEN` as in [`split_group_signs`].
#[inline(always)]
fn fit_thirty_two<const EVEN: bool>(
    kind: &Iq3Search,
    g: usize,
    values: &[f32; 32],
    importance: Option<BlockImportance<'_, 256>>,
    mean: f32,
    look_up: impl LookUp,
) -> Option<([usize; 8], [u8; 4], f32)> {
    let weights = match importance {
        Some(importance) => {
            importance_weights(values, group_importance(Some(importance.weights), g), mean)
        }
        None => from_fn(|i| values[i] * values[i]),
    };
    let (values, mut signs) = split_group_signs::<EVEN, 32, 4>(values, &weights);
    let max = largest(&values);
    // IQ3_S has no least magnitude: only groups of zeros are passed over there.
    if max == 0.0 || max < kind.least {
        return None;
    }
    let search = GridSearch::<4, 8, 3, 32> {
        grid: kind.grid,
        top: 7,
        tries: kind.tries,
        step: 0.2,
        refit_points: kind.refit_points,
    };
    let (mut fours, mut four_weights) = ([[0.0; 4]; 8], [[0.0; 4]; 8]);
    copy(&values, fours.flat_mut());
    copy(&weights, four_weights.flat_mut());
    let fit = search.fit(&fours, &four_weights, max, max / 15.0, look_up);
    let scale = without_sign(fit.scale, &mut signs);
    let mut indices = [0; 8];
    for (index, &point) in zip(&mut indices[..], &fit.points) {
        *index = kind.grid.index(point);
    }
    Some((indices, signs, scale))
}

impl EncodeBlock<98, 256> for IQ3_XXS {
    const ROW_SQUARE: bool = false;
    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        look_up: impl LookUp,
        out: &mut [u8; 98],
    ) {
        let kind = Iq3Search {
            grid: neighbours::iq3_xxs(),
            tries: 31,
            refit_points: RefitPoints::OffGrid,
            least: 1e-8,
        };
        let mean = 2.0 * sum_of_squares(values) / 256.0;
        let (mut words, mut factors) = ([0; 8], [0.0; 8]);
        out.fill(0);
        for (g, values) in values.as_chunks().0.iter().enumerate() {
            let Some((indices, signs, scale)) =
                fit_thirty_two::<true>(&kind, g, values, importance, mean, look_up)
            else {
                continue;
            };
            for (k, index) in indices.into_iter().enumerate() {
                out[2 + 8 * g + k] = index as u8;
            }
            for (k, signs) in signs.into_iter().enumerate() {
                // Seven of eight signs are stored: their number is even, so the last follows.
                words[g] |= u32::from(signs & 127) << (7 * k);
            }
            factors[g] = scale;
        }
        let Some((d, codes)) = odd_scale_codes(&factors) else {
            // Points may have been written for groups whose scales then were all zero; ggml clears
            // the block.
            out.fill(0);
            return;
        };
        put_f16(out, 0, d * 1.0125);
        for ((out, word), code) in zip(zip(out[66..].as_chunks_mut().0, words), codes) {
            *out = (word | u32::from(code) << 28).to_le_bytes();
        }
    }
}

impl EncodeBlock<110, 256> for IQ3_S {
    const ROW_SQUARE: bool = false;
    #[inline(always)]
    fn encode(
        values: &[f32; 256],
        importance: Option<BlockImportance<'_, 256>>,
        look_up: impl LookUp,
        out: &mut [u8; 110],
    ) {
        let kind = Iq3Search {
            grid: neighbours::iq3_s(),
            tries: 19,
            refit_points: RefitPoints::AllIfAnyOffGrid,
            least: 0.0,
        };
        let mean = 2.0 * sum_of_squares(values) / 256.0;
        let mut factors = [0.0; 8];
        // The place of a group's indices and signs among those of groups that are not all zeros.
        // ggml leaves no room for a group of zeros, so that the groups after it are decoded with
        // the indices of others.
        let mut at = 0;
        out.fill(0);
        for (g, values) in values.as_chunks().0.iter().enumerate() {
            let Some((indices, signs, scale)) =
                fit_thirty_two::<false>(&kind, g, values, importance, mean, look_up)
            else {
                continue;
            };
            for (k, index) in indices.into_iter().enumerate() {
                out[2 + 8 * at + k] = index as u8;
                out[66 + g] |= ((index >> 8) << k) as u8;
            }
            copy(&signs, &mut out[74 + 4 * at..78 + 4 * at]);
            at += 1;
            factors[g] = scale;
        }
        let Some((d, codes)) = odd_scale_codes(&factors) else {
            return;
        };
        put_f16(out, 0, d * 1.033);
        put_nibbles(&codes, &mut out[106..]);
    }
}
