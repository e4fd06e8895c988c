//! Integers as graphs store them: several in a byte, least significant bits first, and no gap at the end
//! of a row.

use std::ops::Range;

use crate::error::InTensor;
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::{Int, WideInt};
use crate::remember::seam::grouped::{CodeFormat, Unpack};
use crate::remember::seam::scale_matrix::ScaleMatrix;
use crate::remember::seam::{CodeType, Tile, read, wrong};
use crate::{AnamnesisError, Dtype, Result};
use half::f16;

/// Type and format of integers that are stored as `dtype`; `None` for other types, and for those of
/// more than 16 bits.
pub(super) fn int_format(dtype: Dtype) -> Option<(CodeType, CodeFormat)> {
    let bits = dtype.bits();
    Some(match dtype {
        Dtype::I2 | Dtype::I4 | Dtype::I8 => {
            (CodeType::Int(bits as u8), CodeFormat::Int(Int::signed(bits)))
        }
        Dtype::U2 | Dtype::U4 | Dtype::U8 => {
            (CodeType::Uint(bits as u8), CodeFormat::Int(Int::UNSIGNED))
        }
        Dtype::I16 => (CodeType::Int(16), CodeFormat::WideInt(WideInt::I16)),
        Dtype::U16 => (CodeType::Uint(16), CodeFormat::WideInt(WideInt::UNSIGNED)),
        _ => return None,
    })
}

/// Zero points.
pub(super) struct StoredInts<'m> {
    part: Part<'m>,
    bits: usize,
    is_signed: bool,
    /// Bits from the beginning of a row to that of the next.
    row_bits: usize,
}

impl<'m> StoredInts<'m> {
    /// Integers of `dtype` in the bytes of `t`.
    ///
    /// # Errors
    /// They have more than 16 bits.
    pub(super) fn new(t: &Tensor<'m>, dtype: Dtype, row_bits: usize) -> Result<Self> {
        let is_signed = matches!(dtype, Dtype::I2 | Dtype::I4 | Dtype::I8 | Dtype::I16);
        match int_format(dtype) {
            Some(_) => Ok(Self { part: t.part(), bits: dtype.bits(), is_signed, row_bits }),
            None => Err(wrong(t, "zero points have at most 16 bits")),
        }
    }
}

impl ScaleMatrix for StoredInts<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        for row in rows {
            let first = row * self.row_bits + cols.start * self.bits;
            let codes = Bits {
                part: &self.part,
                bits: self.bits,
                first,
                n: cols.len(),
                is_msb_first: false,
            };
            codes.read(staging, |code| {
                let unused = 32 - self.bits;
                out.push(match self.is_signed {
                    true => ((code << unused) as i32 >> unused) as f32,
                    false => code as f32,
                });
            })?;
        }
        Ok(())
    }
}

/// A run of integers that begins at any bit.
pub(super) struct Bits<'a, 'm> {
    pub part: &'a Part<'m>,
    pub bits: usize,
    /// The first bit.
    pub first: usize,
    pub n: usize,
    /// Whether a byte has its first integer in its highest bits, and an integer its highest bits first.
    pub is_msb_first: bool,
}

impl Bits<'_, '_> {
    /// Passes each integer to `take`.
    pub(super) fn read(&self, staging: &mut Vec<u8>, mut take: impl FnMut(u32)) -> Result<()> {
        let (start, end) = (self.first / 8, (self.first + self.n * self.bits).div_ceil(8));
        staging.resize(end - start, 0);
        self.part.read_at(start as u64, staging)?;
        let mask = (1 << self.bits) - 1;
        for i in 0..self.n {
            let bit = self.first % 8 + i * self.bits;
            // Integers lie in at most two bytes: those of more than eight bits begin with one.
            let [first, second] =
                [0, 1].map(|i| u32::from(staging.get(bit / 8 + i).copied().unwrap_or(0)));
            take(match self.is_msb_first {
                false => (first | second << 8) >> (bit % 8) & mask,
                true => (first << 8 | second) >> (16 - bit % 8 - self.bits) & mask,
            });
        }
        Ok(())
    }
}

/// Codes of rows that end within a byte.
pub(super) struct FlatCodes<'m> {
    pub part: Part<'m>,
    pub bits: usize,
    pub cols: usize,
}

impl FlatCodes<'_> {
    /// Passes each code of `tile` to `take`, row by row.
    fn each(&self, tile: &Tile, staging: &mut Vec<u8>, mut take: impl FnMut(u32)) -> Result<()> {
        for row in tile.rows.clone() {
            let first = (row * self.cols + tile.cols.start) * self.bits;
            let codes = Bits {
                part: &self.part,
                bits: self.bits,
                first,
                n: tile.cols.len(),
                is_msb_first: false,
            };
            codes.read(staging, &mut take)?;
        }
        Ok(())
    }
}

impl Unpack for FlatCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        self.each(tile, staging, |code| out.push(code as u8))
    }
}

/// Codes that pick entries of a table.
pub(super) struct LookedUp<'m> {
    pub codes: FlatCodes<'m>,
    pub table: Vec<f16>,
}

impl Unpack for LookedUp<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let mut is_outside = false;
        self.codes.each(tile, staging, |code| {
            let value = self.table.get(code as usize);
            is_outside |= value.is_none();
            out.extend(value.unwrap_or(&f16::NAN).to_le_bytes());
        })?;
        match is_outside {
            true => Err(AnamnesisError::parse(format!(
                "{}: a code is past the end of its codebook",
                InTensor(&self.codes.part.name())
            ))),
            false => Ok(()),
        }
    }
}

/// One number in all places.
pub(super) struct OneNumber<'m>(pub Box<dyn ScaleMatrix + 'm>);

impl ScaleMatrix for OneNumber<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let mut number = Vec::with_capacity(1);
        self.0.extend(0..1, 0..1, staging, &mut number)?;
        let number = number.first().copied().unwrap_or(f32::NAN);
        out.resize(out.len() + rows.len() * cols.len(), number);
        Ok(())
    }
}

/// Codes of 32 or 64 bits.
pub(super) struct LongCodes<'m> {
    pub part: Part<'m>,
    /// Bytes of a code.
    pub size: usize,
    pub cols: usize,
}

impl Unpack for LongCodes<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let cols = tile.cols.start * self.size..tile.cols.end * self.size;
        read(&self.part, self.cols * self.size, tile.rows.clone(), cols, staging)?;
        out.clear();
        let mut put = |code: f32| out.extend(code.to_le_bytes());
        match self.size {
            8 => staging
                .as_chunks()
                .0
                .iter()
                .for_each(|&b| put(i64::from_le_bytes(b) as f32)),
            _ => staging
                .as_chunks()
                .0
                .iter()
                .for_each(|&b| put(i32::from_le_bytes(b) as f32)),
        }
        Ok(())
    }
}

/// A matrix whose rows begin anew behind the last.
pub(super) struct RepeatedRows<'m> {
    pub inner: Box<dyn ScaleMatrix + 'm>,
    pub rows: usize,
}

impl ScaleMatrix for RepeatedRows<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let count = self.rows.max(1);
        let mut row = rows.start;
        while row < rows.end {
            let first = row % count;
            let n = (count - first).min(rows.end - row);
            self.inner
                .extend(first..first + n, cols.clone(), staging, out)?;
            row += n;
        }
        Ok(())
    }
}
