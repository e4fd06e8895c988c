//! EXL3: a weight whose transpose has, in every block of 128x128, values of a trellis code
//! between two Hadamard matrices: `W = (diag(u) · H · C · H · diag(v))ᵀ`, with H of 128 columns
//! over √128.
//!
//! C is stored in tiles of 16 × 16. A tile of b bits is a circular stream of 256·b bits. Value i of
//! the tile is made of the 16 bits that end with bit `⌊(i + 1)·b⌋`, its state, by arithmetic that
//! takes the place of a codebook.
//!
//! A row of W has one factor of v and a column one of u, so the factors leave the sums: `w = u·v·S
//! / 128`, where S is a sum of 16384 values of either sign. The values of C are halves between -4
//! and 4 that are multiples of a small power of two. So S is summed up as an integer, and is exact
//! in any order. Only the product is rounded.
//!
//! Formulas: exllamav3 `exllamav3_ext/quant/codebook.cuh`, `exl3_dq.cuh`, `modules/quant/exl3.py`
//! (`get_weight_tensor`).

mod codebook;
mod rings;
mod stream;

pub(crate) use self::codebook::Codebook;
use self::codebook::{Congruence, Mul1, States};
pub(crate) use self::rings::{RING, RingRows, ring_bytes};
use self::stream::Words;
pub(crate) use self::stream::{BitRate, MAX_BITS};
use crate::element::Element;
use crate::remember::kernels::rounding_margin::is_decided;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Flat, InMemory, Kernel, Routine, Transpose, copy, from_fn, zip};

/// Rows and columns of a tile.
pub(crate) const TILE: usize = 16;

/// Rows and columns of a block: those of H.
pub(crate) const BLOCK: usize = 128;

/// Sums of a block.
pub(crate) const BLOCK_LEN: usize = BLOCK * BLOCK;

/// Sums up blocks, but for the last two of 14 steps, which [`TrellisRows`] does. After 12 steps the
/// integers are below 2^31: those of `mul1` are at most 452608, and sums of 4096.
pub(crate) struct BlockSums<'a> {
    /// Tiles, in rows of `across` tiles: along a row lie outputs, down the rows inputs.
    pub tiles: &'a [u8],
    pub across: usize,
    pub rate: BitRate,
    pub codebook: Codebook,
    /// The blocks, first those of the first 128 outputs. Each has its outputs as rows.
    pub sums: &'a mut [i32],
}

impl Routine for BlockSums<'_> {
    const DECODES: bool = true;

    const HAS_AVX512: bool = true;

    #[inline(always)]
    fn run(&mut self) {
        self.each_codebook(InMemory);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2(&mut self, avx2: Avx2) {
        self.each_codebook(avx2);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx512(&mut self, avx512: Avx512) {
        self.each_codebook(avx512);
    }
}

/// Tiles beside each other in a block.
const TILES: usize = BLOCK / TILE;

/// Values of a tile that take whole words of 32 bits, one for each bit of a value: a run. With half
/// a bit, a run of an odd number begins in the middle of a word.
const RUN: usize = 32;

/// Runs of a tile.
const RUNS: usize = TILE * TILE / RUN;

/// Runs of two tiles. Each has a lane.
const LANES: usize = 2 * RUNS;

impl BlockSums<'_> {
    #[inline(always)]
    fn each_codebook(&mut self, by: impl Transpose) {
        // Both congruences run one copy of the loop.
        let congruence = match self.codebook {
            Codebook::ThreeInst => Congruence::THREE_INST,
            Codebook::Mcg => Congruence::MCG,
            Codebook::Mul1 => return self.blocks(Mul1, by),
        };
        self.blocks(congruence, by);
    }

    #[inline(always)]
    fn blocks(&mut self, codebook: impl States, by: impl Transpose) {
        let (len, down) = (self.rate.tile_bytes(), self.across / TILES);
        let row = self.across * len;
        let right = self.tiles.len() / row.max(1) / TILES;
        let blocks = self.sums.chunks_exact_mut(BLOCK_LEN);
        for (number, block) in blocks.take(down * right).enumerate() {
            let (output, input) = (number / right * TILES, number % right * TILES);
            for k in (0..TILES).step_by(2) {
                let at = (input + k) * row + output * len;
                let (upper, lower) = (&self.tiles[at..], &self.tiles[at + row..]);
                let pairs = zip(upper.chunks_exact(len), lower.chunks_exact(len));
                // All words of the row first: what is stored word by word is not loaded as vectors
                // at once.
                let mut all = [const { Words::EMPTY }; TILES];
                for ((upper, lower), words) in zip(pairs, &mut all) {
                    words.fill([upper, lower], self.rate);
                }
                for (words, lines) in zip(all.iter(), block.chunks_exact_mut(TILE * BLOCK)) {
                    sum_tiles((codebook, by), (words, self.rate), k * TILE, lines);
                }
            }
            join_tiles(block);
        }
    }
}

