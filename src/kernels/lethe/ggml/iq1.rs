//! IQ1: eight values at a time, each -1, 0 or 1 and shifted by an eighth, are one of the points of a grid.
//!
//! Sorted values have two boundaries between the three: all pairs of them are tried. Values that are equal stay in
//! their order, as the merge sort of glibc's `qsort` leaves them.
//!
//! Algorithms: ggml `ggml-quants.c`, `quantize_row_iq1_s_impl`, `quantize_row_iq1_m_impl`.

use super::grid_fit::{group, square, weigh};
use super::neighbours::{self, Grid, Levels, code};
use super::search::nearest_int;
use super::{Importance, Pack, put_half};

pub(super) struct IQ1_S;
pub(super) struct IQ1_M;

/// What the codes stand for if they are shifted up, and down.
const UP: [f32; 3] = [-0.875, 0.125, 1.125];
const DOWN: [f32; 3] = [-1.125, -0.125, 0.875];

/// Boundaries that are tried side by side.
const LANES: usize = 8;

/// Where to split the sorted values, and with what scale.
pub(super) struct Split {
    pub(super) first: usize,
    pub(super) second: usize,
    /// Which shift, or shifts.
    pub(super) shift: usize,
    pub(super) scale: f32,
}

/// The place of each value in ascending order.
#[inline(always)]
fn ranks<const N: usize>(values: &[f32; N]) -> [usize; N] {
    let mut ranks = [0u32; N];
    for (j, &other) in values.iter().enumerate() {
        for (i, (rank, &x)) in ranks.iter_mut().zip(values).enumerate() {
            *rank += u32::from(if j < i { other <= x } else { other < x });
        }
    }
    let mut wide = [0; N];
    wide.iter_mut()
        .zip(ranks)
        .for_each(|(wide, rank)| *wide = rank as usize);
    wide
}

/// The indices of values in ascending order.
#[inline(always)]
pub(super) fn order<const N: usize>(values: &[f32; N]) -> [usize; N] {
    let mut order = [0; N];
    for (i, rank) in ranks(values).into_iter().enumerate() {
        order[rank] = i;
    }
    order
}

/// What is to be compared of a first boundary with a run of second ones, for each of `SHIFTS` shifts: the weighted
/// products of values and levels, and the squares of the latter.
struct Candidates<const SHIFTS: usize> {
    products: [[f32; LANES]; SHIFTS],
    squares: [[f32; LANES]; SHIFTS],
}

/// Sorted values and their weights, summed up to each boundary.
trait Boundaries<const SHIFTS: usize> {
    /// The last boundary.
    const LAST: usize;

    /// Compares the first boundary with a run of second ones. `#[inline(always)]`, with everything that it calls.
    fn compare(&self, first: usize, run: usize, out: &mut Candidates<SHIFTS>);
}

/// The best split of all.
#[inline(always)]
fn search<B: Boundaries<SHIFTS>, const SHIFTS: usize>(boundaries: &B) -> Option<Split> {
    let mut candidates = Candidates {
        products: [[0.0; LANES]; SHIFTS],
        squares: [[0.0; LANES]; SHIFTS],
    };
    let (mut score, mut best) = (-f32::MAX, None);
    for first in 0..=B::LAST {
        for run in first / LANES..=B::LAST / LANES {
            boundaries.compare(first, run * LANES, &mut candidates);
            let Candidates { products, squares } = &candidates;
            let mut any = 0;
            for (products, squares) in products.iter().zip(squares) {
                for l in 0..LANES {
                    let possible =
                        u32::from(run * LANES + l >= first) & u32::from(squares[l] > 0.0);
                    any |= possible & u32::from(products[l] * products[l] > score * squares[l]);
                }
            }
            if any == 0 {
                continue;
            }
            for second in first.max(run * LANES)..=B::LAST.min(run * LANES + LANES - 1) {
                for shift in 0..SHIFTS {
                    let (product, square) = (
                        products[shift][second % LANES],
                        squares[shift][second % LANES],
                    );
                    if square > 0.0 && product * product > score * square {
                        let scale = product / square;
                        score = scale * product;
                        best = Some(Split {
                            first,
                            second,
                            shift,
                            scale,
                        });
                    }
                }
            }
        }
    }
    best
}

/// Each value's code: 0 below the first boundary, 1 below the second, 2 above; mirrored if the scale is negative.
#[inline(always)]
fn assign<const N: usize>(order: &[usize; N], split: &Split) -> [u16; N] {
    let mut codes = [0; N];
    for (rank, &i) in order.iter().enumerate() {
        let code = u16::from(rank >= split.first) + u16::from(rank >= split.second);
        codes[i] = if split.scale < 0.0 { 2 - code } else { code };
    }
    codes
}

