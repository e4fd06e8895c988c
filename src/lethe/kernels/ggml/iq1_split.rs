//! The search of the IQ1 types: which of a group's values become -1, 0 and 1, and by which shift.
//!
//! The three are intervals of the sorted values. All pairs of boundaries between them are tried
//! with each shift, and sums up to each boundary give the error of a pair at once. Pairs are
//! compared by (Σwqx)² / Σwq² in ggml's order, the first boundary outermost and the shift
//! innermost, and the first of the best wins. Values that are equal stay in their order, as the
//! merge sort of glibc's `qsort` leaves them.
//!
//! Algorithms: ggml 0.26.0 `ggml-quants.c`, `quantize_row_iq1_s_impl`, `quantize_row_iq1_m_impl`.

use super::search::{Lanes, larger, mask, opaque, select};
use crate::simd::{copy, from_fn, zip};

/// What the three codes stand for if they are shifted up.
pub(super) const UP: [f32; 3] = [-0.875, 0.125, 1.125];
/// What the three codes stand for if they are shifted down.
pub(super) const DOWN: [f32; 3] = [-1.125, -0.125, 0.875];

/// Second boundaries that are tried side by side.
const LANES: usize = 8;

/// Where the sorted values are split: those before `first` become -1, those before `second` 0, the
/// others 1.
pub(super) struct ThreeWaySplit {
    pub(super) first: usize,
    pub(super) second: usize,
    /// The shift: 0 for up, 1 for down. In IQ1_M the first half's in bit 1 and the second half's in
    /// bit 0.
    pub(super) shift: usize,
    pub(super) scale: f32,
}