/// Writes two tiles, the second with the inputs behind those of the first, to columns `at..` of
/// rows of a block, which are their outputs, after the steps of both products within the tiles, and
/// that of inputs between them.
#[inline(always)]
fn sum_tiles(
    (codebook, by): (impl States, impl Transpose),
    (words, rate): (&Words, BitRate),
    at: usize,
    lines: &mut [i32],
) {
    // In the order of tensor cores, bits 0 and 1 of a value's number in its run are bits 0 and 3 of
    // its input, bit 2 is bit 3 of its output, and bits 3 and 4 are bits 1 and 2 of the input. The
    // number of the run is the rest of the output.
    let mut values = [[[0; LANES]; TILE]; 2];
    for input in 0..TILE / 2 {
        let first = input / 2 * 8 + input % 2;
        let mut four = [[0; LANES]; 4];
        for (i, four) in four.iter_mut().enumerate() {
            let states = words.states(first + 2 * i, rate);
            for (value, state) in zip(&mut four[..], states) {
                *value = codebook.integer(state);
            }
        }
        hadamard(&mut four);
        for (i, four) in four.iter().enumerate() {
            values[i / 2][input + i % 2 * TILE / 2] = *four;
        }
    }
    for (inputs, lines) in zip(&mut values[..], lines.chunks_exact_mut(RUNS * BLOCK)) {
        for inputs in inputs.as_chunks_mut::<8>().0 {
            hadamard(inputs);
        }
        let [mut upper, mut lower] = outputs(by, inputs);
        hadamard(&mut upper);
        hadamard(&mut lower);
        let outputs = zip(&mut upper[..], &mut lower);
        for ((upper, lower), line) in zip(outputs, lines.chunks_exact_mut(BLOCK)) {
            butterfly(upper, lower);
            copy(upper, &mut line[at..at + TILE]);
            copy(lower, &mut line[at + TILE..at + 2 * TILE]);
        }
    }
}

/// The lanes of `inputs`, those of each tile, with the inputs in lanes.
#[inline(always)]
fn outputs(by: impl Transpose, inputs: &[[i32; LANES]; TILE]) -> [[[i32; TILE]; RUNS]; 2] {
    let mut outputs = [[[0; TILE]; RUNS]; 2];
    for (half, inputs) in inputs.as_chunks::<RUNS>().0.iter().enumerate() {
        for (tile, outputs) in outputs.iter_mut().enumerate() {
            let mut square = [[0; RUNS]; RUNS];
            for (row, lanes) in zip(&mut square[..], inputs) {
                *row = lanes.as_chunks().0[tile];
            }
            for (output, column) in zip(&mut outputs[..], by.columns(square)) {
                output.as_chunks_mut().0[half] = column;
            }
        }
    }
    outputs
}

