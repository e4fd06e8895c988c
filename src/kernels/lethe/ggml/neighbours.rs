//! The grids of the IQ types as encoders see them: a block's codes are either a point of the grid, or have a list
//! of the points around them, of which the best replaces them.
//!
//! Algorithms: ggml `ggml-quants.c`, `iq2xs_init_impl`, `iq3xs_init_impl`, `iq2_find_best_neighbour`,
//! `iq3_find_best_neighbour`, `iq1_find_best_neighbour2`.

use std::sync::OnceLock;

use crate::kernels::remember::ggml::grids;

/// Points of a list that are judged side by side.
const LANES: usize = 8;

/// Where codes lead.
#[derive(Clone, Copy, Default)]
struct Place {
    /// The first run of the neighbours, or the index in the grid of codes that have none.
    start: u32,
    /// How many runs.
    runs: u32,
}

/// A grid of points with `N` codes each, of which every one has `BITS` bits in the packed form, the first lowest.
pub(super) struct Grid<const N: usize, const BITS: usize> {
    /// By packed codes.
    places: Vec<Place>,
    /// Packed points, the last of a list as often as it takes to fill a run.
    neighbours: Vec<[u16; LANES]>,
    /// The point with index 0.
    first: u16,
}

/// Codes `i` of packed ones.
#[inline(always)]
pub(super) fn code<const BITS: usize>(packed: u16, i: usize) -> i32 {
    i32::from(packed) >> (BITS * i) & ((1 << BITS) - 1)
}

/// What codes stand for before they are scaled.
#[derive(Clone, Copy)]
pub(super) struct Levels {
    pub(super) low: f32,
    pub(super) step: f32,
}

impl Levels {
    /// The odd numbers.
    pub(super) const ODD: Self = Self {
        low: 1.0,
        step: 2.0,
    };

    /// The level of a code. Exact.
    #[inline(always)]
    pub(super) fn of(self, code: i32) -> f32 {
        self.step * code as f32 + self.low
    }
}

impl<const N: usize, const BITS: usize> Grid<N, BITS> {
    /// The grid, with lists of all points that are as near as the nearest one, or as any of the `rings` nearest
    /// distances.
    fn new(points: impl Iterator<Item = u16>, rings: usize) -> Self {
        let unpack = |packed| std::array::from_fn::<i32, N, _>(|i| code::<BITS>(packed, i));
        let points: Vec<u16> = points.collect();
        let unpacked: Vec<_> = points.iter().map(|&point| unpack(point)).collect();
        let top = unpacked.iter().flatten().copied().max().unwrap_or(0);
        let mut grid = Self {
            places: vec![Place::default(); 1 << (N * BITS)],
            neighbours: Vec::new(),
            first: points.first().copied().unwrap_or(0),
        };
        let mut on_grid = vec![false; grid.places.len()];
        for (index, &point) in points.iter().enumerate() {
            grid.places[usize::from(point)].start = index as u32;
            on_grid[usize::from(point)] = true;
        }
        let (mut distances, mut list) = (vec![0; points.len()], Vec::new());
        for (packed, place) in grid.places.iter_mut().enumerate() {
            let codes = unpack(packed as u16);
            if on_grid[packed] || codes.iter().any(|&code| code > top) {
                continue;
            }
            for (distance, point) in distances.iter_mut().zip(&unpacked) {
                *distance = codes
                    .iter()
                    .zip(point)
                    .map(|(a, b)| (a - b) * (a - b))
                    .sum::<i32>();
            }
            list.clear();
            let mut last = 0;
            for _ in 0..rings {
                let Some(ring) = distances.iter().copied().filter(|&d| d > last).min() else {
                    break;
                };
                list.extend(
                    points
                        .iter()
                        .zip(&distances)
                        .filter(|&(_, &d)| d == ring)
                        .map(|(&point, _)| point),
                );
                last = ring;
            }
            place.start = grid.neighbours.len() as u32;
            for run in list.chunks(LANES) {
                let mut lanes = [run[run.len() - 1]; LANES];
                lanes[..run.len()].copy_from_slice(run);
                grid.neighbours.push(lanes);
            }
            place.runs = grid.neighbours.len() as u32 - place.start;
        }
        grid
    }

