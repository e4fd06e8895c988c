//! IQ types: indices into grids of values ([`grids`](super::grids)), with signs apart, in super-blocks of 256;
//! and the 4-bit codebooks IQ4_NL and IQ4_XS.

use super::grids::{self, IQ4, SIGNS};
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

/// Grid values times `d`, negated where a bit of `signs` is set.
#[inline(always)]
fn signed(grid: &[i8], signs: u8, d: f32, out: &mut [f32]) {
    for (j, (out, &value)) in out.iter_mut().zip(grid).enumerate() {
        let sign = u32::from(signs) << (31 - j) & 1 << 31;
        *out = f32::from_bits((d * f32::from(value)).to_bits() ^ sign);
    }
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
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let at = 2 + 8 * g;
            let bits = double_word(block, at + 4);
            let db = quarter(d, bits >> 28);
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let grid = &grids::IQ2_XXS[usize::from(block[at + l])];
                signed(grid, SIGNS[(bits >> (7 * l) & 127) as usize], db, out);
            }
        }
    }
}

/// `d | words[32] | scales[8]`: a word has 9 bits of index and 7 of signs, a scale 4 bits for 16 values.
impl Block<74, 256> for IQ2_XS {
    #[inline(always)]
    fn decode(block: &[u8; 74], out: &mut [f32; 256]) {
        let d = half(block, 0);
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let db = quarter(d, u32::from(block[66 + g / 2] >> (g % 2 * 4) & 15));
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let code = usize::from(word(block, 2 + 2 * (2 * g + l)));
                signed(&grids::IQ2_XS[code & 511], SIGNS[code >> 9], db, out);
            }
        }
    }
}

/// `d | indices[32] | signs[32] | high bits[8] | scales[8]`: two high bits to an index.
impl Block<82, 256> for IQ2_S {
    #[inline(always)]
    fn decode(block: &[u8; 82], out: &mut [f32; 256]) {
        let d = half(block, 0);
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let db = quarter(d, u32::from(block[74 + g / 2] >> (g % 2 * 4) & 15));
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let i = 2 * g + l;
                let high = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3) << 8;
                signed(&grids::IQ2_S[usize::from(block[2 + i]) | high], block[34 + i], db, out);
            }
        }
    }
}

/// `d | indices[64]`, then 4 bytes for 32 values: four times 7 bits of signs, and 4 bits of scale.
impl Block<98, 256> for IQ3_XXS {
    #[inline(always)]
    fn decode(block: &[u8; 98], out: &mut [f32; 256]) {
        let d = half(block, 0);
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let bits = double_word(block, 66 + 4 * g);
            let db = d * (0.5 + (bits >> 28) as f32) * 0.5;
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let at = 2 + 8 * g + 2 * l;
                let first = grids::IQ3_XXS[usize::from(block[at])];
                let second = grids::IQ3_XXS[usize::from(block[at + 1])];
                signed(&join(first, second), SIGNS[(bits >> (7 * l) & 127) as usize], db, out);
            }
        }
    }
}

/// Two entries of four values as one of eight.
#[inline(always)]
fn join([a, b, c, d]: [i8; 4], [e, f, g, h]: [i8; 4]) -> [i8; 8] {
    [a, b, c, d, e, f, g, h]
}

/// `d | indices[64] | ninth bits[8] | signs[32] | scales[4]`.
impl Block<110, 256> for IQ3_S {
    #[inline(always)]
    fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
        let d = half(block, 0);
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let scale = block[106 + g / 2] >> (g % 2 * 4) & 15;
            let db = d * f32::from(1 + 2 * scale);
            let ninth = usize::from(block[66 + g]);
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let at = 2 + 8 * g + 2 * l;
                let first = grids::IQ3_S[usize::from(block[at]) | ninth << (8 - 2 * l) & 256];
                let second = grids::IQ3_S[usize::from(block[at + 1]) | ninth << (7 - 2 * l) & 256];
                signed(&join(first, second), block[74 + 4 * g + l], db, out);
            }
        }
    }
}

/// What moves the values of the IQ1 types up, or down.
const DELTA: f32 = 0.125;

/// `d * (value + delta)` for each value of a grid entry.
#[inline(always)]
fn shifted(index: usize, down: bool, d: f32, out: &mut [f32; 8]) {
    let delta = if down { -DELTA } else { DELTA };
    for (out, &value) in out.iter_mut().zip(&grids::IQ1[index]) {
        *out = d * (f32::from(value) + delta);
    }
}

/// `d | indices[32] | words[8]`: a word has 3 high bits for each of four indices, a scale, and the shift's sign.
impl Block<50, 256> for IQ1_S {
    #[inline(always)]
    fn decode(block: &[u8; 50], out: &mut [f32; 256]) {
        let d = half(block, 0);
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let bits = word(block, 34 + 2 * g);
            let dl = d * f32::from(2 * (bits >> 12 & 7) + 1);
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let index = usize::from(block[2 + 4 * g + l]) | usize::from(bits >> (3 * l) & 7) << 8;
                shifted(index, bits & 0x8000 != 0, dl, out);
            }
        }
    }
}

/// `indices[32] | nibbles[16] | words[4]`: a nibble has 3 high bits and the shift's sign; a word has four
/// scales of 3 bits for 16 values each, and 4 bits of `d`.
impl Block<56, 256> for IQ1_M {
    #[inline(always)]
    fn decode(block: &[u8; 56], out: &mut [f32; 256]) {
        let scales = [word(block, 48), word(block, 50), word(block, 52), word(block, 54)];
        let d = scales[0] >> 12 | scales[1] >> 8 & 0xf0 | scales[2] >> 4 & 0xf00 | scales[3] & 0xf000;
        let d = crate::element::f32_from_f16(d);
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let dl = d * f32::from(2 * (scales[g / 4] >> (g % 4 * 3) & 7) + 1);
            for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let nibble = block[32 + g] >> (4 * l);
                shifted(usize::from(block[2 * g + l]) | usize::from(nibble & 7) << 8, nibble & 8 != 0, dl, out);
            }
        }
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
            let scale = u16::from(block[4 + g / 2] >> (g % 2 * 4) & 15) | (high >> (2 * g) & 3) << 4;
            let dl = d * (i32::from(scale) - 32) as f32;
            halves(&block[8 + 16 * g..24 + 16 * g], out, |q, _| dl * IQ4[usize::from(q & 15)]);
        }
    }
}
