//! SpQR: tiles of 16 × 16 codes of three bits. A row of a tile has a scale and a zero point of three bits, whose scales and zero
//! points are halves for the tile. Single values are added, and the columns are stored in another order.
//!
//! `w = (q - z) * s`, with `s` and `z` of the same form. The library computes each difference and each product in halves, sums in
//! F32, and rounds the sum to a half (SpQR `inference_kernels/spqr_cuda.cpp`, `dequantize_compressed`).

use half::f16;

use crate::element::{Element, f32_from_f16};
use crate::simd::Kernel;

/// Rows and columns of a tile.
pub(crate) const TILE: usize = 16;

/// Bits of a code.
const BITS: u32 = 3;

/// Codes of a stored row of a tile: scale, zero point and values.
const CODES: u32 = TILE as u32 + 2;

/// Rows of a weight.
pub(crate) struct SpqrRows<'a> {
    /// A word for each row of each tile of the loaded rows: tiles of 16 rows, in the order of their columns, and the rows of each.
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

impl SpqrRows<'_> {
    /// The stored values of a row.
    #[inline(always)]
    fn row(&self, row: usize, values: &mut [f32]) {
        let tiles = values.len().div_ceil(TILE);
        let group = &self.words[row / TILE * tiles * TILE..][..tiles * TILE];
        for (tile, values) in group
            .as_chunks::<TILE>()
            .0
            .iter()
            .zip(values.chunks_mut(TILE))
        {
            let word = u64::from_le_bytes(tile[row % TILE]);
            let table = row_values(word, second_order(tile));
            for (i, value) in (2..).zip(values) {
                *value = table[code(word, i)];
            }
        }
        let singles = self.starts[row] as usize..self.starts[row + 1] as usize;
        for &single in &self.singles[singles] {
            values[(single & 0xffff) as usize] += f32_from_f16((single >> 16) as u16);
        }
    }
}

impl Kernel for SpqrRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let cols = self.order.len().max(1);
        let mut values = vec![0.0; self.order.len()];
        for (row, out) in (self.first..).zip(out.chunks_exact_mut(cols)) {
            self.row(row, &mut values);
            for (&value, &column) in values.iter().zip(self.order) {
                out[column as usize] = E::from_f32(half(value));
            }
        }
    }
}

/// The nearest half, in F32.
#[inline(always)]
fn half(x: f32) -> f32 {
    <f16 as Element>::rounded(x)
}

/// Code `i` of a stored row of a tile.
#[inline(always)]
fn code(word: u64, i: u32) -> usize {
    (word >> (BITS * i) & 7) as usize
}

/// `(q - z) * s` in halves.
#[inline(always)]
fn dequantized(q: usize, scale: f32, zero: f32) -> f32 {
    half(half(q as f32 - zero) * scale)
}

/// The scales and zero points of a tile: of scales, then of zero points. Each two rows of the tile have a byte of them above
/// their codes, of which every bit is set that either row has.
#[inline(always)]
fn second_order(tile: &[[u8; 8]; TILE]) -> [[f32; 2]; 2] {
    let fragment = |row: usize| u64::from_le_bytes(tile[row]) >> (BITS * CODES);
    let bits = (0..TILE).fold(0, |bits, row| bits | fragment(row) << (8 * (row / 2)));
    let number = |at: u32| f32_from_f16((bits >> at) as u16);
    [[number(0), number(32)], [number(16), number(48)]]
}

/// The values that the codes of a row of a tile stand for.
#[inline(always)]
fn row_values(word: u64, [of_scales, of_zeros]: [[f32; 2]; 2]) -> [f32; 8] {
    let scale = dequantized(code(word, 0), of_scales[0], of_scales[1]);
    let zero = dequantized(code(word, 1), of_zeros[0], of_zeros[1]);
    std::array::from_fn(|q| dequantized(q, scale, zero))
}
