//! Matrices of SDNQ's scales and zero points: quantized themselves, or with a number for each place
//! of a convolution's kernel.

use std::ops::Range;

use crate::Result;
use crate::element::Out;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Buffers, Decode, Tile, aligned};
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
        // A tile may not begin at any column.
        let tile =
            Tile { rows: rows.clone(), cols: aligned(cols.clone(), grid.col_align, grid.cols) };
        self.0.load(&tile, &mut buffers)?;
        let mut values = vec![0.0; tile.values()];
        let into = Out::F32(&mut values);
        self.0.decode(&tile, rows, &buffers, Level::default(), into);
        let before = cols.start - tile.cols.start;
        for row in values.chunks_exact(tile.cols.len().max(1)) {
            out.extend_from_slice(&row[before..before + cols.len()]);
        }
        Ok(())
    }
}

/// Numbers for each place of a convolution's kernel and each group of channels, spread over the
/// columns of the weight.
pub(super) struct KernelScales<'m> {
    /// Groups in a row, each with a number for each place.
    pub stored: Box<dyn ScaleMatrix + 'm>,
    /// Places of the kernel.
    pub places: usize,
    /// Channels of a group.
    pub channels: usize,
}

impl ScaleMatrix for KernelScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // Only the groups that the columns touch.
        let (group, places) = (self.channels * self.places, self.places);
        let groups = cols.start / group..cols.end.div_ceil(group);
        let mut stored = Vec::new();
        let wanted = groups.start * places..groups.end * places;
        let width = wanted.len();
        self.stored.extend(rows, wanted, staging, &mut stored)?;
        for row in stored.chunks_exact(width.max(1)) {
            let number = |col| row[(col / group - groups.start) * places + col % places];
            out.extend(cols.clone().map(number));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Numbers `100 * row + col`, which remembers the columns that were asked for.
    #[derive(Default)]
    struct Counted(Mutex<Vec<Range<usize>>>);

    impl ScaleMatrix for &Counted {
        fn extend(
            &self,
            rows: Range<usize>,
            cols: Range<usize>,
            _staging: &mut Vec<u8>,
            out: &mut Vec<f32>,
        ) -> Result<()> {
            self.0.lock().unwrap().push(cols.clone());
            for row in rows {
                out.extend(cols.clone().map(|col| (100 * row + col) as f32));
            }
            Ok(())
        }
    }

    #[test]
    fn groups_of_the_columns_alone_are_read() {
        // Two channels of three places in a group.
        for (cols, read, want) in [
            (0..6, 0..3, vec![0, 1, 2, 0, 1, 2]),
            (7..9, 3..6, vec![4, 5]),
            (5..7, 0..6, vec![2, 3]),
            (13..18, 6..9, vec![7, 8, 6, 7, 8]),
        ] {
            let stored = Counted::default();
            let scales = KernelScales { stored: Box::new(&stored), places: 3, channels: 2 };
            let mut out = Vec::new();
            let read_all = scales.extend(1..3, cols, &mut Vec::new(), &mut out);
            read_all.unwrap();
            let rows = [1, 2].map(|row| want.iter().map(move |n| (100 * row + n) as f32));
            assert_eq!(out, rows.into_iter().flatten().collect::<Vec<_>>());
            assert_eq!(*stored.0.lock().unwrap(), [read]);
        }
    }
}
