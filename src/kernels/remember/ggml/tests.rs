//! Every block type at every CPU level and output type, against a twin that computes one value at a time from
//! the bits that it is made of.

use half::{bf16, f16};

use super::{decoder, grids};
use crate::Dtype;
use crate::element::Out;
use crate::simd::Level;

/// A block type: its bytes, its values, and where its f16 scales are.
struct Type {
    dtype: Dtype,
    bytes: usize,
    values: usize,
    scales: &'static [usize],
}

macro_rules! types {
    ($($dtype:ident $bytes:literal $values:literal $scales:expr;)*) => {
        const TYPES: &[Type] =
            &[$(Type { dtype: Dtype::$dtype, bytes: $bytes, values: $values, scales: &$scales }),*];
    };
}

// As `ggml-common.h` has its `block_*`. What has no f16 is made hostile by `hostile`.
types! {
    Q4_0 18 32 [0];
    Q4_1 20 32 [0, 2];
    Q5_0 22 32 [0];
    Q5_1 24 32 [0, 2];
    Q8_0 34 32 [0];
    Q8_1 36 32 [0, 2];
    Q2_K 84 256 [80, 82];
    Q3_K 110 256 [108];
    Q4_K 144 256 [0, 2];
    Q5_K 176 256 [0, 2];
    Q6_K 210 256 [208];
    Q8_K 292 256 [];
    IQ1_S 50 256 [0];
    IQ1_M 56 256 [];
    IQ2_XXS 66 256 [0];
    IQ2_XS 74 256 [0];
    IQ2_S 82 256 [0];
    IQ3_XXS 98 256 [0];
    IQ3_S 110 256 [0];
    IQ4_NL 18 32 [0];
    IQ4_XS 136 256 [0];
    TQ1_0 54 256 [52];
    TQ2_0 66 256 [64];
    Q1_0 18 128 [0];
    Q2_0 18 64 [0];
    MXFP4 17 32 [];
    NVFP4 36 64 [];
}

/// A block, of which any bits can be asked for.
#[derive(Clone, Copy)]
struct Bits<'a>(&'a [u8]);

impl Bits<'_> {
    /// The number in the `n` bits from bit `from` of byte `at` on, lowest first.
    fn get(self, at: usize, from: usize, n: usize) -> i32 {
        let bit = |b: usize| i32::from(self.0[at + b / 8] >> (b % 8) & 1);
        (0..n).map(|j| bit(from + j) << j).sum()
    }

    fn signed(self, at: usize) -> f32 {
        f32::from(self.0[at] as i8)
    }

    fn half(self, at: usize) -> f32 {
        f16::from_bits(self.get(at, 0, 16) as u16).to_f32_const()
    }

    /// Nibble `j` of a run of bytes of which each has two values `apart` from each other.
    fn nibble(self, at: usize, j: usize, apart: usize) -> i32 {
        self.get(
            at + j / (2 * apart) * apart + j % apart,
            j / apart % 2 * 4,
            4,
        )
    }

    /// Scale and minimum of group `g`, of the eight in twelve bytes at `at`.
    fn scale_min(self, at: usize, g: usize) -> (f32, f32) {
        let six = |at: usize| self.get(at, 0, 6);
        let (scale, min) = match g {
            0..4 => (six(at + g), six(at + 4 + g)),
            _ => (
                self.get(at + 4 + g, 0, 4) | self.get(at + g - 4, 6, 2) << 4,
                self.get(at + 4 + g, 4, 4) | self.get(at + g, 6, 2) << 4,
            ),
        };
        (scale as f32, min as f32)
    }
}

/// Value `i` of a block.
fn twin(dtype: Dtype, block: &[u8], i: usize) -> f32 {
    let twins = [legacy, k_quants, small, iq, iq1];
    twins
        .iter()
        .find_map(|twin| twin(dtype, Bits(block), i))
        .unwrap()
}

fn legacy(dtype: Dtype, b: Bits<'_>, i: usize) -> Option<f32> {
    Some(match dtype {
        Dtype::Q4_0 => (b.nibble(2, i, 16) - 8) as f32 * b.half(0),
        Dtype::Q4_1 => b.nibble(4, i, 16) as f32 * b.half(0) + b.half(2),
        Dtype::Q5_0 => (b.nibble(6, i, 16) + 16 * b.get(2, i, 1) - 16) as f32 * b.half(0),
        Dtype::Q5_1 => (b.nibble(8, i, 16) + 16 * b.get(4, i, 1)) as f32 * b.half(0) + b.half(2),
        Dtype::Q8_0 => b.signed(2 + i) * b.half(0),
        Dtype::Q8_1 => b.signed(4 + i) * b.half(0),
        Dtype::IQ4_NL => b.half(0) * grids::IQ4[b.nibble(2, i, 16) as usize],
        _ => return None,
    })
}

