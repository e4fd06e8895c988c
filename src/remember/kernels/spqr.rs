//! SpQR: tiles of 16 × 16 codes of three bits. A row of a tile has a scale and a zero point of
//! three bits, whose scales and zero points are halves for the tile. Single values are added, and
//! the columns are stored in another order.
//!
//! `w = (q - z) * s`, with `s` and `z` of the same form. The library computes each difference and
//! each product in halves, sums in F32, and rounds the sum to a half (SpQR
//! `inference_kernels/spqr_cuda.cpp`, `dequantize_compressed`).

use half::f16;

use crate::element::{Element, f32_from_f16};
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{InMemory, Kernel, Ranks, from_fn, zip};

/// Rows and columns of a tile.
pub(crate) const TILE: usize = 16;

/// Bits of a code.
const BITS: u32 = 3;

/// Values that a code may be.
const VALUES: u32 = 1 << BITS;

/// Codes of a stored row of a tile: scale, zero point and values.
const CODES: u32 = TILE as u32 + 2;

/// Rows of a weight.
pub(crate) struct SpqrRows<'a> {
    /// A word for each row of each tile of the loaded rows: tiles of 16 rows, in the order of their
    /// columns, and the rows of each.
    pub words: &'a [[u8; 8]],
    /// The first row that is decoded, counted from the first that is loaded.
    pub first: usize,
    /// Which of the values of a row each stored column is.
    pub order: &'a [u32],
    /// For each loaded row and one more, where its single values begin.
    pub starts: &'a [u32],
    /// Single values: a column in the lower half, and a half in the upper.
    pub singles: &'a [u32],
}

impl Kernel for SpqrRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.rows(InMemory, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.rows(avx2, out);
    }
}

impl SpqrRows<'_> {
    #[inline(always)]
    fn rows<E: Element>(&self, look_up: impl Ranks, out: &mut [E]) {
        let cols = self.order.len().max(1);
        let width = cols.div_ceil(TILE) * TILE;
        let (mut values, mut rounded) = (vec![0.0; width], vec![E::from_f32(0.0); width]);
        let mut numbers = Vec::new();
        let is_ordered = self.order.iter().copied().eq(0..cols as u32);
        for (row, out) in zip(self.first.., out.chunks_exact_mut(cols)) {
            let tiles = self.words[row / TILE * width..][..width].as_chunks().0;
            if row == self.first || row.is_multiple_of(TILE) {
                numbers.clear();
                numbers.extend(tiles.iter().map(TileNumbers::new));
            }
            let places = values.as_chunks_mut().0;
            for ((tile, numbers), values) in zip(zip(tiles.iter(), &numbers), places) {
                *values = numbers.row(look_up, tile, row % TILE);
            }
            let singles = self.starts[row] as usize..self.starts[row + 1] as usize;
            let singles = &self.singles[singles];
            for &single in singles {
                values[(single & 0xffff) as usize] += f32_from_f16((single >> 16) as u16);
            }
            // Sums are rounded, in whose places several single values may be; all other values are
            // halves.
            for &single in singles {
                let value = &mut values[(single & 0xffff) as usize];
                *value = half(*value);
            }
            if is_ordered {
                E::store(&values, out);
                continue;
            }
            // Rounded before they are scattered: vectors of values, and not one by one.
            E::store(&values, &mut rounded);
            for (&value, &column) in zip(rounded.iter(), self.order) {
                out[column as usize] = value;
            }
        }
    }
}

/// The nearest half, in F32.
#[inline(always)]
fn half(x: f32) -> f32 {
    <f16 as Element>::rounded(x)
}

/// `(q - z) * s` in halves.
#[inline(always)]
fn dequantized(q: u32, scale: f32, zero: f32) -> f32 {
    half(half(q as f32 - zero) * scale)
}

/// What the rows of a tile are decoded with.
struct TileNumbers {
    scales: [f32; TILE],
    zeros: [f32; TILE],
}

impl TileNumbers {
    /// The scales and zero points of scales and of zero points are halves: each two rows of the
    /// tile have a byte of them above their codes, of which every bit is set that either row has.
    #[inline(always)]
    fn new(tile: &[[u8; 8]; TILE]) -> Self {
        let mut bits = 0;
        let mut codes = [[0; TILE]; 2];
        for (row, word) in tile.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            bits |= word >> (BITS * CODES) << (8 * (row / 2));
            codes[0][row] = word as u32 & 7;
            codes[1][row] = (word as u32 >> BITS) & 7;
        }
        let number = |at: u32| f32_from_f16((bits >> at) as u16);
        let mut numbers = Self { scales: [0.0; TILE], zeros: [0.0; TILE] };
        for (scale, &q) in zip(&mut numbers.scales[..], &codes[0]) {
            *scale = dequantized(q, number(0), number(32));
        }
        for (zero, &q) in zip(&mut numbers.zeros[..], &codes[1]) {
            *zero = dequantized(q, number(16), number(48));
        }
        numbers
    }

    /// The values of a row of the tile. It has as many values as there are codes, which look them
    /// up.
    #[inline(always)]
    fn row(&self, look_up: impl Ranks, tile: &[[u8; 8]; TILE], row: usize) -> [f32; TILE] {
        let (word, scale, zero) =
            (u64::from_le_bytes(tile[row]), self.scales[row], self.zeros[row]);
        let mut table = [0.0; TILE];
        for (q, value) in zip(0..VALUES, &mut table) {
            *value = dequantized(q, scale, zero);
        }
        table.copy_within(..VALUES as usize, VALUES as usize);
        // Eight codes lie in 32 bits, whose shifts are vectors.
        let halves: [u32; 2] =
            from_fn(|half| (word >> (BITS * (2 + half as u32 * TILE as u32 / 2))) as u32);
        let mut codes = [0; TILE];
        for (i, code) in zip(0u32.., &mut codes) {
            *code = halves[i as usize / 8] >> (BITS * (i % 8)) & 7;
        }
        look_up.at_ranks(&table, codes)
    }
}