/// The points for each eight codes, with their shifts, and the scale: fitted to the points if one of them differs
/// from its codes.
#[inline(always)]
fn place<const N: usize, const K: usize>(
    grid: &Grid<8, 2>,
    values: &[f32; N],
    weights: &[f32; N],
    codes: &[u16; N],
    levels: &[&[f32; 3]; K],
    scale: f32,
) -> ([u16; K], f32) {
    let (mut points, mut all) = ([0; K], true);
    let (values, weights) = (values.as_chunks::<8>().0, weights.as_chunks::<8>().0);
    for (k, codes) in codes.as_chunks::<8>().0.iter().enumerate() {
        let mut packed = 0;
        codes
            .iter()
            .enumerate()
            .for_each(|(i, code)| packed |= code << (2 * i));
        // The levels are 1 apart, and eighths are exact.
        let levels = Levels {
            low: levels[k][0],
            step: 1.0,
        };
        points[k] = grid.nearest(packed, &values[k], &weights[k], scale, levels);
        all &= grid.has(packed);
    }
    if all {
        return (points, scale);
    }
    let (mut product, mut square) = (0.0, 0.0);
    for k in 0..K {
        accumulate(
            points[k],
            &values[k],
            &weights[k],
            levels[k],
            1.0,
            &mut product,
            &mut square,
        );
    }
    let fitted = product > 0.0 && square > 0.0;
    (points, if fitted { product / square } else { scale })
}

/// Adds the weighted products of a point's levels with the values, and with themselves.
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
    for (i, (&x, &w)) in values.iter().zip(weights).enumerate() {
        let q = (code::<2>(point, i) as f32 + levels[0]) * factor;
        *product += w * q * x;
        *square += w * q * q;
    }
}

/// Whether any magnitude is as large as `least`.
#[inline(always)]
fn reaches(values: &[f32], least: f32) -> bool {
    values.iter().fold(
        values[0].abs(),
        |max, x| if max > x.abs() { max } else { x.abs() },
    ) >= least
}

/// A scale's code: odd multiples of the unit, up to 15.
#[inline(always)]
fn scale_code(magnitude: f32) -> u16 {
    nearest_int(0.5 * (magnitude - 1.0)).clamp(0, 7) as u16
}

/// Sums of values times weights, and of weights, up to each boundary. Past the last there is NaN, which is better than
/// nothing.
struct Sums<const N: usize> {
    x: [f32; N],
    w: [f32; N],
}

impl<const N: usize> Sums<N> {
    /// The sums of those sorted values that are in one of the halves, if any is given.
    #[inline(always)]
    fn new(order: &[usize], values: &[f32], weights: &[f32], half: Option<usize>) -> Self {
        let mut sums = Self {
            x: [f32::NAN; N],
            w: [f32::NAN; N],
        };
        let (mut x, mut w) = (0.0, 0.0);
        (sums.x[0], sums.w[0]) = (x, w);
        for (j, &i) in order.iter().enumerate() {
            if half.is_none_or(|half| i / (order.len() / 2) == half) {
                x += weights[i] * values[i];
                w += weights[i];
            }
            (sums.x[j + 1], sums.w[j + 1]) = (x, w);
        }
        sums
    }
}

/// 32 values, all of which have one shift: 0 for up, 1 for down.
impl Boundaries<2> for Sums<40> {
    const LAST: usize = 32;

    #[inline(always)]
    fn compare(&self, first: usize, run: usize, out: &mut Candidates<2>) {
        let (first_x, first_w) = (self.x[first], self.w[first]);
        for (shift, [low, middle, top]) in [UP, DOWN].into_iter().enumerate() {
            let (low_x, low_w) = (first_x * low, first_w * low * low);
            for l in 0..LANES {
                let (x, w) = (self.x[run + l], self.w[run + l]);
                out.products[shift][l] = low_x + (x - first_x) * middle + (self.x[32] - x) * top;
                out.squares[shift][l] =
                    low_w + (w - first_w) * middle * middle + (self.w[32] - w) * top * top;
            }
        }
    }
}

/// The best split of 32 values.
#[inline(always)]
pub(super) fn split32(
    order: &[usize; 32],
    values: &[f32; 32],
    weights: &[f32; 32],
) -> Option<Split> {
    search(&Sums::<40>::new(order, values, weights, None))
}

