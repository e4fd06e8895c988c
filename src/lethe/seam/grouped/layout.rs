//! Stored matrices of codes, scales and zero points: how a tile of them is packed, and where its
//! bytes lie.
//!
//! Libraries store a weight `[out, in]` in one of four ways: packed along rows or down columns, and
//! either matrix as it is or transposed. Tiles begin at multiples of whole words in the packed
//! direction (`Grouped::grid`), so that no two tiles write the same word.

use std::ops::Range;

use half::{bf16, f16};

use crate::element::Element;
use crate::lethe::Put;
use crate::lethe::kernels::pack::sdnq::pack_units;
use crate::lethe::kernels::pack::{
    lower_packed_zero_points, lower_zero_points, pack_awq_words, pack_bit_streams, row_bytes,
    transpose_words, transposed,
};
use crate::remember::Tile;
use crate::simd::Level;
use crate::{Result, TargetDtype};

/// How a matrix `[rows, cols]` of integers of a few bits is packed into 32-bit words, and the shape
/// of the words. A bit stream has the first code in its least significant bits; `words(n)` is `⌈n ·
/// bits / 32⌉`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WordPacking {
    /// `[rows, words(cols)]`: a bit stream along each row.
    AlongRows,
    /// `[words(cols), rows]`: a bit stream along each row, stored as a column.
    AlongRowsTransposed,
    /// `[cols, words(rows)]`: a bit stream down each column, stored as a row.
    DownColumns,
    /// `[words(rows), cols]`: a bit stream down each column, stored as a column.
    DownColumnsTransposed,
    /// `[cols, rows / 8]`: 4-bit codes of eight rows in a word, in AWQ's order 0, 2, 4, 6, 1, 3,
    /// 5, 7.
    AwqInterleaved,
}

/// The form in which a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MatrixForm {
    /// Integers of a few bits, packed.
    Packed(WordPacking),
    /// Integers less one, packed, as version 1 of GPTQ stores zero points. Widths that divide a
    /// word are lowered word by word, with a borrow between codes, as by gptqmodel's
    /// `convert_gptq_v2_to_v1_format_module`. Codes of other widths cross words and are lowered
    /// before they are packed, modulo their range.
    PackedMinusOne(WordPacking),
    /// Integers of a few bits in units of eight, without regard to rows, as SDNQ packs them. Tiles are
    /// whole rows, or as wide as whole units.
    Units,
    /// One byte for each integer, exclusive-or `flip`: 0x80 makes a signed byte of an unsigned
    /// code.
    Bytes { flip: u8 },
    /// Floats of type `dtype`.
    Floats { dtype: TargetDtype, is_transposed: bool },
}

/// A matrix of codes, scales or zero points, and the form and the tensor in which it is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoredMatrix {
    /// Index of the stored tensor.
    pub part: usize,
    pub form: MatrixForm,
    /// Bits of an integer.
    pub bits: usize,
    /// Rows and columns of the matrix before it is packed or transposed: those of the weight, or of
    /// its groups.
    pub rows: usize,
    pub cols: usize,
}

/// Buffers for packing, reused from tile to tile.
#[derive(Debug, Default)]
pub(crate) struct WordBuffers {
    packed: Vec<u8>,
    transposed: Vec<u8>,
}

/// A rectangle of a stored matrix.
struct Rectangle {
    /// Bytes in a line of the matrix.
    stride: usize,
    /// Lines of the matrix that the rectangle is in.
    lines: Range<usize>,
    /// Offset of the rectangle in each line, in bytes.
    at: usize,
}

impl Rectangle {
    /// The 32-bit words of a bit stream that hold the codes number `codes`.
    fn words(codes: &Range<usize>, bits: usize) -> Range<usize> {
        codes.start * bits / 32..(codes.end * bits).div_ceil(32)
    }

    fn put(&self, part: usize, bytes: &[u8], put: &mut Put<'_>) -> Result<()> {
        let first = (self.lines.start as u64) * self.stride as u64 + self.at as u64;
        let width = bytes.len() / self.lines.len().max(1);
        // Whole lines follow each other: one write instead of one for each line.
        if bytes.is_empty() || width == self.stride {
            return put(part, first, bytes);
        }
        for (line, bytes) in bytes.chunks_exact(width).enumerate() {
            put(part, first + (line * self.stride) as u64, bytes)?;
        }
        Ok(())
    }
}