/// The place of each value in ascending order, equal values in theirs. Every value is compared with
/// every other, which takes no branches.
#[inline(always)]
fn ranks<const N: usize>(values: &[f32; N]) -> [usize; N] {
    let mut ranks = [0u32; N];
    for (j, &other) in values.iter().enumerate() {
        for (i, (rank, &x)) in zip(&mut ranks[..], values).enumerate() {
            *rank += u32::from(if j < i { other <= x } else { other < x });
        }
    }
    let mut indices = [0; N];
    zip(&mut indices[..], ranks).for_each(|(index, rank)| *index = rank as usize);
    indices
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

/// Σwqx and Σwq² of one first boundary with `LANES` second ones, for each of `SHIFTS` shifts; q are
/// the levels.
struct SplitSums<const SHIFTS: usize> {
    products: [[f32; LANES]; SHIFTS],
    squares: [[f32; LANES]; SHIFTS],
}

/// Sums of sorted values and weights up to each boundary, from which [`SplitSums`] are made.
trait SplitBoundaries<const SHIFTS: usize> {
    /// The last boundary, which is the number of values.
    const LAST: usize;

    /// The sums of `first` with the second boundaries from `start` on. Must be `#[inline(always)]`
    /// with everything it calls.
    fn compare(&self, first: usize, start: usize, out: &mut SplitSums<SHIFTS>);
}

impl<const SHIFTS: usize> SplitSums<SHIFTS> {
    const ZERO: Self = Self { products: [[0.0; LANES]; SHIFTS], squares: [[0.0; LANES]; SHIFTS] };

    /// The largest (Σwqx)² / Σwq² of all shifts in each lane. Fractions are compared by cross
    /// products, so that a lane is divided once.
    #[inline(always)]
    fn scores(&self) -> Lanes<LANES> {
        let mut best = from_fn(|l| self.products[0][l] * self.products[0][l]);
        let mut square = self.squares[0];
        for shift in 1..SHIFTS {
            let (products, squares) = (&self.products[shift], &self.squares[shift]);
            let other: Lanes<LANES> = from_fn(|l| products[l] * products[l]);
            let better = mask(|l| other[l] * square[l] > best[l] * squares[l]);
            best = select(better, other, best);
            square = select(better, *squares, square);
        }
        from_fn(|l| best[l] / square[l])
    }
}

/// Scores below this part of the largest cannot win. The scores of two splits, the choice of a
/// shift and their comparison are rounded at most 15 times in all, by 2⁻²⁴ of their size each: less
/// than half of what is left out here.
const CLEARLY_LESS: f32 = 0.999_998;

/// The best split, if its score is larger than all others by so much that neither rounding nor
/// order decides; `None` also if products might overflow or become zero. Scores are compared in
/// any order here, without branches.
#[inline(always)]
fn clear_best<B: SplitBoundaries<SHIFTS>, const SHIFTS: usize>(
    boundaries: &B,
    total_weight: f32,
) -> Option<ThreeWaySplit> {
    let mut candidates = SplitSums::<SHIFTS>::ZERO;
    // In each lane the largest score, the one after it, and the boundaries of the largest.
    let (mut best, mut next, mut at) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    // Second boundaries are from 1 on, which makes whole chunks. Boundary 0 has one pair.
    for start in (1..B::LAST).step_by(LANES) {
        for first in 0..start + LANES {
            // Both are small, and exact as a float.
            let place = (first << 8 | start) as f32;
            boundaries.compare(first, start, &mut candidates);
            let mut scores = opaque(&candidates).scores();
            // Lanes before `first` have no pair. NaN there is not larger than anything.
            let counted = lanes_from(&COUNTED, LANES - first.saturating_sub(start).min(LANES));
            scores = from_fn(|l| scores[l] * counted[l]);
            let better = mask(|l| scores[l] > best[l]);
            let less = select(better, best, scores);
            next = from_fn(|l| larger(less[l], next[l]));
            best = select(better, scores, best);
            at = select(better, [place; LANES], at);
        }
    }
    // A copy, for what is `opaque` itself stays in memory.
    let lanes = [best, next, at];
    let [best, next, at] = opaque(&lanes);
    boundaries.compare(0, 0, &mut candidates);
    let (mut largest, mut lane) = (0.0, 0);
    for (l, &score) in best.iter().enumerate() {
        (largest, lane) = if score > largest {
            (score, l)
        } else {
            (largest, lane)
        };
    }
    // Σwq² is at least a 64th of the weights, as no level is smaller than an eighth. So within
    // these limits all products that matter are normal numbers.
    let product = largest * total_weight;
    let cross = product * total_weight;
    let least = largest.min(product).min(cross);
    if !(total_weight > 1e-16 && least > 1e-30 && cross < 1e32) {
        return None;
    }
    let bound = largest * CLEARLY_LESS;
    let mut rivals = u32::from(candidates.scores()[0] >= bound) + u32::from(next[lane] >= bound);
    for (l, &score) in best.iter().enumerate() {
        rivals += u32::from(l != lane && score >= bound);
    }
    let place = at[lane] as usize;
    let (first, second) = (place >> 8, (place & 255) + lane);
    boundaries.compare(first, second, &mut candidates);
    let mut split = None;
    for shift in 0..SHIFTS {
        let (product, square) = (candidates.products[shift][0], candidates.squares[shift][0]);
        if product * product / square >= bound {
            rivals += u32::from(split.is_some());
            split = Some(ThreeWaySplit { first, second, shift, scale: product / square });
        }
    }
    if rivals == 0 { split } else { None }
}

/// Lanes that do not count, and lanes that do: a load from place `LANES - n` passes over `n` lanes.
const COUNTED: [f32; 2 * LANES] = {
    let mut counted = [0.0; 2 * LANES];
    let mut l = LANES;
    while l < 2 * LANES {
        counted[l] = 1.0;
        l += 1;
    }
    counted
};

/// Whether weights are not negative, and none of them or of their products with the values is so
/// large that [`clear_best`] might overflow.
#[inline(always)]
fn are_moderate<const N: usize>(values: &[f32; N], weights: &[f32; N]) -> bool {
    const LARGEST: u32 = 1e16f32.to_bits();
    // Bits of floats are in the order of magnitudes, NaN above infinity, and above all what is
    // negative.
    let (mut weight, mut product) = (0, 0);
    for (x, w) in zip(values.iter(), weights) {
        weight = weight.max(w.to_bits());
        product = product.max((w * x).abs().to_bits());
    }
    weight < LARGEST && product < LARGEST
}

/// The best split of all, in ggml's order. `LANES` pairs are compared with the best so far at once;
/// only if one is better are they gone through in order. Lanes before the first boundary do not
/// count.
#[inline(always)]
fn best_in_order<B: SplitBoundaries<SHIFTS>, const SHIFTS: usize>(
    boundaries: &B,
) -> Option<ThreeWaySplit> {
    let mut candidates = SplitSums::ZERO;
    // Below every score: a product of 0 over a positive square is accepted.
    let (mut score, mut best) = (-f32::MAX, None);
    for first in 0..=B::LAST {
        // Chunks of lanes that end before `first` hold no pair; in the first chunk the lanes before
        // it are masked.
        for start in first / LANES..=B::LAST / LANES {
            boundaries.compare(first, start * LANES, &mut candidates);
            let SplitSums { products, squares } = &candidates;
            let mut any = 0;
            for (products, squares) in zip(products.iter(), squares) {
                for l in 0..LANES {
                    let possible =
                        u32::from(start * LANES + l >= first) & u32::from(squares[l] > 0.0);
                    any |= possible & u32::from(products[l] * products[l] > score * squares[l]);
                }
            }
            if any == 0 {
                continue;
            }
            for second in first.max(start * LANES)..=B::LAST.min(start * LANES + LANES - 1) {
                for shift in 0..SHIFTS {
                    let (product, square) =
                        (products[shift][second % LANES], squares[shift][second % LANES]);
                    if square > 0.0 && product * product > score * square {
                        let scale = product / square;
                        score = scale * product;
                        best = Some(ThreeWaySplit { first, second, shift, scale });
                    }
                }
            }
        }
    }
    best
}

/// Sums of values times weights, and of weights, up to each boundary. Past the last there is NaN,
/// which no comparison finds better than anything: so the last lanes may lie there.
struct PrefixSums<const N: usize> {
    x: [f32; N],
    w: [f32; N],
}

impl<const N: usize> PrefixSums<N> {
    /// The sums over all sorted values, or over those that are in `half` of the unsorted ones.
    #[inline(always)]
    fn new(order: &[usize], values: &[f32], weights: &[f32], half: Option<usize>) -> Self {
        let mut sums = Self { x: [f32::NAN; N], w: [f32::NAN; N] };
        let (mut x, mut w) = (0.0, 0.0);
        (sums.x[0], sums.w[0]) = (x, w);
        for (j, &i) in order.iter().enumerate() {
            // Boundaries are places in the order of all values, so a half's sums repeat where the
            // next value is of the other half.
            if half.is_none_or(|half| i / (order.len() / 2) == half) {
                x += weights[i] * values[i];
                w += weights[i];
            }
            (sums.x[j + 1], sums.w[j + 1]) = (x, w);
        }
        sums
    }
}

/// `LANES` sums from `start` on.
#[inline(always)]
fn lanes_from<const N: usize>(sums: &[f32; N], start: usize) -> Lanes<LANES> {
    let mut lanes = [0.0; LANES];
    copy(&sums[start..start + LANES], &mut lanes);
    lanes
}

/// 32 values that share one shift: 0 for up, 1 for down.
impl SplitBoundaries<2> for PrefixSums<40> {
    const LAST: usize = 32;

    #[inline(always)]
    fn compare(&self, first: usize, start: usize, out: &mut SplitSums<2>) {
        let (first_x, first_w) = (self.x[first], self.w[first]);
        let (x, w) = (lanes_from(&self.x, start), lanes_from(&self.w, start));
        for (shift, [low, middle, top]) in [UP, DOWN].into_iter().enumerate() {
            let (low_x, low_w) = (first_x * low, first_w * low * low);
            out.products[shift] =
                from_fn(|l| low_x + (x[l] - first_x) * middle + (self.x[32] - x[l]) * top);
            out.squares[shift] = from_fn(|l| {
                low_w + (w[l] - first_w) * middle * middle + (self.w[32] - w[l]) * top * top
            });
        }
    }
}

/// The best split of 32 values.
#[inline(always)]
pub(super) fn split32(
    order: &[usize; 32],
    values: &[f32; 32],
    weights: &[f32; 32],
) -> Option<ThreeWaySplit> {
    let sums = PrefixSums::<40>::new(order, values, weights, None);
    let clear = if are_moderate(values, weights) {
        clear_best(&sums, sums.w[32])
    } else {
        None
    };
    match clear {
        None => best_in_order(&sums),
        clear => clear,
    }
}

/// 16 values, of which each half has one of the two shifts. All values of a half are taken for the
/// highest level first. As levels are 1 apart, each boundary then takes the sum up to it away once.
impl SplitBoundaries<4> for [PrefixSums<24>; 2] {
    const LAST: usize = 16;

    #[inline(always)]
    fn compare(&self, first: usize, start: usize, out: &mut SplitSums<4>) {
        let (mut products, mut squares) = ([[[0.0; LANES]; 2]; 2], [[[0.0; LANES]; 2]; 2]);
        for (half, PrefixSums { x, w }) in self.iter().enumerate() {
            let (second_x, second_w) = (lanes_from(x, start), lanes_from(w, start));
            for (shift, levels) in [UP, DOWN].iter().enumerate() {
                let top = levels[2];
                let (x_top, low) = (x[16] * top, w[16] * top * top + w[first] * steps(levels, 0));
                products[half][shift] = from_fn(|l| x_top - (x[first] + second_x[l]));
                squares[half][shift] = from_fn(|l| low + second_w[l] * steps(levels, 1));
            }
        }
        for shifts in 0..4 {
            let [a, b] = [&products[0][shifts >> 1], &products[1][shifts & 1]];
            out.products[shifts] = from_fn(|l| a[l] + b[l]);
            let [a, b] = [&squares[0][shifts >> 1], &squares[1][shifts & 1]];
            out.squares[shifts] = from_fn(|l| a[l] + b[l]);
        }
    }
}

/// The best split of 16 values.
#[inline(always)]
pub(super) fn split16(
    order: &[usize; 16],
    values: &[f32; 16],
    weights: &[f32; 16],
) -> Option<ThreeWaySplit> {
    let halves = [
        PrefixSums::<24>::new(order, values, weights, Some(0)),
        PrefixSums::new(order, values, weights, Some(1)),
    ];
    let clear = if are_moderate(values, weights) {
        clear_best(&halves, halves[0].w[16] + halves[1].w[16])
    } else {
        None
    };
    match clear {
        None => best_in_order(&halves),
        clear => clear,
    }
}

/// The difference of the squares of level `i` and the next.
#[inline(always)]
fn steps(levels: &[f32; 3], i: usize) -> f32 {
    levels[i] * levels[i] - levels[i + 1] * levels[i + 1]
}
