//! The search for the scales of blocks under which the sum of squared errors, each weighted with the
//! importance of its value, is least.
//!
//! As for integers, the best scale of given codes is a quotient of two sums, so a candidate is only
//! a scale by which codes are found.

use super::{CHUNK, CodebookEncoder, absmax, decoded, ranks_of_chunk};
use crate::lethe::kernels::groups::sum_of;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{InMemory, Level, Ranks, Routine, copy, perform, zip};

/// Candidates for a scale, as a part of the largest magnitude.
const FACTORS: [f32; 16] =
    [0.4, 0.46, 0.52, 0.58, 0.64, 0.69, 0.74, 0.78, 0.82, 0.86, 0.9, 0.94, 0.97, 1.0, 1.04, 1.08];

impl CodebookEncoder {
    /// The scales of blocks of `block` values, of which the last may be short, for values of these
    /// `weights`. No block has a larger weighted error than under its largest magnitude.
    pub(super) fn search(
        &self,
        [values, weights]: [&[f32]; 2],
        block: usize,
        level: Level,
        scales: &mut [f32],
    ) {
        perform(level, &mut SearchBlocks { encoder: self, values, weights, block, scales });
    }
}

struct SearchBlocks<'a> {
    encoder: &'a CodebookEncoder,
    values: &'a [f32],
    weights: &'a [f32],
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

/// What the codes of a block under one scale say: weighted sums of the squares of errors, of the
/// products of levels with their values, and of the squares of levels.
#[derive(Clone, Copy)]
struct Sums {
    error: f32,
    product: f32,
    square: f32,
}

impl SearchBlocks<'_> {
    #[inline(always)]
    fn search_blocks(&mut self, ranks: impl Ranks) {
        let blocks = zip(self.values.chunks(self.block), self.weights.chunks(self.block));
        for ((values, weights), found) in zip(blocks, &mut *self.scales) {
            let largest = absmax(values);
            *found = largest;
            if largest == 0.0 {
                continue;
            }
            let (mut best, mut least, mut fitted) = (0.0, f32::INFINITY, largest);
            // Candidates for codes, then the library's scale and three fits: one place in the code that
            // sums, for all of it is inlined.
            for i in 0..FACTORS.len() + 4 {
                let scale = match FACTORS.get(i) {
                    Some(factor) => largest * factor,
                    None if i == FACTORS.len() => largest,
                    None => fitted,
                };
                let Sums { error, product, square } =
                    sums(self.encoder, ranks, values, weights, scale);
                let explained = product * product / square;
                if i < FACTORS.len() {
                    if product > 0.0 && explained > best {
                        (best, fitted) = (explained, product / square);
                    }
                    continue;
                }
                if error < least {
                    (least, *found) = (error, scale);
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
    values: &[f32],
    weights: &[f32],
    scale: f32,
) -> Sums {
    let mut lanes = [[0.0; CHUNK]; 3];
    let (chunks, rest) = values.as_chunks::<CHUNK>();
    let (weight_chunks, rest_weights) = weights.as_chunks::<CHUNK>();
    for (values, weights) in zip(chunks.iter(), weight_chunks) {
        add(&mut lanes, encoder, ranks, (values, weights), scale);
    }
    if !rest.is_empty() {
        let mut last = [[0.0; CHUNK]; 2];
        copy(rest, &mut last[0][..rest.len()]);
        copy(rest_weights, &mut last[1][..rest.len()]);
        add(&mut lanes, encoder, ranks, (&last[0], &last[1]), scale);
    }
    let [error, product, square] = lanes.map(|lanes| sum_of(&lanes));
    Sums { error, product, square }
}

/// Adds what a chunk of values says to the `lanes` of [`Sums`].
#[inline(always)]
fn add(
    lanes: &mut [[f32; CHUNK]; 3],
    encoder: &CodebookEncoder,
    ranks: impl Ranks,
    (values, weights): (&[f32; CHUNK], &[f32; CHUNK]),
    scale: f32,
) {
    let factor = 1.0 / scale;
    let found = ranks_of_chunk(values, encoder, ranks, |x| x * factor);
    let levels = decoded(&found, encoder, ranks, 1.0);
    for i in 0..CHUNK {
        let (level, x) = (levels[i], values[i]);
        let (weighted, difference) = (weights[i] * level, level * scale - x);
        lanes[0][i] += weights[i] * difference * difference;
        lanes[1][i] += weighted * x;
        lanes[2][i] += weighted * level;
    }
}
