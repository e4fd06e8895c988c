//! The grids of the IQ types as encoders see them: codes are either a point of the grid, or have a
//! list of the points around them, of which the one with the least weighted error replaces them.
//!
//! Lists are sorted as ggml's are, by distance from the codes and then by index, because of equal
//! errors the first wins.
//!
//! Algorithms: ggml `ggml-quants.c`, `iq2xs_init_impl`, `iq3xs_init_impl`,
//! `iq2_find_best_neighbour`, `iq3_find_best_neighbour`, `iq1_find_best_neighbour2`.

use std::sync::OnceLock;

use crate::remember::kernels::ggml::grids;
use crate::simd::{CODES_PER_SUM, LookUp, PackedCodes, copy, zip};

/// Where the neighbours of codes are.
#[derive(Clone, Copy, Default)]
struct NeighbourList {
    /// The first chunk of neighbours; for codes that are a point, its index in the grid.
    start: u32,
    /// The number of neighbours, which is 0 for codes that are a point.
    len: u32,
}

/// A grid whose points are `N` codes. Packed, codes have `BITS` bits each, the first lowest.
pub(super) struct IqGrid<const N: usize, const BITS: usize> {
    /// Indexed by packed codes.
    lists: Vec<NeighbourList>,
    /// Packed points. The last chunk of a list is filled with its last point, which changes
    /// nothing: of equal errors the first wins.
    neighbours: Vec<[u16; CODES_PER_SUM]>,
    /// The point with index 0.
    first: u16,
}

/// Code `i` of packed codes.
#[inline(always)]
pub(super) fn code<const BITS: usize>(packed: u16, i: usize) -> i32 {
    i32::from(packed) >> (BITS * i) & ((1 << BITS) - 1)
}

/// What codes stand for before they are scaled: `low + step * code`.
#[derive(Clone, Copy)]
pub(super) struct GridLevels {
    pub(super) low: f32,
    pub(super) step: f32,
}

impl GridLevels {
    /// The odd numbers, the magnitudes of IQ2 and IQ3.
    pub(super) const ODD: Self = Self { low: 1.0, step: 2.0 };

    /// The level of a code. Exact, for all are multiples of an eighth and small.
    #[inline(always)]
    pub(super) fn of(self, code: i32) -> f32 {
        self.step * code as f32 + self.low
    }
}

impl<const N: usize, const BITS: usize> IqGrid<N, BITS> {
    /// A grid from its packed points. A list of neighbours has the points at the `rings` smallest
    /// distances that occur.
    fn new(points: impl Iterator<Item = u16>, rings: usize) -> Self {
        let points: Vec<u16> = points.collect();
        let codes_of = |packed: u16| (0..N).map(move |i| code::<BITS>(packed, i));
        let top = points.iter().copied().flat_map(codes_of).max().unwrap_or(0);
        let mut grid = Self {
            lists: vec![NeighbourList::default(); 1 << (N * BITS)],
            neighbours: Vec::new(),
            first: points.first().copied().unwrap_or(0),
        };
        // While lists are made, an entry does not tell a point from codes without a list: neither
        // has neighbours.
        let mut on_grid = vec![false; grid.lists.len()];
        for (index, &point) in points.iter().enumerate() {
            grid.lists[usize::from(point)].start = index as u32;
            on_grid[usize::from(point)] = true;
        }
        let half = BITS * N / 2;
        let [low, high] = [0, half].map(|shift| near_half::<N, BITS>(&points, shift, top as usize));
        let mut list = Vec::new();
        for (packed, list_of) in grid.lists.iter_mut().enumerate() {
            // Codes above the top are never looked up, so they need no list.
            if on_grid[packed] || codes_of(packed as u16).any(|code| code > top) {
                continue;
            }
            list.clear();
            let (low, high) = (&low[packed & ((1 << half) - 1)], &high[packed >> half]);
            // Rings of points at one distance, in the order of ggml's sorted list; within a ring
            // by index.
            let mut left = rings;
            for distance in 1..low.len() + high.len() - 1 {
                let before = list.len();
                for word in 0..points.len().div_ceil(64) {
                    let mut ring = 0;
                    let first = (distance + 1).saturating_sub(high.len());
                    for in_low in first..low.len().min(distance + 1) {
                        ring |= low[in_low][word] & high[distance - in_low][word];
                    }
                    while ring != 0 {
                        list.push(points[64 * word + ring.trailing_zeros() as usize]);
                        ring &= ring - 1;
                    }
                }
                left -= usize::from(list.len() > before);
                if left == 0 {
                    break;
                }
            }
            list_of.start = grid.neighbours.len() as u32;
            for chunk in list.chunks(CODES_PER_SUM) {
                let mut lanes = [chunk[chunk.len() - 1]; CODES_PER_SUM];
                copy(chunk, &mut lanes[..chunk.len()]);
                grid.neighbours.push(lanes);
            }
            list_of.len = list.len() as u32;
        }
        grid
    }

