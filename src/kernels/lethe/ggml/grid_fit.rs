//! What the IQ2 and IQ3 types share: the search for a group's scale and points of the grid, and the scales in 4 bits.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_row_iq2_xs_impl` and its relatives.

use super::neighbours::{Grid, Levels, code};
use super::search::nearest_int;

/// What half a magnitude, less one, is in codes: those stand for the odd numbers.
#[inline(always)]
fn odd_code(magnitude: f32, top: i32) -> i32 {
    nearest_int(0.5 * (magnitude - 1.0)).clamp(0, top)
}

/// Sum of the squares.
#[inline(always)]
pub(super) fn square(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, x| sum + x * x)
}

/// Weights of values of which some matter more than others; `mean` is a mean square of the block.
#[inline(always)]
pub(super) fn weigh<const N: usize>(
    values: &[f32; N],
    importance: &[f32; N],
    mean: f32,
) -> [f32; N] {
    let mut weights = [0.0; N];
    for ((weight, x), important) in weights.iter_mut().zip(values).zip(importance) {
        *weight = important * (mean + x * x).sqrt();
    }
    weights
}

/// The part of the importances that belongs to group `g`; all the same if there are none.
#[inline(always)]
pub(super) fn group<const N: usize>(importance: Option<&[f32; 256]>, g: usize) -> &[f32; N] {
    match importance {
        Some(weights) => &weights.as_chunks().0[g],
        None => &[1.0; N],
    }
}

