//! What the IQ2 and IQ3 types share: the search for a group's scale and points of the grid, and the
//! scales in 4 bits.
//!
//! For each scale that is tried, magnitudes are rounded to codes, codes that are no points of the
//! grid are replaced by the best neighbour, and Σwxq and Σwq² of the points' levels q say how good
//! the scale is: the larger (Σwxq)² / Σwq² the smaller the error, as in [`search`](super::search).
//! Tries are lanes, apart from the look-up of neighbours.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_row_iq2_xs_impl` and its relatives.

use super::neighbours::{GridLevels, IqGrid, code};
use super::search::nearest_int;
use crate::simd::{Flat, LookUp, zip};

/// The code of a magnitude in units of the scale: code `l` stands for the odd number `2l + 1`.
#[inline(always)]
fn odd_code(magnitude: f32, top: i32) -> i32 {
    nearest_int(0.5 * (magnitude - 1.0)).clamp(0, top)
}

/// Σx², in order.
#[inline(always)]
pub(super) fn sum_of_squares(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, x| sum + x * x)
}

/// The weights of values, `importance * sqrt(mean + x²)`; `mean` is the mean square of the block or
/// twice that, by type.
#[inline(always)]
pub(super) fn importance_weights<const N: usize>(
    values: &[f32; N],
    importance: &[f32; N],
    mean: f32,
) -> [f32; N] {
    let mut weights = [0.0; N];
    for ((weight, x), important) in zip(zip(&mut weights[..], values), importance) {
        *weight = important * (mean + x * x).sqrt();
    }
    weights
}

/// The importance of the values of group `g`; 1 if there is none.
#[inline(always)]
pub(super) fn group_importance<const N: usize>(
    importance: Option<&[f32; 256]>,
    g: usize,
) -> &[f32; N] {
    match importance {
        Some(weights) => &weights.as_chunks().0[g],
        None => &[1.0; N],
    }
}

/// Magnitudes of eight values, and a bit for each that is negative.
///
/// If the number of these bits has to be even (`EVEN`) and is not, the sign of the value with the
/// least wx² is flipped, and its magnitude is negative.
#[inline(always)]
pub(super) fn split_signs<const EVEN: bool>(
    values: &[f32; 8],
    weights: &[f32; 8],
) -> ([f32; 8], u8) {
    let (mut magnitudes, mut signs) = ([0.0; 8], 0u8);
    for (i, (magnitude, &x)) in zip(&mut magnitudes[..], values).enumerate() {
        // As in ggml, -0 counts as positive and NaN as negative.
        let positive = x >= 0.0;
        *magnitude = if positive { x } else { -x };
        signs |= u8::from(!positive) << i;
    }
    if EVEN && signs.count_ones() % 2 == 1 {
        // Seven of eight signs are stored. The last follows, because the number of negative ones is
        // even.
        let mut least = 0;
        for i in 1..8 {
            if weights[i] * values[i] * values[i] < weights[least] * values[least] * values[least] {
                least = i;
            }
        }
        magnitudes[least] = -magnitudes[least];
        signs ^= 1 << least;
    }
    (magnitudes, signs)
}

/// The scale and the points of a group.
pub(super) struct GridFit<const K: usize> {
    pub(super) scale: f32,
    /// In the packed form of [`IqGrid`].
    pub(super) points: [u16; K],
}

/// Which points are searched once more with the best scale, before the scale is fitted to them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RefitPoints {
    /// Those whose codes were not on the grid, as in IQ2_XS, IQ2_S and IQ3_XXS.
    OffGrid,
    /// All, if the codes of any were not on the grid or no scale was any good, as in IQ3_S.
    AllIfAnyOffGrid,
    /// All, as in IQ2_XXS.
    All,
}

/// A search for the scale of `K` times `N` magnitudes. `tries` scales are tried, which map `max` to
/// the largest level `2 * top + 1` or to multiples of `step` more or less. `TRIES` is `tries`
/// rounded up to whole registers.
pub(super) struct GridSearch<
    'a,
    const N: usize,
    const K: usize,
    const BITS: usize,
    const TRIES: usize,