/// One step of a product with H: sums and differences.
#[inline(always)]
fn butterfly(a: &mut [i32], b: &mut [i32]) {
    for (a, b) in zip(&mut a[..], b) {
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

/// The steps of outputs between tiles.
#[inline(always)]
fn join_tiles(block: &mut [i32]) {
    const PIECE: usize = 2 * TILE;
    for first in 0..TILE {
        for at in (0..BLOCK).step_by(PIECE) {
            let mut rows = [[0; PIECE]; TILES];
            for (i, row) in rows.iter_mut().enumerate() {
                let from = (first + i * TILE) * BLOCK + at;
                copy(&block[from..from + PIECE], row);
            }
            hadamard(&mut rows);
            for (i, row) in rows.iter().enumerate() {
                let to = (first + i * TILE) * BLOCK + at;
                copy(row, &mut block[to..to + PIECE]);
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
    /// A factor for each column of the blocks, with the unit and the divisions of both products: a
    /// half times a power of two.
    pub inputs: &'a [f32],
    /// A factor for each row.
    pub outputs: &'a [f32],
}

/// Columns of a block that the last two steps combine.
const QUARTER: usize = BLOCK / 4;

/// Columns of each quarter that are decided together.
const DECIDED: usize = 16;

/// Values of all quarters of a block, for some columns of each.
type Quarters<T> = [[T; DECIDED]; 4];

impl Kernel for TrellisRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let across = self.cols.div_ceil(BLOCK);
        for (r, out) in out.chunks_exact_mut(self.cols.max(1)).enumerate() {
            let row = self.first + r;
            for (i, out) in out.chunks_mut(BLOCK).enumerate() {
                let at = (row / BLOCK * across + i) * BLOCK_LEN + row % BLOCK * BLOCK;
                let quarters = self.sums[at..at + BLOCK].as_chunks::<QUARTER>().0;
                let inputs = &self.inputs[i * BLOCK..(i + 1) * BLOCK];
                let inputs = inputs.as_chunks::<QUARTER>().0;
                let mut values = [[0.0; QUARTER]; 4];
                for part in 0..QUARTER / DECIDED {
                    let (mut sums, mut factors) = ([[0; DECIDED]; 4], [[0.0; DECIDED]; 4]);
                    for quarter in 0..4 {
                        sums[quarter] = quarters[quarter].as_chunks().0[part];
                        factors[quarter] = inputs[quarter].as_chunks().0[part];
                    }
                    let products = products::<E>(&sums, &factors, self.outputs[r]);
                    for (values, products) in zip(&mut values[..], products) {
                        values.as_chunks_mut().0[part] = products;
                    }
                }
                let values = values.flat();
                E::store(&values[..out.len()], out);
            }
        }
    }
}

/// The last two steps, and the products with the factors of columns and of the row, rounded to F32:
/// for types of 16 bits, such that what they are rounded to is the same.
#[inline(always)]
fn products<E: Element>(
    sums: &Quarters<i32>,
    inputs: &Quarters<f32>,
    output: f32,
) -> Quarters<f32> {
    // Sums of four may have 33 bits.
    let (mut bits, mut is_sure) = (0, E::MANTISSA < f32::MANTISSA);
    for &sum in sums.flat() {
        bits |= sum ^ sum >> 31;
    }
    is_sure &= bits < 1 << 29;
    if is_sure {
        let mut products = [[0.0; DECIDED]; 4];
        let mut unsure = 0;
        for lane in 0..DECIDED {
            let [a, b, c, d] = from_fn(|quarter| sums[quarter][lane]);
            let sums = [a + b + (c + d), a - b + (c - d), a + b - (c + d), a - b - (c - d)];
            for quarter in 0..4 {
                // Three roundings, and one of what is wanted.
                let product = sums[quarter] as f32 * inputs[quarter][lane] * output;
                unsure |= u32::from(!is_decided(product, E::MANTISSA));
                products[quarter][lane] = product;
            }
        }
        if unsure == 0 {
            return products;
        }
    }
    exact_products(sums, inputs, output)
}

/// As [`products`], for all types.
#[inline(always)]
fn exact_products(sums: &Quarters<i32>, inputs: &Quarters<f32>, output: f32) -> Quarters<f32> {
    let mut products = [[0.0; DECIDED]; 4];
    for lane in 0..DECIDED {
        let [a, b, c, d] = from_fn(|quarter| f64::from(sums[quarter][lane]));
        let sums = [a + b + (c + d), a - b + (c - d), a + b - (c + d), a - b - (c - d)];
        for quarter in 0..4 {
            // A sum has 31 bits, or 33 at most, and either factor 11: the product of all three is
            // exact, or nearly.
            let product = sums[quarter] * f64::from(inputs[quarter][lane]) * f64::from(output);
            products[quarter][lane] = product as f32;
        }
    }
    products
}
