//! Strips of a tile and their parts. A part is decoded, encoded and compared while it is in the L1
//! cache. But for the last places of those of surveyed blocks, the sums of a strip are the same
//! however it is parted.

use crate::TargetDtype;
use crate::convert::cut::{Cut, round_down};
use crate::lethe::Encode;
use crate::lethe::kernels::distance::COMPARED;
use crate::remember::{Decode, Tile, is_kept};

/// Values of a strip, about.
const STRIP_VALUES: usize = 8 << 10;

/// Values of a part, about: with those that they decode to, in F32, with their codes and the stored
/// values that come in, they take 42 to 52 KiB, about what the L1 cache of many CPUs has.
const PART_VALUES: usize = 4 << 10;

/// How tiles are cut once more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strips {
    /// Rows of a strip, which has all columns of the tile.
    rows: usize,
    /// Columns of the blocks of a strip whose largest magnitudes are found before its first part is
    /// encoded. Then parts need not have whole blocks.
    surveyed_blocks: Option<usize>,
    /// Rows and columns of a part. Parts of several rows have all columns, so that values come in
    /// the order of the tile.
    part: [usize; 2],
}

impl Strips {
    /// Strips are for decoders that have nothing to prepare, and for encoders that write rows one
    /// after the other.
    pub(super) fn new(cut: &Cut, encoder: &dyn Encode, decoder: &dyn Decode) -> Option<Self> {
        let grid = encoder.grid();
        can_be_cut(encoder, decoder).then(|| {
            Self::of_alignment([cut.tile_rows, cut.tile_cols], [grid.row_align, grid.col_align])
        })
    }

    /// Strips of the height of the encoder's blocks, in tiles of `width` columns, if these blocks
    /// are too large for a part and their largest magnitudes are found without widening the stored
    /// values, which have two bytes then.
    pub(super) fn surveyed(
        width: usize,
        encoder: &dyn Encode,
        decoder: &dyn Decode,
        dtype: TargetDtype,
    ) -> Option<Self> {
        let stored = decoder.stored_dtype()?;
        let [rows, cols] = encoder.blocks()?;
        if !are_kept_halves(stored, dtype)
            || !can_be_cut(encoder, decoder)
            || rows.saturating_mul(width) <= PART_VALUES
        {
            return None;
        }
        // A part has all columns, or lies in one block.
        let part_cols = match cols >= width {
            true => PART_VALUES.min(width),
            false => width,
        };
        Some(Self {
            rows,
            surveyed_blocks: Some(cols),
            part: [(PART_VALUES / width).clamp(1, rows), part_cols],
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
        // The last part of a strip has any length; of those before it, the last of a row is as long
        // as the others leave it.
        let keeps_sums = match part_cols == width {
            true => is_whole_blocks(part_rows * width),
            false => is_whole_blocks(part_cols) && is_whole_blocks(width),
        };
        let part = if keeps_sums {
            [part_rows, part_cols]
        } else {
            [rows, width]
        };
        Self { rows, surveyed_blocks: None, part }
    }

    /// The strip of `tile` that begins with `part`, and the columns of its blocks, if these are to
    /// be surveyed.
    pub(super) fn surveyed_strip(&self, tile: &Tile, part: &Tile) -> Option<(Tile, usize)> {
        let cols = self.surveyed_blocks?;
        let begins_strip = part.cols.start == tile.cols.start
            && (part.rows.start - tile.rows.start).is_multiple_of(self.rows);
        let strip = Tile {
            rows: part.rows.start..tile.rows.end.min(part.rows.start + self.rows),
            cols: tile.cols.clone(),
        };
        begins_strip.then_some((strip, cols))
    }

    /// The parts of `tile` in the order of their values, each with whether its strip ends with it.
    pub(super) fn parts(&self, tile: &Tile) -> impl Iterator<Item = (Tile, bool)> + use<> {
        let &Self { rows: strip_rows, part: [part_rows, part_cols], .. } = self;
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
                    let part =
                        Tile { rows: rows.clone(), cols: left..(left + part_cols).min(cols.end) };
                    let ends_strip = part.rows.end == strip_end && part.cols.end == cols.end;
                    (part, ends_strip)
                })
            })
    }
}

/// Whether values that are stored in `stored` have two bytes, and are encoded as values of `dtype`
/// without being rounded.
pub(super) fn are_kept_halves(stored: TargetDtype, dtype: TargetDtype) -> bool {
    stored != TargetDtype::F32 && is_kept(stored, dtype)
}

