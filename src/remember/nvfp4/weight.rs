//! The decoder of NVFP4 in blocks of 16 along a row, which nearly all files have.

use std::ops::Range;

use crate::Result;
use crate::element::Out;
use crate::model::Part;
use crate::remember::kernels::codebook::{CodebookBlocks, PairTable};
use crate::remember::kernels::nvfp4::{BLOCK, block_scale, e2m1, inverse};
use crate::remember::seam::{Buffers, Decode, Floats, Grid, Tile, read};
use crate::simd::{Level, dispatch};

/// The decoder of blocks of 16 along a row.
pub(super) struct Nvfp4Weight<'m> {
    pub codes: Part<'m>,
    pub scales: Part<'m>,
    pub global: Floats<'m>,
    pub globals: usize,
    pub divides: bool,
    /// Whether code 8 is -0.
    pub has_signed_zero: bool,
    /// Whether the global scale is applied to the codes' values (AutoRound), and not to the scales
    /// of blocks.
    pub codes_first: bool,
    pub rows: usize,
    pub k: usize,
    pub rows_per_global: usize,
}

impl Decode for Nvfp4Weight<'_> {
    fn grid(&self) -> Grid {
        Grid {
            rows: self.rows,
            cols: self.k,
            row_align: 1,
            col_align: BLOCK,
            // 4 bits of code, an F32 scale for 16 values (2 bits), and half a bit for its stored
            // byte.
            load_bits: 6.5,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { bytes, scales, staging, row, .. } = buffers;
        let cols = tile.cols.start / 2..tile.cols.end / 2;
        bytes.load(&self.codes, self.k / 2, tile.rows.clone(), cols)?;
        let globals =
            tile.rows.start / self.rows_per_global..tile.rows.end.div_ceil(self.rows_per_global);
        row.clear();
        self.global
            .extend(self.globals, 0..1, globals.clone(), staging, row)?;
        // Tiles begin at whole blocks, and rows are whole blocks.
        let blocks = tile.cols.start / BLOCK..tile.cols.end / BLOCK;
        read(&self.scales, self.k / BLOCK, tile.rows.clone(), blocks.clone(), staging)?;
        scales.clear();
        for (r, codes) in tile
            .rows
            .clone()
            .zip(staging.chunks_exact(blocks.len().max(1)))
        {
            // The block's scale is left alone, and the codebook takes the factor in `decode`.
            let global = if self.codes_first {
                1.0
            } else {
                row[r / self.rows_per_global - globals.start]
            };
            scales.extend(
                codes
                    .iter()
                    .map(|&code| block_scale(code, global, self.divides)),
            );
        }
        Ok(())
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (width, first) = (tile.cols.len(), rows.start - tile.rows.start);
        let values = first * width..(first + rows.len()) * width;
        let mut codebook = e2m1(self.has_signed_zero);
        if let Some(&global) = buffers.row.first().filter(|_| self.codes_first) {
            let factor = inverse(global);
            codebook.iter_mut().for_each(|value| *value *= factor);
        }
        let kernel = CodebookBlocks {
            pairs: &PairTable::new(&codebook, false),
            bytes: &buffers.bytes[values.start / 2..values.end / 2],
            start: 0,
            block: BLOCK,
            scales: &buffers.scales[values.start / BLOCK..values.end / BLOCK],
        };
        dispatch(level, &kernel, out);
    }
}