fn k_quants(dtype: Dtype, b: Bits<'_>, i: usize) -> Option<f32> {
    // Of each 128 values, 32 bytes hold the same bits.
    let (half, run, lane) = (i / 128, i % 128 / 32, i % 32);
    let (group16, group32) = (i / 16, i / 32);
    Some(match dtype {
        Dtype::Q2_K => {
            let (scale, min) = (b.get(group16, 0, 4) as f32, b.get(group16, 4, 4) as f32);
            let q = b.get(16 + 32 * half + lane, 2 * run, 2);
            b.half(80) * scale * q as f32 - b.half(82) * min
        }
        Dtype::Q3_K => {
            let low = b.get(96 + group16 % 8, group16 / 8 * 4, 4);
            let scale = low + 16 * b.get(104 + group16 % 4, group16 / 4 * 2, 2);
            let q = b.get(32 + 32 * half + lane, 2 * run, 2) + 4 * b.get(lane, group32, 1);
            b.half(108) * (scale - 32) as f32 * (q - 4) as f32
        }
        Dtype::Q4_K => {
            let (scale, min) = b.scale_min(4, group32);
            b.half(0) * scale * b.nibble(16, i, 32) as f32 - b.half(2) * min
        }
        Dtype::Q5_K => {
            let (scale, min) = b.scale_min(4, group32);
            let q = b.nibble(48, i, 32) + 16 * b.get(16 + lane, group32, 1);
            b.half(0) * scale * q as f32 - b.half(2) * min
        }
        Dtype::Q6_K => {
            let low = b.get(64 * half + 32 * (run % 2) + lane, run / 2 * 4, 4);
            let q = low + 16 * b.get(128 + 32 * half + lane, 2 * run, 2);
            b.half(208) * b.signed(192 + group16) * (q - 32) as f32
        }
        Dtype::Q8_K => f32::from_bits(b.get(0, 0, 32) as u32) * b.signed(4 + i),
        _ => return None,
    })
}

/// Twice the values of E2M1.
const E2M1: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
];

fn small(dtype: Dtype, b: Bits<'_>, i: usize) -> Option<f32> {
    Some(match dtype {
        Dtype::TQ1_0 => {
            let (at, digit) = match i {
                0..160 => (i % 32, i / 32),
                160..240 => (32 + (i - 160) % 16, (i - 160) / 16),
                _ => (48 + (i - 240) % 4, (i - 240) / 4),
            };
            let fraction = b.get(at, 0, 8) * 3i32.pow(digit as u32) % 256;
            (fraction * 3 / 256 - 1) as f32 * b.half(52)
        }
        Dtype::TQ2_0 => (b.get(i / 128 * 32 + i % 32, i % 128 / 32 * 2, 2) - 1) as f32 * b.half(64),
        Dtype::Q1_0 if b.get(2, i, 1) == 1 => b.half(0),
        Dtype::Q1_0 => -b.half(0),
        Dtype::Q2_0 => (b.get(2, 2 * i, 2) - 1) as f32 * b.half(0),
        Dtype::MXFP4 => {
            let scale = 2f64.powi(b.get(0, 0, 8) - 128);
            E2M1[b.nibble(1, i, 16) as usize] * scale as f32
        }
        Dtype::NVFP4 => {
            let (exponent, mantissa) = (b.get(i / 16, 3, 4), b.get(i / 16, 0, 3) as f32);
            let scale = match (exponent, b.0[i / 16]) {
                (_, 0x7f) => 0.0,
                (0, _) => mantissa / 8.0 * 2f32.powi(-6),
                (e, _) => (1.0 + mantissa / 8.0) * 2f32.powi(e - 7),
            };
            E2M1[b.nibble(4, i, 8) as usize] * (scale / 2.0)
        }
        _ => return None,
    })
}

/// `value`, negated if bit `i` of an index of seven bits is set; the eighth makes the number of set bits even.
fn parity(value: f32, index: i32, i: usize) -> f32 {
    let set = if i == 7 {
        index.count_ones() % 2
    } else {
        index as u32 >> i & 1
    };
    if set == 1 { -value } else { value }
}