> {
    pub(super) grid: &'a IqGrid<N, BITS>,
    pub(super) top: i32,
    pub(super) tries: usize,
    pub(super) step: f32,
    pub(super) refit_points: RefitPoints,
}

impl<const N: usize, const K: usize, const BITS: usize, const TRIES: usize>
    GridSearch<'_, N, K, BITS, TRIES>
{
    /// The packed codes of each `N` magnitudes with each inverse scale.
    #[inline(always)]
    fn codes<const T: usize>(&self, values: &[[f32; N]; K], inverse: &[f32; T]) -> [[u16; T]; K] {
        let mut codes = [[0; T]; K];
        for (values, codes) in zip(values.iter(), &mut codes) {
            let mut packed = [0; T];
            for (i, x) in values.iter().enumerate() {
                for (packed, inverse) in zip(&mut packed[..], inverse) {
                    // Codes are packed as they are found, so that a code is one look-up in the
                    // grid.
                    *packed |= odd_code(inverse * x, self.top) << (BITS * i);
                }
            }
            for (code, packed) in zip(&mut codes[..], packed) {
                *code = packed as u16;
            }
        }
        codes
    }

    /// Σwxq and Σwq² of each try, q being the levels of the points.
    #[inline(always)]
    fn sums<const T: usize>(
        values: &[[f32; N]; K],
        weights: &[[f32; N]; K],
        points: &[[u16; T]; K],
    ) -> ([f32; T], [f32; T]) {
        let (mut products, mut squares) = ([0.0; T], [0.0; T]);
        for ((values, weights), points) in zip(zip(values.iter(), weights), points) {
            for (i, (&x, &w)) in zip(values.iter(), weights).enumerate() {
                for ((product, square), &point) in zip(zip(&mut products[..], &mut squares), points)
                {
                    let q = GridLevels::ODD.of(code::<BITS>(point, i));
                    *product += w * x * q;
                    *square += w * q * q;
                }
            }
        }
        (products, squares)
    }

    /// Searches. `max` is what tries map to the largest level; `scale` is the result if no try is
    /// any good.
    #[inline(always)]
    pub(super) fn fit(
        &self,
        values: &[[f32; N]; K],
        weights: &[[f32; N]; K],
        max: f32,
        scale: f32,
        look_up: impl LookUp,
    ) -> GridFit<K> {
        let mut roots = [[0.0; N]; K];
        for (root, weight) in zip(roots.flat_mut(), weights.flat()) {
            *root = weight.sqrt();
        }
        let mut inverse = [0.0; TRIES];
        for (t, inverse) in inverse.iter_mut().enumerate() {
            // The middle try maps `max` to the largest level itself.
            let off = t as i32 - self.tries as i32 / 2;
            *inverse = ((2 * self.top + 1) as f32 + off as f32 * self.step) / max;
        }
        let codes = self.codes(values, &inverse);
        let mut points = codes;
        // A look-up is a scalar load, so tries are gone through one by one here.
        for k in 0..K {
            for t in 0..self.tries {
                points[k][t] = self.grid.nearest(
                    codes[k][t],
                    &values[k],
                    &roots[k],
                    1.0 / inverse[t],
                    GridLevels::ODD,
                    look_up,
                );
            }
        }
        let (products, squares) = Self::sums(values, weights, &points);
        let (mut scale, mut score, mut best) = (scale, 0.0, None);
        for t in 0..self.tries {
            // In the order of the tries, and only by a larger score: of equal ones the first wins,
            // as in ggml.
            if squares[t] > 0.0 && products[t] * products[t] > score * squares[t] {
                scale = products[t] / squares[t];
                score = scale * products[t];
                best = Some(t);
            }
        }
        let mut fit = GridFit { scale, points: [0; K] };
        let mut off = [false; K];
        for k in 0..K {
            if let Some(t) = best {
                fit.points[k] = points[k][t];
                off[k] = !self.grid.has(codes[k][t]);
            }
        }
        match self.refit_points {
            RefitPoints::OffGrid => {}
            RefitPoints::AllIfAnyOffGrid => off = [best.is_none() || off.contains(&true); K],
            RefitPoints::All => off = [true; K],
        }
        if scale > 0.0 && off.contains(&true) {
            self.refit(values, weights, &roots, off, &mut fit, look_up);
        }
        fit
    }

    /// Searches the points of `which` anew with the scale that was found, and then fits the scale
    /// to all points.
    #[inline(always)]
    fn refit(
        &self,
        values: &[[f32; N]; K],
        weights: &[[f32; N]; K],
        roots: &[[f32; N]; K],
        which: [bool; K],
        fit: &mut GridFit<K>,
        look_up: impl LookUp,
    ) {
        let codes = self.codes(values, &[1.0 / fit.scale]);
        let mut points = [[0]; K];
        for k in 0..K {
            if which[k] {
                fit.points[k] = self.grid.nearest(
                    codes[k][0],
                    &values[k],
                    &roots[k],
                    fit.scale,
                    GridLevels::ODD,
                    look_up,
                );
            }
            points[k][0] = fit.points[k];
        }
        let (products, squares) = Self::sums(values, weights, &points);
        if squares[0] > 0.0 {
            fit.scale = products[0] / squares[0];
        }
    }
}

