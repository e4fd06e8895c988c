//! Blocks of values that share a scale, encoded as codes of a codebook of 16 levels, two to a byte: the mirror of
//! `remember/codebook.rs`.
//!
//! A level's *rank* is its place among the levels in ascending order; its code is what the codebook calls it.

#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Bounds, InMemory, LANES, Level, LookUp, Routine, perform};

/// Encodes values with one codebook: which code a scaled value gets, and how two codes make a byte.
#[derive(Debug, Clone)]
pub(crate) struct CodebookEncoder {
    /// The rank of a scaled value is the number of bounds below it.
    pub bounds: Bounds,
    /// The byte of two ranks, by `first << 4 | second`; `None` if that is the byte already.
    pub bytes: Option<Box<[u8; 256]>>,
    /// The rank that fills the last byte of a block with an odd number of values.
    pub pad: u8,
    pub norm: BlockNorm,
}

/// How a block's values are brought to -1..=1 by its scale, and which scale is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockNorm {
    /// `quantize_4bit` of bitsandbytes on CPUs. Whole blocks are multiplied by the reciprocal of the scale, a short last
    /// block is divided by it. The scale counts as at least [`MIN_SCALE`]; a whole block stores it as it was, a short
    /// block stores what counts.
    BitsAndBytes,
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    /// `quantize_nf4` of qlora-rs. Values are divided by the scale, which is 1 for a block of zeros.
    Qlora,
}

/// The least scale that bitsandbytes divides by.
pub(crate) const MIN_SCALE: f32 = 1e-38;

impl CodebookEncoder {
    /// An encoder of the codebook whose level of rank r has the code `codes[r]`. With `high_first` the first code of a
    /// byte lies in its high nibble.
    pub(crate) fn new(
        bounds: [f32; 15],
        codes: &[u8; 16],
        high_first: bool,
        pad: u8,
        norm: BlockNorm,
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
        let is_identity = bytes
            .iter()
            .enumerate()
            .all(|(pair, &byte)| pair == usize::from(byte));
        Self {
            bounds: Bounds::new(bounds),
            bytes: (!is_identity).then_some(bytes),
            pad,
            norm,
        }
    }

    /// Encodes blocks of `block` values, of which the last may be short. Appends the codes of each block, in whole bytes,
    /// to `codes`, and its largest magnitude as its scale to `scales`.
    pub(crate) fn encode(
        &self,
        values: &[f32],
        block: usize,
        level: Level,
        codes: &mut Vec<u8>,
        scales: &mut Vec<f32>,
    ) {
        let (codes, scales) = (
            extend_zeroed(codes, code_bytes(values.len(), block)),
            extend_zeroed(scales, values.len().div_ceil(block)),
        );
        perform(
            level,
            &mut EncodeCodebookBlocks {
                values,
                block,
                encoder: self,
                codes,
                scales,
                has_scales: false,
            },
        );
    }

    /// The codes of `values` in blocks of `block` values under the given `scales`. Where [`norm`](Self::norm) has a least
    /// scale, the entries of `scales` become what is stored.
    pub(crate) fn encode_with(
        &self,
        values: &[f32],
        block: usize,
        scales: &mut [f32],
        level: Level,
    ) -> Vec<u8> {
        let mut codes = vec![0; code_bytes(values.len(), block)];
        perform(
            level,
            &mut EncodeCodebookBlocks {
                values,
                block,
                encoder: self,
                codes: &mut codes,
                scales,
                has_scales: true,
            },
        );
        codes
    }
}

/// Bytes that the codes of `n` values take, each block in whole bytes.
fn code_bytes(n: usize, block: usize) -> usize {
    // Each block begins with a byte of its own, so a block of an odd size wastes a nibble.
    n / block * block.div_ceil(2) + (n % block).div_ceil(2)
}

/// Appends `n` zeros to `all` and returns them.
fn extend_zeroed<T: Copy + Default>(all: &mut Vec<T>, n: usize) -> &mut [T] {
    let before = all.len();
    all.resize(before + n, T::default());
    &mut all[before..]
}

/// Values whose ranks are found together: 32 ranks of 32 bits are four registers of AVX2, and become 16 bytes. All block
/// sizes of bitsandbytes are multiples of it.
const CHUNK: usize = 32;

