//! Vector quantization: a code picks a vector of values, and a block of the weight is such a
//! vector, or a sum of several.
//!
//! Formulas: aqlm `_dequantize_weight`, gptqmodel `VPTQLinear.dequantize`.
//!
//! A row of blocks is put together in a buffer that stays in the first-level cache, because a block
//! of many rows is one run of the table and none of the output: its rows are scaled and rounded
//! from there.

use std::ops::Range;

use crate::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::simd::Avx2;
use crate::simd::{Flat, InMemory, Kernel, LANES, Transpose, zip};

/// Most values of a vector.
pub(crate) const MAX_VECTOR: usize = 64;

/// Values of a row of blocks that are looked up before any is stored.
const BUFFER: usize = 4096;

/// Factors and offsets of values: `v * f + b`, two roundings.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VectorNorm<'a> {
    /// `v` itself.
    None,
    /// A factor for each row of the weight that the tile has; no offsets, or as many.
    Rows { factors: &'a [f32], offsets: &'a [f32] },
    /// A factor and an offset for each column.
    Columns { factors: &'a [f32], offsets: &'a [f32] },
    /// A factor for each `size` values of a row of the tile, row-major. `size` divides [`BUFFER`].
    Groups { factors: &'a [f32], size: usize },
}

/// Columns and rows that are transposed in registers.
const SQUARE: usize = LANES;

/// Rows of blocks, each the sum of vectors.
pub(crate) struct VectorBlocks<'a> {
    /// Vectors, one after another.
    pub table: &'a [f32],
    /// For each block, row-major, the numbers of its `terms` vectors.
    pub vectors: &'a [u32],
    pub terms: usize,
    /// Rows and columns of a block, whose vector has its values row-major.
    pub block: [usize; 2],
    /// Rows to decode, counted from the first of `vectors`.
    pub rows: Range<usize>,
    /// Columns: whole blocks.
    pub cols: usize,
    pub norm: VectorNorm<'a>,
}

impl Kernel for VectorBlocks<'_> {
    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        self.each_shape(InMemory, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_avx2<E: Element>(&self, out: &mut [E], avx2: Avx2) {
        self.each_shape(avx2, out);
    }
}

