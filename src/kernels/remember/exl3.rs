//! EXL3: a weight whose transpose has, in every block of 128 × 128, values of a trellis code between two Hadamard matrices:
//! `W = (diag(u) · H · C · H · diag(v))ᵀ`, with H of 128 columns over √128.
//!
//! C is stored in tiles of 16 × 16. A tile of b bits is a circular stream of 256·b bits. Value i of the tile is made of the 16
//! bits that end with bit `(i + 1)·b`, its state, by arithmetic that takes the place of a codebook.
//!
//! A row of W has one factor of v and a column one of u, so the factors leave the sums: `w = u·v·S / 128`, where S is a sum of
//! 16384 values of either sign. The values of C are halves between -4 and 4 that are multiples of a small power of two. So S is
//! summed up as an integer, and is exact in any order. Only the product is rounded.
//!
//! Formulas: exllamav3 `exllamav3_ext/quant/codebook.cuh`, `exl3_dq.cuh`, `modules/quant/exl3.py` (`get_weight_tensor`).

use crate::element::Element;
use crate::simd::{Kernel, Routine};

/// Rows and columns of a tile.
pub(crate) const TILE: usize = 16;

/// Rows and columns of a block: those of H.
pub(crate) const BLOCK: usize = 128;

/// Sums of a block.
pub(crate) const BLOCK_LEN: usize = BLOCK * BLOCK;

/// Bits of a value at most.
pub(crate) const MAX_BITS: usize = 8;

/// How the values of C are made of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codebook {
    /// Two halves whose bits are those of a linear congruence, added as halves.
    ThreeInst,
    /// The same of a product without a summand.
    Mcg,
    /// The sum of the bytes of a product, scaled by one fused operation of halves.
    Mul1,
}

impl Codebook {
    /// What an integer that [`BlockSums`] sums up is worth.
    pub(crate) fn unit(self) -> f64 {
        match self {
            Self::ThreeInst | Self::Mcg => 1.0 / f64::from(1 << 13),
            Self::Mul1 => 1.0 / f64::from(1 << 17),
        }
    }

    /// As configs call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ThreeInst => "3inst",
            Self::Mcg => "mcg",
            Self::Mul1 => "mul1",
        }
    }

    /// The multiplier that is stored as the mark of the codebook; `None` for the one without a mark.
    pub(crate) fn mark(self) -> Option<u32> {
        match self {
            Self::ThreeInst => None,
            Self::Mcg => Some(MCG),
            Self::Mul1 => Some(MUL1),
        }
    }
}

#[cfg(test)]
impl Codebook {
    pub(crate) fn integer(self, state: u32) -> i32 {
        match self {
            Self::ThreeInst => ThreeInst::integer(state),
            Self::Mcg => Mcg::integer(state),
            Self::Mul1 => Mul1::integer(state),
        }
    }
}

const MCG: u32 = 0xcbac_1fed;
const MUL1: u32 = 0x83dc_d12d;

/// Values of C as multiples of [`Codebook::unit`].
trait States {
    fn integer(state: u32) -> i32;
}

struct ThreeInst;
struct Mcg;
struct Mul1;

impl States for ThreeInst {
    #[inline(always)]
    fn integer(state: u32) -> i32 {
        sum_of_halves(state.wrapping_mul(89_226_354).wrapping_add(64_248_484))
    }
}

impl States for Mcg {
    #[inline(always)]
    fn integer(state: u32) -> i32 {
        sum_of_halves(state.wrapping_mul(MCG))
    }
}

impl States for Mul1 {
    /// `fma(1024 + t, 0x1eee, 0xc931)` in halves, where t is the sum of the bytes. The factors are 887 · 2^-17 and
    /// -1360896 · 2^-17, so that the sum before its rounding is a multiple of 2^-17.
    #[inline(always)]
    fn integer(state: u32) -> i32 {
        let x = state.wrapping_mul(MUL1);
        let pairs = (x & 0x00ff_00ff) + (x >> 8 & 0x00ff_00ff);
        let t = (pairs & 0xffff) + (pairs >> 16);
        let exact = (t * 887) as i32 - 452_608;
        to_integer(rounded_to_half(exact as f32))
    }
}

