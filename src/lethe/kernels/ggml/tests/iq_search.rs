//! Naive searches of the IQ types: grids as lists of points, one scale or split tried after the
//! other.

use std::cell::RefCell;
use std::collections::HashMap;

use super::search::nearest;
use crate::remember::kernels::ggml::grids;

/// The points of a grid, with the lists of neighbours that were asked for so far.
pub(super) struct NaiveGrid<const N: usize> {
    points: Vec<[i32; N]>,
    /// How many of the nearest distances belong to a list of neighbours.
    rings: usize,
    neighbours: RefCell<HashMap<[i32; N], Vec<[i32; N]>>>,
}

thread_local! {
    pub(super) static IQ1: NaiveGrid<8> = NaiveGrid::new(&grids::IQ1, 3);
    pub(super) static IQ2_XXS: NaiveGrid<8> = NaiveGrid::new(&grids::IQ2_XXS, 2);
    pub(super) static IQ2_XS: NaiveGrid<8> = NaiveGrid::new(&grids::IQ2_XS, 2);
    pub(super) static IQ2_S: NaiveGrid<8> = NaiveGrid::new(&grids::IQ2_S, 1);
    pub(super) static IQ3_XXS: NaiveGrid<4> = NaiveGrid::new(&grids::IQ3_XXS, 2);
    pub(super) static IQ3_S: NaiveGrid<4> = NaiveGrid::new(&grids::IQ3_S, 3);
}

impl<const N: usize> NaiveGrid<N> {
    /// The grid of a decoder. A point's codes are the ranks of its bytes among all bytes that
    /// occur.
    fn new(grid: &[u64], rings: usize) -> Self {
        let bytes: Vec<[u8; N]> = grid
            .iter()
            .map(|entry| std::array::from_fn(|i| entry.to_le_bytes()[i]))
            .collect();
        let mut levels = bytes.concat();
        levels.sort_unstable();
        levels.dedup();
        let rank = |byte: u8| levels.binary_search(&byte).unwrap() as i32;
        Self {
            points: bytes.iter().map(|bytes| bytes.map(rank)).collect(),
            rings,
            neighbours: RefCell::default(),
        }
    }

    /// The points at the first few distances from `codes`, sorted by distance, then index.
    fn neighbours(&self, codes: [i32; N]) -> Vec<[i32; N]> {
        let distance = |point: &[i32; N]| {
            let pairs = codes.iter().zip(point);
            pairs.map(|(a, b)| (a - b).pow(2)).sum::<i32>()
        };
        let mut sorted: Vec<_> = self.points.iter().map(|p| (distance(p), *p)).collect();
        sorted.sort_by_key(|(distance, _)| *distance);
        let mut distances: Vec<i32> = sorted.iter().map(|(distance, _)| *distance).collect();
        distances.dedup();
        let near = sorted
            .into_iter()
            .filter(|(distance, _)| *distance <= distances[self.rings - 1]);
        near.map(|(_, point)| point).collect()
    }

    /// `codes` if the grid has them, else the neighbour with the least weighted error.
    pub(super) fn nearest(
        &self,
        codes: [i32; N],
        values: &[f32],
        weights: &[f32],
        scale: f32,
        level: impl Fn(i32) -> f32,
    ) -> [i32; N] {
        if self.points.contains(&codes) {
            return codes;
        }
        let mut lists = self.neighbours.borrow_mut();
        let list = lists.entry(codes).or_insert_with(|| self.neighbours(codes));
        let (mut least, mut best) = (f32::MAX, None);
        for point in list {
            let mut sum = 0.0;
            for i in 0..N {
                let difference = scale * level(point[i]) - values[i];
                sum += weights[i] * difference * difference;
            }
            if sum < least {
                (least, best) = (sum, Some(*point));
            }
        }
        best.unwrap()
    }

    /// The point of index 0.
    pub(super) fn first(&self) -> [i32; N] {
        self.points[0]
    }

    pub(super) fn index(&self, point: &[i32; N]) -> i32 {
        self.points.iter().position(|p| p == point).unwrap() as i32
    }
}