impl VectorBlocks<'_> {
    #[inline(always)]
    fn each_shape<E: Element>(&self, by: impl Transpose, out: &mut [E]) {
        // The shapes that libraries write have loops of known lengths.
        match self.block {
            [1, 2] => self.decode::<E, 1, 2>(by, out),
            [1, 8] => self.decode::<E, 1, 8>(by, out),
            [1, 16] => self.decode::<E, 1, 16>(by, out),
            [8, 1] => self.decode::<E, 8, 1>(by, out),
            [16, 1] => self.decode::<E, 16, 1>(by, out),
            _ => self.decode::<E, 0, 0>(by, out),
        }
    }

    /// Decodes blocks of `H` × `W` values, or of any size if these are zero.
    #[inline(always)]
    fn decode<E: Element, const H: usize, const W: usize>(
        &self,
        by: impl Transpose,
        out: &mut [E],
    ) {
        let [height, width] = if H > 0 { [H, W] } else { self.block };
        let mut buffer = [0.0; BUFFER];
        let across = self.cols / width;
        // Blocks of a buffer, and values of a row of it.
        let blocks = BUFFER / (height * width);
        let pitch = blocks * width;
        let per_row = across * self.terms;
        let (first, end) = (self.rows.start, self.rows.end);
        for row in first / height..end.div_ceil(height) {
            let all = &self.vectors[row * per_row..][..per_row];
            // Rows of these blocks that are wanted.
            let rows = first.max(row * height)..end.min((row + 1) * height);
            for (at, vectors) in zip((0..).step_by(pitch), all.chunks(blocks * self.terms.max(1))) {
                if W == 1 {
                    self.columns::<H>(vectors, pitch, by, &mut buffer);
                } else {
                    self.blocks::<H, W>(vectors, pitch, &mut buffer);
                }
                let len = vectors.len() / self.terms.max(1) * width;
                for r in rows.clone() {
                    let values = &mut buffer[r % height * pitch..][..len];
                    self.scale(r, at, values);
                    E::store(values, &mut out[(r - first) * self.cols + at..][..len]);
                }
            }
        }
    }

    /// Looks up blocks of any size into rows that are `pitch` apart.
    #[inline(always)]
    fn blocks<const H: usize, const W: usize>(
        &self,
        vectors: &[u32],
        pitch: usize,
        buffer: &mut [f32],
    ) {
        let [height, width] = if H > 0 { [H, W] } else { self.block };
        let len = height * width;
        for (i, terms) in vectors.chunks_exact(self.terms.max(1)).enumerate() {
            for (j, &vector) in terms.iter().enumerate() {
                let values = &self.table[vector as usize * len..][..len];
                for (r, values) in values.chunks_exact(width).enumerate() {
                    let row = &mut buffer[r * pitch + i * width..][..width];
                    let pairs = zip(&mut row[..], values);
                    // No copy of a slice, which is a call if its length is unknown.
                    if j == 0 {
                        for (sum, &value) in pairs {
                            *sum = value;
                        }
                    } else {
                        for (sum, &value) in pairs {
                            *sum += value;
                        }
                    }
                }
            }
        }
    }

    /// Looks up blocks of one column, whose rows are so many [`SQUARE`]s, and transposes them a
    /// square at a time.
    #[inline(always)]
    fn columns<const H: usize>(
        &self,
        vectors: &[u32],
        pitch: usize,
        by: impl Transpose,
        buffer: &mut [f32; BUFFER],
    ) {
        match self.terms {
            1 => self.squares::<H, 1>(vectors, pitch, by, buffer),
            2 => self.squares::<H, 2>(vectors, pitch, by, buffer),
            _ => self.blocks::<H, 1>(vectors, pitch, buffer),
        }
    }

    #[inline(always)]
    fn squares<const H: usize, const TERMS: usize>(
        &self,
        vectors: &[u32],
        pitch: usize,
        by: impl Transpose,
        buffer: &mut [f32; BUFFER],
    ) {
        let table = self.table.as_chunks::<H>().0;
        let (squares, rest) = vectors.as_chunks::<TERMS>().0.as_chunks::<SQUARE>();
        for (i, vectors) in squares.iter().enumerate() {
            for top in (0..H).step_by(SQUARE) {
                let mut square = [[0.0; SQUARE]; SQUARE];
                for (sum, terms) in zip(&mut square[..], vectors) {
                    for (j, &vector) in terms.iter().enumerate() {
                        let values = &table[vector as usize];
                        let Some(values) = values[top..].first_chunk::<SQUARE>() else {
                            continue;
                        };
                        *sum = if j == 0 { *values } else { added(sum, values) };
                    }
                }
                for (r, row) in by.columns(square).iter().enumerate() {
                    if let Some(out) = buffer[(top + r) * pitch + i * SQUARE..].first_chunk_mut() {
                        *out = *row;
                    }
                }
            }
        }
        let first = squares.len() * SQUARE;
        self.blocks::<H, 1>(rest.flat(), pitch, &mut buffer[first..]);
    }

    /// Applies factors and offsets to `values` of row `r`, from column `at` on.
    #[inline(always)]
    fn scale(&self, r: usize, at: usize, values: &mut [f32]) {
        match self.norm {
            VectorNorm::None => {}
            VectorNorm::Rows { factors, offsets } => {
                let factor = factors[r];
                for value in &mut *values {
                    *value *= factor;
                }
                if let Some(&offset) = offsets.get(r) {
                    for value in values {
                        *value += offset;
                    }
                }
            }
            VectorNorm::Columns { factors, offsets } => {
                let numbers = zip(factors[at..].iter(), &offsets[at..]);
                for (value, (&factor, &offset)) in zip(&mut values[..], numbers) {
                    *value = *value * factor + offset;
                }
            }
            VectorNorm::Groups { factors, size } => {
                // A buffer begins with a group, as the rows of the tile do.
                let factors = &factors[r * (self.cols / size) + at / size..];
                for (values, &factor) in zip(values.chunks_mut(size), factors) {
                    for value in values {
                        *value *= factor;
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn added(a: &[f32; SQUARE], b: &[f32; SQUARE]) -> [f32; SQUARE] {
    let mut sums = *a;
    for (sum, b) in zip(&mut sums[..], b) {
        *sum += b;
    }
    sums
}
