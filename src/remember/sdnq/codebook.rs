//! Weights of SDNQ whose groups have a codebook each.

use std::ops::Range;

use crate::Result;
use crate::element::Out;
use crate::remember::kernels::codebook_groups::CodebookGroups;
use crate::remember::seam::grouped::Unpack;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Buffers, Decode, Grid, Tile};
use crate::simd::{Level, dispatch};

/// The decoder of a matrix of codes that pick entries of codebooks.
pub(super) struct CodebookWeight<'m> {
    pub codes: Box<dyn Unpack + 'm>,
    pub rows: usize,
    pub cols: usize,
    /// Columns that share a codebook.
    pub group: usize,
    /// Entries of a codebook: a power of two, so that every code has one.
    pub entries: usize,
    /// The codebooks of a row one after another; of one row, if they are for all.
    pub codebooks: Box<dyn ScaleMatrix + 'm>,
    pub has_row_codebooks: bool,
}

impl CodebookWeight<'_> {
    fn groups(&self, tile: &Tile) -> Range<usize> {
        tile.cols.start / self.group..tile.cols.end.div_ceil(self.group)
    }
}

impl Decode for CodebookWeight<'_> {
    fn grid(&self) -> Grid {
        let (row_align, col_align) = self.codes.align();
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align,
            col_align,
            load_bits: 8.0 + 32.0 * self.entries as f64 / self.group as f64,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { bytes, scales, staging, .. } = buffers;
        self.codes.unpack(tile, staging, bytes.buffer())?;
        let rows = if self.has_row_codebooks {
            tile.rows.clone()
        } else {
            0..1
        };
        let groups = self.groups(tile);
        let entries = groups.start * self.entries..groups.end * self.entries;
        scales.clear();
        self.codebooks.extend(rows, entries, staging, scales)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (width, groups) = (tile.cols.len(), self.groups(tile).len());
        let first = rows.start - tile.rows.start;
        let row_entries = if self.has_row_codebooks {
            groups * self.entries
        } else {
            0
        };
        let kernel = CodebookGroups {
            codes: &buffers.bytes[first * width..],
            width,
            start: tile.cols.start % self.group,
            group: self.group,
            codebooks: &buffers.scales[first * row_entries..],
            groups,
            entries: self.entries,
            has_row_codebooks: self.has_row_codebooks,
        };
        dispatch(level, &kernel, out);
    }
}
