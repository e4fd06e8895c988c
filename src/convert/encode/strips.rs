//! Strips of a tile and their parts. A part is decoded, encoded and compared while it is in the L1 cache; the sums of a strip are
//! the same however it is parted.

use crate::convert::cut::{Cut, round_down};
use crate::forget::Encode;
use crate::kernels::lethe::distance::COMPARED;
use crate::scheme::{Decode, Tile};

/// Values of a strip, about.
const STRIP_VALUES: usize = 8 << 10;

/// Values of a part, about: with those that they decode to, in F32, with their codes and the stored values that come in, they
/// take 42 to 52 KiB, about what the L1 cache of many CPUs has.
const PART_VALUES: usize = 4 << 10;

/// How tiles are cut once more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strips {
    /// Rows of a strip, which has all columns of the tile.
    rows: usize,
    /// Rows and columns of a part. Parts of several rows have all columns, so that values come in the order of the tile.
    part: [usize; 2],
}

impl Strips {
    /// Strips are for decoders that have nothing to prepare, and for encoders that write rows one after the other.
    pub(super) fn new(cut: &Cut, encoder: &dyn Encode, decoder: &dyn Decode) -> Option<Self> {
        let grid = encoder.grid();
        let is_cut = encoder.takes_any_rows()
            && grid.transposed.is_none()
            && decoder.stored_dtype().is_some()
            && decoder.grid().cols == cut.cols;
        is_cut.then(|| {
            Self::of_alignment(
                [cut.tile_rows, cut.tile_cols],
                [grid.row_align, grid.col_align],
            )
        })
    }

    /// Strips of tiles of `height` × `width` whose parts begin at multiples of the alignments.
    fn of_alignment([height, width]: [usize; 2], [row_align, col_align]: [usize; 2]) -> Self {
        let rows = round_down(STRIP_VALUES / width, row_align).min(height);
        let part_rows = round_down(PART_VALUES / width, row_align).min(rows);
        let part_cols = match part_rows {
            1 => round_down(PART_VALUES, col_align).min(width),
            _ => width,
        };
        let is_whole_blocks = |values: usize| values.is_multiple_of(COMPARED);
        // The last part of a strip has any length; of those before it, the last of a row is as long as the others leave it.
        let keeps_sums = match part_cols == width {
            true => is_whole_blocks(part_rows * width),
            false => is_whole_blocks(part_cols) && is_whole_blocks(width),
        };
        let part = if keeps_sums {
            [part_rows, part_cols]
        } else {
            [rows, width]
        };
        Self { rows, part }
    }

    /// The parts of `tile` in the order of their values, each with whether its strip ends with it.
    pub(super) fn parts(&self, tile: &Tile) -> impl Iterator<Item = (Tile, bool)> + use<> {
        let &Self {
            rows: strip_rows,
            part: [part_rows, part_cols],
        } = self;
        let (rows, cols) = (tile.rows.clone(), tile.cols.clone());
        rows.clone()
            .step_by(strip_rows)
            .map(move |first| first..(first + strip_rows).min(rows.end))
            .flat_map(move |strip| {
                strip
                    .clone()
                    .step_by(part_rows)
                    .map(move |first| (first, strip.end))
            })
            .flat_map(move |(top, strip_end)| {
                let cols = cols.clone();
                let rows = top..(top + part_rows).min(strip_end);
                cols.clone().step_by(part_cols).map(move |left| {
                    let part = Tile {
                        rows: rows.clone(),
                        cols: left..(left + part_cols).min(cols.end),
                    };
                    let ends_strip = part.rows.end == strip_end && part.cols.end == cols.end;
                    (part, ends_strip)
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_one_part() {
        for (height, width) in [
            (1, 1),
            (32, 4096),
            (9, 14_336),
            (131, 1000),
            (128, 1024),
            (1, 131_072),
        ] {
            for align in [[1, 1], [1, 128], [1, width], [128, 128], [4, width]] {
                let strips = Strips::of_alignment([height, width], align);
                let tile = Tile {
                    rows: 7..7 + height,
                    cols: 5..5 + width,
                };
                let (mut next, mut in_strip) = (0, 0);
                for (part, ends_strip) in strips.parts(&tile) {
                    // Parts are runs of the tile's values, one behind the other.
                    assert_eq!((part.rows.start - 7) * width + part.cols.start - 5, next);
                    assert!(part.rows.len() == 1 || part.cols.len() == width);
                    assert!((part.rows.start - 7).is_multiple_of(align[0]));
                    assert!((part.cols.start - 5).is_multiple_of(align[1]));
                    next += part.values();
                    in_strip += part.values();
                    assert!(ends_strip || in_strip.is_multiple_of(COMPARED));
                    in_strip = if ends_strip { 0 } else { in_strip };
                }
                assert_eq!(
                    (next, in_strip),
                    (height * width, 0),
                    "{height} × {width}, {align:?}"
                );
            }
        }
    }

    #[test]
    fn parts_are_small_where_they_may_be() {
        let part = |size, align| Strips::of_alignment(size, align).part;
        assert_eq!(part([32, 4096], [1, 128]), [1, 4096]);
        assert_eq!(part([128, 1024], [1, 32]), [4, 1024]);
        assert_eq!(part([9, 14_336], [1, 64]), [1, 4096]);
        assert_eq!(part([9, 14_336], [1, 14_336]), [1, 14_336]);
        assert_eq!(part([128, 1024], [128, 128]), [128, 1024]);
        // Parts of whole rows, in which the blocks of sums would not end.
        assert_eq!(part([131, 1000], [1, 8]), [8, 1000]);
    }
}