impl StoredMatrix {
    /// Packs the codes of a tile, which are in row order, and passes them to `put`. They may be
    /// changed on the way.
    pub(crate) fn put_codes(
        &self,
        tile: &Tile,
        codes: &mut [u8],
        level: Level,
        words: &mut WordBuffers,
        put: &mut Put<'_>,
    ) -> Result<()> {
        match self.form {
            MatrixForm::Packed(packing) => {
                let (rectangle, bytes) = self.pack(packing, tile, codes, level, words);
                rectangle.put(self.part, bytes, put)
            }
            MatrixForm::PackedMinusOne(packing) => {
                // Before packing for widths that cross words, behind it for the others; each
                // function leaves the other's widths alone.
                lower_zero_points(codes, self.bits);
                let (rectangle, bytes) = self.pack(packing, tile, codes, level, words);
                lower_packed_zero_points(bytes, self.bits);
                rectangle.put(self.part, bytes, put)
            }
            MatrixForm::Units => {
                let bytes_of = |codes: usize| codes * self.bits / 8;
                pack_units(codes, self.bits, level, &mut words.packed);
                if tile.cols.len() == self.cols {
                    let first = bytes_of(tile.rows.start * self.cols);
                    return put(self.part, first as u64, &words.packed);
                }
                let (stride, lines) = (bytes_of(self.cols), tile.rows.clone());
                let lines = Rectangle { stride, lines, at: bytes_of(tile.cols.start) };
                lines.put(self.part, &words.packed, put)
            }
            MatrixForm::Bytes { flip } => {
                codes.iter_mut().for_each(|code| *code ^= flip);
                let lines =
                    Rectangle { stride: self.cols, lines: tile.rows.clone(), at: tile.cols.start };
                lines.put(self.part, codes, put)
            }
            MatrixForm::Floats { .. } => self.put_floats(
                tile,
                &codes
                    .iter()
                    .map(|&code| f32::from(code))
                    .collect::<Vec<_>>(),
                level,
                words,
                put,
            ),
        }
    }

    /// Converts the floats of a tile, which are in row order, and passes them to `put`. Where
    /// integers are stored, they have integral values.
    pub(crate) fn put_floats(
        &self,
        tile: &Tile,
        numbers: &[f32],
        level: Level,
        words: &mut WordBuffers,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let MatrixForm::Floats { dtype, is_transposed } = self.form else {
            // Integral and at most 255: zero points of unsigned codes.
            return self.put_codes(
                tile,
                &mut numbers
                    .iter()
                    .map(|&number| number as u8)
                    .collect::<Vec<_>>(),
                level,
                words,
                put,
            );
        };
        let size = dtype.byte_size();
        if !is_transposed {
            let lines = Rectangle {
                stride: self.cols * size,
                lines: tile.rows.clone(),
                at: tile.cols.start * size,
            };
            return lines.put(self.part, &float_bytes(numbers.iter(), dtype), put);
        }
        let width = tile.cols.len();
        // Column by column: the stored matrix has a line for each group.
        let columns = (0..width).flat_map(|c| numbers.iter().skip(c).step_by(width));
        let lines = Rectangle {
            stride: self.rows * size,
            lines: tile.cols.clone(),
            at: tile.rows.start * size,
        };
        lines.put(self.part, &float_bytes(columns, dtype), put)
    }

    /// The packed codes of a tile, in one of `words`, and the rectangle of the stored matrix that
    /// they fill.
    fn pack<'b>(
        &self,
        packing: WordPacking,
        tile: &Tile,
        codes: &[u8],
        level: Level,
        words: &'b mut WordBuffers,
    ) -> (Rectangle, &'b mut [u8]) {
        let (bits, width, height) = (self.bits, tile.cols.len(), tile.rows.len());
        let along = Rectangle::words(&tile.cols, bits);
        let down = Rectangle::words(&tile.rows, bits);
        let WordBuffers { packed, transposed: words } = words;
        let rectangle = |stride, lines: &Range<usize>, word: usize| Rectangle {
            stride,
            lines: lines.clone(),
            at: word * 4,
        };
        match packing {
            WordPacking::AlongRows => {
                pack_bit_streams(codes, width, bits, level, packed);
                let stride = row_bytes(self.cols, bits);
                (rectangle(stride, &tile.rows, along.start), packed)
            }
            WordPacking::AlongRowsTransposed => {
                pack_bit_streams(codes, width, bits, level, packed);
                transpose_words(packed, along.len(), words);
                (rectangle(self.rows * 4, &along, tile.rows.start), words)
            }
            WordPacking::DownColumns => {
                // A stream down a column is a stream along the row of the transposed tile.
                pack_bit_streams(&transposed(codes, width), height, bits, level, packed);
                let stride = row_bytes(self.rows, bits);
                (rectangle(stride, &tile.cols, down.start), packed)
            }
            WordPacking::DownColumnsTransposed => {
                pack_bit_streams(&transposed(codes, width), height, bits, level, packed);
                transpose_words(packed, down.len(), words);
                (rectangle(self.cols * 4, &down, tile.cols.start), words)
            }
            WordPacking::AwqInterleaved => {
                pack_awq_words(codes, width, level, packed);
                transpose_words(packed, width, words);
                // Eight outputs make a word, and words of one input are a line.
                let stride = row_bytes(self.rows, bits);
                (rectangle(stride, &tile.cols, down.start), words)
            }
        }
    }
}

/// The little-endian bytes of numbers in `dtype`.
pub(crate) fn float_bytes<'a>(
    numbers: impl Iterator<Item = &'a f32>,
    dtype: TargetDtype,
) -> Vec<u8> {
    match dtype {
        TargetDtype::F32 => numbers.flat_map(|x| x.to_le_bytes()).collect(),
        TargetDtype::F16 => numbers
            .flat_map(|&x| <f16 as Element>::from_f32(x).to_bits().to_le_bytes())
            .collect(),
        TargetDtype::BF16 => numbers
            .flat_map(|&x| <bf16 as Element>::from_f32(x).to_bits().to_le_bytes())
            .collect(),
    }
}
