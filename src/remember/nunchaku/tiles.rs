//! The order of Nunchaku's tensors: as threads of its kernels load them, in tiles of 128 outputs,
//! or of 128 of a vector.
//!
//! Source: nunchaku `lora/flux/packer.py` (`NunchakuWeightPacker`).

use std::ops::Range;

use crate::Result;
use crate::model::Part;
use crate::remember::seam::grouped::Unpack;
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{Floats, Tile, read};

/// Outputs of a tile.
pub(super) const TILE: usize = 128;

/// Columns of a tile of codes.
const WIDTH: usize = 64;

/// Bytes of a tile of codes.
const TILE_BYTES: usize = TILE * WIDTH / 2;

/// Rows and columns of a pack of a factor.
pub(super) const PACK: usize = 16;

/// Bytes of a row of a tile.
const ROW_BYTES: usize = WIDTH / 2;

/// Codes of four bits. A tile is 1024 words of eight codes of a row, the first lowest.
pub(super) struct CodeTiles<'m> {
    pub part: Part<'m>,
    pub cols: usize,
}

impl Unpack for CodeTiles<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let (across, row_bytes) = (self.cols / WIDTH, tile.cols.len() / 2);
        // Not cleared first: every byte is overwritten.
        out.resize(tile.rows.len() * row_bytes, 0);
        let wanted = tile.cols.start / WIDTH..tile.cols.end / WIDTH;
        // Tiles of the grid begin and end at whole tiles.
        let strips = tile.rows.start / TILE..tile.rows.end / TILE;
        for (down, rows) in strips.zip(out.chunks_exact_mut((TILE * row_bytes).max(1))) {
            let first = down * across;
            let lines = first + wanted.start..first + wanted.end;
            read(&self.part, TILE_BYTES, lines, 0..TILE_BYTES, staging)?;
            for (i, bytes) in staging.chunks_exact(TILE_BYTES).enumerate() {
                // Of a word's number, from the lowest bit: half of 64 columns, eight of 16 rows, a
                // quarter of 32 columns, a row of eight, 16 rows of 128. So the words of two rows
                // lie together.
                for (at, pair) in bytes.as_chunks::<{ 2 * ROW_BYTES }>().0.iter().enumerate() {
                    let words = pair.as_chunks::<4>().0;
                    for eight in 0..2 {
                        let row = at / 8 * 16 + eight * 8 + at % 8;
                        let line = &mut rows[row * row_bytes + i * ROW_BYTES..][..ROW_BYTES];
                        for (w, out) in line.as_chunks_mut().0.iter_mut().enumerate() {
                            *out = words[w % 4 * 4 + eight * 2 + w / 4];
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (TILE, WIDTH)
    }
}

/// Scales of groups of 64 columns: of each tile of outputs, a line of 128 for each group. With one
/// group, a vector.
pub(super) struct ScaleLines<'m> {
    pub floats: Floats<'m>,
    pub groups: usize,
}

/// Place of output `n` of a tile in a line.
fn line_place(n: usize) -> usize {
    n / 16 * 16 + n / 2 % 4 * 4 + n / 8 % 2 * 2 + n % 2
}

impl ScaleMatrix for ScaleLines<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut lines = Vec::new();
        each_tile(rows, |down, within| {
            let first = down * self.groups;
            let wanted = first + cols.start..first + cols.end;
            lines.clear();
            self.floats
                .extend(TILE, wanted, 0..TILE, staging, &mut lines)?;
            for n in within {
                out.extend(lines.iter().skip(line_place(n)).step_by(TILE));
            }
            Ok(())
        })
    }
}

/// A vector in the order of [`ScaleLines`], as a row.
pub(super) struct TileVector<'m>(pub Floats<'m>);

impl ScaleMatrix for TileVector<'_> {
    fn extend(
        &self,
        _rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let column = ScaleLines { floats: self.0, groups: 1 };
        column.extend(cols, 0..1, staging, out)
    }
}

/// Scales of groups of 16 columns: of each tile of outputs, 128 times four for each 64 columns.
pub(super) struct MicroScales<'m> {
    pub floats: Floats<'m>,
    pub groups: usize,
    /// A factor for each output, in the order of [`TileVector`], and one for all. What is not
    /// stored is 1.
    pub outputs: Option<Floats<'m>>,
    pub all: Option<Floats<'m>>,
}

