//! IQK types: a code of 2 to 6 bits picks one of the values of a codebook, and the integer scale of
//! 16 or 32 values belongs to a super-block of 256. Each type has a codebook and a second one with
//! its values shifted up, and a bit of each group says which it takes.
//!
//! Codes of two or three bits lie as those of Q2_K and Q3_K, codes of five and six bits as those of
//! Q5_K and Q6_K.

use super::DecodeRowBlock;
use crate::remember::kernels::ggml::{f16_at, legacy::nibble_halves, u16_at};
use crate::simd::{Flat, zip};

pub(in super::super) struct IQ2_K;
pub(in super::super) struct IQ2_KS;
pub(in super::super) struct IQ2_KL;
pub(in super::super) struct IQ3_K;
pub(in super::super) struct IQ3_KS;
pub(in super::super) struct IQ4_K;
pub(in super::super) struct IQ4_KS;
pub(in super::super) struct IQ4_KSS;
pub(in super::super) struct IQ5_K;
pub(in super::super) struct IQ5_KS;
pub(in super::super) struct IQ6_K;

/// A codebook and the one with shifted values. From ik_llama.cpp `ggml-common.h`, `iq2nl_values` to
/// `iq5nl_values`.
type Codebooks<const N: usize> = [[f32; N]; 2];

static IQ2: Codebooks<4> = [[-31.0, -13.0, 1.0, 17.0], [-26.0, -8.0, 6.0, 22.0]];

static IQ3: Codebooks<8> = [
    [-63.0, -40.0, -23.0, -10.0, 1.0, 13.0, 28.0, 47.0],
    [-59.0, -36.0, -19.0, -6.0, 5.0, 17.0, 32.0, 51.0],
];

/// The first codebook is that of IQ4_NL.
#[rustfmt::skip]
pub(super) static IQ4: Codebooks<16> = [
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0],
    [-123.0, -100.0, -79.0, -61.0, -45.0, -31.0, -18.0, -6.0, 5.0, 17.0, 29.0, 42.0, 57.0, 73.0, 93.0, 117.0],
];

#[rustfmt::skip]
static IQ5: Codebooks<32> = [
    [-126.0, -114.0, -103.0, -92.0, -83.0, -74.0, -65.0, -57.0, -50.0, -43.0, -36.0, -30.0, -24.0, -18.0, -12.0, -6.0,
     -1.0, 5.0, 11.0, 17.0, 23.0, 29.0, 36.0, 43.0, 51.0, 59.0, 68.0, 77.0, 87.0, 97.0, 109.0, 121.0],
    [-124.0, -112.0, -101.0, -90.0, -81.0, -72.0, -63.0, -55.0, -48.0, -41.0, -34.0, -28.0, -22.0, -16.0, -10.0, -4.0,
     1.0, 7.0, 13.0, 19.0, 25.0, 31.0, 38.0, 45.0, 53.0, 61.0, 70.0, 79.0, 89.0, 99.0, 111.0, 123.0],
];

/// Pairs of values of IQ2_KL, the first in the low byte. From ik_llama.cpp `ggml-common.h`,
/// `iq2kl_values`.
static PAIRS: [[f32; 2]; 32] = {
    let packed: [u16; 32] = [
        0xe9c1, 0x0dc1, 0xc1d8, 0xf6d8, 0x0dd8, 0x2fd8, 0xd8e9, 0xe9e9, 0x01e9, 0x0de9, 0x1ce9,
        0xc1f6, 0x01f6, 0x0df6, 0x2ff6, 0xe901, 0xf601, 0x0101, 0x0d01, 0x1c01, 0xd80d, 0xe90d,
        0xf60d, 0x010d, 0x0d0d, 0xc11c, 0xe91c, 0x011c, 0x1c1c, 0x2f1c, 0xe92f, 0x0d2f,
    ];
    let mut pairs = [[0.0; 2]; 32];
    let mut i = 0;
    while i < 32 {
        let [low, high] = packed[i].to_le_bytes();
        pairs[i] = [low as i8 as f32, high as i8 as f32];
        i += 1;
    }
    pairs
};

/// The codebook that bit `n` of `bits` says.
#[inline(always)]
fn codebook<const N: usize>(books: &Codebooks<N>, bits: u16, n: usize) -> &[f32; N] {
    &books[usize::from(bits >> n & 1)]
}

