//! What encoders share: how values may be cut, where the bytes of a tile go, and stored tensors by name.

use super::{Put, Stored, Weight};
use crate::scheme::Tile;
#[cfg(any(feature = "bnb", feature = "qnat"))]
use crate::scheme::{Grid, lcm};
use crate::{Dtype, Result};

/// Longest row that is encoded as a whole.
pub(crate) const LONGEST: usize = 1 << 19;

/// How values may be cut whose blocks of `unit` run over all of them in order, whatever the rows: inside rows if those
/// hold whole units, else between rows.
#[cfg(any(feature = "bnb", feature = "qnat"))]
pub(crate) fn grid_of_runs(rows: usize, cols: usize, unit: usize, load_bits: f64) -> Grid {
    let inside = cols.is_multiple_of(unit);
    let (row_align, col_align) = if inside {
        (1, unit)
    } else {
        (lcm(unit, cols) / cols, cols)
    };
    Grid {
        rows,
        cols,
        row_align,
        col_align: col_align.max(1),
        load_bits,
        transposed: false,
    }
}

/// A matrix of bytes, as a stored tensor, of which each value of the weight takes a part.
pub(crate) struct Matrix {
    /// Number of the stored tensor.
    pub part: usize,
    /// Bytes of a row.
    pub stride: usize,
}

impl Matrix {
    /// Puts rows `rows`, bytes `cols` of each.
    pub(crate) fn put(
        &self,
        rows: std::ops::Range<usize>,
        cols: std::ops::Range<usize>,
        bytes: &[u8],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let at = |row: usize| (row * self.stride + cols.start) as u64;
        if bytes.is_empty() {
            return Ok(());
        }
        if cols.len() == self.stride {
            return put(self.part, at(rows.start), bytes);
        }
        rows.zip(bytes.chunks_exact(cols.len()))
            .try_for_each(|(row, bytes)| put(self.part, at(row), bytes))
    }
}

/// Puts two matrices of a tile of `cols` columns, each with the number of values that one of its bytes has.
pub(crate) fn put_both(
    tile: &Tile,
    cols: usize,
    matrices: [(usize, &[u8]); 2],
    put: &mut Put<'_>,
) -> Result<()> {
    for (part, (unit, bytes)) in matrices.into_iter().enumerate() {
        let inside = tile.cols.start / unit..tile.cols.end / unit;
        Matrix {
            part,
            stride: cols / unit,
        }
        .put(tile.rows.clone(), inside, bytes, put)?;
    }
    Ok(())
}

/// A stored tensor.
pub(crate) fn stored(name: String, dtype: Dtype, shape: &[usize]) -> Stored {
    Stored {
        name,
        dtype,
        shape: shape.to_vec(),
    }
}

/// The shape of a weight, of whose rows each `unit` values become one.
pub(crate) fn shortened(weight: &Weight<'_>, unit: usize) -> Vec<usize> {
    let mut shape = weight.shape.to_vec();
    if let Some(cols) = shape.last_mut() {
        *cols /= unit;
    }
    shape
}

/// Why `weight` is no matrix of a layer, with rows of whole groups of `unit` values.
pub(crate) fn no_matrix(weight: &Weight<'_>, unit: usize) -> Option<String> {
    match weight.shape {
        _ if !weight.name.ends_with(".weight") => {
            Some("its name does not end in `.weight`".to_owned())
        }
        [_, cols] if !cols.is_multiple_of(unit) => {
            Some(format!("its {cols} columns are no multiple of {unit}"))
        }
        [_, _] => None,
        shape => Some(format!("it has not two dimensions but {}", shape.len())),
    }
}
