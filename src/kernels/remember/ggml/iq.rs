//! IQ types: indices into grids of values ([`grids`](super::grids)), with signs apart, in super-blocks of 256;
//! and the 4-bit codebooks IQ4_NL and IQ4_XS.

use super::grids::{self, IQ4, MASKS, SIGNS};
use super::legacy::halves;
use super::{Block, double_word, half, word};

pub(super) struct IQ1_S;
pub(super) struct IQ1_M;
pub(super) struct IQ2_XXS;
pub(super) struct IQ2_XS;
pub(super) struct IQ2_S;
pub(super) struct IQ3_XXS;
pub(super) struct IQ3_S;
pub(super) struct IQ4_NL;
pub(super) struct IQ4_XS;

/// Decodes 256 values: `entry(i)` gives the eight bytes of the `i`-th eight values, `value` what a byte means, and
/// `scale(g)` what the `g`-th `GROUP` values are multiplied by.
///
/// Bytes are gathered before any is widened, and widened before any is scaled: each step is one long loop, which
/// compilers vectorise.
#[inline(always)]
fn gather<const GROUP: usize>(
    out: &mut [f32; 256],
    entry: impl Fn(usize) -> u64,
    value: impl Fn(u8) -> f32,
    scale: impl Fn(usize) -> f32,
) {
    let mut bytes = [[0; 8]; 32];
    for (i, bytes) in bytes.iter_mut().enumerate() {
        *bytes = entry(i).to_le_bytes();
    }
    for (out, &byte) in out.iter_mut().zip(bytes.as_flattened()) {
        *out = value(byte);
    }
    for (g, out) in out.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        let d = scale(g);
        out.iter_mut().for_each(|out| *out *= d);
    }
}

/// A grid entry with its values negated where a bit of `signs` is set.
#[inline(always)]
fn signed(entry: u64, signs: u8) -> u64 {
    // In two's complement, byte by byte: no value is zero, so that adding one carries into no other.
    let mask = MASKS[usize::from(signs)];
    (entry ^ mask) + (mask & 0x0101_0101_0101_0101)
}

/// The value of a signed byte.
#[inline(always)]
fn signed_value(byte: u8) -> f32 {
    f32::from(byte as i8)
}

/// The scale of a group of the two-bit types: `d * (0.5 + scale) * 0.25`.
#[inline(always)]
fn quarter(d: f32, scale: u32) -> f32 {
    d * (0.5 + scale as f32) * 0.25
}

/// `d`, then 8 bytes for 32 values: four indices, four times 7 bits of signs, and 4 bits of scale.
impl Block<66, 256> for IQ2_XXS {
    #[inline(always)]
    fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
        let d = half(block, 0);
        let bits = |g: usize| double_word(block, 2 + 8 * g + 4);
        let entry = |i: usize| {
            let grid = grids::IQ2_XXS[usize::from(block[2 + i / 4 * 8 + i % 4])];
            signed(grid, SIGNS[(bits(i / 4) >> (7 * (i % 4)) & 127) as usize])
        };
        gather::<32>(out, entry, signed_value, |g| quarter(d, bits(g) >> 28));
    }
}

/// `d | words[32] | scales[8]`: a word has 9 bits of index and 7 of signs, a scale 4 bits for 16 values.
impl Block<74, 256> for IQ2_XS {
    #[inline(always)]
    fn decode(block: &[u8; 74], out: &mut [f32; 256]) {
        let d = half(block, 0);
        let entry = |i: usize| {
            let code = usize::from(word(block, 2 + 2 * i));
            signed(grids::IQ2_XS[code & 511], SIGNS[code >> 9])
        };
        gather::<16>(out, entry, signed_value, |g| {
            quarter(d, nibble(block, 66, g))
        });
    }
}

/// `d | indices[32] | signs[32] | high bits[8] | scales[8]`: two high bits to an index.
impl Block<82, 256> for IQ2_S {
    #[inline(always)]
    fn decode(block: &[u8; 82], out: &mut [f32; 256]) {
        let d = half(block, 0);
        let entry = |i: usize| {
            let high = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3) << 8;
            signed(
                grids::IQ2_S[usize::from(block[2 + i]) | high],
                block[34 + i],
            )
        };
        gather::<16>(out, entry, signed_value, |g| {
            quarter(d, nibble(block, 74, g))
        });
    }
}

/// Nibble `g` of the bytes from `at` on, low ones first.
#[inline(always)]
fn nibble(block: &[u8], at: usize, g: usize) -> u32 {
    u32::from(block[at + g / 2] >> (g % 2 * 4) & 15)
}

/// Two entries of four values as one of eight.
#[inline(always)]
fn join(first: u64, second: u64) -> u64 {
    first | second << 32
}

