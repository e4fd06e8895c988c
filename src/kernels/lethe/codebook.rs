//! Values in blocks that share a scale, to codes of a table of 16 levels, two to a byte: the mirror of
//! `remember/codebook.rs`.

use crate::simd::{Level, Routine, perform};

/// Which code a scaled value gets, and how two make a byte.
#[derive(Debug, Clone)]
pub(crate) struct Levels {
    /// The rank of a value is the number of these that are below it.
    pub bounds: [f32; 15],
    /// The byte of a pair of ranks, the earlier one times 16; none if it is the pair itself.
    pub bytes: Option<Box<[u8; 256]>>,
    /// The rank that follows the last one of an odd number.
    pub pad: u8,
    pub norm: Norm,
}

/// How a value is scaled, and what the largest magnitude of a block is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Norm {
    /// Whole blocks are multiplied by the inverse of the scale, a short one is divided by it. The scale that is used
    /// is at least [`LEAST_SCALE`]; a short block also stores that.
    BitsAndBytes,
    /// Divided by the scale, which is 1 if all values are zeros.
    #[cfg(feature = "qnat")]
    Qlora,
}

/// What bitsandbytes never divides by less than.
pub(crate) const LEAST_SCALE: f32 = 1e-38;

impl Levels {
    /// Levels with these codes for each rank.
    pub(crate) fn new(
        bounds: [f32; 15],
        codes: &[u8; 16],
        high_first: bool,
        pad: u8,
        norm: Norm,
    ) -> Self {
        let mut bytes = Box::new([0; 256]);
        for (pair, byte) in bytes.iter_mut().enumerate() {
            let (first, second) = (codes[pair >> 4], codes[pair & 15]);
            *byte = if high_first {
                first << 4 | second
            } else {
                second << 4 | first
            };
        }
        let same = bytes
            .iter()
            .enumerate()
            .all(|(pair, &byte)| pair == usize::from(byte));
        Self {
            bounds,
            bytes: (!same).then_some(bytes),
            pad,
            norm,
        }
    }

    /// Encodes whole blocks, of which the last may be short: the codes, each block in bytes of its own, and the
    /// largest magnitude of each as its scale.
    pub(crate) fn encode(
        &self,
        values: &[f32],
        block: usize,
        level: Level,
        codes: &mut Vec<u8>,
        scales: &mut Vec<f32>,
    ) {
        let (codes, scales) = (
            grow(codes, bytes(values.len(), block)),
            grow(scales, values.len().div_ceil(block)),
        );
        perform(
            level,
            &mut Blocks {
                values,
                block,
                levels: self,
                codes,
                scales,
                given: false,
            },
        );
    }

    /// As [`encode`](Self::encode), with scales that are known.
    pub(crate) fn encode_with(
        &self,
        values: &[f32],
        block: usize,
        scales: &mut [f32],
        level: Level,
    ) -> Vec<u8> {
        let mut codes = vec![0; bytes(values.len(), block)];
        perform(
            level,
            &mut Blocks {
                values,
                block,
                levels: self,
                codes: &mut codes,
                scales,
                given: true,
            },
        );
        codes
    }
}

/// Bytes that the codes of `n` values take.
fn bytes(n: usize, block: usize) -> usize {
    n / block * block.div_ceil(2) + (n % block).div_ceil(2)
}

/// `n` more elements of `all`.
fn grow<T: Copy + Default>(all: &mut Vec<T>, n: usize) -> &mut [T] {
    let before = all.len();
    all.resize(before + n, T::default());
    &mut all[before..]
}

/// Values whose ranks are found together.
const CHUNK: usize = 32;

/// Encodes blocks.
struct Blocks<'a> {
    values: &'a [f32],
    block: usize,
    levels: &'a Levels,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    /// Whether the scales are there, or have to be found.
    given: bool,
}

impl Routine for Blocks<'_> {
    #[inline(always)]
    fn run(&mut self) {
        let out = self.codes.chunks_mut(self.block.div_ceil(2));
        for ((values, codes), scale) in self
            .values
            .chunks(self.block)
            .zip(out)
            .zip(&mut *self.scales)
        {
            if !self.given {
                *scale = absmax(values);
            }
            match self.levels.norm {
                Norm::BitsAndBytes => {
                    let least = if scale.abs() < LEAST_SCALE {
                        LEAST_SCALE
                    } else {
                        *scale
                    };
                    if values.len() == self.block {
                        let factor = 1.0 / least;
                        pack(values, codes, self.levels, |x| x * factor);
                    } else {
                        *scale = least;
                        pack(values, codes, self.levels, |x| x / least);
                    }
                }
                #[cfg(feature = "qnat")]
                Norm::Qlora => {
                    let divisor = if *scale == 0.0 { 1.0 } else { *scale };
                    *scale = divisor;
                    pack(values, codes, self.levels, |x| x / divisor);
                }
            }
        }
    }
}

/// The largest magnitude. Finite floats without their sign are ordered as integers, of which LLVM vectorises the
/// maximum.
#[inline(always)]
pub(crate) fn absmax(values: &[f32]) -> f32 {
    let mut max = 0;
    for x in values {
        max = magnitude(*x).max(max);
    }
    f32::from_bits(max as u32)
}

#[inline(always)]
fn magnitude(x: f32) -> i32 {
    (x.to_bits() & 0x7fff_ffff) as i32
}

/// Finds the codes of one block.
#[inline(always)]
fn pack(values: &[f32], codes: &mut [u8], levels: &Levels, scaled: impl Fn(f32) -> f32) {
    let mut ranks = [0u32; CHUNK];
    for (values, codes) in values.chunks(CHUNK).zip(codes.chunks_mut(CHUNK / 2)) {
        if let Ok(values) = <&[f32; CHUNK]>::try_from(values) {
            for (rank, &x) in ranks.iter_mut().zip(values) {
                *rank = count(scaled(x), &levels.bounds);
            }
        } else {
            ranks = [u32::from(levels.pad); CHUNK];
            for (rank, &x) in ranks.iter_mut().zip(values) {
                *rank = count(scaled(x), &levels.bounds);
            }
        }
        // Both ranks of a pair are shifted in one word. Else LLVM would make each comparison's result a byte.
        let pairs: &[u64; CHUNK / 2] = bytemuck::cast_ref(&ranks);
        for (code, pair) in codes.iter_mut().zip(pairs) {
            *code = (pair << 4 | pair >> 32) as u8;
        }
        if let Some(bytes) = &levels.bytes {
            for code in codes {
                *code = bytes[usize::from(*code)];
            }
        }
    }
}

/// The number of bounds below `x`.
#[inline(always)]
fn count(x: f32, bounds: &[f32; 15]) -> u32 {
    let mut n = 0;
    for &bound in bounds {
        n += u32::from(x > bound);
    }
    n
}