/// Which points are searched once more for the final scale.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Again {
    OffGrid,
    AllIfAnyOffGrid,
    All,
}

/// How ggml searches for a group's scale and points: one try after the other.
pub(super) struct NaiveSearch<'a, const N: usize> {
    pub(super) grid: &'a NaiveGrid<N>,
    pub(super) top: i32,
    pub(super) tries: i32,
    pub(super) step: f32,
    pub(super) again: Again,
}

impl<const N: usize> NaiveSearch<'_, N> {
    /// The point for each `N` values, and whether it is what the values are rounded to.
    fn place(
        &self,
        values: &[f32],
        roots: &[f32],
        inverse: f32,
        scale: f32,
    ) -> Vec<([i32; N], bool)> {
        let groups = values.chunks(N).zip(roots.chunks(N));
        let place = |(values, roots): (&[f32], &[f32])| {
            let code = |i: usize| nearest(0.5 * (inverse * values[i] - 1.0)).clamp(0, self.top);
            let codes = std::array::from_fn(code);
            let level = |code| (2 * code + 1) as f32;
            let point = self.grid.nearest(codes, values, roots, scale, level);
            (point, point == codes)
        };
        groups.map(place).collect()
    }

    fn sums(values: &[f32], weights: &[f32], points: &[([i32; N], bool)]) -> (f32, f32) {
        let codes = points.iter().flat_map(|(point, _)| point);
        codes
            .map(|&code| (2 * code + 1) as f32)
            .zip(values.iter().zip(weights))
            .fold((0.0, 0.0), |(product, square), (q, (&x, &w))| {
                (product + w * x * q, square + w * q * q)
            })
    }

    /// The scale and the points of magnitudes whose largest is `max`; `start` is the scale if no
    /// try is any good.
    pub(super) fn fit(
        &self,
        values: &[f32],
        weights: &[f32],
        max: f32,
        start: f32,
    ) -> (f32, Vec<[i32; N]>) {
        let roots: Vec<f32> = weights.iter().map(|w| w.sqrt()).collect();
        let (mut scale, mut score) = (start, 0.0);
        let mut best = vec![([0; N], self.again == Again::OffGrid); values.len() / N];
        for off in -self.tries / 2..=self.tries / 2 {
            let inverse = ((2 * self.top + 1) as f32 + off as f32 * self.step) / max;
            let points = self.place(values, &roots, inverse, 1.0 / inverse);
            let (product, square) = Self::sums(values, weights, &points);
            if square > 0.0 && product * product > score * square {
                scale = product / square;
                score = scale * product;
                best = points;
            }
        }
        if scale > 0.0 && (self.again == Again::All || best.iter().any(|(_, on_grid)| !on_grid)) {
            let fresh = self.place(values, &roots, 1.0 / scale, scale);
            for (best, fresh) in best.iter_mut().zip(fresh) {
                if self.again != Again::OffGrid || !best.1 {
                    *best = fresh;
                }
            }
            let (product, square) = Self::sums(values, weights, &best);
            if square > 0.0 {
                scale = product / square;
            }
        }
        (scale, best.into_iter().map(|(point, _)| point).collect())
    }
}

/// What the three codes of IQ1 stand for, shifted up and down.
pub(super) const SHIFTS: [[f32; 3]; 2] = [[-0.875, 0.125, 1.125], [-1.125, -0.125, 0.875]];

/// The indices of values in ascending order, equal ones in theirs.
pub(super) fn sorted(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].partial_cmp(&values[b]).unwrap());
    order
}

/// The best of all pairs of boundaries and of shifts, in ggml's order:
/// `(first, second, shift, scale)`. `sums` gives the weighted products of values and levels, and
/// the weighted squares of levels, for a shift and two boundaries.
pub(super) fn split(
    n: usize,
    shifts: usize,
    sums: impl Fn(usize, usize, usize) -> (f32, f32),
) -> Option<(usize, usize, usize, f32)> {
    let (mut score, mut best) = (-f32::MAX, None);
    for first in 0..=n {
        for second in first..=n {
            for shift in 0..shifts {
                let (product, square) = sums(shift, first, second);
                if square > 0.0 && product * product > score * square {
                    let scale = product / square;
                    score = scale * product;
                    best = Some((first, second, shift, scale));
                }
            }
        }
    }
    best
}