struct EncodeCodebookBlocks<'a> {
    values: &'a [f32],
    block: usize,
    encoder: &'a CodebookEncoder,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    /// Whether `scales` holds the scales already, rather than takes the largest magnitudes.
    has_scales: bool,
}

impl Routine for EncodeCodebookBlocks<'_> {
    #[inline(always)]
    fn run(&mut self) {
        self.encode_blocks(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.encode_blocks(avx2);
    }
}

impl EncodeCodebookBlocks<'_> {
    #[inline(always)]
    fn encode_blocks(&mut self, look_up: impl LookUp) {
        let out = self.codes.chunks_mut(self.block.div_ceil(2));
        for ((values, codes), scale) in self
            .values
            .chunks(self.block)
            .zip(out)
            .zip(&mut *self.scales)
        {
            if !self.has_scales {
                *scale = absmax(values);
            }
            match self.encoder.norm {
                BlockNorm::BitsAndBytes => {
                    let least = if scale.abs() < MIN_SCALE {
                        MIN_SCALE
                    } else {
                        *scale
                    };
                    if values.len() == self.block {
                        let factor = 1.0 / least;
                        encode_block(values, codes, self.encoder, look_up, |x| x * factor);
                    } else {
                        *scale = least;
                        encode_block(values, codes, self.encoder, look_up, |x| x / least);
                    }
                }
                BlockNorm::Qlora => {
                    // Stored as well: decoding a block of zeros multiplies by 1 then.
                    let divisor = if *scale == 0.0 { 1.0 } else { *scale };
                    *scale = divisor;
                    encode_block(values, codes, self.encoder, look_up, |x| x / divisor);
                }
            }
        }
    }
}

/// The largest magnitude of `values`, which are finite; 0 for none.
#[inline(always)]
pub(crate) fn absmax(values: &[f32]) -> f32 {
    // Finite floats without their sign are ordered as integers, of which LLVM vectorises the maximum.
    let mut max = 0;
    for x in values {
        max = magnitude(*x).max(max);
    }
    f32::from_bits(max as u32)
}

/// The bits of `|x|`.
#[inline(always)]
fn magnitude(x: f32) -> i32 {
    (x.to_bits() & 0x7fff_ffff) as i32
}

/// Encodes one block into whole bytes.
#[inline(always)]
fn encode_block(
    values: &[f32],
    codes: &mut [u8],
    encoder: &CodebookEncoder,
    look_up: impl LookUp,
    scaled: impl Fn(f32) -> f32,
) {
    let mut ranks = [0u32; CHUNK];
    for (values, codes) in values.chunks(CHUNK).zip(codes.chunks_mut(CHUNK / 2)) {
        let (chunks, rest) = values.as_chunks::<LANES>();
        for (ranks, values) in ranks.as_chunks_mut::<LANES>().0.iter_mut().zip(chunks) {
            let mut values = *values;
            for x in &mut values {
                *x = scaled(*x);
            }
            *ranks = look_up.ranks(values, &encoder.bounds);
        }
        if !rest.is_empty() {
            // The end of the block. The value after the last one of an odd number is a zero, as libraries pad it.
            let mut last = [0.0; LANES];
            for (last, &x) in last.iter_mut().zip(rest) {
                *last = scaled(x);
            }
            let last = look_up.ranks(last, &encoder.bounds);
            let end = &mut ranks[chunks.len() * LANES..][..LANES];
            end.fill(u32::from(encoder.pad));
            end[..rest.len()].copy_from_slice(&last[..rest.len()]);
        }
        // Both ranks of a pair are joined in one word: the first is its low half, for the host is little-endian. If each
        // rank were narrowed by itself, LLVM would make each comparison's result a byte first.
        let pairs: [u64; CHUNK / 2] = zerocopy::transmute!(ranks);
        let mut packed = [0; CHUNK / 2];
        for (packed, pair) in packed.iter_mut().zip(pairs) {
            *packed = (pair << 4 | pair >> 32) as u8;
        }
        codes.copy_from_slice(&packed[..codes.len()]);
        if let Some(bytes) = &encoder.bytes {
            for code in codes {
                *code = bytes[usize::from(*code)];
            }
        }
    }
}
