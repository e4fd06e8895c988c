//! Parts of groups of rows or columns that GGUF has as tiles.

use crate::Result;
use crate::families::engine::dims::Dims;
use crate::families::engine::source::Rearrangement;
use crate::families::engine::table::Tiling;
use crate::remember::layout::assembled::{Change, RowOrder, Tiles};

/// The groups in a tensor of `shape` as tiles, or the tiles as groups, with `change` made to each
/// value.
///
/// # Errors
/// `Parse` if a size is missing in the config.
pub(super) fn moved(
    tiling: &Tiling,
    (shape, is_inverse): (&[usize], bool),
    change: Change,
    dims: &Dims,
) -> Result<Rearrangement> {
    let [groups, parts, len] =
        [tiling.groups, tiling.parts, tiling.len].map(|dim| dims.need_size(dim));
    let tiles = Tiles { groups: groups?, parts: parts?, len: len? };
    let tiles = if is_inverse { tiles.inverse() } else { tiles };
    let size = (shape[0], shape[1..].iter().product());
    if tiling.is_of_columns {
        let all = Rearrangement::of_each(1, RowOrder::From(0), size);
        return Ok(Rearrangement { columns: Some(tiles), change, ..all });
    }
    let first = tiling.behind.map_or(Ok(0), |dim| dims.need_size(dim))?;
    let order = RowOrder::Tiled { first, tiles };
    Ok(Rearrangement { change, ..Rearrangement::of_each(1, order, size) })
}