/// The sum of the halves whose bits are in `x`, rounded to a half, as a multiple of 2^-13.
#[inline(always)]
fn sum_of_halves(x: u32) -> i32 {
    // Magnitudes from 2^-3 up to 2: the mask leaves two bits of the exponent.
    let halves = (x & 0x8fff_8fff) ^ 0x3b60_3b60;
    // A half's bits, three places lower behind the sign, are those of an F32 that is 2^-112 times as large. The sum of two is
    // a multiple of 2^-125, so that it is exact and normal.
    let low = f32::from_bits(((halves << 16) as i32 >> 3) as u32 & 0x8fff_e000);
    let high = f32::from_bits((halves as i32 >> 3) as u32 & 0x8fff_e000);
    // 2^125, the exponent of which is 252 with its bias.
    const UNITS: f32 = f32::from_bits(252 << 23);
    to_integer(rounded_to_half(low + high) * UNITS)
}

/// `x` rounded to the 11 significant bits of a half, to nearest even. The values here are normal halves.
#[inline(always)]
fn rounded_to_half(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff)
}

/// An integer of less than 22 bits as such. A cast would saturate, which takes four operations more.
#[inline(always)]
fn to_integer(x: f32) -> i32 {
    // The last place of 1.5 · 2^23 is 1.
    const MAGIC: f32 = 12_582_912.0;
    (x + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32
}

/// Sums up blocks, but for the last two of 14 steps, which [`TrellisRows`] does. After 12 steps the integers are below 2^31:
/// those of `mul1` are at most 452608, and sums of 4096.
pub(crate) struct BlockSums<'a> {
    /// Tiles, in rows of `across` tiles: along a row lie outputs, down the rows inputs.
    pub tiles: &'a [u8],
    pub across: usize,
    pub bits: usize,
    pub codebook: Codebook,
    /// The blocks, first those of the first 128 outputs. Each has its outputs as rows.
    pub sums: &'a mut [i32],
}

impl Routine for BlockSums<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        match self.codebook {
            Codebook::ThreeInst => self.blocks::<ThreeInst>(),
            Codebook::Mcg => self.blocks::<Mcg>(),
            Codebook::Mul1 => self.blocks::<Mul1>(),
        }
    }
}

/// Tiles beside each other in a block.
const TILES: usize = BLOCK / TILE;

impl BlockSums<'_> {
    #[inline(always)]
    fn blocks<S: States>(&mut self) {
        let (len, down) = (self.bits * 32, self.across / TILES);
        let row = self.across * len;
        let right = self.tiles.len() / row.max(1) / TILES;
        let blocks = self.sums.chunks_exact_mut(BLOCK_LEN);
        for (number, block) in blocks.take(down * right).enumerate() {
            let (output, input) = (number / right * TILES, number % right * TILES);
            for k in 0..TILES {
                let at = (input + k) * row + output * len;
                let tiles = &self.tiles[at..at + TILES * len];
                // All streams of the row first: what is stored word by word is not loaded as vectors at once.
                let mut windows = [const { Windows::EMPTY }; TILES];
                for (windows, tile) in windows.iter_mut().zip(tiles.chunks_exact(len)) {
                    windows.fill(tile, self.bits);
                }
                for (n, windows) in windows.iter().enumerate() {
                    let lines = &mut block[n * TILE * BLOCK..(n + 1) * TILE * BLOCK];
                    sum_tile::<S>(windows, self.bits, k * TILE, lines);
                }
            }
            join_tiles(block);
        }
    }
}