/// `d | indices[64]`, then 4 bytes for 32 values: four times 7 bits of signs, and 4 bits of scale.
impl Block<98, 256> for IQ3_XXS {
    #[inline(always)]
    fn decode(block: &[u8; 98], out: &mut [f32; 256]) {
        let d = half(block, 0);
        let bits = |g: usize| double_word(block, 66 + 4 * g);
        let entry = |i: usize| {
            let grid = |at: usize| grids::IQ3_XXS[usize::from(block[2 + 2 * i + at])];
            signed(
                join(grid(0), grid(1)),
                SIGNS[(bits(i / 4) >> (7 * (i % 4)) & 127) as usize],
            )
        };
        gather::<32>(out, entry, signed_value, |g| {
            d * (0.5 + (bits(g) >> 28) as f32) * 0.5
        });
    }
}

/// `d | indices[64] | ninth bits[8] | signs[32] | scales[4]`.
impl Block<110, 256> for IQ3_S {
    #[inline(always)]
    fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
        let d = half(block, 0);
        let entry = |i: usize| {
            let ninth = usize::from(block[66 + i / 4]) >> (i % 4 * 2);
            let first = usize::from(block[2 + 2 * i]) | (ninth & 1) << 8;
            let second = usize::from(block[3 + 2 * i]) | (ninth & 2) << 7;
            signed(
                join(grids::IQ3_S[first], grids::IQ3_S[second]),
                block[74 + i],
            )
        };
        gather::<32>(out, entry, signed_value, |g| {
            d * (1 + 2 * nibble(block, 106, g)) as f32
        });
    }
}

/// An entry of the IQ1 grid with its values moved up by 1/8, or down: in eighths, and nine more.
#[inline(always)]
fn shifted(index: usize, down: bool) -> u64 {
    let up = if down { 0 } else { 0x0202_0202_0202_0202 };
    grids::IQ1[index] + up
}

/// The value of a byte of such an entry. Exact, as is the library's sum.
#[inline(always)]
fn shifted_value(byte: u8) -> f32 {
    (i32::from(byte) - 9) as f32 * 0.125
}

/// `d | indices[32] | words[8]`: a word has 3 high bits for each of four indices, a scale, and the shift's sign.
impl Block<50, 256> for IQ1_S {
    #[inline(always)]
    fn decode(block: &[u8; 50], out: &mut [f32; 256]) {
        let d = half(block, 0);
        let bits = |g: usize| word(block, 34 + 2 * g);
        let entry = |i: usize| {
            let high = usize::from(bits(i / 4) >> (i % 4 * 3) & 7) << 8;
            shifted(usize::from(block[2 + i]) | high, bits(i / 4) & 0x8000 != 0)
        };
        gather::<32>(out, entry, shifted_value, |g| {
            d * f32::from(2 * (bits(g) >> 12 & 7) + 1)
        });
    }
}

/// `indices[32] | nibbles[16] | words[4]`: a nibble has 3 high bits and the shift's sign; a word has four
/// scales of 3 bits for 16 values each, and 4 bits of `d`.
impl Block<56, 256> for IQ1_M {
    #[inline(always)]
    fn decode(block: &[u8; 56], out: &mut [f32; 256]) {
        let scales = |i: usize| word(block, 48 + 2 * i);
        let d =
            scales(0) >> 12 | scales(1) >> 8 & 0xf0 | scales(2) >> 4 & 0xf00 | scales(3) & 0xf000;
        let d = crate::element::f32_from_f16(d);
        let entry = |i: usize| {
            let bits = nibble(block, 32, i) as usize;
            shifted(usize::from(block[i]) | (bits & 7) << 8, bits & 8 != 0)
        };
        gather::<16>(out, entry, shifted_value, |g| {
            d * f32::from(2 * (scales(g / 4) >> (g % 4 * 3) & 7) + 1)
        });
    }
}

/// `d | codes[16]`.
impl Block<18, 32> for IQ4_NL {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
        let d = half(block, 0);
        halves(&block[2..], out, |q, _| d * IQ4[usize::from(q & 15)]);
    }
}

/// `d | high pairs of the scales | their low nibbles[4] | codes[128]`: scales of 6 bits for 32 values each.
impl Block<136, 256> for IQ4_XS {
    #[inline(always)]
    fn decode(block: &[u8; 136], out: &mut [f32; 256]) {
        let (d, high) = (half(block, 0), word(block, 2));
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale =
                u16::from(block[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
            let dl = d * (i32::from(scale) - 32) as f32;
            halves(&block[8 + 16 * g..24 + 16 * g], out, |q, _| {
                dl * IQ4[usize::from(q & 15)]
            });
        }
    }
}
