//! The decoder of a layer: sums of integers where the values and scales are such that these are
//! exact, else of any values.

use std::ops::Range;
use std::sync::OnceLock;

use super::codes::FluteCodes;
use crate::Result;
use crate::element::Out;
use crate::remember::kernels::rotated_pairs::{IntegerPairs, RotatedPairs};
use crate::remember::layout::hadamard::HadamardRotated;
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix};
use crate::remember::seam::{Buffers, Decode, Floats, Grid, Tile};
use crate::simd::{Level, dispatch};

/// The decoder of a layer.
pub(super) struct HiggsWeight<'m> {
    /// Decodes any values.
    pub general: HadamardRotated<'m>,
    pub codes: FluteCodes<'m>,
    /// The values of pairs, and how many these are.
    pub values: (Floats<'m>, usize),
    pub scales: Matrix<'m>,
    /// Columns that share a scale.
    pub group: usize,
    /// Absolute value of the entries of the matrix.
    pub entry: f64,
    pub table: OnceLock<Option<IntegerPairs>>,
}

impl HiggsWeight<'_> {
    /// The values of pairs as integers, if they are such.
    ///
    /// # Errors
    /// The read fails.
    fn table(&self, staging: &mut Vec<u8>) -> Result<Option<&IntegerPairs>> {
        if let Some(table) = self.table.get() {
            return Ok(table.as_ref());
        }
        let (floats, len) = self.values;
        let mut values = Vec::with_capacity(len);
        floats.extend(len, 0..1, 0..len, staging, &mut values)?;
        let table = IntegerPairs::new(&values);
        Ok(self.table.get_or_init(|| table).as_ref())
    }
}

impl Decode for HiggsWeight<'_> {
    fn grid(&self) -> Grid {
        self.general.grid()
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { scales, staging, words, bytes, .. } = buffers;
        let groups = tile.cols.start / self.group..tile.cols.end / self.group;
        scales.clear();
        let rows = tile.rows.clone();
        self.scales.extend(rows, groups, staging, scales)?;
        let mut rotations = scales.chunks(self.general.group / self.group);
        if self.table(staging)?.is_none() || !rotations.all(RotatedPairs::fits) {
            return self.general.load(tile, buffers);
        }
        // Without numbers of vectors, the tile is one of bytes.
        words.clear();
        self.codes.load_bytes(tile, staging, bytes.buffer())
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let table = self.table.get().and_then(Option::as_ref);
        let Some(table) = table.filter(|_| buffers.words.is_empty()) else {
            return self.general.decode(tile, rows, buffers, level, out);
        };
        let (width, first) = (tile.cols.len(), rows.start - tile.rows.start);
        let kernel = RotatedPairs {
            table,
            codes: &buffers.bytes[first * width / 2..][..rows.len() * width / 2],
            rotation: self.general.group,
            group: self.group,
            scales: &buffers.scales[first * (width / self.group)..],
            entry: self.entry,
        };
        dispatch(level, &kernel, out);
    }
}
