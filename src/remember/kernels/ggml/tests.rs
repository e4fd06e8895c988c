//! Every block type at every CPU level and output type, against a naive decoder that computes one
//! value at a time ([`DecodeTwin`]).

mod ik_twins;
mod old_twins;
mod twins;

use half::{bf16, f16};

use super::*;
use crate::test_utils::{effort, miri_or};

/// A naive decoder of a block type.
trait DecodeTwin {
    /// Where a block has scales in f16, as the `block_*` of ggml's `ggml-common.h` have them.
    const F16_SCALES: &'static [usize];

    /// Value `i` of a block.
    fn value(block: BlockBits<'_>, i: usize) -> f32;

    /// Overwrites the scales of the `n`-th block of a test with the f16 of `bits`, or what else a
    /// type has for scales with something as hostile.
    fn put_hostile_scales(block: &mut [u8], n: usize, bits: [u16; 2]) {
        let _ = n;
        for (&at, bits) in Self::F16_SCALES.iter().zip(bits) {
            block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
    }
}

/// A naive decoder of a block type of ik_llama.cpp.
trait DecodeRowTwin {
    /// Whether a block begins with a scale in f16.
    const HAS_SCALE: bool = false;

    /// Value `i` of a block in a row whose scale is `d`.
    fn value(block: BlockBits<'_>, d: f32, i: usize) -> f32;
}

/// A block type under test.
struct DecodeCase {
    dtype: Dtype,
    bytes: usize,
    values: usize,
    /// Value `i` of a block, times the scale if there is one.
    value: fn(BlockBits<'_>, Option<f32>, usize) -> f32,
    put_hostile_scales: fn(&mut [u8], usize, [u16; 2]),
}

macro_rules! tested_types {
    ({ $($block:ident $number:literal $bytes:literal / $values:literal $what:literal $words:tt;)* }
     { $($ik:ident $id:literal $header:literal + $size:literal / $n:literal $about:literal;)* } $interleaved:tt) => {
        const TYPES: &[DecodeCase] = &[$(DecodeCase {
            dtype: Dtype::$block,
            bytes: $bytes,
            values: $values,
            value: |block, scale, i| {
                let value = <$block as DecodeTwin>::value(block, i);
                scale.map_or(value, |scale| value * scale)
            },
            put_hostile_scales: $block::put_hostile_scales,
        },)* $(DecodeCase {
            dtype: Dtype::$ik,
            bytes: $size,
            values: $n,
            value: |block, d, i| <$ik as DecodeRowTwin>::value(block, d.unwrap_or(1.0), i),
            put_hostile_scales: |block, _, [bits, _]| {
                if <$ik as DecodeRowTwin>::HAS_SCALE {
                    block[..2].copy_from_slice(&bits.to_le_bytes());
                }
            },
        }),*];
    };
}
ggml_block_types! { tested_types {} }

/// A block of which any bits can be read.
#[derive(Clone, Copy)]
struct BlockBits<'a>(&'a [u8]);

impl BlockBits<'_> {
    /// The number in the `n` bits from bit `from` of byte `at` on, lowest first.
    fn get(self, at: usize, from: usize, n: usize) -> i32 {
        let bytes = &self.0[at + from / 8..at + (from + n).div_ceil(8)];
        let word = (bytes.iter().rev()).fold(0u64, |word, &byte| word << 8 | u64::from(byte));
        (word >> (from % 8) & ((1 << n) - 1)) as i32
    }

    fn f32_at(self, at: usize) -> f32 {
        f32::from_bits(self.get(at, 0, 32) as u32)
    }

    fn signed(self, at: usize) -> f32 {
        f32::from(self.0[at] as i8)
    }

    fn f16_at(self, at: usize) -> f32 {
        f16::from_bits(self.get(at, 0, 16) as u16).to_f32_const()
    }

    /// The nibble of value `j` in the bytes from `at` on, each of which holds two values that are
    /// `apart`, the first in its low nibble.
    fn nibble(self, at: usize, j: usize, apart: usize) -> i32 {
        self.get(at + j / (2 * apart) * apart + j % apart, j / apart % 2 * 4, 4)
    }

    /// Scale and minimum of group `g`: Q4_K and Q5_K pack those of eight groups into the 12 bytes
    /// from `at` on.
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

/// Bits of f16: zeros, the ends of the subnormals, the largest, infinities, a NaN and two ordinary
/// numbers.
const HOSTILE: [u16; 12] =
    [0, 0x8000, 1, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e01, 0x211f, 0x9c42];

/// Factors of every decoded value, or scales of a row.
const MULTIPLIERS: [Option<f32>; 8] = [
    None,
    Some(0.37),
    Some(-1.0),
    Some(0.0),
    Some(1e-40),
    Some(-3e38),
    Some(f32::INFINITY),
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

/// Decodes `blocks` at every level into every output type, with each multiplier. The values must be
/// the twin's, rounded once.
fn check(t: &DecodeCase, blocks: &[u8], multipliers: &[Option<f32>]) {
    let places = blocks
        .chunks(t.bytes)
        .flat_map(|block| (0..t.values).map(move |i| (block, i)));
    for &multiplier in multipliers {
        let want: Vec<f32> = places
            .clone()
            .map(|(block, i)| (t.value)(BlockBits(block), multiplier, i))
            .collect();
        for level in Level::available() {
            check_one(t, blocks, multiplier, level, &want);
        }
    }
}

fn check_one(t: &DecodeCase, blocks: &[u8], multiplier: Option<f32>, level: Level, want: &[f32]) {
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
            let rounded = (f16::from_f32_const(want).to_bits(), bf16::from_f32(want).to_bits());
            got.0.to_bits() == want.to_bits() && (got.1.to_bits(), got.2.to_bits()) == rounded
        };
        assert!(same, "{} {level:?} × {multiplier:?} [{i}]: {want:e}, got {got:?}", t.dtype);
    }
}

#[test]
fn random_blocks() {
    for (seed, t) in TYPES.iter().enumerate() {
        for n in [0, 1, 2, 7, 33]
            .into_iter()
            .filter(|&n| n <= miri_or(1, 33))
        {
            let blocks = random(n * t.bytes, (seed * 64 + n) as u64);
            check(t, &blocks, &MULTIPLIERS[..miri_or(2, MULTIPLIERS.len())]);
        }
    }
}

/// Every pair of hostile scales, and every code where a scale is one byte; with multipliers, one of
/// every 11, so that each scale is among them. Under Miri, one of every 127.
#[test]
fn hostile_scales() {
    for (seed, t) in TYPES.iter().enumerate() {
        let step = miri_or(127, 1);
        let mut blocks = random((256 / step) * t.bytes, seed as u64 + 1000);
        blocks
            .chunks_mut(t.bytes)
            .enumerate()
            .for_each(|(n, block)| {
                let n = n * step;
                let bits = [n, n / HOSTILE.len()].map(|n| HOSTILE[n % HOSTILE.len()]);
                (t.put_hostile_scales)(block, n, bits);
            });
        check(t, &blocks, &MULTIPLIERS[..1]);
        let some: Vec<u8> = (blocks.chunks(t.bytes))
            .step_by(effort([11, 1, 1]))
            .flatten()
            .copied()
            .collect();
        check(t, &some, &MULTIPLIERS[1..miri_or(2, MULTIPLIERS.len())]);
    }
}

#[test]
fn every_block_type_has_a_decoder() {
    for &dtype in Dtype::ALL {
        let is_interleaved = interleaved::RowsDecoder::of(dtype).is_some();
        assert_eq!(is_interleaved, dtype.interleaved_rows().is_some(), "{dtype}");
        let has_decoder = decoder(dtype).is_some() || is_interleaved;
        assert_eq!(has_decoder, dtype.is_ggml_block(), "{dtype}");
    }
    for t in TYPES {
        let mut out = vec![f32::INFINITY; t.values];
        decoder(t.dtype).unwrap()(&vec![0; t.bytes], None, Level::Baseline, Out::F32(&mut out));
        assert!(out.iter().all(|x| x.is_finite()), "{}", t.dtype);
    }
}
