//! What is searched side by side, against one candidate after the other as ggml has it; and lists of neighbours against
//! the whole grid sorted by distance.

use super::super::grid_fit::{Again, Search};
use super::super::neighbours::{self, Levels};
use super::super::{iq1, iq4};
use super::{Random, encoded};
use crate::Dtype;
use crate::kernels::remember::ggml::grids;
use crate::simd::Level;

/// The points of a decoder's grid: the rank of each byte among those that there are.
fn points<const N: usize>(grid: &[u64]) -> Vec<[i32; N]> {
    let bytes: Vec<[u8; N]> = grid
        .iter()
        .map(|entry| std::array::from_fn(|i| entry.to_le_bytes()[i]))
        .collect();
    let mut levels = bytes.concat();
    levels.sort_unstable();
    levels.dedup();
    bytes
        .iter()
        .map(|bytes| bytes.map(|byte| levels.binary_search(&byte).unwrap() as i32))
        .collect()
}

/// The nearest point as ggml finds it: of all points sorted by distance, then index, those at the first few distances.
fn nearest<const N: usize>(
    points: &[[i32; N]],
    codes: [i32; N],
    rings: usize,
    values: &[f32],
    weights: &[f32],
    scale: f32,
    level: fn(i32) -> f32,
) -> [i32; N] {
    if points.contains(&codes) {
        return codes;
    }
    let distance = |point: &[i32; N]| {
        codes
            .iter()
            .zip(point)
            .map(|(a, b)| (a - b).pow(2))
            .sum::<i32>()
    };
    let mut sorted: Vec<_> = points
        .iter()
        .map(|point| (distance(point), point))
        .collect();
    sorted.sort_by_key(|&(distance, _)| distance);
    let mut distances: Vec<i32> = sorted.iter().map(|&(distance, _)| distance).collect();
    distances.dedup();
    let (mut least, mut best) = (f32::MAX, None);
    for (_, point) in sorted
        .into_iter()
        .filter(|&(distance, _)| distance <= distances[rings - 1])
    {
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

fn unpack<const N: usize>(packed: u16, bits: usize) -> [i32; N] {
    std::array::from_fn(|i| i32::from(packed) >> (bits * i) & ((1 << bits) - 1))
}

fn odd(code: i32) -> f32 {
    (2 * code + 1) as f32
}

/// A search as ggml does it, one try after the other.
struct Twin<'a, const N: usize> {
    points: &'a [[i32; N]],
    rings: usize,
    top: i32,
    tries: i32,
    step: f32,
    again: Again,
}

impl<const N: usize> Twin<'_, N> {
    /// Points for each `N` values, and whether they are what the values are rounded to.
    fn place(
        &self,
        values: &[f32],
        roots: &[f32],
        inverse: f32,
        scale: f32,
    ) -> Vec<([i32; N], bool)> {
        let groups = values.chunks(N).zip(roots.chunks(N));
        let place = |(values, roots): (&[f32], &[f32])| {
            let code = |i: usize| {
                (0.5 * (inverse * values[i] - 1.0))
                    .round_ties_even()
                    .clamp(0.0, self.top as f32)
            };
            let codes = std::array::from_fn(|i| code(i) as i32);
            let point = nearest(self.points, codes, self.rings, values, roots, scale, odd);
            (point, point == codes)
        };
        groups.map(place).collect()
    }

    fn sums(values: &[f32], weights: &[f32], points: &[([i32; N], bool)]) -> (f32, f32) {
        let levels = points
            .iter()
            .flat_map(|(point, _)| point)
            .map(|&code| odd(code));
        levels
            .zip(values.iter().zip(weights))
            .fold((0.0, 0.0), |(product, square), (q, (&x, &w))| {
                (product + w * x * q, square + w * q * q)
            })
    }

    fn fit(&self, values: &[f32], weights: &[f32], max: f32, start: f32) -> (f32, Vec<[i32; N]>) {
        let roots: Vec<f32> = weights.iter().map(|w| w.sqrt()).collect();
        let (mut scale, mut score) = (start, 0.0);
        let mut best = vec![([0; N], self.again == Again::Off); values.len() / N];
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
                if self.again != Again::Off || !best.1 {
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

macro_rules! twins {
    ($($test:ident: $n:literal $k:literal $bits:literal $lanes:literal $grid:ident $lazy:ident $rings:literal $top:literal
       $tries:literal $step:literal $again:ident;)*) => {
        $(#[test]
        fn $test() {
            let points = points::<$n>(&grids::$grid);
            let again = Again::$again;
            let twin = Twin { points: &points, rings: $rings, top: $top, tries: $tries, step: $step, again };
            let grid = neighbours::$lazy();
            let search = Search::<$n, $k, $bits, $lanes> { grid, top: $top, tries: $tries, step: $step, again };
            let mut random = Random(11);
            for round in 0..40 {
                let mut values = [[0.0; $n]; $k];
                let mut weights = [[0.0; $n]; $k];
                for (values, weights) in values.iter_mut().zip(&mut weights) {
                    *values = random.array::<$n>(0.1).map(|x: f32| if round % 4 == 3 { x } else { x.abs() });
                    *weights = random.array::<$n>(1.0).map(|x: f32| if round % 8 == 5 { 0.0 } else { x * x });
                }
                let max = values.as_flattened().iter().fold(0.0f32, |max, &x| max.max(x));
                let start = max / (2 * $top + 1) as f32;
                let fit = search.fit(&values, &weights, max, start);
                let (scale, expected) = twin.fit(values.as_flattened(), weights.as_flattened(), max, start);
                assert_eq!(fit.scale.to_bits(), scale.to_bits(), "round {round}");
                assert_eq!(fit.points.map(|point| unpack::<$n>(point, $bits)).to_vec(), expected, "round {round}");
            }
        })*
    };
}

twins! {
    iq2_xxs_twin: 8 4 2 16 IQ2_XXS iq2_xxs 2 2 13 0.1 All;
    iq2_xs_twin: 8 2 2 24 IQ2_XS iq2_xs 2 2 19 0.1 Off;
    iq2_s_twin: 8 2 2 24 IQ2_S iq2_s 1 2 19 0.1 Off;
    iq3_xxs_twin: 4 8 3 32 IQ3_XXS iq3_xxs 2 7 31 0.2 Off;
    iq3_s_twin: 4 8 3 32 IQ3_S iq3_s 3 7 19 0.2 AllIfAny;
}

#[test]
fn iq1_twin() {
    let (points, grid) = (points::<8>(&grids::IQ1), neighbours::iq1());
    let mut random = Random(5);
    for round in 0..400 {
        let (values, weights) = (
            random.array::<8>(1.0),
            random.array::<8>(1.0).map(|x: f32| x * x),
        );
        let packed = (0..8).fold(0, |packed, i| {
            packed | ((random.next() * 3.0) as u16).min(2) << (2 * i)
        });
        let scale = random.next();
        let expected = nearest(
            &points,
            unpack(packed, 2),
            3,
            &values,
            &weights,
            scale,
            |code| code as f32 - 0.875,
        );
        let point = grid.nearest(
            packed,
            &values,
            &weights,
            scale,
            Levels {
                low: -0.875,
                step: 1.0,
            },
        );
        assert_eq!(unpack::<8>(point, 2), expected, "round {round}");
        assert_eq!(points[grid.index(point)], expected);
    }
}

/// Products and squares of the three groups of sorted values, of which all have the same shift.
fn three_groups(x: &[f32], w: &[f32], levels: [f32; 3], first: usize, second: usize) -> (f32, f32) {
    let [a, b, c] = levels;
    let (last_x, last_w) = (x[x.len() - 1], w[w.len() - 1]);
    (
        x[first] * a + (x[second] - x[first]) * b + (last_x - x[second]) * c,
        w[first] * a * a + (w[second] - w[first]) * b * b + (last_w - w[second]) * c * c,
    )
}

/// The same for one half of the sorted values; a half's sums are made of what the boundaries take away from it.
fn two_boundaries(
    x: &[f32],
    w: &[f32],
    levels: [f32; 3],
    first: usize,
    second: usize,
) -> (f32, f32) {
    let [a, b, c] = levels;
    let (last_x, last_w) = (x[x.len() - 1], w[w.len() - 1]);
    (
        last_x * c - (x[first] + x[second]),
        last_w * c * c + w[first] * (a * a - b * b) + w[second] * (b * b - c * c),
    )
}

const SHIFTS: [[f32; 3]; 2] = [[-0.875, 0.125, 1.125], [-1.125, -0.125, 0.875]];

/// Sums of `w * x` and `w` up to each boundary, of those sorted values that `which` takes.
fn running(
    order: &[usize],
    values: &[f32],
    weights: &[f32],
    which: impl Fn(usize) -> bool,
) -> (Vec<f32>, Vec<f32>) {
    let (mut x, mut w) = (vec![0.0], vec![0.0]);
    for (j, &i) in order.iter().enumerate() {
        x.push(if which(i) {
            x[j] + weights[i] * values[i]
        } else {
            x[j]
        });
        w.push(if which(i) { w[j] + weights[i] } else { w[j] });
    }
    (x, w)
}

/// The best of all pairs of boundaries and shifts, in ggml's order.
fn split(
    n: usize,
    shifts: usize,
    sums: impl Fn(usize, usize, usize) -> (f32, f32),
) -> (usize, usize, usize, u32) {
    let (mut score, mut best) = (-f32::MAX, (0, 0, 0, 0));
    for first in 0..=n {
        for second in first..=n {
            for shift in 0..shifts {
                let (product, square) = sums(shift, first, second);
                if square > 0.0 && product * product > score * square {
                    let scale = product / square;
                    score = scale * product;
                    best = (first, second, shift, scale.to_bits());
                }
            }
        }
    }
    best
}

#[test]
fn splits_twin() {
    let mut random = Random(17);
    let found = |split: iq1::Split| {
        (
            split.first,
            split.second,
            split.shift,
            split.scale.to_bits(),
        )
    };
    for round in 0..200 {
        let (mut values, weights) = (
            random.array::<32>(1.0),
            random.array::<32>(1.0).map(|x: f32| x * x),
        );
        if round % 3 == 0 {
            values = values.map(|x| x.round() - 0.5);
        }
        let order = iq1::order(&values);
        let (x, w) = running(&order, &values, &weights, |_| true);
        let twin = split(32, 2, |shift, first, second| {
            three_groups(&x, &w, SHIFTS[shift], first, second)
        });
        assert_eq!(
            iq1::split32(&order, &values, &weights).map(found),
            Some(twin),
            "round {round}"
        );

        let (values, weights) = (
            values.as_chunks::<16>().0[0],
            weights.as_chunks::<16>().0[0],
        );
        let order = iq1::order(&values);
        let halves = [0, 1].map(|half| running(&order, &values, &weights, |i| i / 8 == half));
        let twin = split(16, 4, |shifts, first, second| {
            let [a, b] = [(0, shifts >> 1), (1, shifts & 1)].map(|(half, shift)| {
                two_boundaries(
                    &halves[half].0,
                    &halves[half].1,
                    SHIFTS[shift],
                    first,
                    second,
                )
            });
            (a.0 + b.0, a.1 + b.1)
        });
        assert_eq!(
            iq1::split16(&order, &values, &weights).map(found),
            Some(twin),
            "round {round}"
        );
    }
}

#[test]
fn order_is_stable() {
    let mut random = Random(9);
    for distinct in [1, 2, 5, 1000] {
        let values = random
            .array::<32>(1.0)
            .map(|x: f32| (x * distinct as f32 / 4.0).round());
        let mut expected: Vec<usize> = (0..32).collect();
        expected.sort_by(|&a, &b| values[a].partial_cmp(&values[b]).unwrap());
        assert_eq!(iq1::order(&values).to_vec(), expected);
    }
}

/// ggml's binary search for a level.
fn nearest_level(x: f32) -> usize {
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
            high = middle
        } else {
            low = middle
        }
    }
    if x - levels[high - 1] < levels[high] - x {
        high - 1
    } else {
        high
    }
}

#[test]
fn iq4_levels() {
    let check = |x: f32| {
        let (index, level) = iq4::both(x);
        assert_eq!(
            (usize::from(index), level),
            (nearest_level(x), grids::IQ4[nearest_level(x)]),
            "{x:e}"
        );
    };
    // Around each half and whole number, and everywhere.
    for halves in -300..=300 {
        let bits = (halves as f32 / 2.0).to_bits();
        (0..=2000).for_each(|i| check(f32::from_bits(bits.wrapping_add(i).wrapping_sub(1000))));
    }
    (0..=u32::MAX)
        .step_by(4099)
        .map(f32::from_bits)
        .for_each(check);
}

#[test]
fn iq4_twin() {
    let mut random = Random(13);
    for round in 0..300 {
        let values = random.array::<32>(if round % 2 == 0 { 0.02 } else { 3.0 });
        let weights = values.map(|x| x * x);
        let max = values
            .iter()
            .fold(0.0f32, |max, &x| if x.abs() > max.abs() { x } else { max });
        let (mut scale, mut score) = (0.0, 0.0);
        for off in [i32::MIN, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7] {
            let inverse = if off == i32::MIN {
                1.0 / (-max / -127.0)
            } else {
                (off - 127) as f32 / max
            };
            let (mut product, mut square) = (0.0, 0.0);
            for (x, w) in values.iter().zip(weights) {
                let q = grids::IQ4[nearest_level(inverse * x)];
                product += w * q * x;
                square += w * q * q;
            }
            if off == i32::MIN || product * product > score * square {
                scale = product / square;
                score = scale * product;
            }
        }
        let codes = values.map(|x| nearest_level(1.0 / scale * x) as u8);
        let out = encoded(Dtype::IQ4_NL, &values, 32, None, Level::detect());
        assert_eq!(
            out[..2],
            half::f16::from_f32(scale).to_le_bytes(),
            "round {round}"
        );
        (0..16)
            .for_each(|i| assert_eq!(out[2 + i], codes[i] | codes[16 + i] << 4, "round {round}"));
    }
}