impl Pack<50, 256> for IQ1_S {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 50]) {
        let grid = neighbours::iq1();
        let importance = importance.map(|importance| importance.weights);
        let mean = 2.0 * square(values) / 256.0;
        out.fill(0);
        let (mut words, mut scales) = ([0; 8], [0.0; 8]);
        for (g, values) in values.as_chunks::<32>().0.iter().enumerate() {
            if !reaches(values, 1e-12) {
                continue;
            }
            let weights = weigh(values, group(importance, g), mean);
            let order = order(values);
            let Some(mut split) = split32(&order, values, &weights) else {
                continue;
            };
            let codes = assign(&order, &split);
            if split.scale < 0.0 {
                (split.scale, split.shift) = (-split.scale, 1 - split.shift);
            }
            let levels = [&UP, &DOWN][split.shift];
            let (points, scale) = place(grid, values, &weights, &codes, &[levels; 4], split.scale);
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
        for (out, (word, scale)) in out[34..]
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(words.iter().zip(scales))
        {
            // Without any scale there are no shifts either.
            let word = if max == 0.0 {
                word & 0xfff
            } else {
                word | scale_code(inverse * scale) << 12
            };
            *out = word.to_le_bytes();
        }
        if max != 0.0 {
            put_half(out, 0, max / 15.0 * 1.125);
        }
    }
}

/// The levels of the two halves of 16 values: bit 1 of the shifts is that of the first half, bit 0 of the second.
#[inline(always)]
fn halves(shifts: usize) -> [&'static [f32; 3]; 2] {
    [[&UP, &DOWN][shifts >> 1], [&UP, &DOWN][shifts & 1]]
}

/// 16 values, of which each half has a shift of its own.
///
/// The levels of both shifts are 1 apart, so that a boundary takes the sum up to it away from the whole.
impl Boundaries<4> for [Sums<24>; 2] {
    const LAST: usize = 16;

    #[inline(always)]
    fn compare(&self, first: usize, run: usize, out: &mut Candidates<4>) {
        let (mut products, mut squares) = ([[[0.0; LANES]; 2]; 2], [[[0.0; LANES]; 2]; 2]);
        for (half, Sums { x, w }) in self.iter().enumerate() {
            for (shift, levels) in [UP, DOWN].iter().enumerate() {
                let top = levels[2];
                let (x_top, low) = (x[16] * top, w[16] * top * top + w[first] * steps(levels, 0));
                for l in 0..LANES {
                    products[half][shift][l] = x_top - (x[first] + x[run + l]);
                    squares[half][shift][l] = low + w[run + l] * steps(levels, 1);
                }
            }
        }
        for shifts in 0..4 {
            for l in 0..LANES {
                out.products[shifts][l] = products[0][shifts >> 1][l] + products[1][shifts & 1][l];
                out.squares[shifts][l] = squares[0][shifts >> 1][l] + squares[1][shifts & 1][l];
            }
        }
    }
}

/// The best split of 16 values.
#[inline(always)]
pub(super) fn split16(
    order: &[usize; 16],
    values: &[f32; 16],
    weights: &[f32; 16],
) -> Option<Split> {
    search(&[
        Sums::<24>::new(order, values, weights, Some(0)),
        Sums::new(order, values, weights, Some(1)),
    ])
}

/// What a level's square is above the next one's.
#[inline(always)]
fn steps(levels: &[f32; 3], i: usize) -> f32 {
    levels[i] * levels[i] - levels[i + 1] * levels[i + 1]
}

/// What the 16 values of group `g` weigh.
#[inline(always)]
fn weights16(
    values: &[f32; 16],
    importance: Option<Importance<'_, 256>>,
    g: usize,
    mean: f32,
) -> [f32; 16] {
    if let Some(importance) = importance {
        return weigh(values, group(Some(importance.weights), g), mean);
    }
    let mut weights = [0.0; 16];
    weights
        .iter_mut()
        .zip(values)
        .for_each(|(weight, x)| *weight = x * x);
    weights
}

impl Pack<56, 256> for IQ1_M {
    const ROW_SQUARE: bool = false;

    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<Importance<'_, 256>>, out: &mut [u8; 56]) {
        let grid = neighbours::iq1();
        let mean = 2.0 * square(values) / 256.0;
        out.fill(0);
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
            (points[g], scales[g]) = place(
                grid,
                values,
                &weights,
                &codes,
                &halves(split.shift),
                split.scale,
            );
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
            out[32 + g] |= [0, 0x80, 0x08, 0x88][shifts[g]];
            let weights = weights16(values, importance, g, mean);
            let eights = values.as_chunks().0.iter().zip(weights.as_chunks().0);
            for ((values, weights), (&point, levels)) in
                eights.zip(points[g].iter().zip(halves(shifts[g])))
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
        if square > 0.0 {
            d = product / square;
        }
        let bits = <half::f16 as crate::element::Element>::from_f32(d * 1.1125).to_bits();
        for (i, (out, word)) in out[48..]
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(words)
            .enumerate()
        {
            *out = (word | (bits >> (4 * i) & 15) << 12).to_le_bytes();
        }
    }
}
