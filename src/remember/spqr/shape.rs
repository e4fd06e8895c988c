//! The size of a layer of SpQR, which its tensors tell in part.

use super::FAMILY;
use crate::Result;
use crate::model::Tensor;
use crate::remember::kernels::spqr::TILE;
use crate::remember::seam::{refused, wrong};

/// Most inputs. The library has columns of single values in 15 bits and a sign.
const MAX_INPUTS: usize = 1 << 15;

/// Rows, a multiple of 16, and columns of a layer. Of another number of rows the library's own
/// decoder takes words of other rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpqrShape {
    pub rows: usize,
    pub cols: usize,
    /// Rows that share an offset of single values.
    pub rows_per_offset: usize,
}

impl SpqrShape {
    /// The shape of the layer of `t` with `offsets` offsets, where `order` words have the order of
    /// the inputs and a config knows rows and columns.
    ///
    /// # Errors
    /// The sizes contradict each other, or nothing tells them.
    pub(super) fn new(
        t: &Tensor<'_>,
        offsets: usize,
        order: Option<usize>,
        [known_rows, known_cols]: [Option<usize>; 2],
    ) -> Result<Self> {
        let misfit = || {
            let what = format!(
                "{} words, {offsets} offsets, and inputs in {order:?} words do not fit [{known_rows:?}, {known_cols:?}]",
                t.elements()
            );
            wrong(t, what)
        };
        let ordered = order.map(|words| words.saturating_mul(2));
        let Some(cols) = ordered.or(known_cols) else {
            let what = "neither the order of its inputs nor config.json tells how many it has";
            return Err(refused(t, FAMILY, what));
        };
        if cols > MAX_INPUTS {
            let what = format!("it has {cols} inputs; up to {MAX_INPUTS} are decoded");
            return Err(refused(t, FAMILY, what));
        }
        let per_group = cols.div_ceil(TILE) * TILE;
        let (words, last) = (t.elements(), offsets.saturating_sub(1));
        if cols == 0 || words == 0 || last == 0 || !words.is_multiple_of(per_group) {
            return Err(misfit());
        }
        let rows = words / per_group * TILE;
        // Offsets are for each row, or for the 16 of a tile.
        let rows_per_offset = rows / last;
        let is_known = known_rows.is_none_or(|known| known == rows)
            && known_cols.is_none_or(|known| known == cols);
        let is_whole = matches!(rows_per_offset, 1 | TILE) && rows_per_offset * last == rows;
        if !is_known || !is_whole {
            return Err(misfit());
        }
        Ok(Self { rows, cols, rows_per_offset })
    }
}
