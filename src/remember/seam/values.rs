//! Values of decoded tensors, some at a time.

use std::ops::Range;

use super::{Buffers, Decode, ResolvedItem, Tile, Widening, lcm};
use crate::simd::Level;
use crate::{Result, TargetDtype};

/// Values that are decoded at once.
pub(crate) const PIECE: usize = 1 << 16;

/// The values of rows of `decoder`, rounded to `dtype`.
pub(crate) fn values_of_rows(
    decoder: &dyn Decode,
    rows: Range<usize>,
    dtype: TargetDtype,
) -> Result<Vec<f32>> {
    let tile = Tile { rows, cols: 0..decoder.grid().cols };
    let (mut buffers, mut rounded) = (Buffers::default(), Vec::new());
    let mut values = vec![0.0; tile.values()];
    decoder.load(&tile, &mut buffers)?;
    let widening = Widening { dtype, level: Level::default() };
    let all = (&tile, tile.rows.clone());
    widening.decode(decoder, all, &buffers, &mut rounded, &mut values);
    Ok(values)
}

/// Whether two tensors have the same shape and the same values, of which some are read at once.
///
/// # Errors
/// Those of reading.
pub(crate) fn have_same_values(a: &ResolvedItem<'_>, b: &ResolvedItem<'_>) -> Result<bool> {
    let (plain_a, plain_b) = (a.plain_floats(), b.plain_floats());
    let (shape, other) = (a.shape(), b.shape());
    let Some((a, b)) = a.decoder(plain_a.as_ref()).zip(b.decoder(plain_b.as_ref())) else {
        return Ok(false);
    };
    let grids = [a.grid(), b.grid()];
    let [rows, cols] = grids.map(|grid| (grid.rows, grid.cols))[0].into();
    if shape != other || (rows, cols) != (grids[1].rows, grids[1].cols) {
        return Ok(false);
    }
    let align = lcm(grids[0].row_align, grids[1].row_align);
    let step = (PIECE / cols.max(1)).next_multiple_of(align).max(align);
    for first in (0..rows).step_by(step) {
        let rows = || first..(first + step).min(rows);
        let values = |decoder| values_of_rows(decoder, rows(), TargetDtype::F32);
        let (a, b) = (values(a)?, values(b)?);
        // Not a number is equal to itself here.
        if a.iter()
            .zip(&b)
            .any(|(a, b)| a != b && a.to_bits() != b.to_bits())
        {
            return Ok(false);
        }
    }
    Ok(true)
}