/// Writes a tile to columns `at..` of rows of a block, which are its outputs, after those steps of both products that combine values
/// of one lane or of four neighbouring ones: all four of the inputs, and that of outputs 8 apart.
#[inline(always)]
fn sum_tile<S: States>(windows: &Windows, bits: usize, at: usize, lines: &mut [i32]) {
    // In the order of tensor cores, bits 0 and 1 of i are bits 0 and 3 of an input, and bit 2 is bit 3 of an output; of the group,
    // the lowest two bits are bits 1 and 2 of an input, and the others those of an output.
    let mut values = [[0; GROUPS]; 8];
    for (i, values) in values.iter_mut().enumerate() {
        let (words, shift) = windows.of(i, bits);
        for (value, word) in values.iter_mut().zip(words) {
            *value = S::integer(word >> shift & 0xffff);
        }
    }
    hadamard(&mut values);
    for values in &mut values {
        for quad in values.as_chunks_mut::<4>().0 {
            let [a, b, c, d] = *quad;
            let [e, f, g, h] = [a + b, a - b, c + d, c - d];
            *quad = [e + g, f + h, e - g, f - h];
        }
    }
    for (half, values) in values.as_chunks::<4>().0.iter().enumerate() {
        for column in 0..8 {
            let line = &mut lines[(half * 8 + column) * BLOCK + at..][..TILE];
            for (pair, line) in values.as_chunks::<2>().0.iter().zip(line.as_chunks_mut().0) {
                let [a, b, c, d] = pair[0].as_chunks().0[column];
                let [e, f, g, h] = pair[1].as_chunks().0[column];
                *line = [a, e, b, f, c, g, d, h];
            }
        }
    }
}

/// Groups of eight values in a tile.
const GROUPS: usize = 32;

/// Bits of a tile's stream that hold the states of each group, in words of 32 bits. Eight values take b bytes, so that each
/// group begins with a byte.
struct Windows {
    /// Of the first four values and of the last four: 32 bits that end with the byte behind the last state, and the 32 bits
    /// that end 16 bits before.
    words: [[[u32; GROUPS]; 2]; 2],
}

impl Windows {
    const EMPTY: Self = Self {
        words: [[[0; GROUPS]; 2]; 2],
    };

    #[inline(always)]
    fn fill(&mut self, bytes: &[u8], bits: usize) {
        // The stream, highest bits first, behind its own end: the first states have bits of the last values.
        let mut stream = [0; 8 + MAX_BITS * 32];
        let stored = bytes.as_chunks::<4>().0;
        let (lead, rest) = stream.split_at_mut(8);
        for (out, word) in rest.as_chunks_mut::<4>().0.iter_mut().zip(stored) {
            *out = u32::from_le_bytes(*word).to_be_bytes();
        }
        lead.copy_from_slice(&rest[bits * 32 - 8..bits * 32]);
        for (half, words) in self.words.iter_mut().enumerate() {
            let ends = (Self::end(half, bits)..).step_by(bits);
            let [near, far] = words;
            for ((near, far), end) in near.iter_mut().zip(far).zip(ends) {
                let mut last = [0; 8];
                last.copy_from_slice(&stream[end..end + 8]);
                let last = u64::from_be_bytes(last);
                *near = last as u32;
                *far = (last >> 16) as u32;
            }
        }
    }

    /// Bytes from the beginning of a group to the end of the last state of a half of it.
    #[inline(always)]
    fn end(half: usize, bits: usize) -> usize {
        (bits * 4 * (half + 1)).div_ceil(8)
    }

    /// The words that hold state `i` of each group, and how many bits follow it in them.
    #[inline(always)]
    fn of(&self, i: usize, bits: usize) -> (&[u32; GROUPS], usize) {
        let half = i / 4;
        let behind = Self::end(half, bits) * 8 - (i + 1) * bits;
        let far = behind / 17;
        (&self.words[half][far], behind - far * 16)
    }
}

