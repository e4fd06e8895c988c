//! Blocks of values that share a scale, encoded as codes of a codebook of 16 levels, two to a byte:
//! the mirror of `remember/codebook.rs`.
//!
//! A level's *rank* is its place among the levels in ascending order; its code is what the codebook
//! calls it.

#[cfg(feature = "lethe")]
mod search;

#[cfg(feature = "lethe")]
use crate::lethe::kernels::activations::Activations;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Bounds, InMemory, Level, RANKED_VALUES, Ranks, Routine, copy, perform, zip};

/// Encodes values with one codebook: which code a scaled value gets, and how two codes make a byte.
#[derive(Debug, Clone)]
pub(crate) struct CodebookEncoder {
    /// The rank of a scaled value is the number of bounds below it.
    pub bounds: Bounds,
    /// The level of each rank.
    levels: [f32; 16],
    /// The byte of two ranks, by `first << 4 | second`; `None` if that is the byte already.
    pub bytes: Option<Box<[u8; 256]>>,
    /// The rank that fills the last byte of a block with an odd number of values.
    pub pad: u8,
    pub norm: BlockNorm,
}

/// How a block's values are brought to -1..=1 by its scale, and which scale is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockNorm {
    /// `quantize_4bit` of bitsandbytes on CPUs. Whole blocks are multiplied by the reciprocal of
    /// the scale, a short last block is divided by it. The scale counts as at least [`MIN_SCALE`];
    /// a whole block stores it as it was, a short block stores what counts.
    BitsAndBytes,
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    /// `quantize_nf4` of qlora-rs. Values are divided by the scale, which is 1 for a block of
    /// zeros.
    Qlora,
}

/// The least scale that bitsandbytes divides by.
pub(crate) const MIN_SCALE: f32 = 1e-38;

impl CodebookEncoder {
    /// An encoder of `codebook`, whose level of rank r has the code `codes[r]`. With `high_first`
    /// the first code of a byte lies in its high nibble.
    pub(crate) fn new(
        codebook: &[f32; 16],
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
            levels: codes.map(|code| codebook[usize::from(code & 15)]),
            bytes: (!is_identity).then_some(bytes),
            pad,
            norm,
        }
    }

    /// Encodes blocks of `block` values, of which the last may be short. Appends the codes of each
    /// block, in whole bytes, to `codes`, and its largest magnitude as its scale to `scales`.
    /// `back`, if it is not empty, receives the values that decoding gives under these scales.
    pub(crate) fn encode(
        &self,
        values: &[f32],
        block: usize,
        level: Level,
        (codes, scales): (&mut Vec<u8>, &mut Vec<f32>),
        back: &mut [f32],
    ) {
        let codes = extend_zeroed(codes, code_bytes(values.len(), block));
        let scales = extend_zeroed(scales, values.len().div_ceil(block));
        self.encode_blocks(values, (block, false), level, (codes, scales), back);
    }

    /// As [`encode`](Self::encode), under the scales that a search finds.
    #[cfg(feature = "lethe")]
    pub(crate) fn encode_searched(
        &self,
        (values, activations): (&[f32], Activations<'_>),
        block: usize,
        level: Level,
        (codes, scales): (&mut Vec<u8>, &mut Vec<f32>),
        back: &mut [f32],
    ) {
        let codes = extend_zeroed(codes, code_bytes(values.len(), block));
        let scales = extend_zeroed(scales, values.len().div_ceil(block));
        self.search(values, activations, block, level, scales);
        self.encode_blocks(values, (block, true), level, (codes, scales), back);
    }

    /// The codes of `values` in blocks of `block` values under the given `scales`. Where
    /// [`norm`](Self::norm) has a least scale, the entries of `scales` become what is stored.
    pub(crate) fn encode_with(
        &self,
        values: &[f32],
        block: usize,
        scales: &mut [f32],
        level: Level,
    ) -> Vec<u8> {
        let mut codes = vec![0; code_bytes(values.len(), block)];
        self.encode_blocks(values, (block, true), level, (&mut codes, scales), &mut []);
        codes
    }

    fn encode_blocks(
        &self,
        values: &[f32],
        (block, has_scales): (usize, bool),
        level: Level,
        (codes, scales): (&mut [u8], &mut [f32]),
        back: &mut [f32],
    ) {
        let encoder = self;
        perform(
            level,
            &mut EncodeCodebookBlocks { values, block, encoder, codes, scales, has_scales, back },
        );
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

/// Values whose ranks are found together: 32 ranks of 32 bits are four registers of AVX2, and
/// become 16 bytes. All block sizes of bitsandbytes are multiples of it.
const CHUNK: usize = 32;

struct EncodeCodebookBlocks<'a> {
    values: &'a [f32],
    block: usize,
    encoder: &'a CodebookEncoder,
    codes: &'a mut [u8],
    scales: &'a mut [f32],
    /// Whether `scales` holds the scales already, rather than takes the largest magnitudes.
    has_scales: bool,
    /// Receives the values that decoding gives, unless it is empty.
    back: &'a mut [f32],
}

impl Routine for EncodeCodebookBlocks<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.encode_blocks(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.encode_blocks(avx2);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512(&mut self, avx512: Avx512) {
        self.encode_blocks(avx512);
    }
}

impl EncodeCodebookBlocks<'_> {
    #[inline(always)]
    fn encode_blocks(&mut self, ranks: impl Ranks) {
        let mut all_back = &mut *self.back;
        let out = self.codes.chunks_mut(self.block.div_ceil(2));
        for ((values, codes), scale) in
            zip(zip(self.values.chunks(self.block), out), &mut *self.scales)
        {
            if !self.has_scales {
                *scale = absmax(values);
            }
            let len = values.len().min(all_back.len());
            let (back, rest) = std::mem::take(&mut all_back).split_at_mut(len);
            all_back = rest;
            match self.encoder.norm {
                BlockNorm::BitsAndBytes => {
                    let least = if scale.abs() < MIN_SCALE {
                        MIN_SCALE
                    } else {
                        *scale
                    };
                    if values.len() == self.block {
                        let factor = 1.0 / least;
                        encode_block(values, codes, self.encoder, ranks, *scale, back, |x| {
                            x * factor
                        });
                    } else {
                        *scale = least;
                        encode_block(values, codes, self.encoder, ranks, *scale, back, |x| {
                            x / least
                        });
                    }
                }
                BlockNorm::Qlora => {
                    // Stored as well: decoding a block of zeros multiplies by 1 then.
                    let divisor = if *scale == 0.0 { 1.0 } else { *scale };
                    *scale = divisor;
                    encode_block(values, codes, self.encoder, ranks, *scale, back, |x| x / divisor);
                }
            }
        }
    }
}