/// Whether tiles may be cut once more.
fn can_be_cut(encoder: &dyn Encode, decoder: &dyn Decode) -> bool {
    let grid = encoder.grid();
    encoder.takes_any_rows()
        && grid.transposed.is_none()
        && decoder.stored_dtype().is_some()
        && (decoder.grid().rows, decoder.grid().cols) == (grid.rows, grid.cols)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Scratch;
    use super::super::input::EncodeInput;
    use super::super::tiles::{TILE_VALUES, cut};
    use super::*;
    use crate::TargetDtype;
    use crate::remember::{Buffers, Grid, PlainFloats};
    use crate::simd::Level;

    /// Every value of `tile` is in one part, in their order, and only the last part of a strip
    /// splits a block of sums.
    fn check_parts(strips: Strips, tile: &Tile, align: [usize; 2]) {
        let (top, left, width) = (tile.rows.start, tile.cols.start, tile.cols.len());
        let (mut next, mut in_strip) = (0, 0);
        for (part, ends_strip) in strips.parts(tile) {
            // Parts are runs of the tile's values, one behind the other.
            assert_eq!((part.rows.start - top) * width + part.cols.start - left, next);
            assert!(part.rows.len() == 1 || part.cols.len() == width);
            assert!((part.rows.start - top).is_multiple_of(align[0]));
            assert!((part.cols.start - left).is_multiple_of(align[1]));
            next += part.values();
            in_strip += part.values();
            assert!(ends_strip || in_strip.is_multiple_of(COMPARED));
            in_strip = if ends_strip { 0 } else { in_strip };
        }
        assert_eq!((next, in_strip), (tile.values(), 0), "{tile:?}, {align:?}");
    }

    #[test]
    fn every_value_is_in_one_part() {
        for (height, width) in
            [(1, 1), (32, 4096), (9, 14_336), (131, 1000), (128, 1024), (1, 131_072)]
        {
            for align in [[1, 1], [1, 128], [1, width], [128, 128], [4, width]] {
                let strips = Strips::of_alignment([height, width], align);
                let tile = Tile { rows: 7..7 + height, cols: 5..5 + width };
                check_parts(strips, &tile, align);
            }
        }
    }

    fn grid([rows, cols]: [usize; 2], [row_align, col_align]: [usize; 2]) -> Grid {
        Grid { rows, cols, row_align, col_align, load_bits: 16.0, transposed: None }
    }

    /// Tiles at the right and lower edges of a cut are smaller than those that strips are made for.
    #[test]
    fn tiles_at_the_edges_have_the_same_parts() {
        for (rows, cols) in [(3, 132_000), (200, 9_000), (131, 5_000), (300, 1_030)] {
            for align in [[1, 1], [1, 8], [4, 8], [32, 1], [128, 128]] {
                let size = [rows, cols];
                let cut = cut(&grid(size, align), 1, &grid(size, [1, 1]), TILE_VALUES);
                let strips = Strips::of_alignment([cut.tile_rows, cut.tile_cols], align);
                for number in 0..cut.tiles() {
                    check_parts(strips, &cut.tile(number), align);
                }
            }
        }
    }

    /// The parts of tiles have the values of their columns, in a tile that is narrower than its cut
    /// and in a band, too.
    #[test]
    fn parts_of_narrow_tiles_have_their_values() {
        let [rows, cols] = [3, 4096 + 1000];
        let header = format!(
            r#"{{"x":{{"dtype":"F32","shape":[{rows},{cols}],"data_offsets":[0,{}]}}}}"#,
            rows * cols * 4
        );
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes());
        file.extend((0..rows * cols).flat_map(|n| (n as f32).to_le_bytes()));
        let model = crate::parse_bytes(file).unwrap();
        let decoder = PlainFloats::of(&model.tensors().next().unwrap()).unwrap();
        let cut = Cut { rows, cols, tile_rows: 2, tile_cols: 4096, shared_bytes: 0 };
        let input = EncodeInput {
            name: "x".to_owned(),
            decoder: Arc::new(decoder),
            dtype: TargetDtype::F32,
            cut,
            strips: Some(Strips::of_alignment([2, 4096], [1, 8])),
            maxima: Arc::default(),
            relayed: None,
        };
        let (mut buffers, mut scratch) = (Buffers::default(), Scratch::default());
        for first in [0, 2] {
            let band = input.load_band(first..first + 2, &mut buffers).unwrap();
            for (number, band) in [(first, &band), (first + 1, &band), (first + 1, &None)] {
                let (tile, mut found) = (cut.tile(number), vec![]);
                input
                    .for_each_part(
                        (&tile, band.as_ref()),
                        "NF4",
                        &mut buffers,
                        &mut scratch,
                        Level::default(),
                        |_, _, scratch| {
                            found.extend_from_slice(&scratch.values);
                            Ok(())
                        },
                    )
                    .unwrap();
                let numbers = tile.rows.clone().flat_map(|row| {
                    let cols = tile.cols.clone();
                    cols.map(move |col| (row * 5096 + col) as f32)
                });
                assert!(found == numbers.collect::<Vec<_>>(), "tile {number}");
            }
        }
    }

    /// Parts of surveyed blocks are in one strip, and have all columns or lie in one block.
    #[test]
    fn parts_of_surveyed_blocks_are_in_order() {
        for (part, [rows, cols], width) in [
            ([1, 4096], [128, 128], 4096),
            ([4, 1000], [128, 128], 1000),
            ([1, 4096], [1, 14_336], 14_336),
        ] {
            let strips = Strips { rows, surveyed_blocks: Some(cols), part };
            let tile = Tile { rows: 128..128 + 300, cols: 0..width };
            let (mut next, mut begun) = (0, 0);
            for (part, ends_strip) in strips.parts(&tile) {
                let strip = strips.surveyed_strip(&tile, &part);
                assert_eq!(strip.is_some(), next == begun);
                if let Some((strip, of_blocks)) = strip {
                    assert_eq!((strip.cols, of_blocks), (0..width, cols));
                    assert!(strip.rows.start.is_multiple_of(rows));
                    begun = next + strip.rows.len() * width;
                }
                next += part.values();
                assert_eq!(ends_strip, next == begun);
                assert!(part.cols.len() == width || cols >= width);
            }
            assert_eq!(next, tile.values());
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
