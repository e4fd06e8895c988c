//! Vector quantization: a code picks a vector of values, and a block of the weight is such a vector, or a sum of several.
//!
//! Formulas: aqlm `_dequantize_weight`, gptqmodel `VPTQLinear.dequantize`.
//!
//! A row of blocks is put together in a buffer that stays in the first-level cache, because a block of many rows is one run
//! of the table and none of the output: its rows are scaled and rounded from there.

use std::ops::Range;

use crate::element::Element;
use crate::simd::Kernel;

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
    Rows {
        factors: &'a [f32],
        offsets: &'a [f32],
    },
    /// A factor and an offset for each column.
    Columns {
        factors: &'a [f32],
        offsets: &'a [f32],
    },
    /// A factor for each `size` values of a row of the tile, row-major. `size` divides [`BUFFER`].
    Groups { factors: &'a [f32], size: usize },
}

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
        // The shapes that libraries write have loops of known lengths.
        match self.block {
            [1, 2] => self.decode::<E, 1, 2>(out),
            [1, 8] => self.decode::<E, 1, 8>(out),
            [1, 16] => self.decode::<E, 1, 16>(out),
            [8, 1] => self.decode::<E, 8, 1>(out),
            [16, 1] => self.decode::<E, 16, 1>(out),
            _ => self.decode::<E, 0, 0>(out),
        }
    }
}

impl VectorBlocks<'_> {
    /// Decodes blocks of `H` × `W` values, or of any size if these are zero.
    #[inline(always)]
    fn decode<E: Element, const H: usize, const W: usize>(&self, out: &mut [E]) {
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
            for (at, vectors) in (0..)
                .step_by(pitch)
                .zip(all.chunks(blocks * self.terms.max(1)))
            {
                if W == 1 {
                    self.columns::<H>(vectors, pitch, &mut buffer);
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
        buffer: &mut [f32; BUFFER],
    ) {
        let [height, width] = if H > 0 { [H, W] } else { self.block };
        let len = height * width;
        for (i, terms) in vectors.chunks_exact(self.terms.max(1)).enumerate() {
            for (j, &vector) in terms.iter().enumerate() {
                let values = &self.table[vector as usize * len..][..len];
                for (r, values) in values.chunks_exact(width).enumerate() {
                    let row = &mut buffer[r * pitch + i * width..][..width];
                    let pairs = row.iter_mut().zip(values);
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

    /// Looks up blocks of one column and `H` rows, as many at a time, whose squares are transposed in registers.
    #[inline(always)]
    fn columns<const H: usize>(&self, vectors: &[u32], pitch: usize, buffer: &mut [f32; BUFFER]) {
        for (i, vectors) in vectors.chunks(H.max(1) * self.terms.max(1)).enumerate() {
            let mut square = [[0.0; H]; H];
            for (sum, terms) in square
                .iter_mut()
                .zip(vectors.chunks_exact(self.terms.max(1)))
            {
                for (j, &vector) in terms.iter().enumerate() {
                    let values = &self.table[vector as usize * H..][..H];
                    if j == 0 {
                        sum.copy_from_slice(values);
                    } else {
                        for (sum, &value) in sum.iter_mut().zip(values) {
                            *sum += value;
                        }
                    }
                }
            }
            for r in 0..H {
                let row = &mut buffer[r * pitch + i * H..][..H];
                for c in 0..H {
                    row[c] = square[c][r];
                }
            }
        }
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
                let numbers = factors[at..].iter().zip(&offsets[at..]);
                for (value, (&factor, &offset)) in values.iter_mut().zip(numbers) {
                    *value = *value * factor + offset;
                }
            }
            VectorNorm::Groups { factors, size } => {
                // A buffer begins with a group, as the rows of the tile do.
                let factors = &factors[r * (self.cols / size) + at / size..];
                for (values, &factor) in values.chunks_mut(size).zip(factors) {
                    for value in values {
                        *value *= factor;
                    }
                }
            }
        }
    }
}
