//! How SDNQ stores codes of each dtype, and what they stand for.

use crate::config::{NativeFloat, SdnqDtype};
use crate::containers::model::{Part, Tensor};
use crate::kernels::remember::grouped::{Int, Minifloat};
use crate::kernels::remember::sdnq::{UNIT, unpack_units};
use crate::scheme::layout::lines::{CodeLines, TransposedCodes};
use crate::scheme::seam::grouped::{CodeFormat, Codes, Unpack};
use crate::scheme::seam::{CodeType, Fp8Format, Tile, read, refused, wrong};
use crate::{Dtype, Result};

use super::FAMILY;

/// Most bits of a code.
const MAX_BITS: u8 = 8;

/// Bytes of a word that holds one byte of codes of one bit. The library packs booleans in arithmetic of 64 bits.
const BIT_WORD: usize = 8;

/// A tensor of codes.
#[derive(Clone, Copy)]
pub(super) struct StoredCodes<'m> {
    pub tensor: Tensor<'m>,
    pub dtype: SdnqDtype,
    /// Number of codes.
    pub count: usize,
}

impl<'m> StoredCodes<'m> {
    /// Checks that `t` is stored as codes of `dtype` are.
    ///
    /// # Errors
    /// It is not, or the dtype is not decoded.
    pub(super) fn new(t: &Tensor<'m>, dtype: SdnqDtype) -> Result<Self> {
        if dtype.bits() > MAX_BITS || dtype == SdnqDtype::Native(NativeFloat::E8M0) {
            let what =
                format!("the config says that its codes are {dtype:?}, which is not decoded");
            return Err(refused(t, FAMILY, what));
        }
        let misfit = |as_what: &str| {
            wrong(
                t,
                format!("the config says that its codes are {dtype:?}, which are {as_what}"),
            )
        };
        let (stored, as_what) = match dtype {
            SdnqDtype::Int(8) => (Dtype::I8, "I8"),
            SdnqDtype::Native(NativeFloat::E4M3) => (Dtype::F8E4M3, "F8_E4M3"),
            SdnqDtype::Native(NativeFloat::E5M2) => (Dtype::F8E5M2, "F8_E5M2"),
            SdnqDtype::Native(NativeFloat::E4M3Fnuz) => (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ"),
            SdnqDtype::Native(NativeFloat::E5M2Fnuz) => (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ"),
            _ if is_in_words(dtype) => (Dtype::I64, "bytes in words of I64"),
            _ => (Dtype::U8, "U8"),
        };
        if t.dtype() != stored {
            return Err(misfit(as_what));
        }
        let (bits, elements) = (usize::from(dtype.bits()), t.elements());
        let count = match bits {
            8 => Some(elements),
            1 | 2 | 4 if t.shape().len() == 1 => elements.checked_mul(8 / bits),
            // Bytes that are packed together are a row.
            3 | 5 | 7 if t.shape().len() == 2 && t.shape()[1] == bits => {
                t.shape()[0].checked_mul(8)
            }
            6 if t.shape().len() == 2 && t.shape()[1] == 3 => t.shape()[0].checked_mul(4),
            _ => None,
        };
        let count = count.ok_or_else(|| misfit("packed into tensors of another shape"))?;
        Ok(Self {
            tensor: *t,
            dtype,
            count,
        })
    }

    /// Whether codes are stored one after another in bytes of their own, so that the tensor has their shape.
    pub(super) fn has_shape(&self) -> bool {
        self.dtype.bits() == 8
    }

    /// What a code stands for.
    pub(super) fn format(&self) -> CodeFormat {
        match self.dtype {
            SdnqDtype::Int(8) => CodeFormat::Int(Int::signed(8)),
            SdnqDtype::Int(bits) => CodeFormat::Int(Int::offset_binary(usize::from(bits))),
            SdnqDtype::Uint(_) => CodeFormat::Int(Int::UNSIGNED),
            SdnqDtype::Packed(float) => {
                let (exponent, mantissa) = (float.exponent, float.mantissa);
                CodeFormat::Minifloat(Minifloat::new(u32::from(exponent), u32::from(mantissa)))
            }
            SdnqDtype::Native(float) => CodeFormat::of_fp8(match float {
                NativeFloat::E5M2 => Fp8Format::E5M2,
                NativeFloat::E4M3Fnuz => Fp8Format::E4M3Fnuz,
                NativeFloat::E5M2Fnuz => Fp8Format::E5M2Fnuz,
                _ => Fp8Format::E4M3,
            }),
        }
    }

    /// The type of codes in listings.
    pub(super) fn code_type(&self) -> CodeType {
        match self.dtype {
            SdnqDtype::Int(bits) => CodeType::Int(bits),
            SdnqDtype::Uint(bits) => CodeType::Uint(bits),
            SdnqDtype::Native(_) => CodeType::Fp8,
            SdnqDtype::Packed(float) => CodeType::Minifloat {
                exponent: float.exponent,
                mantissa: float.mantissa,
                is_signed: float.is_signed,
            },
        }
    }

    /// The codes as rows of `cols`.
    pub(super) fn rows(&self, cols: usize) -> Codes<'m> {
        let bits = usize::from(self.dtype.bits());
        // Codes of one bit have words of their own.
        match bits {
            2 | 4 | 8 if (cols * bits).is_multiple_of(8) => Codes::Rows {
                part: self.tensor.part(),
                row_bytes: cols * bits / 8,
            },
            _ => Codes::Unpacked(self.unpacked(cols)),
        }
    }

    /// The codes as rows of `cols`, a byte each.
    pub(super) fn unpacked(&self, cols: usize) -> Box<dyn Unpack + 'm> {
        Box::new(PackedUnits {
            part: self.tensor.part(),
            cols,
            bits: usize::from(self.dtype.bits()),
            is_in_words: is_in_words(self.dtype),
        })
    }

