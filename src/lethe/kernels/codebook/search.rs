//! The search for the scales of blocks under which errors cost least.
//!
//! As for integers, the best scale of given codes is a quotient of two sums, so a candidate is only
//! a scale by which codes are found, and what is carried on is one more value of the sums.

use super::{CHUNK, CodebookEncoder, absmax, decoded, ranks_of_chunk};
use crate::lethe::kernels::activations::{
    Activations, Cost, SearchedGroup, TRIED, has_means, index_of_largest, sum_of,
};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{InMemory, Level, Ranks, Routine, copy, from_fn, perform, zip};

/// Candidates for a scale, as a part of the largest magnitude. Above 1.2 that magnitude meets the last
/// level but one, which of NF4 is 0.72.
const FACTORS: [f32; TRIED] = [
    0.52, 0.60, 0.68, 0.75, 0.80, 0.85, 0.90, 0.95, 1.00, 1.05, 1.12, 1.20, 1.28, 1.36, 1.43, 1.50,
];

impl CodebookEncoder {
    /// The scales of blocks of `block` values, of which the last may be short. No block's errors
    /// cost more than under its largest magnitude.
    pub(super) fn search(
        &self,
        values: &[f32],
        activations: Activations<'_>,
        block: usize,
        level: Level,
        scales: &mut [f32],
    ) {
        perform(level, &mut SearchBlocks { encoder: self, values, activations, block, scales });
    }
}

struct SearchBlocks<'a> {
    encoder: &'a CodebookEncoder,
    values: &'a [f32],
    activations: Activations<'a>,
    block: usize,
    scales: &'a mut [f32],
}

impl Routine for SearchBlocks<'_> {
    #[inline(always)]
    fn run(&mut self) {
        self.search_blocks(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.search_blocks(avx2);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512(&mut self, avx512: Avx512) {
        self.search_blocks(avx512);
    }
}

impl SearchBlocks<'_> {
    #[inline(always)]
    fn search_blocks(&mut self, ranks: impl Ranks) {
        match has_means(self.activations.means) {
            true => self.search_all::<true>(ranks),
            false => self.search_all::<false>(ranks),
        }
    }

    #[inline(always)]
    fn search_all<const HAS_MEANS: bool>(&mut self, ranks: impl Ranks) {
        let Activations { variances, means, .. } = self.activations;
        let statistics = zip(variances.chunks(self.block), means.chunks(self.block));
        let blocks = zip(zip(self.values.chunks(self.block), statistics), &mut *self.scales);
        let mut carried = 0.0;
        for (i, ((values, (variances, means)), found)) in blocks.enumerate() {
            if self.activations.begins_row(i, self.block) {
                carried = 0.0;
            }
            let largest = absmax(values);
            *found = largest;
            if largest == 0.0 {
                continue;
            }
            let group = SearchedGroup { values, variances, means, carried };
            let candidates = Candidates::<_, HAS_MEANS>::new(self.encoder, ranks, group);
            // The library's scale, so that none costs more, the best candidate, and its fit.
            let (mut least, mut scale) = (f32::INFINITY, largest);
            for i in 0..3 {
                let Sums { cost, product, square } = candidates.sums(scale);
                if cost.total < least {
                    (least, carried, *found) = (cost.total, cost.carried, scale);
                }
                scale = match i {
                    0 => candidates.best_scale(largest),
                    _ => product / square,
                };
            }
        }
    }
}

/// What the codes of a block under one scale say: the cost of errors, and weighted sums of the
/// products of levels with their values and of the squares of levels.
#[derive(Clone, Copy)]
struct Sums {
    cost: Cost,
    product: f32,
    square: f32,
}

/// What codes of the values of a block explain and cost. Without means, a part of the operations is
/// saved.
struct Candidates<'a, R, const HAS_MEANS: bool> {
    encoder: &'a CodebookEncoder,
    ranks: R,
    group: SearchedGroup<'a>,
    /// `Σ μ·x`.
    mean_value: f32,
}

