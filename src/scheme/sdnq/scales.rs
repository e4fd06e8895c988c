//! Matrices of SDNQ's scales and zero points: quantized themselves, or with a number for each place of a convolution's kernel.

use std::ops::Range;

use crate::Result;
use crate::element::Out;
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::{Buffers, Decode, Tile};
use crate::simd::Level;

/// The values that a decoder gives in F32.
pub(super) struct DecodedMatrix<'m>(pub Box<dyn Decode + 'm>);

impl ScaleMatrix for DecodedMatrix<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        _staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (grid, mut buffers) = (self.0.grid(), Buffers::default());
        // Whole rows, for a tile may not begin at any column. Rows of scales are short.
        let tile = Tile {
            rows: rows.clone(),
            cols: 0..grid.cols,
        };
        self.0.load(&tile, &mut buffers)?;
        let mut values = vec![0.0; tile.values()];
        let into = Out::F32(&mut values);
        self.0.decode(&tile, rows, &buffers, Level::default(), into);
        for row in values.chunks_exact(grid.cols.max(1)) {
            out.extend_from_slice(&row[cols.clone()]);
        }
        Ok(())
    }
}

/// Numbers for each place of a convolution's kernel and each group of channels, spread over the columns of the weight.
pub(super) struct KernelScales<'m> {
    /// Groups in a row, each with a number for each place.
    pub stored: Box<dyn ScaleMatrix + 'm>,
    /// Places of the kernel.
    pub places: usize,
    /// Channels of a group.
    pub channels: usize,
    /// Groups of a row.
    pub groups: usize,
}

impl ScaleMatrix for KernelScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let width = self.groups * self.places;
        let mut stored = Vec::new();
        self.stored.extend(rows, 0..width, staging, &mut stored)?;
        for row in stored.chunks_exact(width.max(1)) {
            out.extend(cols.clone().map(|col| {
                let (channel, place) = (col / self.places, col % self.places);
                row[channel / self.channels * self.places + place]
            }));
        }
        Ok(())
    }
}
