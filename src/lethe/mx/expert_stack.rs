//! MXFP4 of a stack of experts as transformers has it, `[experts, in, out]`: blocks run down the
//! columns.

use super::MxKernel;
use crate::Result;
use crate::lethe::kernels::activations::Activations;
use crate::lethe::kernels::groups::GroupBuffers;
use crate::lethe::kernels::mx::BLOCK;
use crate::lethe::kernels::pack::transposed;
use crate::lethe::seam::rows::ByteMatrix;
use crate::lethe::{Encode, EncodeBuffers, Put, StoredTensor, TileValues};
use crate::remember::{Grid, StoredRows, Tile};

/// Encodes a stack of experts `[experts, inputs, outputs]` whose blocks lie in columns: each column
/// of a matrix is stored as a row.
pub(super) struct ExpertStackEncoder {
    pub stored: [StoredTensor; 2],
    pub kernel: MxKernel,
    /// Rows of all matrices: experts × inputs.
    pub rows: usize,
    pub inputs: usize,
    pub outputs: usize,
}

impl Encode for ExpertStackEncoder {
    fn stored(&self) -> Vec<StoredTensor> {
        self.stored.to_vec()
    }

    fn grid(&self) -> Grid {
        let (rows, cols) = (self.rows, self.outputs);
        Grid {
            rows,
            cols,
            // A matrix has whole blocks of rows, so that no block reaches into the next matrix of
            // the stack.
            row_align: BLOCK,
            col_align: 1,
            // The transposed values and their decoded values as F32, and a byte for each code.
            load_bits: 72.0,
            transposed: Some(StoredRows::of_one(4, 1)),
        }
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        _: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let TileValues { tile, values, activations, level, .. } = *values;
        let (height, width) = (tile.rows.len(), tile.cols.len());
        // The kernel takes blocks of consecutive values: columns become rows, and back.
        let columns = transposed(values, width);
        let [variances, means] =
            [activations.variances, activations.means].map(|all| transposed(all, width));
        // Where an expert ends within a column, nothing is carried from one block to the next.
        let is_of_one = tile.rows.start / self.inputs == (tile.rows.end - 1) / self.inputs;
        let row = if is_of_one { height } else { BLOCK };
        let mut columns_back = vec![0.0; values.len()];
        let (mut codes, mut shared) = (vec![0; values.len() / 2], vec![0; values.len() / BLOCK]);
        let (codes, shared) = (&mut codes[..], &mut shared[..]);
        self.kernel.run(GroupBuffers {
            values: &columns,
            activations: Activations { variances: &variances, means: &means, row },
            codes,
            scale_bytes: shared,
            back: &mut columns_back,
            level,
        });
        back.copy_from_slice(&transposed(&columns_back, height));
        self.store(tile, codes, shared, put)
    }
}

impl ExpertStackEncoder {
    /// Passes the codes and exponents of a tile, which are in the order of its columns, to `put`.
    fn store(&self, tile: &Tile, codes: &[u8], shared: &[u8], put: &mut Put<'_>) -> Result<()> {
        for (part, unit, bytes) in [(0, 2, codes), (1, BLOCK, shared)] {
            self.put(tile, &ByteMatrix { part, stride: self.inputs / unit }, unit, bytes, put)?;
        }
        Ok(())
    }

    /// Passes one matrix of bytes of `tile` to `put`, expert by expert: a tile may have rows of
    /// several. A byte stands for `unit` values.
    fn put(
        &self,
        tile: &Tile,
        matrix: &ByteMatrix,
        unit: usize,
        bytes: &[u8],
        put: &mut Put<'_>,
    ) -> Result<()> {
        // Bytes of a whole column of the tile, of which an expert has a part.
        // A tile has whole blocks of 32 rows, so the division is exact.
        let pitch = tile.rows.len() / unit;
        let mut row = tile.rows.start;
        while row < tile.rows.end {
            let (expert, first) = (row / self.inputs, row % self.inputs);
            let n = (self.inputs - first).min(tile.rows.end - row);
            let at = (row - tile.rows.start) / unit;
            let lines =
                expert * self.outputs + tile.cols.start..expert * self.outputs + tile.cols.end;
            let cols = first / unit..(first + n) / unit;
            // The tile lies within one expert, so each column of it is a whole run of bytes.
            if pitch == cols.len() {
                matrix.put(lines, cols, bytes, put)?;
            } else {
                for (line, bytes) in lines.zip(bytes.chunks_exact(pitch)) {
                    matrix.put(line..line + 1, cols.clone(), &bytes[at..at + cols.len()], put)?;
                }
            }
            row += n;
        }
        Ok(())
    }
}
