//! How SDNQ stores codes of each dtype, and what they stand for.

use crate::config::{NativeFloat, SdnqDtype};
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::{Int, Minifloat, WideInt, WideMinifloat};
use crate::remember::kernels::sdnq::{unit, unpack_units, unpacked_bytes};
use crate::remember::layout::lines::{CodeLines, LinePacking, TransposedCodes};
use crate::remember::seam::grouped::{CodeFormat, Codes, Unpack};
use crate::remember::seam::{CodeType, Fp8Format, Tile, read, refused, wrong};
use crate::{Dtype, Result};

use super::FAMILY;

/// Most bits of a code.
const MAX_BITS: u8 = 16;

/// Bytes of a word that holds one byte of codes of one bit. The library packs booleans in
/// arithmetic of 64 bits.
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
            wrong(t, format!("the config says that its codes are {dtype:?}, which are {as_what}"))
        };
        let (stored, as_what) = match dtype {
            SdnqDtype::Int(8) => (Dtype::I8, "I8"),
            SdnqDtype::Native(NativeFloat::E4M3) => (Dtype::F8E4M3, "F8_E4M3"),
            SdnqDtype::Native(NativeFloat::E5M2) => (Dtype::F8E5M2, "F8_E5M2"),
            SdnqDtype::Native(NativeFloat::E4M3Fnuz) => (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ"),
            SdnqDtype::Native(NativeFloat::E5M2Fnuz) => (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ"),
            SdnqDtype::Native(NativeFloat::F16) => (Dtype::F16, "F16"),
            SdnqDtype::Native(NativeFloat::BF16) => (Dtype::BF16, "BF16"),
            SdnqDtype::Uint(16) | SdnqDtype::Packed(_) if dtype.bits() == 16 => (Dtype::U16, "U16"),
            _ if dtype.bits() > 8 => (Dtype::I16, "I16"),
            _ if is_in_words(dtype) => (Dtype::I64, "bytes in words of I64"),
            _ => (Dtype::U8, "U8"),
        };
        if t.dtype() != stored {
            return Err(misfit(as_what));
        }
        let (codes, words) = packed_together(usize::from(dtype.bits()));
        let count = match *t.shape() {
            _ if codes == 1 => Some(t.elements()),
            [n] if words == 1 => n.checked_mul(codes),
            [n, stored] if words > 1 && stored == words => n.checked_mul(codes),
            _ => None,
        };
        let count = count.ok_or_else(|| misfit("packed into tensors of another shape"))?;
        Ok(Self { tensor: *t, dtype, count })
    }

    /// Whether codes are stored one after another in bytes of their own, so that the tensor has
    /// their shape.
    pub(super) fn has_shape(&self) -> bool {
        self.dtype.bits().is_multiple_of(8)
    }

    /// What a code stands for.
    pub(super) fn format(&self) -> CodeFormat {
        match self.dtype {
            SdnqDtype::Int(8) => CodeFormat::Int(Int::signed(8)),
            SdnqDtype::Int(16) => CodeFormat::WideInt(WideInt::I16),
            SdnqDtype::Int(bits @ 9..) => {
                CodeFormat::WideInt(WideInt::offset_binary(usize::from(bits)))
            }
            SdnqDtype::Uint(9..) => CodeFormat::WideInt(WideInt::UNSIGNED),
            SdnqDtype::Int(bits) => CodeFormat::Int(Int::offset_binary(usize::from(bits))),
            SdnqDtype::Uint(_) => CodeFormat::Int(Int::UNSIGNED),
            SdnqDtype::Packed(float) => {
                let format = Minifloat::new(float.exponent.into(), float.mantissa.into());
                match float.bits() {
                    9.. => CodeFormat::WideMinifloat(WideMinifloat(format)),
                    _ => CodeFormat::Minifloat(format),
                }
            }
            SdnqDtype::Native(NativeFloat::F16) => CodeFormat::F16,
            SdnqDtype::Native(NativeFloat::BF16) => CodeFormat::BF16,
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
            SdnqDtype::Native(NativeFloat::F16) => CodeType::Fp16,
            SdnqDtype::Native(NativeFloat::BF16) => CodeType::Bf16,
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
            2 | 4 | 8 | 16 if (cols * bits).is_multiple_of(8) => {
                Codes::Rows { part: self.tensor.part(), row_bytes: cols * bits / 8 }
            }
            _ => Codes::Unpacked(self.unpacked(cols)),
        }
    }

    /// The codes as rows of `cols`, a byte each, or two if they have more than eight bits.
    pub(super) fn unpacked(&self, cols: usize) -> Box<dyn Unpack + 'm> {
        Box::new(PackedUnits {
            part: self.tensor.part(),
            cols,
            bits: usize::from(self.dtype.bits()),
            is_in_words: is_in_words(self.dtype),
        })
    }

    /// The codes of a matrix that is stored transposed, in rows of `rows`. They are whole bytes.
    pub(super) fn transposed(&self, rows: usize) -> Codes<'m> {
        let bytes = usize::from(self.dtype.bits()).div_ceil(8);
        let lines = CodeLines::new(&self.tensor, LinePacking::Bytes(bytes), rows);
        Codes::Unpacked(Box::new(TransposedCodes(lines)))
    }
}

fn is_in_words(dtype: SdnqDtype) -> bool {
    dtype.bits() == 1
}

/// How many codes of `bits` bits are packed together, and into how many words: of eight bits, or of
/// sixteen for codes of more than eight. As few as fill whole words.
fn packed_together(bits: usize) -> (usize, usize) {
    let word = unit(bits);
    let codes = word >> bits.trailing_zeros().min(word.trailing_zeros());
    (codes, codes * bits / word)
}

/// Codes in units, without regard to rows.
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
        let (unit, code_bytes) = (unit(self.bits), unpacked_bytes(self.bits));
        let unit_bytes = unit * self.bits / 8;
        let units = first / unit..(first + n).div_ceil(unit);
        let spread = if self.is_in_words { BIT_WORD } else { 1 };
        // The last unit may lack codes, and so have fewer bytes.
        let (whole, rest) = ((first + n) / unit, (first + n) % unit);
        let (_, words) = packed_together(self.bits);
        let rest = (rest * self.bits).div_ceil(8);
        let end = whole * unit_bytes + rest.next_multiple_of(words * code_bytes);
        let bytes = units.start * unit_bytes * spread..end * spread;
        read(&self.part, bytes.end, 0..1, bytes, staging)?;
        if self.is_in_words {
            let kept = staging.len() / BIT_WORD;
            (0..kept).for_each(|i| staging[i] = staging[i * BIT_WORD]);
            staging.truncate(kept);
        }
        staging.resize(units.len() * unit_bytes, 0);
        let (at, skipped) = (out.len(), first % unit * code_bytes);
        out.resize(at + units.len() * unit * code_bytes, 0);
        unpack_units(self.bits, staging, &mut out[at..]);
        out.copy_within(at + skipped..at + skipped + n * code_bytes, at);
        out.truncate(at + n * code_bytes);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_fill_whole_words() {
        let together = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16].map(packed_together);
        let narrow = [(8, 1), (4, 1), (8, 3), (2, 1), (8, 5), (4, 3), (8, 7), (1, 1)];
        let wide = [(16, 9), (8, 5), (16, 11), (4, 3), (16, 13), (8, 7), (16, 15), (1, 1)];
        assert_eq!(together, *[narrow, wide].as_flattened());
    }
}
