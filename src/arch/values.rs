//! Values of short tensors, and whether those of vectors that GGUF has widened fit a narrower type.

use std::ops::Range;

use crate::arch::table::{Transform, ValuePart};
use crate::scheme::{Buffers, Decode, PlainFloats, ResolvedItem, Tile, Widening, lcm};
use crate::simd::Level;
use crate::{AnamnesisError, Result, TargetDtype};

/// Values that are compared at once.
const PIECE: usize = 1 << 16;

/// Whether all values fit `dtype`. The logarithm of a value fits if the value comes back from what
/// it is rounded to.
pub(super) fn is_exact(
    decoder: &dyn Decode,
    dtype: TargetDtype,
    transform: Transform,
) -> Result<bool> {
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
        let is_same = |(a, b): (&f32, &f32)| match transform {
            // The exponential function itself is exact to about 2^-23.
            Transform::NegExp | Transform::ValueHeads(ValuePart::Decays) => {
                (a - b).abs() <= 2e-7 * a.abs().max(1.0)
            }
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

/// The values of rows of `decoder`, rounded to `dtype`.
fn values_of_rows(
    decoder: &dyn Decode,
    rows: Range<usize>,
    dtype: TargetDtype,
) -> Result<Vec<f32>> {
    let tile = Tile {
        rows,
        cols: 0..decoder.grid().cols,
    };
    let (mut buffers, mut rounded) = (Buffers::default(), Vec::new());
    let mut values = vec![0.0; tile.values()];
    decoder.load(&tile, &mut buffers)?;
    let widening = Widening {
        dtype,
        level: Level::default(),
    };
    let all = (&tile, tile.rows.clone());
    widening.decode(decoder, all, &buffers, &mut rounded, &mut values);
    Ok(values)
}

/// Whether two tensors have the same shape and the same values, of which some are read at once.
///
/// # Errors
/// Those of reading.
pub(super) fn have_same_values(a: &ResolvedItem<'_>, b: &ResolvedItem<'_>) -> Result<bool> {
    fn plain<'m>(item: &ResolvedItem<'m>) -> Option<PlainFloats<'m>> {
        match item {
            ResolvedItem::Plain(t) => PlainFloats::of(&t.stored),
            ResolvedItem::Group(_) => None,
        }
    }
    fn decoder<'d>(
        item: &'d ResolvedItem<'_>,
        plain: Option<&'d PlainFloats<'_>>,
    ) -> Option<(&'d [usize], &'d dyn Decode)> {
        match item {
            ResolvedItem::Group(group) => Some((&group.shape, &*group.decoder)),
            ResolvedItem::Plain(t) => Some((t.stored.shape(), plain? as &dyn Decode)),
        }
    }
    let (plain_a, plain_b) = (plain(a), plain(b));
    let both = decoder(a, plain_a.as_ref()).zip(decoder(b, plain_b.as_ref()));
    let Some(((shape, a), (other, b))) = both else {
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

/// The values of a stored vector.
///
/// # Errors
/// `Parse` if it is none, or a long one; those of reading.
pub(super) fn values_of(item: &ResolvedItem<'_>) -> Result<Vec<f32>> {
    let plain = match item {
        ResolvedItem::Plain(t) => PlainFloats::of(&t.stored),
        ResolvedItem::Group(_) => None,
    };
    let values = plain.map(|plain| decoded_values(&plain));
    values.transpose()?.flatten().ok_or_else(|| {
        let what = format!("tensor `{}`: it is no short vector of floats", item.name());
        AnamnesisError::parse(what)
    })
}

/// All values of `decoder`; `None` if there are many.
pub(super) fn decoded_values(decoder: &dyn Decode) -> Result<Option<Vec<f32>>> {
    let grid = decoder.grid();
    if grid.rows.saturating_mul(grid.cols) > MOST_VALUES {
        return Ok(None);
    }
    values_of_rows(decoder, 0..grid.rows, TargetDtype::F32).map(Some)
}
