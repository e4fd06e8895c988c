//! Trellis types of ik_llama.cpp: a stored number seeds a generator of pseudo-random numbers, whose
//! next four or eight outputs are the values. No codebook is stored anywhere.
//!
//! As ik_llama.cpp's `QuantizerIQKT::set_values`. Step `k` multiplies by the factor, modulo 2³², so
//! that it is one product of the seed with a power of the factor: values of a group do not wait for
//! each other.

use super::DecodeRowBlock;
use super::codebooks::IQ4;
use crate::remember::kernels::ggml::{u16_at, u32_at};
use crate::simd::zip;

pub(in super::super) struct IQ1_KT;
pub(in super::super) struct IQ2_KT;
pub(in super::super) struct IQ3_KT;
pub(in super::super) struct IQ4_KT;

/// Powers 1 to 8 of the generator's factor.
const POWERS: [u32; 8] = {
    let mut powers = [0xcbac_1fed_u32; 8];
    let mut k = 1;
    while k < 8 {
        powers[k] = powers[k - 1].wrapping_mul(powers[0]);
        k += 1;
    }
    powers
};

/// Added to an index, so that none has a seed of zero.
const FIRST_SEED: u32 = 4096;

/// Decodes the values of `GROUP` that each seed makes, without a scale: the sum of the low six bits
/// of the output's four bytes, less 126.
#[inline(always)]
fn generate<const GROUP: usize>(seeds: &[u32], out: &mut [f32; 256]) {
    for (out, &seed) in zip(out.as_chunks_mut::<GROUP>().0, seeds) {
        for (out, power) in zip(&mut out[..], POWERS) {
            let bytes = seed.wrapping_mul(power) & 0x3f3f_3f3f;
            // Sums of two bytes fit in eight bits, and so does the sum of all four.
            let pairs = bytes + (bytes >> 16);
            let sum = (pairs + (pairs >> 8)) & 0xff;
            *out = (sum as i32 - 126) as f32;
        }
    }
}

/// Multiplies the values of each run by its scale.
#[inline(always)]
fn scale_runs(out: &mut [f32; 256], scale: impl Fn(usize) -> f32) {
    for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let dl = scale(n);
        out.iter_mut().for_each(|out| *out *= dl);
    }
}

/// The nibble of run `n` in the four bytes at the beginning of a block: low nibbles are those of
/// the first four runs.
#[inline(always)]
fn nibble_of_run(block: &[u8], n: usize) -> u8 {
    block[n % 4] >> (4 * (n / 4)) & 15
}

/// `scales[8] | low bytes[32] | high nibbles[16]`: of the byte of each run, the low nibble picks a
/// scale from the codebook of IQ4_NL, and the high nibble is bit 12 of its four indices, of eight
/// values each. The high nibbles of the first four runs are low nibbles.
impl DecodeRowBlock<56, 256> for IQ1_KT {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 56], out: &mut [f32; 256]) {
        let mut seeds = [0; 32];
        for (i, seed) in seeds.iter_mut().enumerate() {
            let high = u32::from(block[40 + i % 16] >> (4 * (i / 16)) & 15) << 8;
            let top = u32::from(block[i / 4] >> (4 + i % 4) & 1) << 12;
            *seed = FIRST_SEED + (u32::from(block[8 + i]) | high | top);
        }
        generate::<8>(&seeds, out);
        scale_runs(out, |n| d * IQ4[0][usize::from(block[n] & 15)]);
    }
}

/// `scales[4] | indices[32]` of 16 bits, one for eight values. The nibble of each run picks a scale
/// from the codebook of IQ4_NL.
impl DecodeRowBlock<68, 256> for IQ2_KT {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 68], out: &mut [f32; 256]) {
        generate::<8>(&seeds_of_words(&block[4..68]), out);
        scale_runs(out, |n| d * IQ4[0][usize::from(nibble_of_run(block, n))]);
    }
}

/// The seeds of 32 indices of 16 bits.
#[inline(always)]
fn seeds_of_words(words: &[u8]) -> [u32; 32] {
    let mut seeds = [0; 32];
    for (i, seed) in seeds.iter_mut().enumerate() {
        *seed = FIRST_SEED + u32::from(u16_at(words, 2 * i));
    }
    seeds
}

/// `scales[4] | indices[32] | signs[32]`: indices as IQ2_KT. The nibble of each run is its scale.
/// Values are magnitudes, and bit `n` of byte `l` of the signs is set where value `l` of run `n` is
/// negated.
impl DecodeRowBlock<100, 256> for IQ3_KT {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 100], out: &mut [f32; 256]) {
        generate::<8>(&seeds_of_words(&block[4..68]), out);
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let dl = d * f32::from(nibble_of_run(block, n));
            for (out, &signs) in zip(&mut out[..], &block[68..100]) {
                let magnitude = dl * out.abs();
                // Not a product with -1: the library negates, which a NaN shows.
                *out = f32::from_bits(magnitude.to_bits() ^ u32::from(signs >> n & 1) << 31);
            }
        }
    }
}

/// `words[8] | low bytes[64] | high nibbles[32]`: of the word of each run, the lowest bit chooses
/// between two ranges of seeds, the next seven, less 64, are the scale, and the rest are bits 12 to
/// 14 of its eight indices, of four values each. The high nibbles of the first four runs are low
/// nibbles.
impl DecodeRowBlock<128, 256> for IQ4_KT {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 128], out: &mut [f32; 256]) {
        let mut seeds = [0; 64];
        for (i, seed) in seeds.iter_mut().enumerate() {
            let word = u32_at(block, i / 8 * 4);
            let high = u32::from(block[96 + i % 32] >> (4 * (i / 32)) & 15) << 8;
            let top = (word >> (8 + 3 * (i % 8)) & 7) << 12;
            let range = (word & 1) << 15;
            *seed = FIRST_SEED + range + (u32::from(block[32 + i]) | high | top);
        }
        generate::<4>(&seeds, out);
        scale_runs(out, |n| d * (i32::from(block[4 * n] >> 1) - 64) as f32);
    }
}