impl<'a, R: Ranks, const HAS_MEANS: bool> Candidates<'a, R, HAS_MEANS> {
    #[inline(always)]
    fn new(encoder: &'a CodebookEncoder, ranks: R, group: SearchedGroup<'a>) -> Self {
        let [mean_value, _] = if HAS_MEANS {
            group.sums_of_means()
        } else {
            [0.0; 2]
        };
        Self { encoder, ranks, group, mean_value }
    }

    /// The scale that fits the codes best which values get by a candidate.
    #[inline(always)]
    fn best_scale(&self, largest: f32) -> f32 {
        let inverses: [f32; TRIED] = from_fn(|i| 1.0 / (largest * FACTORS[i]));
        let [mut products, mut squares, mut of_means] = [[0.0; TRIED]; 3];
        let SearchedGroup { values, variances, means, carried } = self.group;
        for ((&x, &variance), &mean) in zip(zip(values, variances), means) {
            let scaled = from_fn(|i| x * inverses[i]);
            let found = self.ranks.ranks(scaled, &self.encoder.bounds);
            let levels = self.ranks.at_ranks(&self.encoder.levels, found);
            for i in 0..TRIED {
                let weighted = variance * levels[i];
                products[i] += weighted * x;
                squares[i] += weighted * levels[i];
                if HAS_MEANS {
                    of_means[i] += mean * levels[i];
                }
            }
        }
        let mut explained = [0.0; TRIED];
        for i in 0..TRIED {
            products[i] += of_means[i] * (self.mean_value - carried);
            squares[i] += of_means[i] * of_means[i];
            explained[i] = if products[i] > 0.0 {
                products[i] * products[i] / squares[i]
            } else {
                0.0
            };
        }
        let i = index_of_largest(&explained);
        match explained[i] > 0.0 {
            true => products[i] / squares[i],
            false => largest,
        }
    }

    #[inline(always)]
    fn sums(&self, scale: f32) -> Sums {
        let SearchedGroup { values, variances, means, carried } = self.group;
        let (chunks, rest) = values.as_chunks::<CHUNK>();
        let (variances, rest_variances) = variances.as_chunks::<CHUNK>();
        let (means, rest_means) = means.as_chunks::<CHUNK>();
        let mut lanes = [[0.0; LANES]; 4];
        for (values, statistics) in zip(chunks.iter(), zip(variances.iter(), means)) {
            self.add(&mut lanes, values, statistics, scale);
        }
        if !rest.is_empty() {
            let mut last = [[0.0; CHUNK]; 3];
            for (lanes, rest) in zip(&mut last[..], &[rest, rest_variances, rest_means]) {
                copy(rest, &mut lanes[..rest.len()]);
            }
            self.add(&mut lanes, &last[0], (&last[1], &last[2]), scale);
        }
        let [squares, product, square, of_means] = from_fn(|i| sum_of(&lanes[i]));
        Sums {
            cost: Cost::of([squares, of_means * scale - self.mean_value], carried),
            product: product + of_means * (self.mean_value - carried),
            square: square + of_means * of_means,
        }
    }

    /// Adds what a chunk of values says to the `lanes` of each sum.
    #[inline(always)]
    fn add(
        &self,
        lanes: &mut [[f32; LANES]; 4],
        values: &[f32; CHUNK],
        (variances, means): (&[f32; CHUNK], &[f32; CHUNK]),
        scale: f32,
    ) {
        let factor = 1.0 / scale;
        let found = ranks_of_chunk(values, self.encoder, self.ranks, |x| x * factor);
        let levels = decoded(&found, self.encoder, self.ranks, 1.0);
        for first in [0, LANES] {
            for i in 0..LANES {
                let (level, x) = (levels[first + i], values[first + i]);
                let (variance, error) = (variances[first + i], level * scale - x);
                let weighted = variance * level;
                lanes[0][i] += variance * error * error;
                lanes[1][i] += weighted * x;
                lanes[2][i] += weighted * level;
                if HAS_MEANS {
                    lanes[3][i] += means[first + i] * level;
                }
            }
        }
    }
}

/// Sums that are taken side by side: with as many for each value of a chunk, they would not stay in
/// registers.
const LANES: usize = CHUNK / 2;