    /// The codes of a matrix that is stored transposed, in rows of `rows`. They are bytes.
    pub(super) fn transposed(&self, rows: usize) -> Codes<'m> {
        let lines = CodeLines::new(&self.tensor, 8, false, rows);
        Codes::Unpacked(Box::new(TransposedCodes(lines)))
    }
}

fn is_in_words(dtype: SdnqDtype) -> bool {
    dtype.bits() == 1
}

/// Codes in units of eight, without regard to rows.
struct PackedUnits<'m> {
    part: Part<'m>,
    cols: usize,
    bits: usize,
    /// Whether each byte lies in a word of 64 bits.
    is_in_words: bool,
}

impl PackedUnits<'_> {
    /// Appends codes `first..first + n` of the tensor to `out`.
    fn extend(
        &self,
        first: usize,
        n: usize,
        staging: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let units = first / UNIT..(first + n).div_ceil(UNIT);
        let spread = if self.is_in_words { BIT_WORD } else { 1 };
        // The last unit may lack codes, and so have fewer bytes.
        let (whole, rest) = ((first + n) / UNIT, (first + n) % UNIT);
        let rest = (rest * self.bits).div_ceil(8);
        let end = whole * self.bits + rest.next_multiple_of(self.least_bytes());
        let bytes = units.start * self.bits * spread..end * spread;
        read(&self.part, bytes.end, 0..1, bytes, staging)?;
        if self.is_in_words {
            let kept = staging.len() / BIT_WORD;
            (0..kept).for_each(|i| staging[i] = staging[i * BIT_WORD]);
            staging.truncate(kept);
        }
        staging.resize(units.len() * self.bits, 0);
        let (at, skipped) = (out.len(), first % UNIT);
        out.resize(at + units.len() * UNIT, 0);
        unpack_units(self.bits, staging, &mut out[at..]);
        out.copy_within(at + skipped..at + skipped + n, at);
        out.truncate(at + n);
        Ok(())
    }

    /// Bytes that are packed together at least.
    fn least_bytes(&self) -> usize {
        match self.bits {
            3 | 5 | 7 => self.bits,
            6 => 3,
            _ => 1,
        }
    }
}

impl Unpack for PackedUnits<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let (rows, cols) = (tile.rows.clone(), tile.cols.clone());
        if cols.len() == self.cols {
            return self.extend(rows.start * self.cols, tile.values(), staging, out);
        }
        for row in rows {
            self.extend(row * self.cols + cols.start, cols.len(), staging, out)?;
        }
        Ok(())
    }
}
