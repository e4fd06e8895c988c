//! Positional reads of rectangles of stored matrices, as bytes, as floats, or transposed.

mod transposed;

use std::ops::Range;

pub(crate) use self::transposed::{
    SHORT_ROW, StoredWords, read_transposed, read_transposed_codes, transposed_code_words,
    transposed_words,
};
use super::wrong;
use crate::element::{f32_from_bf16, f32_from_f16};
use crate::model::{Part, Tensor};
use crate::remember::kernels::fp8::{
    E4M3, Float8, f32_from_e8m0, f32_from_exponent, half_of_exponent,
};
use crate::{Dtype, Result};

/// Replaces `out` with rows `rows` and bytes `cols` of each, of a matrix with `stride` bytes a row.
/// Whole rows take one read, parts of rows one read each.
pub(crate) fn read(
    part: &Part<'_>,
    stride: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut Vec<u8>,
) -> Result<()> {
    // Not cleared first: what is there will be overwritten, and zeroing it would cost as much as a
    // copy.
    out.resize(rows.len() * cols.len(), 0);
    if out.is_empty() {
        return Ok(());
    }
    // In 64 bits: a file may be larger than the address space of a 32-bit machine, as it is never
    // mapped here.
    let at = |row: usize| row as u64 * stride as u64 + cols.start as u64;
    if cols.len() == stride || rows.len() == 1 {
        return part.read_at(at(rows.start), out);
    }
    let pieces = rows.zip(out.chunks_exact_mut(cols.len()));
    part.read_each(pieces.map(|(row, out)| (at(row), out)))
}

/// A tensor of scales that widens to f32 exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floats<'m> {
    pub part: Part<'m>,
    dtype: Dtype,
    exponents: ExponentForm,
}

/// Which value the byte of an exponent has.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ExponentForm {
    /// The value that the dtype defines.
    Plain,
    /// Half of the power of two, which is finite for every byte.
    Half,
    /// The power of two, but zero for byte 0.
    Flushed,
}

impl<'m> Floats<'m> {
    /// Accepts F32, F16, BF16, F8_E8M0 and U8; the last two are exponents of two.
    pub(crate) fn new(t: &Tensor<'m>) -> Result<Self> {
        // U8 is an exponent here. Formats that store E4M3 under U8 call `fp8` instead: nothing in
        // the bytes tells the two apart.
        match t.dtype() {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8E8M0 | Dtype::U8 => {
                Ok(Self { part: t.part(), dtype: t.dtype(), exponents: ExponentForm::Plain })
            }
            _ => Err(wrong(t, "scales are F32, F16, BF16, F8_E8M0 or U8 exponents")),
        }
    }

    /// U8 exponents, each read as half of its power of two.
    pub(crate) fn half_exponents(t: &Tensor<'m>) -> Self {
        Self { part: t.part(), dtype: Dtype::U8, exponents: ExponentForm::Half }
    }

    /// Exponents of which byte 0 is zero and byte 255 infinity, as in comfy-kitchen `e8m0_to_f32`.
    pub(crate) fn flushed_exponents(t: &Tensor<'m>) -> Result<Self> {
        match t.dtype() {
            Dtype::F8E8M0 | Dtype::U8 => Ok(Self {
                part: t.part(),
                // As U8 and not F8_E8M0: torch's dtype makes NaN of byte 255, while comfy-kitchen
                // shifts it into F32's exponent field, which is infinity.
                dtype: Dtype::U8,
                exponents: ExponentForm::Flushed,
            }),
            _ => Err(wrong(t, "scales of these blocks are F8_E8M0")),
        }
    }

    /// E4M3, also under dtype U8.
    pub(crate) fn fp8(t: &Tensor<'m>) -> Result<Self> {
        match t.dtype() {
            Dtype::F8E4M3 | Dtype::U8 => {
                Ok(Self { part: t.part(), dtype: Dtype::F8E4M3, exponents: ExponentForm::Plain })
            }
            _ => Err(wrong(t, "scales of these blocks are F8_E4M3")),
        }
    }

    /// Accepts F32, F16 and BF16.
    pub(crate) fn ieee(t: &Tensor<'m>) -> Result<Self> {
        match t.dtype() {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => {
                Ok(Self { part: t.part(), dtype: t.dtype(), exponents: ExponentForm::Plain })
            }
            _ => Err(wrong(t, "scales are F32, F16 or BF16")),
        }
    }

    /// BF16 under dtype F16.
    pub(crate) fn bf16_as_f16(t: &Tensor<'m>) -> Self {
        Self { part: t.part(), dtype: Dtype::BF16, exponents: ExponentForm::Plain }
    }

    /// Dtype that the values are stored in.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Appends to `out`, row-major, the values at `rows` × `cols` of a matrix with `stride` values
    /// a row.
    pub(crate) fn extend(
        &self,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let size = self.dtype.bits() / 8;
        read(&self.part, stride * size, rows, cols.start * size..cols.end * size, staging)?;
        // The staging buffer holds whole values, so `as_chunks` leaves no remainder.
        match self.dtype {
            Dtype::F32 => out.extend(staging.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b))),
            Dtype::F16 => out.extend(
                staging
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f32_from_f16(u16::from_le_bytes(b))),
            ),
            Dtype::BF16 => out.extend(
                staging
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f32_from_bf16(u16::from_le_bytes(b))),
            ),
            Dtype::F8E4M3 => out.extend(staging.iter().map(|&b| E4M3::widen(b))),
            // Both other forms come before the dtype, since they override what it says.
            _ if self.exponents == ExponentForm::Half => {
                out.extend(staging.iter().map(|&b| half_of_exponent(b)));
            }
            _ if self.exponents == ExponentForm::Flushed => {
                out.extend(
                    staging
                        .iter()
                        .map(|&b| if b == 0 { 0.0 } else { f32_from_exponent(b) }),
                );
            }
            Dtype::F8E8M0 => out.extend(staging.iter().map(|&b| f32_from_e8m0(b))),
            _ => out.extend(staging.iter().map(|&b| f32_from_exponent(b))),
        }
        Ok(())
    }
}
