//! Tiles of Marlin, and of QQQ, which descends from it: codes of four bits in the order in which tensor cores take them.
//!
//! A tile of 16 inputs × 64 outputs is 128 adjacent words, in the order in which the threads of a warp load them. Word
//! `4l + t` belongs to lane l and to the t-th 16 outputs. It has eight codes, interleaved. Scales are permuted within 64
//! outputs or, if there is one group, within 32; those of marlin-24, whose tiles are others, within 8.
//!
//! Layout: auto_gptq `nn_modules/qlinear/qlinear_marlin.py` (`_get_perms`, `pack`); gptqmodel `nn_modules/qlinear/qqq.py`.

use std::ops::Range;

use crate::Result;
use crate::containers::model::Part;
use crate::scheme::seam::grouped::Unpack;
use crate::scheme::seam::numbers::ScaleMatrix;
use crate::scheme::seam::{Floats, StoredRows, Tile, read};

/// Inputs, outputs and bytes of a tile.
pub(crate) const TILE_INPUTS: usize = 16;
pub(crate) const TILE_OUTPUTS: usize = 64;
const TILE_BYTES: usize = TILE_INPUTS * TILE_OUTPUTS / 2;

/// How the eight codes of a word lie in its nibbles, and which inputs they belong to. Codes 0 to 3 belong to one output,
/// codes 4 to 7 to the output eight after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TileOrder {
    /// Marlin's: two pairs of inputs, eight apart, whose codes become F16.
    Halves,
    /// QQQ's for scales of groups: four adjacent inputs, whose codes become F16 and then bytes.
    HalvesOfBytes,
    /// QQQ's for scales of channels: four adjacent inputs. A code is the upper half of a signed byte, and all other bits
    /// of that are zero.
    UpperHalvesOfBytes,
}

impl TileOrder {
    /// The first four codes of a word, a byte each, and the others. Those of [`UpperHalvesOfBytes`](Self::UpperHalvesOfBytes) are
    /// the upper halves of their bytes.
    fn codes(self, word: u32) -> [u32; 2] {
        let pair = |word: u32| (word & NIBBLES | (word & NIBBLES) >> 8) & 0xffff;
        let four = |word: u32| pair(word) | pair(word >> 4) << 16;
        match self {
            // Nibbles 0, 4, 1, 5, and 2, 6, 3, 7.
            Self::Halves | Self::HalvesOfBytes => [four(word), four(word >> 8)],
            // Nibbles 1, 3, 5, 7, and 0, 2, 4, 6. They keep their places in their bytes.
            Self::UpperHalvesOfBytes => [word & 0xf0f0_f0f0, word << 4 & 0xf0f0_f0f0],
        }
    }

    /// The codes of an output for the 16 inputs of a tile, of four lanes' four codes.
    fn line(self, lanes: [u32; 4]) -> [u8; TILE_INPUTS] {
        let [a, b, c, d] = lanes;
        let words = match self {
            // Each lane has two adjacent inputs, and the two that are eight after them.
            Self::Halves => [
                a & 0xffff | b << 16,
                c & 0xffff | d << 16,
                a >> 16 | b & 0xffff_0000,
                c >> 16 | d & 0xffff_0000,
            ],
            Self::HalvesOfBytes | Self::UpperHalvesOfBytes => lanes,
        };
        let mut line = [0; TILE_INPUTS];
        for (bytes, word) in line.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        line
    }
}

/// A nibble of each half of a word.
const NIBBLES: u32 = 0x000f_000f;

/// Codes in Marlin tiles.
pub(crate) struct MarlinCodes<'m> {
    pub part: Part<'m>,
    /// Outputs.
    pub n: usize,
    pub order: TileOrder,
}