/// The largest magnitude of `values`, which are finite; 0 for none.
#[inline(always)]
pub(crate) fn absmax(values: &[f32]) -> f32 {
    // Finite floats without their sign are ordered as integers, of which LLVM vectorises the
    // maximum.
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

/// Encodes one block into whole bytes. `back`, if it is not empty, receives what decoding gives
/// under `scale`.
#[inline(always)]
fn encode_block(
    values: &[f32],
    codes: &mut [u8],
    encoder: &CodebookEncoder,
    rank: impl Ranks,
    scale: f32,
    back: &mut [f32],
    scaled: impl Fn(f32) -> f32 + Copy,
) {
    let (chunks, rest) = values.as_chunks::<CHUNK>();
    let (codes, last_codes) = codes.split_at_mut(chunks.len() * (CHUNK / 2));
    let (back, last_back) = back.split_at_mut(back.len().min(chunks.len() * CHUNK));
    let mut back = back.as_chunks_mut::<CHUNK>().0.iter_mut();
    for (values, codes) in zip(chunks.iter(), codes.as_chunks_mut::<{ CHUNK / 2 }>().0) {
        let ranks = ranks_of_chunk(values, encoder, rank, scaled);
        if let Some(back) = back.next() {
            *back = decoded(&ranks, encoder, rank, scale);
        }
        *codes = packed(&ranks, encoder);
    }
    if !rest.is_empty() {
        // The end of the block. The value after the last one of an odd number is a zero, as
        // libraries pad it.
        let mut last = [0.0; CHUNK];
        copy(rest, &mut last[..rest.len()]);
        let mut ranks = ranks_of_chunk(&last, encoder, rank, scaled);
        ranks[rest.len()..].fill(u32::from(encoder.pad));
        copy(&decoded(&ranks, encoder, rank, scale)[..last_back.len()], last_back);
        copy(&packed(&ranks, encoder)[..last_codes.len()], last_codes);
    }
}

#[inline(always)]
fn ranks_of_chunk(
    values: &[f32; CHUNK],
    encoder: &CodebookEncoder,
    rank: impl Ranks,
    scaled: impl Fn(f32) -> f32,
) -> [u32; CHUNK] {
    let mut ranks = [0; CHUNK];
    let parts = values.as_chunks::<RANKED_VALUES>().0;
    for (ranks, values) in zip(ranks.as_chunks_mut::<RANKED_VALUES>().0, parts) {
        let mut values = *values;
        for x in &mut values {
            *x = scaled(*x);
        }
        *ranks = rank.ranks(values, &encoder.bounds);
    }
    ranks
}

/// The values that decoding gives under `scale`.
#[inline(always)]
fn decoded(
    ranks: &[u32; CHUNK],
    encoder: &CodebookEncoder,
    rank: impl Ranks,
    scale: f32,
) -> [f32; CHUNK] {
    let mut values = [0.0; CHUNK];
    let parts = ranks.as_chunks::<RANKED_VALUES>().0;
    for (values, ranks) in zip(values.as_chunks_mut::<RANKED_VALUES>().0, parts) {
        *values = rank.at_ranks(&encoder.levels, *ranks);
        for value in values {
            *value *= scale;
        }
    }
    values
}

/// The bytes of a chunk's codes.
#[inline(always)]
fn packed(ranks: &[u32; CHUNK], encoder: &CodebookEncoder) -> [u8; CHUNK / 2] {
    // Both ranks of a pair are joined in one word: the first is its low half, for the host is
    // little-endian. If each rank were narrowed by itself, LLVM would make each comparison's result
    // a byte first.
    let pairs: [u64; CHUNK / 2] = zerocopy::transmute!(*ranks);
    let mut packed = [0; CHUNK / 2];
    for (packed, pair) in zip(&mut packed[..], pairs) {
        *packed = (pair << 4 | pair >> 32) as u8;
    }
    if let Some(bytes) = &encoder.bytes {
        for code in &mut packed {
            *code = bytes[usize::from(*code)];
        }
    }
    packed
}