fn iq(dtype: Dtype, b: Bits<'_>, i: usize) -> Option<f32> {
    let (of4, of8, of16, of32, j) = (i / 4, i / 8, i / 16, i / 32, i % 8);
    let quarter = |d: f32, scale: i32| d * (0.5 + scale as f32) * 0.25;
    Some(match dtype {
        Dtype::IQ2_XXS => {
            let at = 2 + 8 * of32;
            let value = grids::IQ2_XXS[b.get(at + of8 % 4, 0, 8) as usize].to_le_bytes()[j];
            let d = quarter(b.half(0), b.get(at + 4, 28, 4));
            parity(d * f32::from(value), b.get(at + 4, of8 % 4 * 7, 7), j)
        }
        Dtype::IQ2_XS => {
            let value = grids::IQ2_XS[b.get(2 + 2 * of8, 0, 9) as usize].to_le_bytes()[j];
            let d = quarter(b.half(0), b.get(66, 4 * of16, 4));
            parity(d * f32::from(value), b.get(2 + 2 * of8, 9, 7), j)
        }
        Dtype::IQ2_S => {
            let index = b.get(2 + of8, 0, 8) + 256 * b.get(66, 2 * of8, 2);
            let value = quarter(b.half(0), b.get(74, 4 * of16, 4))
                * f32::from(grids::IQ2_S[index as usize].to_le_bytes()[j]);
            if b.get(34, i, 1) == 1 { -value } else { value }
        }
        Dtype::IQ3_XXS => {
            let at = 66 + 4 * of32;
            let value = grids::IQ3_XXS[b.get(2 + of4, 0, 8) as usize].to_le_bytes()[i % 4];
            let d = b.half(0) * (0.5 + b.get(at, 28, 4) as f32) * 0.5;
            parity(d * f32::from(value), b.get(at, of8 % 4 * 7, 7), j)
        }
        Dtype::IQ3_S => {
            let index = b.get(2 + of4, 0, 8) + 256 * b.get(66, of4, 1);
            let d = b.half(0) * (1 + 2 * b.get(106, 4 * of32, 4)) as f32;
            let value = d * f32::from(grids::IQ3_S[index as usize].to_le_bytes()[i % 4]);
            if b.get(74, i, 1) == 1 { -value } else { value }
        }
        Dtype::IQ4_XS => {
            let scale = b.get(4, 4 * of32, 4) + 16 * b.get(2, 2 * of32, 2);
            b.half(0) * (scale - 32) as f32 * grids::IQ4[b.nibble(8, i, 16) as usize]
        }
        _ => return None,
    })
}

fn iq1(dtype: Dtype, b: Bits<'_>, i: usize) -> Option<f32> {
    let (of8, of16, of32) = (i / 8, i / 16, i / 32);
    let (d, scale, index, down) = match dtype {
        Dtype::IQ1_S => {
            let word = 34 + 2 * of32;
            let index = b.get(2 + of8, 0, 8) + 256 * b.get(word, of8 % 4 * 3, 3);
            (b.half(0), b.get(word, 12, 3), index, b.get(word, 15, 1))
        }
        Dtype::IQ1_M => {
            let d: i32 = (0..4).map(|n| b.get(48 + 2 * n, 12, 4) << (4 * n)).sum();
            let scale = b.get(48 + of16 / 4 * 2, of16 % 4 * 3, 3);
            let index = b.get(of8, 0, 8) + 256 * b.get(32, 4 * of8, 3);
            (
                f16::from_bits(d as u16).to_f32_const(),
                scale,
                index,
                b.get(32, 4 * of8 + 3, 1),
            )
        }
        _ => return None,
    };
    let delta = if down == 1 { -0.125 } else { 0.125 };
    Some(
        d * (2 * scale + 1) as f32
            * (f32::from(grids::IQ1[index as usize].to_le_bytes()[i % 8]) / 8.0 - 1.0 + delta),
    )
}

/// Zeros, the ends of the subnormals, the largest, what is not finite, and two plain ones.
const HOSTILE: [u16; 12] = [
    0, 0x8000, 1, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e01, 0x211f, 0x9c42,
];

/// Multipliers, of which there may be none.
const MULTIPLIERS: [Option<f32>; 6] = [
    None,
    Some(0.37),
    Some(-1.0),
    Some(0.0),
    Some(1e-40),
    Some(f32::NAN),
];