/// Nibble `g` of the bytes from `at` on, the low one of a byte first.
#[inline(always)]
fn nibble(block: &[u8], at: usize, g: usize) -> i32 {
    i32::from(block[at + g / 2] >> (4 * (g % 2)) & 15)
}

/// The `n`-th pair of bits of the bytes from `at` on, the lowest first.
#[inline(always)]
fn pair(block: &[u8], at: usize, n: usize) -> i32 {
    i32::from(block[at + n / 4] >> (2 * (n % 4)) & 3)
}

/// Decodes 16 groups: `code(n, l)` is the code of value `l` of run `n`, and `group(g)` the scale
/// and the codebook of group `g`.
///
/// All codes are put together before any is looked up: look-ups are scalar, and the other step is a
/// loop that compilers vectorise.
#[inline(always)]
fn decode_groups<'a, const N: usize>(
    out: &mut [f32; 256],
    code: impl Fn(usize, usize) -> u8,
    group: impl Fn(usize) -> (f32, &'a [f32; N]),
) {
    let codes = codes_of_runs(code);
    let codes = codes.flat().as_chunks::<16>().0;
    for (g, (out, codes)) in zip(out.as_chunks_mut::<16>().0, codes).enumerate() {
        let (dl, values) = group(g);
        for (out, &code) in zip(&mut out[..], codes) {
            // A code has no bits above those of the codebook. The remainder says so to the
            // compiler.
            *out = dl * values[usize::from(code) % N];
        }
    }
}

/// Decodes eight runs: as [`decode_groups`], with a scale and a codebook for each run.
#[inline(always)]
fn decode_runs<'a, const N: usize>(
    out: &mut [f32; 256],
    code: impl Fn(usize, usize) -> u8,
    run: impl Fn(usize) -> (f32, &'a [f32; N]),
) {
    let codes = codes_of_runs(code);
    for (n, (out, codes)) in zip(out.as_chunks_mut::<32>().0, &codes).enumerate() {
        let (dl, values) = run(n);
        for (out, &code) in zip(&mut out[..], codes) {
            *out = dl * values[usize::from(code) % N];
        }
    }
}

/// The codes of all values.
#[inline(always)]
fn codes_of_runs(code: impl Fn(usize, usize) -> u8) -> [[u8; 32]; 8] {
    let mut codes = [[0; 32]; 8];
    for (n, codes) in codes.iter_mut().enumerate() {
        for (l, out) in codes.iter_mut().enumerate() {
            *out = code(n, l);
        }
    }
    codes
}

/// Two bits of value `l` of run `n`, in the 64 bytes from `at` on: a byte has those of four runs.
#[inline(always)]
fn two_bits(block: &[u8], at: usize, n: usize, l: usize) -> u8 {
    block[at + n / 4 * 32 + l] >> (2 * (n % 4)) & 3
}

/// Four bits of value `l` of run `n`, in the 128 bytes from `at` on: a byte has those of two runs.
#[inline(always)]
fn four_bits(block: &[u8], at: usize, n: usize, l: usize) -> u8 {
    block[at + n / 2 * 32 + l] >> (4 * (n % 2)) & 15
}

/// The bit of value `l` of run `n`, in the 32 bytes from `at` on: a byte has those of eight runs.
#[inline(always)]
fn one_bit(block: &[u8], at: usize, n: usize, l: usize) -> u8 {
    block[at + l] >> n & 1
}

/// `d in f16 | shifts u16 | scales[8] | codes[64]`: scales of four bits, less 8, for each group.
impl DecodeRowBlock<76, 256> for IQ2_K {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 76], out: &mut [f32; 256]) {
        let (d, shifts) = (f16_at(block, 0), u16_at(block, 2));
        let group = |g| {
            let dl = d * (nibble(block, 4, g) - 8) as f32;
            (dl, codebook(&IQ2, shifts, g))
        };
        decode_groups(out, |n, l| two_bits(block, 12, n, l), group);
    }
}

