//! K-quants: super-blocks of 256 values whose scales are themselves quantized, under one or two f16.

use super::{Block, half, legacy};

pub(super) struct Q2_K;
pub(super) struct Q3_K;
pub(super) struct Q4_K;
pub(super) struct Q5_K;
pub(super) struct Q6_K;
pub(super) struct Q8_K;

/// Multiplies 16 groups of 16 values.
#[inline(always)]
fn scale(out: &mut [f32; 256], scale: impl Fn(usize) -> f32) {
    for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let dl = scale(g);
        out.iter_mut().for_each(|out| *out *= dl);
    }
}

/// Scales and minimums in 16 groups of 16: `scales[16] | codes[64] | d | dmin`. Bits 2 `n` and up of 32 bytes are the
/// `n`-th 32 values.
impl Block<84, 256> for Q2_K {
    #[inline(always)]
    fn decode(block: &[u8; 84], out: &mut [f32; 256]) {
        let (d, min) = (half(block, 80), half(block, 82));
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (at, shift) = (16 + n / 4 * 32, n % 4 * 2);
            for (out, &q) in out.iter_mut().zip(&block[at..at + 32]) {
                *out = f32::from(q >> shift & 3);
            }
        }
        for (out, &scale) in out.as_chunks_mut::<16>().0.iter_mut().zip(&block[..16]) {
            let (dl, ml) = (d * f32::from(scale & 15), min * f32::from(scale >> 4));
            out.iter_mut().for_each(|out| *out = dl * *out - ml);
        }
    }
}

/// `high bits[32] | codes[64] | scales[12] | d`: as in Q2_K, but a clear high bit takes 4 away.
impl Block<110, 256> for Q3_K {
    #[inline(always)]
    fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
        let d = half(block, 108);
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (at, shift) = (32 + n / 4 * 32, n % 4 * 2);
            for ((out, &q), &h) in out.iter_mut().zip(&block[at..at + 32]).zip(&block[..32]) {
                *out = (i32::from(q >> shift & 3 | (h >> n & 1) << 2) - 4) as f32;
            }
        }
        let packed = &block[96..108];
        scale(out, |g| {
            let (low, high) = (
                packed[g % 8] >> (g / 8 * 4) & 15,
                packed[8 + g % 4] >> (g / 4 * 2) & 3,
            );
            d * (i32::from(low | high << 4) - 32) as f32
        });
    }
}

/// Scale and minimum of group `g`, of the eight that 12 bytes hold in 6 bits each.
#[inline(always)]
fn scale_min(packed: &[u8], g: usize) -> (f32, f32) {
    let (scale, min) = if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        (
            packed[g + 4] & 15 | packed[g - 4] >> 6 << 4,
            packed[g + 4] >> 4 | packed[g] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// Eight groups of 32, the low nibbles of 32 bytes and then their high ones: `d | dmin | scales[12] | codes[128]`.
impl Block<144, 256> for Q4_K {
    #[inline(always)]
    fn decode(block: &[u8; 144], out: &mut [f32; 256]) {
        let (d, min) = (half(block, 0), half(block, 2));
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, m) = scale_min(&block[4..16], g);
            let (dl, ml) = (d * scale, min * m);
            let at = 16 + g / 2 * 32;
            for (out, &q) in out.iter_mut().zip(&block[at..at + 32]) {
                *out = dl * f32::from(q >> (g % 2 * 4) & 15) - ml;
            }
        }
    }
}

/// As Q4_K, with a plane of fifth bits: `d | dmin | scales[12] | fifth bits[32] | codes[128]`.
impl Block<176, 256> for Q5_K {
    #[inline(always)]
    fn decode(block: &[u8; 176], out: &mut [f32; 256]) {
        let (d, min) = (half(block, 0), half(block, 2));
        for (g, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, m) = scale_min(&block[4..16], g);
            let (dl, ml) = (d * scale, min * m);
            let at = 48 + g / 2 * 32;
            for ((out, &q), &h) in out.iter_mut().zip(&block[at..at + 32]).zip(&block[16..48]) {
                let q = q >> (g % 2 * 4) & 15 | (h >> g & 1) << 4;
                *out = dl * f32::from(q) - ml;
            }
        }
    }
}

/// 16 groups of 16 with signed scales: `low nibbles[128] | high pairs[64] | scales[16] | d`. Half a block has four
/// runs of 32 values: low nibbles, low, high, high; with the pairs in order.
impl Block<210, 256> for Q6_K {
    #[inline(always)]
    fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
        let d = half(block, 208);
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (low, high) = (n / 4 * 64 + n % 2 * 32, 128 + n / 4 * 32);
            let (nibble, pair) = (n % 4 / 2 * 4, n % 4 * 2);
            for ((out, &l), &h) in out
                .iter_mut()
                .zip(&block[low..low + 32])
                .zip(&block[high..high + 32])
            {
                *out = (i32::from(l >> nibble & 15 | (h >> pair & 3) << 4) - 32) as f32;
            }
        }
        scale(out, |g| d * f32::from(block[192 + g] as i8));
    }
}

/// `d` in f32, signed bytes, and their sums, which only dot products use.
impl Block<292, 256> for Q8_K {
    #[inline(always)]
    fn decode(block: &[u8; 292], out: &mut [f32; 256]) {
        let d = f32::from_bits(super::double_word(block, 0));
        legacy::bytes(&block[4..260], out, d);
    }
}
