//! Tables of embeddings of EXL3: each 256 values of a row are a ring, a trellis code with a scale,
//! behind a Hadamard matrix of 256.
//!
//! A ring is a half, its scale, and words of 16 bits with a circular stream of 256·b bits. Other
//! than in tiles, the lowest bit of a word is the first of the stream: the state of a value has the
//! b bits of that value lowest, and above them those of the values before it.
//!
//! Formula: exllamav3 `modules/quant/exl3_lib/ngram_codec.py` (`unpack_rows`, `dequant_rows`).

use super::codebook::{Codebook, Mul1, States};
use super::hadamard;
use crate::element::{Element, f32_from_f16};
use crate::simd::{Kernel, zip};

/// Values of a ring.
pub(crate) const RING: usize = 256;

/// Bytes of a ring of values of `bits` bits.
pub(crate) fn ring_bytes(bits: usize) -> usize {
    2 + RING / 8 * bits
}

/// Rows of a table.
pub(crate) struct RingRows<'a> {
    /// The rings of each row, one behind the other.
    pub rings: &'a [u8],
    pub bits: usize,
    /// Number of the first row.
    pub first: usize,
    /// Values of a row. The last ring may have more.
    pub cols: usize,
    /// A factor for each value of the rings of a row.
    pub signs: &'a [f32],
}

impl Kernel for RingRows<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let len = ring_bytes(self.bits);
        let row_len = self.signs.len() / RING * len;
        let rows = self.rings.chunks_exact(row_len.max(1)).skip(self.first);
        for (rings, out) in zip(rows, out.chunks_exact_mut(self.cols.max(1))) {
            let signs = self.signs.as_chunks::<RING>().0;
            let rings = zip(rings.chunks_exact(len), signs);
            for ((ring, signs), out) in zip(rings, out.chunks_mut(RING)) {
                let values = ring_values(ring, self.bits, signs);
                E::store(&values[..out.len()], out);
            }
        }
    }
}

/// The values of a ring.
#[inline(always)]
fn ring_values(ring: &[u8], bits: usize, signs: &[f32; RING]) -> [f32; RING] {
    let Some(([low, high], stream)) = ring.split_first_chunk() else {
        return [0.0; RING];
    };
    let scale = f64::from(f32_from_f16(u16::from_le_bytes([*low, *high])));
    let mask = (1 << bits) - 1;
    let symbol = |i: usize| {
        let at = i * bits;
        // The byte behind the last is none of the bits of the last value.
        let next = stream.get(at / 8 + 1).copied().unwrap_or(0);
        u32::from(u16::from_le_bytes([stream[at / 8], next])) >> (at % 8) & mask
    };
    // The bits of the values before the first, of which 16 are enough for every width.
    let mut state = (RING - 16..RING).fold(0, |state, i| state << bits | symbol(i));
    // One column of a matrix, so that its lanes are one.
    let mut sums = [[0]; RING];
    for (i, sum) in sums.iter_mut().enumerate() {
        state = state << bits | symbol(i);
        // At most 452608, of which 256 are summed up.
        *sum = [Mul1.integer(state & 0xffff)];
    }
    hadamard(&mut sums);
    // H is divided by √256.
    let unit = Codebook::Mul1.unit() / 16.0 * scale;
    let mut values = [0.0; RING];
    for ((value, [sum]), sign) in zip(zip(&mut values[..], sums), signs) {
        // 28 bits, and twice 11: exact in F64.
        *value = (f64::from(sum) * unit * f64::from(*sign)) as f32;
    }
    values
}
