//! IQ types: super-blocks of 256 values, of which eight or four at a time are an index into a grid
//! of points ([`grids`](super::grids)). In IQ2 and IQ3 points are magnitudes and signs are stored
//! apart; in IQ1 they are the values themselves, shifted by an eighth. IQ4_NL and IQ4_XS look up
//! single values in a codebook.

use super::grids::{self, IQ4, MASKS, SIGNS};
use super::legacy::nibble_halves;
use super::{DecodeBlock, f16_at, u16_at, u32_at};
use crate::simd::{Flat, zip};

pub(super) struct IQ1_S;
pub(super) struct IQ1_M;
pub(super) struct IQ2_XXS;
pub(super) struct IQ2_XS;
pub(super) struct IQ2_S;
pub(super) struct IQ3_XXS;
pub(super) struct IQ3_S;
pub(super) struct IQ4_NL;
pub(super) struct IQ4_XS;

/// Decodes 256 values: `entry(i)` gives the bytes of the `i`-th eight values, `value` the value of
/// a byte, and `scale(g)` the factor of the `g`-th `GROUP` values.
///
/// All bytes are looked up before any is converted, and converted before any is scaled. The
/// look-ups are scalar; so split, the other two steps are long loops, which compilers vectorise.
#[inline(always)]
fn decode_grid<const GROUP: usize>(
    out: &mut [f32; 256],
    entry: impl Fn(usize) -> u64,
    value: impl Fn(u8) -> f32,
    scale: impl Fn(usize) -> f32,
) {
    let mut bytes = [[0; 8]; 32];
    for (i, bytes) in bytes.iter_mut().enumerate() {
        *bytes = entry(i).to_le_bytes();
    }
    for (out, &byte) in zip(&mut out[..], bytes.flat()) {
        *out = value(byte);
    }
    for (g, out) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        let d = scale(g);
        out.iter_mut().for_each(|out| *out *= d);
    }
}

/// A grid entry with byte `i` negated where bit `i` of `signs` is set.
#[inline(always)]
fn negated(entry: u64, signs: u8) -> u64 {
    // Two's complement of each byte: inverted, plus one. A byte of the grid is not zero, so its
    // inverse is not 255, and adding one carries into no other byte.
    let mask = MASKS[usize::from(signs)];
    (entry ^ mask) + (mask & 0x0101_0101_0101_0101)
}

/// The value of a byte of IQ2 and IQ3.
#[inline(always)]
fn signed_byte(byte: u8) -> f32 {
    f32::from(byte as i8)
}

/// The factor of the bytes of an IQ2 type: an eighth of the group's scale `d * (2 * scale + 1)`,
/// for the grids have 8, 25 and 43 where the encoders' levels are 1, 3 and 5.
#[inline(always)]
fn iq2_scale(d: f32, scale: u32) -> f32 {
    d * (0.5 + scale as f32) * 0.25
}

/// `d`, then eight times 8 bytes for 32 values: `indices[4] | word[4]`. The word has four times 7
/// bits of signs, indices into [`SIGNS`], and 4 bits of scale.
impl DecodeBlock<66, 256> for IQ2_XXS {
    #[inline(always)]
    fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
        let d = f16_at(block, 0);
        let bits = |g: usize| u32_at(block, 2 + 8 * g + 4);
        let entry = |i: usize| {
            let grid = grids::IQ2_XXS[usize::from(block[2 + i / 4 * 8 + i % 4])];
            negated(grid, SIGNS[(bits(i / 4) >> (7 * (i % 4)) & 127) as usize])
        };
        decode_grid::<32>(out, entry, signed_byte, |g| iq2_scale(d, bits(g) >> 28));
    }
}

/// `d | words[64] | scales[8]`: the word of each eight values has 9 bits of index and 7 of signs;
/// the scale of each 16 values is a nibble.
impl DecodeBlock<74, 256> for IQ2_XS {
    #[inline(always)]
    fn decode(block: &[u8; 74], out: &mut [f32; 256]) {
        let d = f16_at(block, 0);
        let entry = |i: usize| {
            let code = usize::from(u16_at(block, 2 + 2 * i));
            negated(grids::IQ2_XS[code & 511], SIGNS[code >> 9])
        };
        decode_grid::<16>(out, entry, signed_byte, |g| iq2_scale(d, nibble(block, 66, g)));
    }
}

/// `d | indices[32] | signs[32] | high bits[8] | scales[8]`: an index has two high bits, signs a
/// byte for eight values, scales a nibble for 16.
impl DecodeBlock<82, 256> for IQ2_S {
    #[inline(always)]
    fn decode(block: &[u8; 82], out: &mut [f32; 256]) {
        let d = f16_at(block, 0);
        let entry = |i: usize| {
            let high = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3) << 8;
            negated(grids::IQ2_S[usize::from(block[2 + i]) | high], block[34 + i])
        };
        decode_grid::<16>(out, entry, signed_byte, |g| iq2_scale(d, nibble(block, 74, g)));
    }
}

/// Nibble `g` of the bytes from `at` on, the low one of a byte first.
#[inline(always)]
fn nibble(block: &[u8], at: usize, g: usize) -> u32 {
    u32::from(block[at + g / 2] >> (g % 2 * 4) & 15)
}

/// Two grid entries of four bytes as one of eight.
#[inline(always)]
fn join_entries(first: u64, second: u64) -> u64 {
    first | second << 32
}

