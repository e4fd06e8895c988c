//! gpt-oss: stacks of experts, which are stored transposed.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::BLOCK;
use crate::Result;
use crate::element::Out;
use crate::model::Part;
use crate::remember::kernels::fp4_pairs::Fp4Pairs;
use crate::remember::seam::load::{StoredWords, read_transposed, transposed_words};
use crate::remember::seam::{
    Buffers, Decode, Grid, ReadAhead, StoredPiece, StoredRectangle, StoredRows, Tile,
};
use crate::simd::{Level, dispatch};

/// The decoder of a stack of matrices `[inputs, outputs]`, each of which is stored as `[outputs,
/// inputs / 2]` codes and `[outputs, inputs / 32]` exponents.
///
/// The shared decoder would keep a byte for each code and an F32 for each exponent. With half of
/// that twice as many rows stay in the cache.
pub(super) struct ExpertStack<'m> {
    pub codes: Part<'m>,
    pub exponents: Part<'m>,
    pub experts: usize,
    /// A multiple of [`BLOCK`].
    pub inputs: usize,
    pub outputs: usize,
}

impl ExpertStack<'_> {
    /// Reads what `part` has for `tile`: of each column, a byte for each `rows_per_byte` rows. Each
    /// line of `out` has the bytes of all columns.
    fn load_part(
        &self,
        (part, ahead): (&Part<'_>, Option<&ReadAhead>),
        rows_per_byte: usize,
        tile: &Tile,
        staging: &mut Vec<u8>,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let line = transposed_words::<1>(tile.cols.len());
        out.resize(tile.rows.len() / rows_per_byte * line, 0);
        let (mut rest, mut row) = (out.as_mut_slice(), tile.rows.start);
        // A tile may begin in one matrix and end in another.
        while row < tile.rows.end {
            let (expert, first) = (row / self.inputs, row % self.inputs);
            let end = self.inputs.min(first + tile.rows.end - row);
            let lines = expert * self.outputs;
            let lines = lines + tile.cols.start..lines + tile.cols.end;
            let bytes = first / rows_per_byte..end / rows_per_byte;
            let (matrix, next) = rest.split_at_mut(bytes.len() * line);
            read_transposed::<1>(
                StoredWords { part, stride: self.inputs / rows_per_byte, ahead },
                [lines, bytes],
                staging,
                line,
                matrix,
            )?;
            (rest, row) = (next, row + end - first);
        }
        Ok(())
    }
}

impl Decode for ExpertStack<'_> {
    fn grid(&self) -> Grid {
        Grid {
            rows: self.experts.saturating_mul(self.inputs),
            cols: self.outputs,
            row_align: BLOCK,
            col_align: 1,
            load_bits: 4.0 + 8.0 / BLOCK as f64,
            transposed: Some(StoredRows { row_bits: 4, cols: 1, matrix_rows: self.inputs }),
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { words, scale_words, staging, ahead, .. } = buffers;
        let ahead = ahead.as_deref();
        self.load_part((&self.codes, ahead), 2, tile, staging, words)?;
        self.load_part((&self.exponents, ahead), BLOCK, tile, staging, scale_words)
    }

    fn stored_codes(&self, rows: &Range<usize>) -> Option<StoredRectangle<'_>> {
        let (expert, first) = (rows.start / self.inputs, rows.start % self.inputs);
        let end = first + rows.len();
        let piece = |part, rows_per_byte| StoredPiece {
            part,
            stride: self.inputs / rows_per_byte,
            bytes: first / rows_per_byte..end / rows_per_byte,
        };
        (end <= self.inputs).then(|| StoredRectangle {
            rows: expert * self.outputs..(expert + 1) * self.outputs,
            codes: piece(self.codes, 2),
            scales: Some(piece(self.exponents, BLOCK)),
        })
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let kernel = Fp4Pairs {
            codes: buffers.words.as_bytes(),
            exponents: buffers.scale_words.as_bytes(),
            first: rows.start - tile.rows.start,
            cols: tile.cols.len(),
            pitch: 4 * transposed_words::<1>(tile.cols.len()),
        };
        dispatch(level, &kernel, out);
    }
}
