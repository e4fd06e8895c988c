//! K-quants: super-blocks of 256 values in groups of 16 or 32, whose scales and minimums are
//! integers of 4 to 8 bits. One or two f16 scale these integers for the whole super-block.

use super::{DecodeBlock, f16_at, legacy, scale_min, u32_at};
use crate::simd::zip;

pub(super) struct Q2_K;
pub(super) struct Q3_K;
pub(super) struct Q4_K;
pub(super) struct Q5_K;
pub(super) struct Q6_K;
pub(super) struct Q8_K;

/// Multiplies 16 groups of 16 values, each by its scale.
#[inline(always)]
fn scale_groups(out: &mut [f32; 256], scale: impl Fn(usize) -> f32) {
    for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let dl = scale(g);
        out.iter_mut().for_each(|out| *out *= dl);
    }
}

/// `scales[16] | codes[64] | d | dmin`, 16 groups of 16 values `d * scale * q - dmin * min`. The
/// low nibble of a scale byte is the scale, the high one the minimum. Of each 128 values, 32 bytes
/// of codes hold value `l` of the `n`-th 32 in bits `2n` and `2n + 1` of byte `l`.
impl DecodeBlock<84, 256> for Q2_K {
    const IS_APART: bool = true;

    #[inline(always)]
    fn decode(block: &[u8; 84], out: &mut [f32; 256]) {
        let (d, min) = (f16_at(block, 80), f16_at(block, 82));
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (at, shift) = (16 + n / 4 * 32, n % 4 * 2);
            for (out, &q) in zip(&mut out[..], &block[at..at + 32]) {
                *out = f32::from(q >> shift & 3);
            }
        }
        for (out, &scale) in zip(out.as_chunks_mut::<16>().0, &block[..16]) {
            let (dl, ml) = (d * f32::from(scale & 15), min * f32::from(scale >> 4));
            out.iter_mut().for_each(|out| *out = dl * *out - ml);
        }
    }
}

/// `high bits[32] | codes[64] | scales[12] | d`, 16 groups of 16 values
/// `d * (scale - 32) * (q - 4)`. The low two bits of a code lie as in Q2_K; bit `n` of byte `l` is
/// the third bit of value `l` of the `n`-th 32. Scales have six bits: sixteen low nibbles in eight
/// bytes, then sixteen pairs of high bits in four.
impl DecodeBlock<110, 256> for Q3_K {
    #[inline(always)]
    fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
        let d = f16_at(block, 108);
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (at, shift) = (32 + n / 4 * 32, n % 4 * 2);
            for ((out, &q), &h) in zip(zip(&mut out[..], &block[at..at + 32]), &block[..32]) {
                *out = (i32::from(q >> shift & 3 | (h >> n & 1) << 2) - 4) as f32;
            }
        }
        let packed = &block[96..108];
        scale_groups(out, |g| {
            let (low, high) =
                (packed[g % 8] >> (g / 8 * 4) & 15, packed[8 + g % 4] >> (g / 4 * 2) & 3);
            d * (i32::from(low | high << 4) - 32) as f32
        });
    }
}

/// `d | dmin | scales[12] | codes[128]`, eight groups of 32 values `d * scale * q - dmin * min`. 32
/// bytes of codes hold one group in their low nibbles and the next in their high ones.
impl DecodeBlock<144, 256> for Q4_K {
    #[inline(always)]
    fn decode(block: &[u8; 144], out: &mut [f32; 256]) {
        let (d, min) = (f16_at(block, 0), f16_at(block, 2));
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, m) = scale_min(&block[4..16], g);
            let (dl, ml) = (d * scale, min * m);
            let at = 16 + g / 2 * 32;
            for (out, &q) in zip(&mut out[..], &block[at..at + 32]) {
                *out = dl * f32::from(q >> (g % 2 * 4) & 15) - ml;
            }
        }
    }
}

/// `d | dmin | scales[12] | fifth bits[32] | codes[128]`: Q4_K with a bit plane, of which bit `g`
/// of byte `l` is the fifth bit of value `l` of group `g`.
impl DecodeBlock<176, 256> for Q5_K {
    #[inline(always)]
    fn decode(block: &[u8; 176], out: &mut [f32; 256]) {
        let (d, min) = (f16_at(block, 0), f16_at(block, 2));
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, m) = scale_min(&block[4..16], g);
            let (dl, ml) = (d * scale, min * m);
            let at = 48 + g / 2 * 32;
            for ((out, &q), &h) in zip(zip(&mut out[..], &block[at..at + 32]), &block[16..48]) {
                let q = q >> (g % 2 * 4) & 15 | (h >> g & 1) << 4;
                *out = dl * f32::from(q) - ml;
            }
        }
    }
}

/// `low nibbles[128] | high pairs[64] | scales[16] | d`, 16 groups of 16 values
/// `d * scale * (q - 32)` with signed scales. Of each 128 values, 64 bytes hold the low four bits:
/// the first 64 values in low nibbles, the others in high ones. 32 bytes hold the high two bits of
/// all, as Q2_K has its codes.
impl DecodeBlock<210, 256> for Q6_K {
    #[inline(always)]
    fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
        let d = f16_at(block, 208);
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (low, high) = (n / 4 * 64 + n % 2 * 32, 128 + n / 4 * 32);
            let (nibble, pair) = (n % 4 / 2 * 4, n % 4 * 2);
            for ((out, &l), &h) in
                zip(zip(&mut out[..], &block[low..low + 32]), &block[high..high + 32])
            {
                *out = (i32::from(l >> nibble & 15 | (h >> pair & 3) << 4) - 32) as f32;
            }
        }
        scale_groups(out, |g| d * f32::from(block[192 + g] as i8));
    }
}

/// `d in f32 | codes[256] | sums[32]`, values `q * d`. The sums of each 16 codes serve ggml's dot
/// products and are not decoded.
impl DecodeBlock<292, 256> for Q8_K {
    #[inline(always)]
    fn decode(block: &[u8; 292], out: &mut [f32; 256]) {
        let d = f32::from_bits(u32_at(block, 0));
        legacy::scaled_bytes(&block[4..260], out, d);
    }
}
