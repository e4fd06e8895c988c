//! Helpers of the encoders: alignments of tiles, byte matrices, shapes of stored tensors, and
//! objections to shapes.

use super::{Put, StoredTensor, WeightInfo};
use crate::remember::Tile;
use crate::remember::{Grid, lcm};
use crate::{Dtype, Result};

/// Longest row, or longest run of values with one scale, that is encoded in one piece. A tile has
/// at least one row where rows cannot be divided, so this bounds the memory of a worker.
pub(crate) const MAX_ROW_LEN: usize = 1 << 19;

/// The grid of a scheme that takes the tensor as a flat sequence and divides it into blocks of
/// `unit` values, regardless of rows.
///
/// If rows are whole blocks, tiles may end at any block. If not, tiles are whole rows, and as many
/// of them as the least common multiple of block and row demands: then a tile is a run of the flat
/// sequence that begins with a block.
pub(crate) fn flat_block_grid(rows: usize, cols: usize, unit: usize, load_bits: f64) -> Grid {
    let rows_are_whole_blocks = cols.is_multiple_of(unit);
    let (row_align, col_align) = if rows_are_whole_blocks {
        (1, unit)
    } else {
        // `cols` is not 0 here: 0 is a multiple of every unit.
        (lcm(unit, cols) / cols, cols)
    };
    Grid { rows, cols, row_align, col_align: col_align.max(1), load_bits, transposed: None }
}

/// A stored tensor as a matrix of bytes, in which a tile is a rectangle.
pub(crate) struct ByteMatrix {
    /// Index of the stored tensor.
    pub part: usize,
    /// Bytes in a row.
    pub stride: usize,
}

impl ByteMatrix {
    /// Passes `bytes`, row by row, to `put`: they are bytes `cols` of each of `rows`.
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
        // Whole rows follow each other: one write instead of one for each row.
        if cols.len() == self.stride {
            return put(self.part, at(rows.start), bytes);
        }
        rows.zip(bytes.chunks_exact(cols.len()))
            .try_for_each(|(row, bytes)| put(self.part, at(row), bytes))
    }
}

/// Passes the codes and the scales of a tile to `put`, as stored tensors 0 and 1. The tensor has
/// `cols` columns; each matrix comes with the number of values that one of its bytes stands for.
pub(crate) fn put_codes_and_scales(
    tile: &Tile,
    cols: usize,
    matrices: [(usize, &[u8]); 2],
    put: &mut Put<'_>,
) -> Result<()> {
    for (part, (unit, bytes)) in matrices.into_iter().enumerate() {
        // Exact: tiles begin and end with whole groups, and a group has a whole number of code
        // bytes.
        let inside = tile.cols.start / unit..tile.cols.end / unit;
        ByteMatrix { part, stride: cols / unit }.put(tile.rows.clone(), inside, bytes, put)?;
    }
    Ok(())
}

pub(crate) fn stored_tensor(name: String, dtype: Dtype, shape: &[usize]) -> StoredTensor {
    StoredTensor { name, dtype, shape: shape.to_vec() }
}

/// The shape of `weight` with its last dimension divided by `unit`: `unit` values of a row become
/// one element.
pub(crate) fn packed_shape(weight: &WeightInfo<'_>, unit: usize) -> Vec<usize> {
    let mut shape = weight.shape.to_vec();
    if let Some(cols) = shape.last_mut() {
        *cols /= unit;
    }
    shape
}

/// The reason why `weight` is not the matrix of a linear layer whose rows are whole groups of
/// `unit` values.
pub(crate) fn linear_weight_objection(weight: &WeightInfo<'_>, unit: usize) -> Option<String> {
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