impl Unpack for MarlinCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        out.resize(tile.rows.len() * width, 0);
        // A tile is 512 bytes, and a row of tiles holds all outputs, so a tile of 64 rows is one
        // piece of each row.
        let bytes = tile.rows.start / TILE_OUTPUTS * TILE_BYTES
            ..tile.rows.end.div_ceil(TILE_OUTPUTS) * TILE_BYTES;
        for (i, row) in
            (tile.cols.start / TILE_INPUTS..tile.cols.end.div_ceil(TILE_INPUTS)).enumerate()
        {
            read(&self.part, self.n * 8, row..row + 1, bytes.clone(), staging)?;
            let blocks = out.chunks_exact_mut(TILE_OUTPUTS * width.max(1));
            for (words, rows) in staging.chunks_exact(TILE_BYTES).zip(blocks) {
                unpack_tile(self.order, words, rows, width, i * TILE_INPUTS);
            }
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (TILE_OUTPUTS, TILE_INPUTS)
    }

    fn transposed(&self) -> Option<StoredRows> {
        Some(StoredRows::of_one(
            TILE_BYTES * 8 / TILE_OUTPUTS,
            TILE_INPUTS,
        ))
    }
}

/// Unpacks a tile into 16 columns, from `left` on, of the 64 rows of `rows`, which are `width` wide.
fn unpack_tile(order: TileOrder, tile: &[u8], rows: &mut [u8], width: usize, left: usize) {
    const BLOCKS: usize = 4;
    let mut codes = [[0; 2]; TILE_BYTES / 4];
    for (codes, &word) in codes.iter_mut().zip(tile.as_chunks().0) {
        *codes = order.codes(u32::from_le_bytes(word));
    }
    // Word 4l + t is that of lane l for block t of 16 outputs. Four lanes have an output of each eight.
    for (i, lanes) in codes.as_chunks::<{ 4 * BLOCKS }>().0.iter().enumerate() {
        for block in 0..BLOCKS {
            let four = [0, 1, 2, 3].map(|lane| lanes[lane * BLOCKS + block]);
            let first = (block * 16 + i) * width + left;
            for (at, codes) in [
                (first, four.map(|[codes, _]| codes)),
                (first + 8 * width, four.map(|[_, codes]| codes)),
            ] {
                rows[at..at + TILE_INPUTS].copy_from_slice(&order.line(codes));
            }
        }
    }
}

/// In which order the scales of a group are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleOrder {
    /// Marlin's, if all inputs are one group (`_get_perms`).
    SingleGroup,
    /// Marlin's, if there are several groups.
    Groups,
    /// marlin-24's, if there are several groups: `scale_perm_2_4` of compressed-tensors `permutations_24.py`.
    SparseGroups,
}

impl ScaleOrder {
    /// Marlin's for so many groups.
    pub(crate) fn of_groups(groups: usize) -> Self {
        if groups == 1 {
            Self::SingleGroup
        } else {
            Self::Groups
        }
    }

    /// Index in its stored row of the scale of output `n`.
    fn stored_index(self, n: usize) -> usize {
        match self {
            Self::SingleGroup => n / 32 * 32 + n % 8 / 2 * 8 + n % 32 / 8 * 2 + n % 2,
            Self::Groups => n / 64 * 64 + n % 8 * 8 + n % 64 / 8,
            Self::SparseGroups => n / 8 * 8 + n % 4 * 2 + n % 8 / 4,
        }
    }
}

/// Scales whose outputs are permuted in each group.
pub(crate) struct PermutedScales<'m> {
    pub floats: Floats<'m>,
    /// Outputs.
    pub n: usize,
    pub order: ScaleOrder,
}

impl ScaleMatrix for PermutedScales<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        // The permutation stays within 64 outputs, so whole blocks of 64 are enough.
        // Loaded in whole blocks, because the scale of the first row may be stored last.
        let stored = rows.start / TILE_OUTPUTS * TILE_OUTPUTS
            ..rows.end.next_multiple_of(TILE_OUTPUTS).min(self.n);
        let (at, mut row) = (out.len(), Vec::new());
        out.resize(at + rows.len() * cols.len(), 0.0);
        for (i, group) in cols.clone().enumerate() {
            row.clear();
            self.floats
                .extend(self.n, group..group + 1, stored.clone(), staging, &mut row)?;
            for (n, out) in rows.clone().zip(out[at..].chunks_exact_mut(cols.len())) {
                out[i] = row[self.order.stored_index(n) - stored.start];
            }
        }
        Ok(())
    }
}