/// `shifts u8 | high bits u8 | scales[4] | codes[64]`: scales of five bits, less 16, for each run.
impl DecodeRowBlock<70, 256> for IQ2_KS {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 70], out: &mut [f32; 256]) {
        let extra = u16_at(block, 0);
        let run = |n| {
            let scale = nibble(block, 2, n) | i32::from(extra >> (8 + n) & 1) << 4;
            (d * (scale - 16) as f32, codebook(&IQ2, extra, n))
        };
        decode_runs(out, |n, l| two_bits(block, 6, n, l), run);
    }
}

/// `high pairs u16 | low nibbles[4] | indices[64] | fifth bits[16]`: scales of six bits, less 32,
/// for each run, of whose low nibbles a byte has those of runs `n` and `n + 4`. An index picks two
/// values: 16 bytes have the low four bits of the indices of two runs.
impl DecodeRowBlock<86, 256> for IQ2_KL {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 86], out: &mut [f32; 256]) {
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = i32::from(block[2 + n % 4] >> (4 * (n / 4)) & 15);
            let dl = d * ((low | pair(block, 0, n) << 4) - 32) as f32;
            let at = 6 + n / 2 * 16;
            let codes = zip(block[at..at + 16].iter(), &block[70..86]);
            for (out, (&q, &fifth)) in zip(out.as_chunks_mut::<2>().0, codes) {
                let index = q >> (4 * (n % 2)) & 15 | (fifth >> n & 1) << 4;
                let [first, second] = PAIRS[usize::from(index)];
                *out = [dl * first, dl * second];
            }
        }
    }
}

/// `d in f16 | shifts u16 | signs u16 | scales[8] | codes[64] | third bits[32]`: scales `2 * s + 1`
/// of four bits for each group, negated where its sign is set.
impl DecodeRowBlock<110, 256> for IQ3_K {
    const IS_APART: bool = true;

    #[inline(always)]
    fn decode(_: f32, block: &[u8; 110], out: &mut [f32; 256]) {
        let (d, shifts, signs) = (f16_at(block, 0), u16_at(block, 2), u16_at(block, 4));
        let group = |g| {
            let scale = 2 * nibble(block, 6, g) + 1;
            let scale = if signs >> g & 1 == 0 { scale } else { -scale };
            (d * scale as f32, codebook(&IQ3, shifts, g))
        };
        let code = |n, l| two_bits(block, 14, n, l) | one_bit(block, 78, n, l) << 2;
        decode_groups(out, code, group);
    }
}

/// `high bits u8 | shifts u8 | scales[4] | codes[64] | third bits[32]`: scales of five bits, less
/// 16, for each run, of whose low nibbles a byte has those of runs `n` and `n + 4`.
impl DecodeRowBlock<102, 256> for IQ3_KS {
    const IS_APART: bool = true;

    #[inline(always)]
    fn decode(d: f32, block: &[u8; 102], out: &mut [f32; 256]) {
        let extra = u16_at(block, 0);
        let run = |n: usize| {
            let low = i32::from(block[2 + n % 4] >> (4 * (n / 4)) & 15);
            let scale = low | i32::from(extra >> n & 1) << 4;
            (d * (scale - 16) as f32, codebook(&IQ3, extra, 8 + n))
        };
        let code = |n, l| two_bits(block, 6, n, l) | one_bit(block, 70, n, l) << 2;
        decode_runs(out, code, run);
    }
}

/// `d in f16 | shifts u16 | high pairs[4] | low nibbles[8] | codes[128]`: scales of six bits, less
/// 32, for each group. The low nibbles of 16 bytes of codes are one group, the high nibbles the
/// next.
impl DecodeRowBlock<144, 256> for IQ4_K {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 144], out: &mut [f32; 256]) {
        let group = six_bit_scales(block, &IQ4);
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let groups = [group(2 * n), group(2 * n + 1)];
            nibble_halves(&block[16 + 16 * n..32 + 16 * n], out, |q, l| {
                let (dl, values) = groups[l / 16];
                dl * values[usize::from(q & 15)]
            });
        }
    }
}

/// The scale and the codebook of each group of IQ4_K and IQ5_K, which begin with
/// `d in f16 | shifts u16 | high pairs[4] | low nibbles[8]`. Scales are less 32.
#[inline(always)]
fn six_bit_scales<'a, const N: usize>(
    block: &[u8],
    books: &'a Codebooks<N>,
) -> impl Fn(usize) -> (f32, &'a [f32; N]) {
    let (d, shifts) = (f16_at(block, 0), u16_at(block, 2));
    move |g| {
        let scale = nibble(block, 8, g) | pair(block, 4, g) << 4;
        (d * (scale - 32) as f32, codebook(books, shifts, g))
    }
}