    /// The index of a point.
    #[inline(always)]
    pub(super) fn index(&self, point: u16) -> usize {
        self.places[usize::from(point)].start as usize
    }

    /// The point with index 0.
    #[inline(always)]
    pub(super) fn first(&self) -> u16 {
        self.first
    }

    /// Whether codes are a point of the grid.
    #[inline(always)]
    pub(super) fn has(&self, packed: u16) -> bool {
        self.places[usize::from(packed)].runs == 0
    }

    /// The codes, if the grid has them, or the neighbour with the smallest weighted square of the difference to the
    /// values, and the first such.
    #[inline(always)]
    pub(super) fn nearest(
        &self,
        packed: u16,
        values: &[f32; N],
        weights: &[f32; N],
        scale: f32,
        levels: Levels,
    ) -> u16 {
        let place = self.places[usize::from(packed)];
        if place.runs == 0 {
            return packed;
        }
        let runs = &self.neighbours[place.start as usize..][..place.runs as usize];
        // Of each lane: the least sum, and in which run it is. As a float, that both are chosen alike.
        let (mut least, mut at) = ([f32::MAX; LANES], [0.0; LANES]);
        for (r, run) in runs.iter().enumerate() {
            let mut sums = [0.0; LANES];
            for i in 0..N {
                for (sum, &point) in sums.iter_mut().zip(run) {
                    let difference = scale * levels.of(code::<BITS>(point, i)) - values[i];
                    *sum += weights[i] * difference * difference;
                }
            }
            for l in 0..LANES {
                let better = sums[l] < least[l];
                least[l] = if better { sums[l] } else { least[l] };
                at[l] = if better { r as f32 } else { at[l] };
            }
        }
        // The first of those that are as near as the nearest.
        let nearest = smallest(least);
        for l in 0..LANES {
            let position = at[l] * LANES as f32 + l as f32;
            at[l] = if least[l] == nearest {
                position
            } else {
                f32::MAX
            };
        }
        let first = smallest(at) as usize;
        runs[first / LANES][first % LANES]
    }
}

/// The smallest of all lanes.
#[inline(always)]
fn smallest(mut lanes: [f32; LANES]) -> f32 {
    for half in [4, 2, 1] {
        for l in 0..half {
            lanes[l] = if lanes[l + half] < lanes[l] {
                lanes[l + half]
            } else {
                lanes[l]
            };
        }
    }
    lanes[0]
}

/// What an entry of a decoder's grid holds, in codes: `shift` makes a code of a byte.
fn pack<const N: usize, const BITS: usize>(entry: u64, shift: usize) -> u16 {
    (0..N).fold(0, |packed, i| {
        packed | ((entry >> (8 * i) & 0xff) as u16 >> shift) << (BITS * i)
    })
}

/// Defines the function that gives a grid: with so many codes of so many bits, from a decoder's grid whose bytes are
/// shifted so far, and lists of so many rings. They are made when they are first asked for.
macro_rules! lazy {
    ($($name:ident: $n:literal codes of $bits:literal bits from $grid:ident >> $shift:literal, $rings:literal rings;)*) => {
        $(pub(super) fn $name() -> &'static Grid<$n, $bits> {
            static GRID: OnceLock<Grid<$n, $bits>> = OnceLock::new();
            GRID.get_or_init(|| Grid::new(grids::$grid.iter().map(|&entry| pack::<$n, $bits>(entry, $shift)), $rings))
        })*
    };
}

lazy! {
    iq1: 8 codes of 2 bits from IQ1 >> 3, 3 rings;
    iq2_xxs: 8 codes of 2 bits from IQ2_XXS >> 4, 2 rings;
    iq2_xs: 8 codes of 2 bits from IQ2_XS >> 4, 2 rings;
    iq2_s: 8 codes of 2 bits from IQ2_S >> 4, 1 rings;
    iq3_xxs: 4 codes of 3 bits from IQ3_XXS >> 3, 2 rings;
    iq3_s: 4 codes of 3 bits from IQ3_S >> 1, 3 rings;
}