/// `d | indices[64] | words[32]`: an index for each four values; the word of each 32 has four times
/// 7 bits of signs, indices into [`SIGNS`], and 4 bits of scale.
impl DecodeBlock<98, 256> for IQ3_XXS {
    #[inline(always)]
    fn decode(block: &[u8; 98], out: &mut [f32; 256]) {
        let d = f16_at(block, 0);
        let bits = |g: usize| u32_at(block, 66 + 4 * g);
        let entry = |i: usize| {
            let grid = |at: usize| grids::IQ3_XXS[usize::from(block[2 + 2 * i + at])];
            negated(
                join_entries(grid(0), grid(1)),
                SIGNS[(bits(i / 4) >> (7 * (i % 4)) & 127) as usize],
            )
        };
        decode_grid::<32>(out, entry, signed_byte, |g| d * (0.5 + (bits(g) >> 28) as f32) * 0.5);
    }
}

/// `d | indices[64] | ninth bits[8] | signs[32] | scales[4]`: an index for each four values, a byte
/// of signs for eight, a nibble of scale for 32.
impl DecodeBlock<110, 256> for IQ3_S {
    #[inline(always)]
    fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
        let d = f16_at(block, 0);
        let entry = |i: usize| {
            let ninth = usize::from(block[66 + i / 4]) >> (i % 4 * 2);
            let first = usize::from(block[2 + 2 * i]) | (ninth & 1) << 8;
            let second = usize::from(block[3 + 2 * i]) | (ninth & 2) << 7;
            negated(join_entries(grids::IQ3_S[first], grids::IQ3_S[second]), block[74 + i])
        };
        decode_grid::<32>(out, entry, signed_byte, |g| d * (1 + 2 * nibble(block, 106, g)) as f32);
    }
}

/// An entry of the IQ1 grid, whose bytes 0, 8 and 16 stand for -1, 0 and 1, with 2 added to each
/// byte if its values are shifted up by an eighth rather than down. A byte is then nine more than
/// eight times the value.
#[inline(always)]
pub(super) fn iq1_entry(index: usize, down: bool) -> u64 {
    let up = if down { 0 } else { 0x0202_0202_0202_0202 };
    grids::IQ1[index] + up
}

/// The value of a byte of [`iq1_entry`]. Exact, as is ggml's sum of the grid value and the shift.
#[inline(always)]
pub(super) fn iq1_value(byte: u8) -> f32 {
    (i32::from(byte) - 9) as f32 * 0.125
}

/// `d | indices[32] | words[16]`: the word of each 32 values has 3 high bits for each of four
/// indices, a scale of 3 bits, and a bit that is set if they are shifted down.
impl DecodeBlock<50, 256> for IQ1_S {
    #[inline(always)]
    fn decode(block: &[u8; 50], out: &mut [f32; 256]) {
        let d = f16_at(block, 0);
        let bits = |g: usize| u16_at(block, 34 + 2 * g);
        let entry = |i: usize| {
            let high = usize::from(bits(i / 4) >> (i % 4 * 3) & 7) << 8;
            iq1_entry(usize::from(block[2 + i]) | high, bits(i / 4) & 0x8000 != 0)
        };
        decode_grid::<32>(out, entry, iq1_value, |g| d * f32::from(2 * (bits(g) >> 12 & 7) + 1));
    }
}

/// `indices[32] | nibbles[16] | words[8]`: the nibble of each eight values has 3 high bits of the
/// index, and a bit that is set if they are shifted down; a word has four scales of 3 bits for 16
/// values each, and 4 bits of `d`.
impl DecodeBlock<56, 256> for IQ1_M {
    #[inline(always)]
    fn decode(block: &[u8; 56], out: &mut [f32; 256]) {
        let scales = |i: usize| u16_at(block, 48 + 2 * i);
        let d =
            scales(0) >> 12 | scales(1) >> 8 & 0xf0 | scales(2) >> 4 & 0xf00 | scales(3) & 0xf000;
        let d = crate::element::f32_from_f16(d);
        let entry = |i: usize| {
            let bits = nibble(block, 32, i) as usize;
            iq1_entry(usize::from(block[i]) | (bits & 7) << 8, bits & 8 != 0)
        };
        decode_grid::<16>(out, entry, iq1_value, |g| {
            d * f32::from(2 * (scales(g / 4) >> (g % 4 * 3) & 7) + 1)
        });
    }
}

/// `d | codes[16]`: the low nibbles are the first 16 codes.
impl DecodeBlock<18, 32> for IQ4_NL {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
        let d = f16_at(block, 0);
        nibble_halves(&block[2..], out, |q, _| d * IQ4[usize::from(q & 15)]);
    }
}

/// `d | high pairs[2] | low nibbles[4] | codes[128]`: scales of 6 bits for 32 values each, less 32.
impl DecodeBlock<136, 256> for IQ4_XS {
    #[inline(always)]
    fn decode(block: &[u8; 136], out: &mut [f32; 256]) {
        let (d, high) = (f16_at(block, 0), u16_at(block, 2));
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale =
                u16::from(block[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
            let dl = d * (i32::from(scale) - 32) as f32;
            nibble_halves(&block[8 + 16 * g..24 + 16 * g], out, |q, _| {
                dl * IQ4[usize::from(q & 15)]
            });
        }
    }
}