/// One step of a product with H: sums and differences.
#[inline(always)]
fn butterfly(a: &mut [i32], b: &mut [i32]) {
    for (a, b) in a.iter_mut().zip(b) {
        (*a, *b) = (*a + *b, *a - *b);
    }
}

/// The product of H, without its division, and `rows`, which are a power of two.
#[inline(always)]
fn hadamard<const LANES: usize, const ROWS: usize>(rows: &mut [[i32; LANES]; ROWS]) {
    let mut stride = 1;
    while stride < ROWS {
        for first in 0..ROWS {
            if first & stride == 0 {
                let (low, high) = rows.split_at_mut(first + stride);
                butterfly(&mut low[first], &mut high[0]);
            }
        }
        stride *= 2;
    }
}

/// The other steps of the outputs, and that between pairs of tiles of inputs.
#[inline(always)]
fn join_tiles(block: &mut [i32]) {
    const PAIR: usize = 2 * TILE;
    // Outputs that are neighbours, then those of other tiles.
    for (first, stride) in (0..BLOCK / 8)
        .map(|i| (i * 8, 1))
        .chain((0..TILE).map(|i| (i, TILE)))
    {
        for at in (0..BLOCK).step_by(PAIR) {
            let mut rows = [[0; PAIR]; 8];
            for (i, row) in rows.iter_mut().enumerate() {
                let from = (first + i * stride) * BLOCK + at;
                row.copy_from_slice(&block[from..from + PAIR]);
                if stride == 1 {
                    let (even, odd) = row.split_at_mut(TILE);
                    butterfly(even, odd);
                }
            }
            hadamard(&mut rows);
            for (i, row) in rows.iter().enumerate() {
                let to = (first + i * stride) * BLOCK + at;
                block[to..to + PAIR].copy_from_slice(row);
            }
        }
    }
}

/// Rows of a weight whose blocks are summed up.
pub(crate) struct TrellisRows<'a> {
    /// As [`BlockSums`] leaves them.
    pub sums: &'a [i32],
    /// Number of the first row among those of the blocks.
    pub first: usize,
    /// Columns of a row. Those of the last block may be more.
    pub cols: usize,
    /// A factor for each column of the blocks, with the unit and the divisions of both products.
    pub inputs: &'a [f64],
    /// A factor for each row.
    pub outputs: &'a [f32],
}

impl Kernel for TrellisRows<'_> {
    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        const QUARTER: usize = BLOCK / 4;
        let across = self.cols.div_ceil(BLOCK);
        for (r, out) in out.chunks_exact_mut(self.cols.max(1)).enumerate() {
            let row = self.first + r;
            let output = f64::from(self.outputs[r]);
            for (i, out) in out.chunks_mut(BLOCK).enumerate() {
                let at = (row / BLOCK * across + i) * BLOCK_LEN + row % BLOCK * BLOCK;
                let quarters = self.sums[at..at + BLOCK].as_chunks::<QUARTER>().0;
                let inputs = self.inputs[i * BLOCK..(i + 1) * BLOCK]
                    .as_chunks::<QUARTER>()
                    .0;
                let mut values = [[0.0; QUARTER]; 4];
                for lane in 0..QUARTER {
                    // The last two steps. Sums of `mul1` may have 33 bits.
                    let [a, b, c, d] =
                        [0, 1, 2, 3].map(|quarter| f64::from(quarters[quarter][lane]));
                    let sums = [
                        (a + b) + (c + d),
                        (a - b) + (c - d),
                        (a + b) - (c + d),
                        (a - b) - (c - d),
                    ];
                    for quarter in 0..4 {
                        // A sum has 31 bits and a factor 11: the product of all three is exact.
                        let product = sums[quarter] * inputs[quarter][lane] * output;
                        values[quarter][lane] = product as f32;
                    }
                }
                let values = values.as_flattened();
                E::store(&values[..out.len()], out);
            }
        }
    }
}
