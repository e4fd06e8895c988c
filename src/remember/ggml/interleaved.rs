//! Tensors of ik_llama.cpp's types whose rows are interleaved.

use std::ops::Range;

use crate::Result;
use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::kernels::ggml::interleaved::RowsDecoder;
use crate::remember::kernels::ggml::row_scale;
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::{Buffers, Decode, Grid, Tile, read};
use crate::simd::Level;

/// Decoder of a tensor whose rows are interleaved. Loading a tile moves its blocks apart, so that
/// its bytes are blocks row by row.
pub(super) struct InterleavedWeight<'m> {
    codes: Part<'m>,
    decoder: &'static RowsDecoder,
    /// Values of a block in each row.
    block: usize,
    /// Bytes of the header of a row.
    header: usize,
    rows: usize,
    cols: usize,
}

impl<'m> InterleavedWeight<'m> {
    /// The decoder of `t`, which has whole blocks of as many rows as are interleaved.
    pub(super) fn new(t: &Tensor<'m>, decoder: &'static RowsDecoder) -> Self {
        let (rows, cols) = rows_and_cols(t.shape());
        Self {
            codes: t.part(),
            decoder,
            block: t.dtype().block_size(),
            header: if cols > 0 { t.dtype().row_header() } else { 0 },
            rows,
            cols,
        }
    }

    /// Bytes of the rows that are interleaved.
    fn stride(&self) -> usize {
        self.decoder.rows * self.header + self.cols / self.block * self.decoder.block
    }
}

impl Decode for InterleavedWeight<'_> {
    fn grid(&self) -> Grid {
        let row_bytes = self.cols / self.block * self.decoder.row_block + 4;
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: self.decoder.rows,
            col_align: self.block,
            load_bits: row_bytes as f64 * 8.0 / self.cols.max(1) as f64,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { bytes, scales, staging, .. } = buffers;
        let (together, stride) = (self.decoder.rows, self.stride());
        let groups = tile.rows.start / together..tile.rows.end / together;
        scales.clear();
        if self.header > 0 {
            let headers = 0..together * self.header;
            read(&self.codes, stride, groups.clone(), headers, staging)?;
            scales.extend(staging.chunks_exact(self.header).map(row_scale));
        }
        let at = |col: usize| together * self.header + col / self.block * self.decoder.block;
        let cols = at(tile.cols.start)..at(tile.cols.end);
        read(&self.codes, stride, groups, cols.clone(), staging)?;
        let blocks = tile.cols.len() / self.block;
        let row_block = self.decoder.row_block;
        let out = bytes.buffer();
        out.resize(tile.rows.len() * blocks * row_block, 0);
        self.decoder.rows_of(Level::detect(), staging, blocks, out);
        Ok(())
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        mut out: Out<'_>,
    ) {
        let row_bytes = tile.cols.len() / self.block * self.decoder.row_block;
        for row in rows {
            let at = row - tile.rows.start;
            let (now, rest) = out.split_at(tile.cols.len());
            let scale = buffers.scales.get(at).copied();
            let bytes = &buffers.bytes[at * row_bytes..][..row_bytes];
            (self.decoder.decode)(bytes, scale, level, now);
            out = rest;
        }
    }
}
