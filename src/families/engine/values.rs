//! Values of short tensors, and whether those of vectors that GGUF has widened fit a narrower type.

use crate::error::InTensor;
use crate::remember::layout::assembled::Change;
use crate::remember::{Decode, PIECE, ResolvedItem, values_of_rows};
use crate::{AnamnesisError, Result, TargetDtype};

/// Whether all values fit `dtype`. The logarithm of a value, which `change` undoes, fits if the
/// value comes back from what it is rounded to.
pub(crate) fn is_exact(decoder: &dyn Decode, dtype: TargetDtype, change: Change) -> Result<bool> {
    let grid = decoder.grid();
    if grid.rows.saturating_mul(grid.cols) > MOST_VALUES {
        return Ok(false);
    }
    let rows = (PIECE / grid.cols.max(1))
        .next_multiple_of(grid.row_align)
        .max(grid.row_align);
    for first in (0..grid.rows).step_by(rows) {
        let rows = first..(first + rows).min(grid.rows);
        let wide = values_of_rows(decoder, rows.clone(), TargetDtype::F32)?;
        let narrow = values_of_rows(decoder, rows, dtype)?;
        let is_same = |(a, b): (&f32, &f32)| match change {
            // The exponential function itself is exact to about 2^-23.
            Change::NegExp => (a - b).abs() <= 2e-7 * a.abs().max(1.0),
            // Two products are exact to 2^-23.
            Change::Times(_) => (a - b).abs() <= 3e-7 * a.abs(),
            // A sum is exact to 2^-24 of it.
            Change::Plus(_) => (a - b).abs() <= 6e-8 * a.abs().max(1.0),
            _ => a.to_bits() == b.to_bits(),
        };
        if !wide.iter().zip(&narrow).all(is_same) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Most values of a tensor that are read to see whether they fit a narrower type.
const MOST_VALUES: usize = 4 << 20;

/// The values of a stored vector.
///
/// # Errors
/// `Parse` if it is none, or a long one; those of reading.
pub(crate) fn values_of(item: &ResolvedItem<'_>) -> Result<Vec<f32>> {
    let values = item.plain_floats().map(|plain| decoded_values(&plain));
    values.transpose()?.flatten().ok_or_else(|| {
        let what = format!("{}: it is no short vector of floats", InTensor(&item.name()));
        AnamnesisError::parse(what)
    })
}

/// All values of `decoder`; `None` if there are many.
pub(crate) fn decoded_values(decoder: &dyn Decode) -> Result<Option<Vec<f32>>> {
    let grid = decoder.grid();
    if grid.rows.saturating_mul(grid.cols) > MOST_VALUES {
        return Ok(None);
    }
    values_of_rows(decoder, 0..grid.rows, TargetDtype::F32).map(Some)
}