fn random(n: usize, mut state: u64) -> Vec<u8> {
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// Puts the scale `bits`, and another one where the type has two, into `block`.
fn hostile(t: &Type, block: &mut [u8], n: usize) {
    let (first, second) = (
        HOSTILE[n % HOSTILE.len()],
        HOSTILE[n / HOSTILE.len() % HOSTILE.len()],
    );
    for (&at, bits) in t.scales.iter().zip([first, second]) {
        block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }
    match t.dtype {
        Dtype::IQ1_M => {
            for k in 0..4 {
                let high = &mut block[49 + 2 * k];
                *high = *high & 15 | ((first >> (4 * k) & 15) as u8) << 4;
            }
        }
        // An f32; of its subnormals there are more than of f16's.
        Dtype::Q8_K => {
            let wide = if n.is_multiple_of(3) {
                f32::from_bits(first.into())
            } else {
                f16::from_bits(first).to_f32_const()
            };
            block[..4].copy_from_slice(&wide.to_le_bytes());
        }
        Dtype::MXFP4 => block[0] = n as u8,
        Dtype::NVFP4 => (0..4).for_each(|g| block[g] = (n + 64 * g) as u8),
        _ => {}
    }
}

/// Decodes `blocks` at every level into every type; the values must be the twin's, rounded once.
fn check(t: &Type, blocks: &[u8]) {
    let places = blocks
        .chunks(t.bytes)
        .flat_map(|block| (0..t.values).map(move |i| (block, i)));
    let plain: Vec<f32> = places.map(|(block, i)| twin(t.dtype, block, i)).collect();
    for multiplier in MULTIPLIERS {
        let want: Vec<f32> = plain
            .iter()
            .map(|&x| multiplier.map_or(x, |m| x * m))
            .collect();
        for level in Level::available() {
            check_one(t, blocks, multiplier, level, &want);
        }
    }
}

fn check_one(t: &Type, blocks: &[u8], multiplier: Option<f32>, level: Level, want: &[f32]) {
    let (decode, n) = (decoder(t.dtype).unwrap(), want.len());
    let (mut single, mut half, mut brain) = (vec![7f32; n], vec![f16::ONE; n], vec![bf16::ONE; n]);
    decode(blocks, multiplier, level, Out::F32(&mut single));
    decode(blocks, multiplier, level, Out::F16(&mut half));
    decode(blocks, multiplier, level, Out::Bf16(&mut brain));
    for (i, &want) in want.iter().enumerate() {
        let got = (single[i], half[i], brain[i]);
        let same = if want.is_nan() {
            got.0.is_nan() && got.1.is_nan() && got.2.is_nan()
        } else {
            let rounded = (
                f16::from_f32_const(want).to_bits(),
                bf16::from_f32(want).to_bits(),
            );
            got.0.to_bits() == want.to_bits() && (got.1.to_bits(), got.2.to_bits()) == rounded
        };
        assert!(
            same,
            "{} {level:?} × {multiplier:?} [{i}]: {want:e}, got {got:?}",
            t.dtype
        );
    }
}

#[test]
fn random_blocks() {
    for (seed, t) in TYPES.iter().enumerate() {
        for n in [0, 1, 2, 7, 33] {
            check(t, &random(n * t.bytes, (seed * 64 + n) as u64));
        }
    }
}

/// Every pair of hostile scales, and every code where a scale is one byte.
#[test]
fn hostile_scales() {
    for (seed, t) in TYPES.iter().enumerate() {
        let mut blocks = random(256 * t.bytes, seed as u64 + 1000);
        blocks
            .chunks_mut(t.bytes)
            .enumerate()
            .for_each(|(n, block)| hostile(t, block, n));
        check(t, &blocks);
    }
}

/// The table of dtypes and that of decoders say what ggml says: of a block's bytes comes each of its values.
#[test]
fn every_block_type_has_a_decoder() {
    let blocks: Vec<Dtype> = Dtype::ALL
        .iter()
        .copied()
        .filter(|d| d.is_ggml_block())
        .collect();
    assert_eq!(blocks.len(), TYPES.len());
    for &dtype in Dtype::ALL {
        assert_eq!(decoder(dtype).is_some(), dtype.is_ggml_block(), "{dtype}");
    }
    for t in TYPES {
        assert_eq!(
            (t.dtype.block_size(), t.dtype.type_size()),
            (t.values, Some(t.bytes)),
            "{}",
            t.dtype
        );
        let mut out = vec![f32::INFINITY; t.values];
        decoder(t.dtype).unwrap()(&vec![0; t.bytes], None, Level::Baseline, Out::F32(&mut out));
        assert!(out.iter().all(|x| x.is_finite()), "{}", t.dtype);
    }
}