/// `scales[8] | codes[128]`: of the byte of each run, the high seven bits times two, less 127, are
/// the scale, and the lowest bit says which codebook. Codes lie as in IQ4_K.
impl DecodeRowBlock<136, 256> for IQ4_KS {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 136], out: &mut [f32; 256]) {
        for (n, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (dl, values) = seven_bit_scale(d, block[n], &IQ4);
            nibble_halves(&block[8 + 16 * n..24 + 16 * n], out, |q, _| {
                dl * values[usize::from(q & 15)]
            });
        }
    }
}

/// The scale and the codebook of a run of IQ4_KS, IQ4_KSS and IQ5_KS.
#[inline(always)]
fn seven_bit_scale<const N: usize>(d: f32, byte: u8, books: &Codebooks<N>) -> (f32, &[f32; N]) {
    let dl = d * (i32::from(byte & 254) - 127) as f32;
    (dl, codebook(books, byte.into(), 0))
}

/// `words[8][8]` of 16 bits, eight for each run. Their lowest bits are the run's byte of scale, as
/// in IQ4_KS. A word without its lowest bit, exclusive or itself shifted right by one, is two bytes
/// of codes as in IQ4_KS.
impl DecodeRowBlock<128, 256> for IQ4_KSS {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 128], out: &mut [f32; 256]) {
        let runs = block.as_chunks::<16>().0;
        for (out, run) in zip(out.as_chunks_mut::<32>().0, runs) {
            let (mut scale, mut codes) = (0, [[0; 2]; 8]);
            for (k, codes) in codes.iter_mut().enumerate() {
                let word = u16_at(run, 2 * k);
                scale |= ((word & 1) as u8) << k;
                let word = word & 0xfffe;
                *codes = (word ^ word >> 1).to_le_bytes();
            }
            let (dl, values) = seven_bit_scale(d, scale, &IQ4);
            nibble_halves(codes.flat(), out, |q, _| dl * values[usize::from(q & 15)]);
        }
    }
}

/// `d in f16 | shifts u16 | high pairs[4] | low nibbles[8] | codes[128] | fifth bits[32]`: scales
/// as IQ4_K.
impl DecodeRowBlock<176, 256> for IQ5_K {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 176], out: &mut [f32; 256]) {
        let code = |n, l| four_bits(block, 16, n, l) | one_bit(block, 144, n, l) << 4;
        decode_groups(out, code, six_bit_scales(block, &IQ5));
    }
}

/// `scales[8] | codes[128] | fifth bits[32]`: scales as IQ4_KS.
impl DecodeRowBlock<168, 256> for IQ5_KS {
    #[inline(always)]
    fn decode(d: f32, block: &[u8; 168], out: &mut [f32; 256]) {
        let code = |n, l| four_bits(block, 8, n, l) | one_bit(block, 136, n, l) << 4;
        decode_runs(out, code, |n| seven_bit_scale(d, block[n], &IQ5));
    }
}

/// `d in f16 | shifts u16 | scales[16] | low nibbles[128] | high pairs[64]`: signed scales for each
/// group. The codebook is a polynomial of the code, to which the shift adds one.
impl DecodeRowBlock<212, 256> for IQ6_K {
    #[inline(always)]
    fn decode(_: f32, block: &[u8; 212], out: &mut [f32; 256]) {
        let (d, shifts) = (f16_at(block, 0), u16_at(block, 2));
        for (g, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (n, first) = (g / 2, g % 2 * 16);
            let dl = d * f32::from(block[4 + g] as i8);
            let shift = f32::from(shifts >> g & 1);
            for (l, out) in out.iter_mut().enumerate() {
                let low = four_bits(block, 20, n, first + l);
                let q = f32::from(low | two_bits(block, 148, n, first + l) << 4);
                let value = -127.0 + q * (6.2568 + q * (-0.11218 + q * 0.001_197_2));
                *out = dl * (value + shift);
            }
        }
    }
}