impl ScaleMatrix for MicroScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (mut outputs, mut all) = (Vec::new(), Vec::new());
        match self.outputs {
            Some(floats) => {
                TileVector(floats).extend(0..1, rows.clone(), staging, &mut outputs)?;
            }
            None => outputs.resize(rows.len(), 1.0),
        }
        match self.all {
            Some(floats) => floats.extend(1, 0..1, 0..1, staging, &mut all)?,
            None => all.push(1.0),
        }
        let all = all.first().copied().unwrap_or(f32::NAN);
        let (across, first_col) = (self.groups / 4, cols.start / 4 * 4);
        let (mut lines, mut outputs) = (Vec::new(), outputs.into_iter());
        each_tile(rows, |down, within| {
            let first = down * across;
            let wanted = first + cols.start / 4..first + cols.end.div_ceil(4);
            lines.clear();
            self.floats
                .extend(TILE * 4, wanted, 0..TILE * 4, staging, &mut lines)?;
            for (n, factor) in within.zip(outputs.by_ref()) {
                let place = n % 8 * 64 + n / 8 % 4 * 16 + n / 32 * 4;
                let factor = factor * all;
                for (line, first) in lines.chunks_exact(TILE * 4).zip((first_col..).step_by(4)) {
                    // Groups of the line that are wanted.
                    let some = cols.start.max(first) - first..cols.end.min(first + 4) - first;
                    out.extend(line[place..][some].iter().map(|scale| scale * factor));
                }
            }
            Ok(())
        })
    }
}

/// A factor of a product of low rank, in packs of 16 by 16.
pub(super) struct FactorPacks<'m> {
    pub floats: Floats<'m>,
    pub rank: usize,
    /// Whether the ranks are its rows here, rather than its columns.
    pub has_rank_rows: bool,
}

/// Place in a pack.
fn pack_place(row: usize, col: usize) -> usize {
    row % 8 * 32 + col / 2 % 4 * 8 + row / 8 * 4 + col / 8 * 2 + col % 2
}

impl ScaleMatrix for FactorPacks<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // Packs of all ranks follow each other, for 16 outputs or inputs.
        let line = self.rank * PACK;
        let (ranks, long) = match self.has_rank_rows {
            true => (&rows, &cols),
            false => (&cols, &rows),
        };
        let (first, first_rank) = (long.start / PACK, ranks.start / PACK);
        let mut packs = Vec::new();
        let wanted = first..long.end.div_ceil(PACK);
        // Only the packs of these ranks: a strip of a factor is read in pieces.
        let of_ranks = first_rank * PACK * PACK..(ranks.end.div_ceil(PACK) * PACK * PACK).min(line);
        let width = of_ranks.len();
        self.floats
            .extend(line, wanted, of_ranks, staging, &mut packs)?;
        for row in rows {
            out.extend(cols.clone().map(|col| {
                let (long, rank) = match self.has_rank_rows {
                    true => (col, row),
                    false => (row, col),
                };
                let of_rank = (rank / PACK - first_rank) * (PACK * PACK);
                let pack = (long / PACK - first) * width + of_rank;
                packs[pack + pack_place(row % PACK, col % PACK)]
            }));
        }
        Ok(())
    }
}

/// Calls `see` for each tile of outputs that `rows` touch: its number, and the rows within it.
fn each_tile(
    rows: Range<usize>,
    mut see: impl FnMut(usize, Range<usize>) -> Result<()>,
) -> Result<()> {
    let mut row = rows.start;
    while row < rows.end {
        let (down, within) = (row / TILE, row % TILE);
        let n = (TILE - within).min(rows.end - row);
        see(down, within..within + n)?;
        row += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of a factor are what they are of all of it, and no other packs are read for them.
    #[test]
    fn pieces_of_factors() {
        let (rank, long) = (64, 48);
        let header = format!(
            r#"{{"x":{{"dtype":"F32","shape":[{long},{rank}],"data_offsets":[0,{}]}}}}"#,
            rank * long * 4
        );
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes());
        file.extend((0..rank * long).flat_map(|n| (n as f32).to_le_bytes()));
        let model = crate::parse_bytes(file).unwrap();
        let floats = Floats::ieee(&model.tensors().next().unwrap()).unwrap();
        for has_rank_rows in [false, true] {
            let factor = FactorPacks { floats, rank, has_rank_rows };
            let (height, width) = if has_rank_rows {
                (rank, long)
            } else {
                (long, rank)
            };
            let read = |rows, cols| {
                let (mut staging, mut out) = (Vec::new(), Vec::new());
                factor.extend(rows, cols, &mut staging, &mut out).unwrap();
                (out, staging.len())
            };
            let (whole, _) = read(0..height, 0..width);
            for (rows, cols) in [(16..32, 32..48), (5..20, 17..33), (0..1, 31..32)] {
                let (piece, bytes) = read(rows.clone(), cols.clone());
                let want = rows.flat_map(|row| cols.clone().map(move |col| row * width + col));
                let want: Vec<f32> = want.map(|at| whole[at]).collect();
                assert_eq!(piece, want);
                assert!(bytes <= 4 * PACK * PACK * 4, "{bytes} bytes are read");
            }
        }
    }
}