    /// The index of a point. Other codes have none, and something else is returned.
    #[inline(always)]
    pub(super) fn index(&self, point: u16) -> usize {
        self.lists[usize::from(point)].start as usize
    }

    /// The point with index 0.
    #[inline(always)]
    pub(super) fn first(&self) -> u16 {
        self.first
    }

    /// Whether packed codes are a point of the grid.
    #[inline(always)]
    pub(super) fn has(&self, packed: u16) -> bool {
        self.lists[usize::from(packed)].len == 0
    }

    /// `packed` if it is a point, else the neighbour with the least Σw(scale * level - x)², the
    /// first of several.
    #[inline(always)]
    pub(super) fn nearest(
        &self,
        packed: u16,
        values: &[f32; N],
        weights: &[f32; N],
        scale: f32,
        levels: GridLevels,
        look_up: impl LookUp,
    ) -> u16 {
        let list_of = self.lists[usize::from(packed)];
        let len = list_of.len as usize;
        if len == 0 {
            return packed;
        }
        let neighbours = PackedCodes {
            chunks: &self.neighbours[list_of.start as usize..][..len.div_ceil(CODES_PER_SUM)],
            len,
        };
        // A value has few levels and a list hundreds of points, so each term of the sums is
        // computed once and looked up. Of two bits, each code has two entries, for an index has
        // three bits: the third is of the next code.
        let (mut scaled, mut terms) = ([0.0; 8], [[0.0; 8]; N]);
        for (c, scaled) in scaled.iter_mut().enumerate() {
            *scaled = scale * levels.of(c as i32 & ((1 << BITS) - 1));
        }
        for ((terms, &x), &w) in zip(zip(&mut terms[..], values), weights) {
            for (term, scaled) in zip(&mut terms[..], scaled) {
                let difference = scaled - x;
                *term = w * difference * difference;
            }
        }
        look_up.first_least::<BITS, N>(&terms, neighbours)
    }
}

/// The packed codes of an entry of a decoder's grid. The high bits of a byte, from `shift` on, are
/// its code.
fn pack<const N: usize, const BITS: usize>(entry: u64, shift: usize) -> u16 {
    (0..N).fold(0, |packed, i| packed | ((entry >> (8 * i) & 0xff) as u16 >> shift) << (BITS * i))
}

/// Which points are how far from codes in one half of them: indexed by the half's packed codes and
/// the distance, a bit for each point. So the points at a distance from all codes are found without
/// a look at each point. Halves with codes above the top have no entry.
fn near_half<const N: usize, const BITS: usize>(
    points: &[u16],
    shift: usize,
    top: usize,
) -> Vec<Vec<Vec<u64>>> {
    let of_each = |packed| {
        if (0..N / 2).any(|i| code::<BITS>(packed, i) as usize > top) {
            return Vec::new();
        }
        let mut at = vec![vec![0; points.len().div_ceil(64)]; N / 2 * top * top + 1];
        for (index, &point) in points.iter().enumerate() {
            let difference = |i| code::<BITS>(packed, i) - code::<BITS>(point >> shift, i);
            let distance = (0..N / 2)
                .map(|i| difference(i) * difference(i))
                .sum::<i32>();
            at[distance as usize][index / 64] |= 1 << (index % 64);
        }
        at
    };
    (0..1 << (BITS * N / 2)).map(of_each).collect()
}

/// Defines for each type a function that returns its grid, which is made at the first call from the
/// decoder's: the number of codes and their bits, by how much the decoder's bytes are shifted to
/// become codes, and the rings of its lists.
macro_rules! lazy_grids {
    ($($name:ident: $n:literal codes of $bits:literal bits from $grid:ident >> $shift:literal, $rings:literal rings;)*) => {
        $(pub(super) fn $name() -> &'static IqGrid<$n, $bits> {
            static GRID: OnceLock<IqGrid<$n, $bits>> = OnceLock::new();
            GRID.get_or_init(|| IqGrid::new(grids::$grid.iter().map(|&entry| pack::<$n, $bits>(entry, $shift)), $rings))
        })*
    };
}

lazy_grids! {
    iq1: 8 codes of 2 bits from IQ1 >> 3, 3 rings;
    iq2_xxs: 8 codes of 2 bits from IQ2_XXS >> 4, 2 rings;
    iq2_xs: 8 codes of 2 bits from IQ2_XS >> 4, 2 rings;
    iq2_s: 8 codes of 2 bits from IQ2_S >> 4, 1 rings;
    iq3_xxs: 4 codes of 3 bits from IQ3_XXS >> 3, 2 rings;
    iq3_s: 4 codes of 3 bits from IQ3_S >> 1, 3 rings;
}
