//! Where codes, scales and zero points of groups go.

use std::ops::Range;

use half::{bf16, f16};

use crate::element::Element;
use crate::forget::Put;
#[cfg(feature = "gptq")]
use crate::kernels::lethe::pack::{lower_packed_zero_points, lower_zero_points};
use crate::kernels::lethe::pack::{pack_bit_streams, row_bytes, transpose_words, transposed};
use crate::scheme::Tile;
use crate::simd::Level;
use crate::{Result, TargetDtype};

/// How integers of a few bits of a matrix lie in words of 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// A bit stream along each row, row by row.
    Along,
    /// The same, with the rows as columns.
    #[cfg(feature = "gptq")]
    AlongTurned,
    /// A bit stream down each column, stored as a row.
    #[cfg(feature = "gptq")]
    Down,
    /// The same, stored as a column.
    DownTurned,
    /// AWQ's: eight rows in a word, in its order, and the columns as rows.
    #[cfg(feature = "awq")]
    Interleaved,
}

/// What is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Integers of a few bits.
    Packed(Packing),
    /// The same, as GPTQ's version 1 has zero points.
    #[cfg(feature = "gptq")]
    Lowered(Packing),
    /// A byte each, some of its bits flipped.
    Bytes { flip: u8 },
    /// Floats, with the rows as columns if so.
    Floats { dtype: TargetDtype, turned: bool },
}

/// Where a matrix goes: the number of a stored tensor, and its form.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub part: usize,
    pub form: Form,
    pub bits: usize,
    /// Rows and columns of the matrix, as the weight has them.
    pub rows: usize,
    pub cols: usize,
}

/// A rectangle of a stored matrix, whose lines have `stride` bytes.
struct Rectangle {
    stride: usize,
    lines: Range<usize>,
    /// Bytes before it in a line.
    at: usize,
}

impl Rectangle {
    /// Words of 32 bits of a bit stream that codes `codes` take.
    fn words(codes: &Range<usize>, bits: usize) -> Range<usize> {
        codes.start * bits / 32..(codes.end * bits).div_ceil(32)
    }

    fn put(&self, part: usize, bytes: &[u8], put: &mut Put<'_>) -> Result<()> {
        let first = (self.lines.start as u64) * self.stride as u64 + self.at as u64;
        let width = bytes.len() / self.lines.len().max(1);
        if bytes.is_empty() || width == self.stride {
            return put(part, first, bytes);
        }
        for (line, bytes) in bytes.chunks_exact(width).enumerate() {
            put(part, first + (line * self.stride) as u64, bytes)?;
        }
        Ok(())
    }
}

impl Place {
    /// Passes the codes of a tile, row by row, to where they go.
    pub(crate) fn put_codes(
        &self,
        tile: &Tile,
        mut codes: Vec<u8>,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        match self.form {
            Form::Packed(packing) => {
                let (rectangle, bytes) = self.pack(packing, tile, &codes, level);
                rectangle.put(self.part, &bytes, put)
            }
            #[cfg(feature = "gptq")]
            Form::Lowered(packing) => {
                lower_zero_points(&mut codes, self.bits);
                let (rectangle, mut bytes) = self.pack(packing, tile, &codes, level);
                lower_packed_zero_points(&mut bytes, self.bits);
                rectangle.put(self.part, &bytes, put)
            }
            Form::Bytes { flip } => {
                codes.iter_mut().for_each(|code| *code ^= flip);
                let lines = Rectangle {
                    stride: self.cols,
                    lines: tile.rows.clone(),
                    at: tile.cols.start,
                };
                lines.put(self.part, &codes, put)
            }
            Form::Floats { .. } => self.put_numbers(
                tile,
                &codes.into_iter().map(f32::from).collect::<Vec<_>>(),
                level,
                put,
            ),
        }
    }

    /// Passes the numbers of a tile, row by row, to where they go.
    pub(crate) fn put_numbers(
        &self,
        tile: &Tile,
        numbers: &[f32],
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let Form::Floats { dtype, turned } = self.form else {
            return self.put_codes(
                tile,
                numbers.iter().map(|&number| number as u8).collect(),
                level,
                put,
            );
        };
        let size = dtype.byte_size();
        if !turned {
            let lines = Rectangle {
                stride: self.cols * size,
                lines: tile.rows.clone(),
                at: tile.cols.start * size,
            };
            return lines.put(self.part, &floats(numbers.iter(), dtype), put);
        }
        let width = tile.cols.len();
        let columns = (0..width).flat_map(|c| numbers.iter().skip(c).step_by(width));
        let lines = Rectangle {
            stride: self.rows * size,
            lines: tile.cols.clone(),
            at: tile.rows.start * size,
        };
        lines.put(self.part, &floats(columns, dtype), put)
    }

    /// Codes of a tile in words, and where they go.
    fn pack(
        &self,
        packing: Packing,
        tile: &Tile,
        codes: &[u8],
        level: Level,
    ) -> (Rectangle, Vec<u8>) {
        let (bits, width, height) = (self.bits, tile.cols.len(), tile.rows.len());
        let (mut packed, mut turned) = (Vec::new(), Vec::new());
        let along = Rectangle::words(&tile.cols, bits);
        let down = Rectangle::words(&tile.rows, bits);
        match packing {
            Packing::Along => {
                pack_bit_streams(codes, width, bits, level, &mut packed);
                let stride = row_bytes(self.cols, bits);
                (
                    Rectangle {
                        stride,
                        lines: tile.rows.clone(),
                        at: along.start * 4,
                    },
                    packed,
                )
            }
            #[cfg(feature = "gptq")]
            Packing::AlongTurned => {
                pack_bit_streams(codes, width, bits, level, &mut packed);
                transpose_words(&packed, along.len(), &mut turned);
                (
                    Rectangle {
                        stride: self.rows * 4,
                        lines: along,
                        at: tile.rows.start * 4,
                    },
                    turned,
                )
            }
            #[cfg(feature = "gptq")]
            Packing::Down => {
                pack_bit_streams(&transposed(codes, width), height, bits, level, &mut packed);
                let stride = row_bytes(self.rows, bits);
                (
                    Rectangle {
                        stride,
                        lines: tile.cols.clone(),
                        at: down.start * 4,
                    },
                    packed,
                )
            }
            Packing::DownTurned => {
                pack_bit_streams(&transposed(codes, width), height, bits, level, &mut packed);
                transpose_words(&packed, down.len(), &mut turned);
                (
                    Rectangle {
                        stride: self.cols * 4,
                        lines: down,
                        at: tile.cols.start * 4,
                    },
                    turned,
                )
            }
            #[cfg(feature = "awq")]
            Packing::Interleaved => {
                crate::kernels::lethe::pack::pack_awq_words(codes, width, level, &mut packed);
                transpose_words(&packed, width, &mut turned);
                let stride = row_bytes(self.rows, bits);
                (
                    Rectangle {
                        stride,
                        lines: tile.cols.clone(),
                        at: down.start * 4,
                    },
                    turned,
                )
            }
        }
    }
}

/// Numbers as they are stored.
fn floats<'a>(numbers: impl Iterator<Item = &'a f32>, dtype: TargetDtype) -> Vec<u8> {
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