/// Magnitudes of eight values, and a bit for each that is negative.
///
/// If the number of these bits has to be even, the value that costs least is taken for one of the other sign.
#[inline(always)]
pub(super) fn split_signs<const EVEN: bool>(
    values: &[f32; 8],
    weights: &[f32; 8],
) -> ([f32; 8], u8) {
    let (mut magnitudes, mut signs) = ([0.0; 8], 0u8);
    for (i, (magnitude, &x)) in magnitudes.iter_mut().zip(values).enumerate() {
        // Zero keeps its sign, and NaN is negative.
        let positive = x >= 0.0;
        *magnitude = if positive { x } else { -x };
        signs |= u8::from(!positive) << i;
    }
    if EVEN && signs.count_ones() % 2 == 1 {
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

/// A group's scale and points.
pub(super) struct Fit<const K: usize> {
    pub(super) scale: f32,
    /// Packed.
    pub(super) points: [u16; K],
}

/// Which points are searched once more with the final scale.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Those that were not on the grid.
    Off,
    /// All, if any was not, or if no scale was any good.
    AllIfAny,
    /// All.
    All,
}

/// How to search for the scale of `K` times `N` magnitudes: `tries` ones around that which makes the largest code of
/// `max`, apart by `step` of a code. `TRIES` is a multiple of a register's lanes.
pub(super) struct Search<'a, const N: usize, const K: usize, const BITS: usize, const TRIES: usize>
{
    pub(super) grid: &'a Grid<N, BITS>,
    pub(super) top: i32,
    pub(super) tries: usize,
    pub(super) step: f32,
    pub(super) again: Again,
}

impl<const N: usize, const K: usize, const BITS: usize, const TRIES: usize>
    Search<'_, N, K, BITS, TRIES>
{
    /// The codes of each group of `N` with each of the inverse scales.
    #[inline(always)]
    fn codes<const T: usize>(&self, values: &[[f32; N]; K], inverse: &[f32; T]) -> [[u16; T]; K] {
        let mut codes = [[0; T]; K];
        for (values, codes) in values.iter().zip(&mut codes) {
            let mut packed = [0; T];
            for (i, x) in values.iter().enumerate() {
                for (packed, inverse) in packed.iter_mut().zip(inverse) {
                    *packed |= odd_code(inverse * x, self.top) << (BITS * i);
                }
            }
            for (code, packed) in codes.iter_mut().zip(packed) {
                *code = packed as u16;
            }
        }
        codes
    }

    /// Weighted products of the values with those of the points, and of the latter with themselves, of each try.
    #[inline(always)]
    fn sums<const T: usize>(
        values: &[[f32; N]; K],
        weights: &[[f32; N]; K],
        points: &[[u16; T]; K],
    ) -> ([f32; T], [f32; T]) {
        let (mut products, mut squares) = ([0.0; T], [0.0; T]);
        for ((values, weights), points) in values.iter().zip(weights).zip(points) {
            for (i, (&x, &w)) in values.iter().zip(weights).enumerate() {
                for ((product, square), &point) in products.iter_mut().zip(&mut squares).zip(points)
                {
                    let q = Levels::ODD.of(code::<BITS>(point, i));
                    *product += w * x * q;
                    *square += w * q * q;
                }
            }
        }
        (products, squares)
    }

    /// The search. `scale` is what it is if no other is any good.
    #[inline(always)]
    pub(super) fn fit(
        &self,
        values: &[[f32; N]; K],
        weights: &[[f32; N]; K],
        max: f32,
        scale: f32,
    ) -> Fit<K> {
        let mut roots = [[0.0; N]; K];
        for (root, weight) in roots
            .as_flattened_mut()
            .iter_mut()
            .zip(weights.as_flattened())
        {
            *root = weight.sqrt();
        }
        let mut inverse = [0.0; TRIES];
        for (t, inverse) in inverse.iter_mut().enumerate() {
            let off = t as i32 - self.tries as i32 / 2;
            *inverse = ((2 * self.top + 1) as f32 + off as f32 * self.step) / max;
        }
        let codes = self.codes(values, &inverse);
        let mut points = codes;
        for k in 0..K {
            for t in 0..self.tries {
                points[k][t] = self.grid.nearest(
                    codes[k][t],
                    &values[k],
                    &roots[k],
                    1.0 / inverse[t],
                    Levels::ODD,
                );
            }
        }
        let (products, squares) = Self::sums(values, weights, &points);
        let (mut scale, mut score, mut best) = (scale, 0.0, None);
        for t in 0..self.tries {
            if squares[t] > 0.0 && products[t] * products[t] > score * squares[t] {
                scale = products[t] / squares[t];
                score = scale * products[t];
                best = Some(t);
            }
        }
        let mut fit = Fit {
            scale,
            points: [0; K],
        };
        let mut off = [false; K];
        for k in 0..K {
            if let Some(t) = best {
                fit.points[k] = points[k][t];
                off[k] = !self.grid.has(codes[k][t]);
            }
        }
        match self.again {
            Again::Off => {}
            Again::AllIfAny => off = [best.is_none() || off.contains(&true); K],
            Again::All => off = [true; K],
        }
        if scale > 0.0 && off.contains(&true) {
            self.refit(values, weights, &roots, off, &mut fit);
        }
        fit
    }

    /// Searches some of the points with the scale that was found, and fits the scale to the points.
    #[inline(always)]
    fn refit(
        &self,
        values: &[[f32; N]; K],
        weights: &[[f32; N]; K],
        roots: &[[f32; N]; K],
        which: [bool; K],
        fit: &mut Fit<K>,
    ) {
        let codes = self.codes(values, &[1.0 / fit.scale]);
        let mut points = [[0]; K];
        for k in 0..K {
            if which[k] {
                fit.points[k] =
                    self.grid
                        .nearest(codes[k][0], &values[k], &roots[k], fit.scale, Levels::ODD);
            }
            points[k][0] = fit.points[k];
        }
        let (products, squares) = Self::sums(values, weights, &points);
        if squares[0] > 0.0 {
            fit.scale = products[0] / squares[0];
        }
    }
}

/// The unit of a block's scales, and these in odd multiples of it: 31 is the largest.
#[inline(always)]
pub(super) fn scales<const N: usize>(scales: &[f32; N]) -> Option<(f32, [u8; N])> {
    let max = scales
        .iter()
        .fold(0.0, |max, &scale| if max > scale { max } else { scale });
    if max == 0.0 {
        return None;
    }
    let d = max / 31.0;
    let inverse = 1.0 / d;
    let mut codes = [0; N];
    for (code, scale) in codes.iter_mut().zip(scales) {
        *code = odd_code(inverse * scale, 15) as u8;
    }
    Some((d, codes))
}

/// The signs of a group of `N` values, a byte for each of its `B` eights; what is fitted is their magnitudes.
#[inline(always)]
pub(super) fn magnitudes<const EVEN: bool, const N: usize, const B: usize>(
    values: &[f32; N],
    weights: &[f32; N],
) -> ([f32; N], [u8; B]) {
    let (mut magnitudes, mut signs) = ([0.0; N], [0; B]);
    let eights = values.as_chunks().0.iter().zip(weights.as_chunks().0);
    for ((signs, magnitudes), (values, weights)) in signs
        .iter_mut()
        .zip(magnitudes.as_chunks_mut().0)
        .zip(eights)
    {
        (*magnitudes, *signs) = split_signs::<EVEN>(values, weights);
    }
    (magnitudes, signs)
}

/// The largest.
#[inline(always)]
pub(super) fn largest<const N: usize>(values: &[f32; N]) -> f32 {
    values
        .iter()
        .fold(values[0], |max, &x| if max > x { max } else { x })
}

/// A scale that is not negative: the sign goes to the values.
#[inline(always)]
pub(super) fn unsigned<const B: usize>(scale: f32, signs: &mut [u8; B]) -> f32 {
    if scale < 0.0 {
        signs.iter_mut().for_each(|signs| *signs = !*signs);
        return -scale;
    }
    scale
}

/// Two scales to a byte, the first in the low half.
#[inline(always)]
pub(super) fn nibbles<const N: usize>(codes: &[u8; N], out: &mut [u8]) {
    for (out, pair) in out.iter_mut().zip(codes.as_chunks::<2>().0) {
        *out = pair[0] | pair[1] << 4;
    }
}
