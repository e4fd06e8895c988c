//! The search for the scales of blocks under which errors cost least.
//!
//! As for integers, the best scale of given codes is a quotient of two sums, so a candidate is only
//! a scale by which codes are found, and what is carried on is one more value of the sums.

use super::{CHUNK, CodebookEncoder, absmax, decoded, ranks_of_chunk};
use crate::lethe::kernels::activations::{Activations, Cost, SearchedGroup, sum_of};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{InMemory, Level, Ranks, Routine, copy, from_fn, perform, zip};

/// Candidates for a scale, as a part of the largest magnitude. Above 1.2 that magnitude meets the last
/// level but one, which of NF4 is 0.72.
const FACTORS: [f32; 14] =
    [0.45, 0.55, 0.64, 0.72, 0.79, 0.85, 0.91, 0.97, 1.03, 1.1, 1.2, 1.28, 1.36, 1.43];

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

/// What the codes of a block under one scale say: the cost of errors, and weighted sums of the
/// products of levels with their values and of the squares of levels.
#[derive(Clone, Copy)]
struct Sums {
    cost: Cost,
    product: f32,
    square: f32,
}

impl SearchBlocks<'_> {
    #[inline(always)]
    fn search_blocks(&mut self, ranks: impl Ranks) {
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
            let [mean_value, _] = group.sums_of_means();
            let (mut best, mut least, mut fitted) = (0.0, f32::INFINITY, largest);
            // Candidates for codes, then the library's scale and two fits: one place in the code that
            // sums, for all of it is inlined.
            for i in 0..FACTORS.len() + 3 {
                let scale = match FACTORS.get(i) {
                    Some(factor) => largest * factor,
                    None if i == FACTORS.len() => largest,
                    None => fitted,
                };
                let Sums { cost, product, square } =
                    sums(self.encoder, ranks, &group, mean_value, scale);
                let explained = product * product / square;
                if i < FACTORS.len() {
                    if product > 0.0 && explained > best {
                        (best, fitted) = (explained, product / square);
                    }
                    continue;
                }
                if cost.total < least {
                    (least, carried, *found) = (cost.total, cost.carried, scale);
                }
                if i > FACTORS.len() {
                    fitted = product / square;
                }
            }
        }
    }
}

#[inline(always)]
fn sums(
    encoder: &CodebookEncoder,
    ranks: impl Ranks,
    group: &SearchedGroup<'_>,
    mean_value: f32,
    scale: f32,
) -> Sums {
    let mut lanes = [[0.0; LANES]; 4];
    let (chunks, rest) = group.values.as_chunks::<CHUNK>();
    let (variances, rest_variances) = group.variances.as_chunks::<CHUNK>();
    let (means, rest_means) = group.means.as_chunks::<CHUNK>();
    for (values, statistics) in zip(chunks.iter(), zip(variances.iter(), means)) {
        add(&mut lanes, encoder, ranks, values, statistics, scale);
    }
    if !rest.is_empty() {
        let mut last = [[0.0; CHUNK]; 3];
        for (lanes, rest) in zip(&mut last[..], &[rest, rest_variances, rest_means]) {
            copy(rest, &mut lanes[..rest.len()]);
        }
        add(&mut lanes, encoder, ranks, &last[0], (&last[1], &last[2]), scale);
    }
    let [squares, product, square, mean_level] = from_fn(|i| sum_of(&lanes[i]));
    Sums {
        cost: Cost::of([squares, mean_level * scale - mean_value], group.carried),
        product: product + mean_level * (mean_value - group.carried),
        square: square + mean_level * mean_level,
    }
}

/// Adds what a chunk of values says to the `lanes` of each sum.
#[inline(always)]
fn add(
    lanes: &mut [[f32; LANES]; 4],
    encoder: &CodebookEncoder,
    ranks: impl Ranks,
    values: &[f32; CHUNK],
    (variances, means): (&[f32; CHUNK], &[f32; CHUNK]),
    scale: f32,
) {
    let factor = 1.0 / scale;
    let found = ranks_of_chunk(values, encoder, ranks, |x| x * factor);
    let levels = decoded(&found, encoder, ranks, 1.0);
    for first in [0, LANES] {
        for i in 0..LANES {
            let (level, x) = (levels[first + i], values[first + i]);
            let (variance, error) = (variances[first + i], level * scale - x);
            let weighted = variance * level;
            lanes[0][i] += variance * error * error;
            lanes[1][i] += weighted * x;
            lanes[2][i] += weighted * level;
            lanes[3][i] += means[first + i] * level;
        }
    }
}

/// Sums that are taken side by side: with as many for each value of a chunk, they would not stay in
/// registers.
const LANES: usize = CHUNK / 2;