/// The unit of a block's scales, and the codes `l` of its groups, whose scales are `2l + 1` units.
/// The largest scale is 31 units. `None` if all are zero.
#[inline(always)]
pub(super) fn odd_scale_codes<const N: usize>(scales: &[f32; N]) -> Option<(f32, [u8; N])> {
    let max = scales
        .iter()
        .fold(0.0, |max, &scale| if max > scale { max } else { scale });
    if max == 0.0 {
        return None;
    }
    // 31 is the level of code 15, the largest of four bits.
    let d = max / 31.0;
    let inverse = 1.0 / d;
    let mut codes = [0; N];
    for (code, scale) in zip(&mut codes[..], scales) {
        *code = odd_code(inverse * scale, 15) as u8;
    }
    Some((d, codes))
}

/// The magnitudes of a group of `N` values, and its signs, a byte for each of its `B` eights.
/// `EVEN` as in [`split_signs`].
#[inline(always)]
pub(super) fn split_group_signs<const EVEN: bool, const N: usize, const B: usize>(
    values: &[f32; N],
    weights: &[f32; N],
) -> ([f32; N], [u8; B]) {
    let (mut magnitudes, mut signs) = ([0.0; N], [0; B]);
    let eights = zip(values.as_chunks().0.iter(), weights.as_chunks().0);
    for ((signs, magnitudes), (values, weights)) in
        zip(zip(&mut signs[..], magnitudes.as_chunks_mut().0), eights)
    {
        (*magnitudes, *signs) = split_signs::<EVEN>(values, weights);
    }
    (magnitudes, signs)
}

/// The largest value, as by ggml's macro `MAX`: a NaN is replaced by the value after it.
#[inline(always)]
pub(super) fn largest<const N: usize>(values: &[f32; N]) -> f32 {
    values
        .iter()
        .fold(values[0], |max, &x| if max > x { max } else { x })
}

/// The magnitude of a scale. If it is negative, all signs are flipped instead.
#[inline(always)]
pub(super) fn without_sign<const B: usize>(scale: f32, signs: &mut [u8; B]) -> f32 {
    if scale < 0.0 {
        signs.iter_mut().for_each(|signs| *signs = !*signs);
        return -scale;
    }
    scale
}

/// Packs codes of scales two to a byte, the first into the low nibble.
#[inline(always)]
pub(super) fn put_nibbles<const N: usize>(codes: &[u8; N], out: &mut [u8]) {
    for (out, pair) in zip(&mut out[..], codes.as_chunks::<2>().0) {
        *out = pair[0] | pair[1] << 4;
    }
}