/// Sums of weighted values and of weights up to each boundary, of those sorted values that
/// `is_counted`.
fn running(
    order: &[usize],
    values: &[f32],
    weights: &[f32],
    is_counted: impl Fn(usize) -> bool,
) -> (Vec<f32>, Vec<f32>) {
    let (mut x, mut w) = (vec![0.0], vec![0.0]);
    for (j, &i) in order.iter().enumerate() {
        let is_counted = is_counted(i);
        x.push(if is_counted {
            x[j] + weights[i] * values[i]
        } else {
            x[j]
        });
        w.push(if is_counted { w[j] + weights[i] } else { w[j] });
    }
    (x, w)
}

/// [`split`] of 32 values that share one of two shifts, from sums up to each boundary.
pub(super) fn split32(
    order: &[usize],
    values: &[f32],
    weights: &[f32],
) -> Option<(usize, usize, usize, f32)> {
    let (x, w) = running(order, values, weights, |_| true);
    split(32, 2, |shift, first, second| {
        let [a, b, c] = SHIFTS[shift];
        (
            x[first] * a + (x[second] - x[first]) * b + (x[32] - x[second]) * c,
            w[first] * a * a + (w[second] - w[first]) * b * b + (w[32] - w[second]) * c * c,
        )
    })
}

/// [`split`] of 16 values whose halves each have one of two shifts. All values of a half are taken
/// for the highest level first; then each boundary takes away what lies below it.
pub(super) fn split16(
    order: &[usize],
    values: &[f32],
    weights: &[f32],
) -> Option<(usize, usize, usize, f32)> {
    let halves = [0, 1].map(|half| running(order, values, weights, |i| i / 8 == half));
    split(16, 4, |shifts, first, second| {
        let [a, b] = [(0, shifts >> 1), (1, shifts & 1)].map(|(half, shift)| {
            let ((x, w), [a, b, c]) = (&halves[half], SHIFTS[shift]);
            (
                x[16] * c - (x[first] + x[second]),
                w[16] * c * c + w[first] * (a * a - b * b) + w[second] * (b * b - c * c),
            )
        });
        (a.0 + b.0, a.1 + b.1)
    })
}

/// The index of the nearest level of IQ4, by ggml's binary search.
pub(super) fn nearest_level(x: f32) -> usize {
    let levels = &grids::IQ4;
    if x <= levels[0] {
        return 0;
    }
    if x >= levels[15] {
        return 15;
    }
    let (mut low, mut high) = (0, 15);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if x < levels[middle] {
            high = middle;
        } else {
            low = middle;
        }
    }
    if x - levels[high - 1] < levels[high] - x {
        high - 1
    } else {
        high
    }
}

/// The scale of 32 values for the levels of IQ4.
pub(super) fn iq4_scale(values: &[f32], weights: &[f32]) -> f32 {
    let max = super::search::furthest(values);
    if max.abs() < 1e-15 {
        return 0.0;
    }
    let (mut scale, mut score) = (0.0, 0.0);
    for off in [None].into_iter().chain((-7..=7).map(Some)) {
        let inverse = off.map_or(1.0 / (-max / -127.0), |off| (off - 127) as f32 / max);
        let (mut product, mut square) = (0.0, 0.0);
        for (x, w) in values.iter().zip(weights) {
            let q = grids::IQ4[nearest_level(inverse * x)];
            product += w * q * x;
            square += w * q * q;
        }
        if off.is_none() {
            scale = if square > 0.0 { product / square } else { 0.0 };
        } else if square > 0.0 && product * product > score * square {
            scale = product / square;
        } else {
            continue;
        }
        score = scale * product;
    }
    scale
}
